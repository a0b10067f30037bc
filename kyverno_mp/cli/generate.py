"""``generate``: preview the changes by generate rules and GeneratingPolicies.

Room: cli. Takes: policy files or names of stored policies, a cluster. Gives: a table
with diffs, or JSON, on standard output. Next: background/generate/preview.py and
background/generating/preview.py, which use parts of the background pool.
May touch: the API server through kube/, only reading and dry runs; files named by the
user.
Source: docs/background.md (preview).
"""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import click
import msgspec
import yaml

from kyverno_mp.background.caches import Caches
from kyverno_mp.background.dependencies import BackgroundDependencies
from kyverno_mp.background.existing import Existing
from kyverno_mp.background.generate.generator import Generator
from kyverno_mp.background.generate.preview import (
    UPDATE,
    Planned,
    Planner,
    Preview,
    Previewer,
)
from kyverno_mp.background.generating import policies as of_cel
from kyverno_mp.background.generating.policies import (
    CEL_GENERATORS,
    generators,
)
from kyverno_mp.background.generating.preview import GeneratingPreviewer
from kyverno_mp.background.objects.downstream import Downstream
from kyverno_mp.background.objects.kinds import Kinds
from kyverno_mp.background.objects.triggers import Triggers
from kyverno_mp.background.policies import (
    ReadyPolicy,
    StoredPolicy,
    ready_policy,
    stored_policy,
)
from kyverno_mp.background.register import KindRegister, RuleRegister
from kyverno_mp.cli.cluster.access import Cluster
from kyverno_mp.cli.cluster.preview import PreviewCommand, PreviewOptions, print_columns
from kyverno_mp.cli.cluster.preview_data import listed, preview_data
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.egress.kinds import LiveKinds
from kyverno_mp.egress.objects import LiveObjects
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.discovery import Discovery
from kyverno_mp.kube.policy_resources import RULE_POLICIES
from kyverno_mp.kube.resource import Resource
from kyverno_mp.queues.clock import Clock
from kyverno_mp.settings.settings import Settings
from kyverno_mp.values.jsonvalue import Json

_HEADERS: Final = ("ACTION", "POLICY", "RULE", "KIND", "NAMESPACE", "NAME", "TRIGGER")
_ACTIONS: Final = ("create", "update", "delete")
_SECRET: Final = ("data", "stringData")


class _Nobody:
    """Discards the Events and metrics of a preview."""

    def submit(self, _info: object) -> bool:
        return False

    def count(self, *_arguments: object) -> None:
        """Discard the count."""

    def hold(self, *_arguments: object) -> None:
        """Discard the value."""

    def observe(self, *_arguments: object) -> None:
        """Discard the observation."""


def preview(
    cluster: Cluster,
    policies: Sequence[ReadyPolicy | StoredPolicy],
    options: PreviewOptions,
) -> list[Preview]:
    """Return the preview of each policy. Raises: DependencyError, InputError."""
    parts = _Parts(cluster, options)
    of_rules, generating = parts.of_rules(), parts.generating()
    # Exceptions apply only to GeneratingPolicies here.
    needed = any(isinstance(policy, StoredPolicy) for policy in policies)
    with listed(generating.policies.exceptions if needed else ()):
        return [
            generating.preview(generating.policies.ready(policy))
            if isinstance(policy, StoredPolicy)
            else of_rules.preview(policy)
            for policy in policies
        ]


class _Parts:
    """The parts of the background pool, without write access."""

    def __init__(self, cluster: Cluster, options: PreviewOptions) -> None:
        self._options = options
        self._needs = needs = _dependencies(cluster)
        self._client = client = cluster.client
        clock_s = needs.clock.monotonic_s
        self._kinds = Kinds(client, clock_s)
        self._triggers = Triggers(client, self._kinds)
        self._downstream = Downstream(client, self._kinds, needs.holds_lease, clock_s)
        objects = Objects(client, self._downstream.guard)
        self._planner = Planner(objects, self._downstream)

    def of_rules(self) -> Previewer:
        """Return the previewer of generate rules."""
        downstream = self._downstream
        register = RuleRegister(self._client, self._options.kyverno, downstream.guard)
        return Previewer(
            Generator(
                *(self._needs, self._triggers, downstream, register),
                # The policies were just read, so they are not cached.
                Caches(lambda policy, _exceptions: policy, self._triggers),
                lambda _policy: None,
                lambda _policy, _rule, _places: None,
            ),
            Existing(self._needs, self._kinds),
            register,
            self._planner,
        )

    def generating(self) -> GeneratingPreviewer:
        """Return the previewer of GeneratingPolicies."""
        guard, options = self._downstream.guard, self._options
        return GeneratingPreviewer(
            self._needs,
            generators(self._client, options.exceptions),
            *(self._kinds, self._triggers),
            KindRegister(self._client, options.kyverno, guard, lambda: None),
            self._planner,
        )


def _dependencies(cluster: Cluster) -> BackgroundDependencies:
    """Return the dependencies of the pool's parts, without write access."""
    discovery = Discovery(cluster.client)
    discovery.refresh()
    data = preview_data(cluster, discovery.directory)
    objects = LiveObjects(cluster.client, LiveKinds(lambda: None, cluster.client))
    nobody: Any = _Nobody()
    return BackgroundDependencies(
        client=cluster.client,
        cluster_data=replace(data, objects=objects, scopes=objects),
        events=nobody,
        metrics=nobody,
        settings=Settings(),
        holds_lease=lambda: False,
        health=lambda _problems: None,
        clock=Clock(),
    )


def _read(
    resource: Resource, raw: Json, location: str
) -> ReadyPolicy | StoredPolicy | None:
    """Read a policy; return None without generate rules. Raises: PolicyInvalid.

    GeneratingPolicies are compiled later, when their exceptions are known.
    """
    is_cel = resource.group == CEL_GENERATORS.cluster.group
    metadata = dict(raw.get("metadata") or {})
    if resource.namespaced:
        metadata.setdefault("namespace", "default")
    document = {**raw, "metadata": metadata}
    try:
        body = msgspec.json.encode(document)
        if is_cel:
            return of_cel.stored_policy(resource, body)
        stored = stored_policy(resource, body)
    except msgspec.DecodeError as error:
        raise CommandFailed(f"{location}: {error}") from error
    ready = None if stored is None else ready_policy(stored)
    return ready if ready is not None and ready.generates else None


def _as_json(preview: Preview) -> Json:
    """Return the record of ``--output json``."""
    stored = preview.stored
    return {
        "policy": stored.name,
        "kind": stored.kind,
        "changes": [_change_as_json(each) for each in preview.planned],
        "unchanged": preview.unchanged,
        "problems": preview.problems,
    }


def _change_as_json(planned: Planned) -> Json:
    trigger = planned.trigger
    return {
        "action": planned.action,
        "rule": planned.rule,
        "apiVersion": planned.resource.api_version,
        "kind": planned.resource.kind,
        "namespace": planned.namespace,
        "name": planned.name,
        "trigger": None if trigger is None else msgspec.to_builtins(trigger),
        "before": None
        if planned.before is None
        else _shown(planned, planned.before, "before"),
        "after": None
        if planned.after is None
        else _shown(planned, planned.after, "after"),
    }


def _shown(planned: Planned, raw: Json, when: str) -> Json:
    """Return the object with a Secret's values redacted.

    Values that would change are marked as changed.
    """
    if planned.resource.kind != "Secret" or planned.resource.group:
        return raw
    redacted = dict(raw)
    for part in _SECRET:
        values = raw.get(part)
        if isinstance(values, dict):
            redacted[part] = {key: _hidden(planned, part, key, when) for key in values}
    return redacted


def _hidden(planned: Planned, part: str, key: str, when: str) -> str:
    both = [
        ((side or {}).get(part) or {}).get(key)
        for side in (planned.before, planned.after)
    ]
    return "***" if both[0] == both[1] or None in both else f"*** ({when})"


def _diff(planned: Planned) -> Iterator[str]:
    """Yield the lines of a unified diff."""
    path = "/".join(
        filter(None, (planned.resource.kind, planned.namespace, planned.name))
    )
    now, then = (
        yaml.safe_dump(_shown(planned, raw, when), sort_keys=True).splitlines()
        for raw, when in ((planned.before, "before"), (planned.after, "after"))
    )
    yield from difflib.unified_diff(
        now, then, fromfile=f"{path} (now)", tofile=f"{path} (then)", lineterm=""
    )


def _print_table(previews: Sequence[Preview]) -> None:
    rows = [
        (
            *(each.action, preview.stored.name, each.rule),
            *(each.resource.kind, each.namespace or "-", each.name),
            each.trigger.shown if each.trigger is not None else "-",
        )
        for preview in previews
        for each in preview.planned
    ]
    print_columns(_HEADERS, rows)
    for preview in previews:
        for each in preview.planned:
            if each.action == UPDATE:
                click.echo("\n".join(["", *_diff(each)]))
    for preview in previews:
        click.echo(_summary(preview))


def _summary(preview: Preview) -> str:
    actions = [each.action for each in preview.planned]
    counts = (f"{actions.count(name)} to {name}" for name in _ACTIONS)
    return (
        f"{preview.stored.name}: {', '.join(counts)}, {preview.unchanged} unchanged"
        + _when(preview)
    )


def _when(preview: Preview) -> str:
    """Return a note on objects that are created only when their triggers change."""
    if not preview.later or not any(
        each.action == "create" for each in preview.planned
    ):
        return ""
    return f"; created when each trigger changes, by {', '.join(preview.later)}"


COMMAND: Final[PreviewCommand[ReadyPolicy | StoredPolicy, Preview]] = PreviewCommand(
    cluster_wide=(RULE_POLICIES.cluster, CEL_GENERATORS.cluster),
    namespaced=(RULE_POLICIES.namespaced, CEL_GENERATORS.namespaced),
    policy="generate policy",
    object="triggers",
    read=_read,
    preview=preview,
    record=_as_json,
    show=_print_table,
    problems=lambda preview: preview.problems,
)

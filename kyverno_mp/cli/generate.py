"""``generate``: show what generate rules would make, change and delete now.

Room: cli. Takes: policy files or names of stored policies, a cluster. Gives: a table
with diffs, or JSON, on standard output. Next: background/preview.py, with the parts of
the background pool. May touch: the API server through kube/, reading and with dry runs;
files named by the user.
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
from kyverno_mp.background.downstream import Downstream
from kyverno_mp.background.existing import Existing
from kyverno_mp.background.generate import Generator
from kyverno_mp.background.kinds import Kinds
from kyverno_mp.background.policies import (
    CLUSTER_POLICIES,
    POLICIES,
    ReadyPolicy,
    ready_policy,
    stored_policy,
)
from kyverno_mp.background.preview import UPDATE, Planned, Preview, Previewer
from kyverno_mp.background.register import Register
from kyverno_mp.background.triggers import Triggers
from kyverno_mp.cli.cluster.access import Cluster
from kyverno_mp.cli.cluster.live_data import ClusterPorts, live_cluster_data
from kyverno_mp.cli.cluster.preview import PreviewCommand, print_columns
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.egress.kinds import LiveKinds
from kyverno_mp.egress.objects import LiveObjects
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.discovery import Discovery
from kyverno_mp.kube.resource import Resource
from kyverno_mp.queues.clock import Clock
from kyverno_mp.settings.settings import Settings
from kyverno_mp.values.jsonvalue import Json

_HEADERS: Final = ("ACTION", "POLICY", "RULE", "KIND", "NAMESPACE", "NAME", "TRIGGER")
_ACTIONS: Final = ("create", "update", "delete")
_SECRET: Final = ("data", "stringData")


class _Nobody:
    """Takes Events and counts of a run that nobody watches."""

    def submit(self, _info: object) -> bool:
        return False

    def count(self, *_of: object) -> None:
        """Keep nothing."""

    def hold(self, *_of: object) -> None:
        """Keep nothing."""


def preview(
    cluster: Cluster, policies: Sequence[ReadyPolicy], namespace: str
) -> list[Preview]:
    """Find what would happen. Raises: DependencyError, InputError."""
    previewer = _previewer(cluster, namespace)
    return [previewer.preview(one) for one in policies]


def _previewer(cluster: Cluster, namespace: str) -> Previewer:
    dependencies = _dependencies(cluster)
    client = cluster.client
    kinds = Kinds(client, dependencies.clock.monotonic_s)
    triggers = Triggers(client, kinds)
    downstream = Downstream(
        client, kinds, dependencies.holds_lease, dependencies.clock.monotonic_s
    )
    register = Register(client, namespace, downstream.guard)
    return Previewer(
        Generator(
            *(dependencies, triggers, downstream, register),
            # What is previewed was read just now.
            Caches(lambda policy, _exceptions: policy, triggers),
            lambda _policy: None,
        ),
        Existing(dependencies, kinds),
        register,
        Objects(client, downstream.guard),
    )


def _dependencies(cluster: Cluster) -> BackgroundDependencies:
    """Return the surroundings of the pool's parts, which may not write."""
    discovery = Discovery(cluster.client)
    discovery.refresh()
    data = live_cluster_data(ClusterPorts(cluster, discovery.directory), None)
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


def _ready(resource: Resource, raw: Json, location: str) -> ReadyPolicy | None:
    """Compile a policy; None without generate rules. Raises: PolicyInvalid."""
    metadata = dict(raw.get("metadata") or {})
    if resource.namespaced:
        metadata.setdefault("namespace", "default")
    document = {**raw, "metadata": metadata}
    try:
        stored = stored_policy(resource, msgspec.json.encode(document))
    except msgspec.DecodeError as error:
        raise CommandFailed(f"{location}: {error}") from error
    ready = None if stored is None else ready_policy(stored)
    return ready if ready is not None and ready.generates else None


def _as_json(one: Preview) -> Json:
    """Return the record of ``--output json``."""
    stored = one.policy.stored
    return {
        "policy": stored.name,
        "kind": stored.kind,
        "changes": [_change_as_json(each) for each in one.planned],
        "unchanged": one.unchanged,
        "problems": one.problems,
    }


def _change_as_json(one: Planned) -> Json:
    trigger = one.trigger
    return {
        "action": one.action,
        "rule": one.rule,
        "apiVersion": one.resource.api_version,
        "kind": one.resource.kind,
        "namespace": one.namespace,
        "name": one.name,
        "trigger": None if trigger is None else msgspec.to_builtins(trigger),
        "before": None if one.before is None else _shown(one, one.before, "before"),
        "after": None if one.after is None else _shown(one, one.after, "after"),
    }


def _shown(one: Planned, raw: Json, when: str) -> Json:
    """Return an object as it may be shown: values of a Secret are not.

    Values that would change are marked as changed.
    """
    if one.resource.kind != "Secret" or one.resource.group:
        return raw
    made = dict(raw)
    for part in _SECRET:
        values = raw.get(part)
        if isinstance(values, dict):
            made[part] = {key: _hidden(one, part, key, when) for key in values}
    return made


def _hidden(one: Planned, part: str, key: str, when: str) -> str:
    both = [((side or {}).get(part) or {}).get(key) for side in (one.before, one.after)]
    return "***" if both[0] == both[1] or None in both else f"*** ({when})"


def _diff(one: Planned) -> Iterator[str]:
    """Yield the lines of a unified diff."""
    place = "/".join(filter(None, (one.resource.kind, one.namespace, one.name)))
    now, then = (
        yaml.safe_dump(_shown(one, raw, when), sort_keys=True).splitlines()
        for raw, when in ((one.before, "before"), (one.after, "after"))
    )
    yield from difflib.unified_diff(
        now, then, fromfile=f"{place} (now)", tofile=f"{place} (then)", lineterm=""
    )


def _print_table(previews: Sequence[Preview]) -> None:
    rows = [
        (
            *(each.action, one.policy.stored.name, each.rule),
            *(each.resource.kind, each.namespace or "-", each.name),
            each.trigger.shown if each.trigger is not None else "-",
        )
        for one in previews
        for each in one.planned
    ]
    print_columns(_HEADERS, rows)
    for one in previews:
        for each in one.planned:
            if each.action == UPDATE:
                click.echo("\n".join(["", *_diff(each)]))
    for one in previews:
        click.echo(_summary(one))


def _summary(one: Preview) -> str:
    actions = [each.action for each in one.planned]
    counts = (f"{actions.count(name)} to {name}" for name in _ACTIONS)
    return (
        f"{one.policy.stored.name}: {', '.join(counts)}, {one.unchanged} unchanged"
        + _when(one)
    )


def _when(one: Preview) -> str:
    """Separate what happens when the policy is stored from what happens later."""
    later = sorted(
        rule.name for rule in one.policy.generates.values() if not rule.existing
    )
    if not later or not any(each.action == "create" for each in one.planned):
        return ""
    return f"; created when each trigger changes, by {', '.join(later)}"


COMMAND: Final = PreviewCommand(
    cluster_wide=CLUSTER_POLICIES,
    namespaced=POLICIES,
    policy="generate policy",
    object="triggers",
    read=_ready,
    preview=preview,
    record=_as_json,
    show=_print_table,
    problems=lambda one: one.problems,
)

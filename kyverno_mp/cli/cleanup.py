"""``cleanup``: show the objects that clean-up policies would delete now.

Room: cli. Takes: policy files or names of stored policies, a cluster. Gives: a table or
JSON on standard output. Next: cleanup/scan.py, which finds the objects as in the
service.
May touch: the API server through kube/, only reading; files named by the user.
Source: docs/cleanup.md (preview).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import click
import msgspec

from kyverno_mp.cleanup.deleting import compiled_in_cel
from kyverno_mp.cleanup.evaluator import Evaluator
from kyverno_mp.cleanup.exceptions import Exceptions
from kyverno_mp.cleanup.policy import (
    CEL_CLEANERS,
    CLEANERS,
    CompiledPolicy,
    StoredPolicy,
    compiled_policy,
    stored_policy,
)
from kyverno_mp.cleanup.scan import Scan, ScanInputs, scan
from kyverno_mp.cli.cluster.access import Cluster
from kyverno_mp.cli.cluster.preview import (
    PreviewCommand,
    PreviewOptions,
    print_columns,
)
from kyverno_mp.cli.cluster.preview_data import listed, preview_data
from kyverno_mp.cli.output.screen import say
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.errors import DependencyError
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.discovery import Directory, Discovery
from kyverno_mp.kube.resource import Resource, core
from kyverno_mp.program.matching.filters import (
    ResourceFilters,
    parse_resource_filters,
)
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.program.request import Request
from kyverno_mp.queues.clock import Clock
from kyverno_mp.settings.settings import Settings
from kyverno_mp.values.jsonvalue import Json

_HEADERS: Final = ("POLICY", "KIND", "NAMESPACE", "NAME")
_CONFIGURATION: Final = "kyverno"


@dataclass(frozen=True, slots=True)
class _Dependencies:
    """The dependencies of this command's evaluation."""

    cluster_data: ClusterData
    settings: Settings
    is_excluded: Callable[[Request], bool]
    clock: Clock


@dataclass(frozen=True, slots=True)
class _Preview:
    policy: CompiledPolicy
    scan: Scan
    now_s: int

    @property
    def is_halted(self) -> bool:
        """Return whether the deletion budget would halt the run."""
        budget, scan = self.policy.options.budget, self.scan
        return budget is not None and not budget.allows(scan.selected, scan.matched)

    def as_json(self) -> Json:
        """Return the record of ``--output json``."""
        policy, scan = self.policy, self.scan
        next_s = policy.due_s(policy.stored)
        return {
            "policy": policy.stored.shown,
            "kind": policy.stored.kind,
            "schedule": policy.plan.schedule,
            "nextRun": None if next_s is None else _time_text(max(self.now_s, next_s)),
            "dryRun": policy.options.is_dry_run,
            "budget": str(policy.options.budget) if policy.options.budget else None,
            "halted": self.is_halted,
            "matched": scan.matched,
            "objects": [
                {
                    "apiVersion": candidate.resource.api_version,
                    "kind": candidate.resource.kind,
                    "namespace": candidate.key[0],
                    "name": candidate.key[1],
                    "uid": candidate.uid,
                }
                for candidate in scan.candidates
            ],
            "problems": [failure.text for failure in scan.failures],
        }

    def summary(self) -> str:
        """Return the line below the table."""
        facts = self.as_json()
        line = (
            f"{facts['policy']}: {len(facts['objects'])} of {facts['matched']} matching"
            f" objects would be deleted; next run: {facts['nextRun'] or 'never'}"
        )
        if self.is_halted:
            line += f"; the deletion budget of {facts['budget']} would halt it"
        return line + ("; dry run" if facts["dryRun"] else "")


def preview(
    cluster: Cluster, policies: Sequence[StoredPolicy], options: PreviewOptions
) -> list[_Preview]:
    """Preview the deletions of each policy. Raises: DependencyError, InputError."""
    discovery = Discovery(cluster.client)
    discovery.refresh()
    needs = _dependencies(cluster, discovery.directory, options)
    compiled = _compiled(cluster, policies, needs.settings)
    inputs = ScanInputs(
        client=cluster.client,
        directory=discovery.directory,
        access=None,
        bound_namespaces=tuple,
        monotonic_s=time.monotonic,
        check_continue=lambda: None,
    )
    scans = [
        scan(policy.plan, Evaluator(policy.plan, needs), inputs) for policy in compiled
    ]
    now_s = int(time.time())
    return [_Preview(*pair, now_s) for pair in zip(compiled, scans, strict=True)]


def _compiled(
    cluster: Cluster, policies: Sequence[StoredPolicy], settings: Settings
) -> list[CompiledPolicy]:
    """Compile the policies; policies in CEL include the exceptions that name them."""
    exceptions = Exceptions(cluster.client, settings)

    def compiled(policy: StoredPolicy) -> CompiledPolicy:
        if not policy.is_deleting:
            return compiled_policy(policy, settings)
        naming = exceptions.naming(policy)
        return compiled_in_cel(policy, naming, exceptions.digest(policy), settings)

    needed = any(policy.is_deleting for policy in policies)
    with listed(exceptions.informers if needed else ()):
        return [compiled(policy) for policy in policies]


def _dependencies(
    cluster: Cluster, directory: Directory, options: PreviewOptions
) -> _Dependencies:
    settings = Settings(
        policy_exceptions=bool(options.exceptions),
        exception_namespace=options.exceptions,
    )
    data = preview_data(cluster, directory)
    filters = parse_resource_filters(_filters(cluster, options.kyverno))
    is_excluded = ResourceFilters(filters).skips_request
    return _Dependencies(data, settings, is_excluded, Clock())


def _filters(cluster: Cluster, namespace: str) -> str:
    """Return the resourceFilters of the cluster, "" if they cannot be read."""
    key = (namespace, _CONFIGURATION)
    try:
        config_map = Objects(cluster.client).find(core("configmaps"), key)
    except DependencyError as error:
        say(f"resourceFilters are not known: {error.message}", err=True)
        return ""
    return str(((config_map or {}).get("data") or {}).get("resourceFilters") or "")


def _stored(resource: Resource, raw: Json, location: str) -> StoredPolicy:
    """Read a policy; without a creation time, it counts as created now."""
    metadata = dict(raw.get("metadata") or {})
    metadata.setdefault("creationTimestamp", _time_text(int(time.time())))
    if resource.namespaced:
        metadata.setdefault("namespace", "default")
    try:
        policy = stored_policy(
            resource, msgspec.json.encode({**raw, "metadata": metadata})
        )
    except msgspec.DecodeError as error:
        raise CommandFailed(f"{location}: {error}") from error
    if policy is None:
        raise CommandFailed(f"{location}: the policy is being deleted")
    return policy


def _time_text(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _print_table(previews: Sequence[_Preview]) -> None:
    rows = [
        (preview.policy.stored.shown, each.resource.kind, *each.key)
        for preview in previews
        for each in preview.scan.candidates
    ]
    print_columns(_HEADERS, rows)
    for preview in previews:
        click.echo(preview.summary())


COMMAND: Final = PreviewCommand(
    cluster_wide=(CLEANERS[0], CEL_CLEANERS[0]),
    namespaced=(CLEANERS[1], CEL_CLEANERS[1]),
    policy="clean-up policy",
    object="objects to delete",
    read=_stored,
    preview=preview,
    record=_Preview.as_json,
    show=_print_table,
    problems=lambda preview: [each.text for each in preview.scan.failures],
)

"""``cleanup``: show what clean-up policies would delete now, and delete nothing.

Room: cli. Takes: policy files or names of stored policies, a cluster. Gives: a table or
JSON on standard output. Next: cleanup/scan.py finds the objects as the service does.
May touch: the API server through kube/, reading; files named by the user.
Source: docs/cleanup.md (preview).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
import msgspec

from kyverno_mp.cleanup.evaluator import Evaluator
from kyverno_mp.cleanup.policy import (
    CLUSTER_POLICIES,
    POLICIES,
    CompiledPolicy,
    StoredPolicy,
    compiled_policy,
    stored_policy,
)
from kyverno_mp.cleanup.scan import Scan, ScanInputs, scan
from kyverno_mp.cli.cluster.access import Cluster, open_cluster
from kyverno_mp.cli.cluster.live_data import ClusterPorts, live_cluster_data
from kyverno_mp.cli.errors import CommandFailed
from kyverno_mp.errors import DependencyError
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.discovery import Directory, Discovery
from kyverno_mp.kube.resource import Resource, core
from kyverno_mp.policy.load import load
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
_KINDS: Final = {one.kind: one for one in (CLUSTER_POLICIES, POLICIES)}
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
    found: Scan

    @property
    def is_halted(self) -> bool:
        """Whether the deletion budget would halt the run."""
        budget, found = self.policy.options.budget, self.found
        return budget is not None and not budget.allows(found.selected, found.matched)

    def as_json(self, now_s: int) -> Json:
        """Return the record of ``--output json``."""
        policy, found = self.policy, self.found
        next_s = policy.due_s(policy.stored)
        return {
            "policy": policy.stored.shown,
            "kind": policy.stored.kind,
            "schedule": policy.ir.schedule,
            "nextRun": None if next_s is None else _time_text(max(now_s, next_s)),
            "dryRun": policy.options.is_dry_run,
            "budget": str(policy.options.budget) if policy.options.budget else None,
            "halted": self.is_halted,
            "matched": found.matched,
            "objects": [
                {
                    "apiVersion": one.resource.api_version,
                    "kind": one.resource.kind,
                    "namespace": one.key[0],
                    "name": one.key[1],
                    "uid": one.uid,
                }
                for one in found.candidates
            ],
            "problems": [one.text for one in found.failures],
        }

    def summary(self, now_s: int) -> str:
        """Return the line below the table."""
        facts = self.as_json(now_s)
        text = (
            f"{facts['policy']}: {len(facts['objects'])} of {facts['matched']} matching"
            f" objects would be deleted; next run: {facts['nextRun'] or 'never'}"
        )
        if self.is_halted:
            text += f"; the deletion budget of {facts['budget']} would halt it"
        return text + ("; dry run" if facts["dryRun"] else "")


def preview(
    cluster: Cluster, policies: Sequence[StoredPolicy], namespace: str
) -> list[_Preview]:
    """Find what the policies would delete now. Raises: DependencyError, InputError."""
    discovery = Discovery(cluster.client)
    discovery.refresh()
    needs = _dependencies(cluster, discovery.directory, namespace)
    compiled = [compiled_policy(one, needs.settings) for one in policies]
    inputs = ScanInputs(
        client=cluster.client,
        directory=discovery.directory,
        access=None,
        bound_namespaces=tuple,
        monotonic_s=time.monotonic,
        check_continue=lambda: None,
    )
    return [
        _Preview(one, scan(one.ir, Evaluator(one.linked, needs), inputs))
        for one in compiled
    ]


def _dependencies(
    cluster: Cluster, directory: Directory, namespace: str
) -> _Dependencies:
    data = live_cluster_data(ClusterPorts(cluster, directory), None)
    filters = ResourceFilters(parse_resource_filters(_filters(cluster, namespace)))
    return _Dependencies(data, Settings(), filters.skips_request, Clock())


def _filters(cluster: Cluster, namespace: str) -> str:
    """Return the resourceFilters of the cluster, "" if they cannot be read."""
    key = (namespace, _CONFIGURATION)
    try:
        found = Objects(cluster.client).find(core("configmaps"), key)
    except DependencyError as error:
        click.echo(f"resourceFilters are not known: {error.message}", err=True)
        return ""
    return str(((found or {}).get("data") or {}).get("resourceFilters") or "")


def _policies(cluster: Cluster, names: Sequence[str]) -> Iterator[StoredPolicy]:
    """Read the policies of files, and those that the cluster has stored."""
    for name in names:
        if name == "-" or Path(name).exists():
            yield from _of_file(name)
        else:
            yield _of_cluster(cluster, name)


def _of_file(path: str) -> Iterator[StoredPolicy]:
    with click.open_file(path, "rb") as file:
        documents = load(file.read(), file=path)
    for document in documents:
        raw = document.raw
        resource = _KINDS.get(raw.get("kind", "")) if isinstance(raw, dict) else None
        if resource is not None:
            yield _stored(resource, raw, path)


def _of_cluster(cluster: Cluster, name: str) -> StoredPolicy:
    namespace, _, own = name.rpartition("/")
    resource = POLICIES if namespace else CLUSTER_POLICIES
    raw = Objects(cluster.client).find(resource, (namespace, own))
    if raw is None:
        raise CommandFailed(
            f"{resource.kind} {name}: no such file, and not in the cluster"
        )
    return _stored(resource, raw, name)


def _stored(resource: Resource, raw: Json, place: str) -> StoredPolicy:
    """Read a policy; without a creation time it counts as created now."""
    metadata = dict(raw.get("metadata") or {})
    metadata.setdefault("creationTimestamp", _time_text(int(time.time())))
    if resource.namespaced:
        metadata.setdefault("namespace", "default")
    try:
        found = stored_policy(
            resource, msgspec.json.encode({**raw, "metadata": metadata})
        )
    except msgspec.DecodeError as error:
        raise CommandFailed(f"{place}: {error}") from error
    if found is None:
        raise CommandFailed(f"{place}: the policy is being deleted")
    return found


def _time_text(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _print_table(previews: Sequence[_Preview], now_s: int) -> None:
    rows = [
        (one.policy.stored.shown, each.resource.kind, *each.key)
        for one in previews
        for each in one.found.candidates
    ]
    if rows:
        lines = [_HEADERS, *rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            cells = zip(line, widths, strict=True)
            click.echo("   ".join(cell.ljust(width) for cell, width in cells).rstrip())
    for one in previews:
        click.echo(one.summary(now_s))


def called(
    policies: tuple[str, ...],
    *,
    is_cluster: bool,
    output: str,
    kubeconfig: str,
    context: str,
    kyverno_namespace: str,
) -> int:
    """Show; exit with 1 if something could not be decided."""
    if not is_cluster:
        raise CommandFailed("give --cluster: only a cluster has objects to delete")
    with open_cluster(kubeconfig, context) as cluster:
        chosen = list(_policies(cluster, policies))
        if not chosen:
            raise CommandFailed("no clean-up policy in " + ", ".join(policies))
        previews = preview(cluster, chosen, kyverno_namespace)
    now_s = int(time.time())
    if output == "json":
        records = [one.as_json(now_s) for one in previews]
        body = msgspec.json.encode({"policies": records})
        click.echo(msgspec.json.format(body).decode())
    else:
        _print_table(previews, now_s)
    problems = [one.text for each in previews for one in each.found.failures]
    if output == "table":
        for text in problems:
            click.echo(f"not decided: {text}", err=True)
    return 1 if problems else 0

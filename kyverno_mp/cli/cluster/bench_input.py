"""Read the input of ``bench --cluster``: stored policies, and a sample of the objects.

Room: cli. Takes: a Cluster. Gives: a PolicySet, objects, the cluster data that rules
read.
Next: cli/bench.py. May touch: the API server through kube/, standard error.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from kyverno_mp.cli.cluster.access import Cluster, open_cluster
from kyverno_mp.cli.cluster.live_data import ClusterPorts, live_cluster_data
from kyverno_mp.cli.cluster.resources import (
    Wanted,
    kinds_of,
    load_cluster,
    objects_of,
    resources_of,
)
from kyverno_mp.cli.cluster.spool import Spool
from kyverno_mp.cli.output.screen import say
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.sources.compiled import Compiled
from kyverno_mp.cli.sources.policies import stored_policies
from kyverno_mp.cli.sources.policy_set import PolicySet
from kyverno_mp.errors import NamespaceGone
from kyverno_mp.kube.discovery import Directory, Discovery
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.program.matching.subject import metadata_text
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import WITH_RULES

_POLICIES: Final = (
    *((stored.api_versions[0], stored.kind) for stored in WITH_RULES.stored),
    ("kyverno.io/v2", "PolicyException"),
)
_OBJECTS_MAX: Final = 1000
"""Objects in a measurement: each rule runs on each of them at least four times, so
1,000 objects and 100 rules are 400,000 evaluations, about a minute."""


class Source:
    """An open cluster and its discovered resources."""

    def __init__(self, cluster: Cluster, directory: Directory) -> None:
        self._cluster = cluster
        self._directory = directory
        self._ports = ClusterPorts(cluster, directory)

    def policies(self) -> PolicySet:
        """Return all stored policies and exceptions.

        Raises: CommandFailed, DependencyError.
        """
        objects: list[Json] = []
        for api_version, kind in _POLICIES:
            resource = self._directory.of_kind(api_version, kind)
            if resource is not None:
                scope = WatchScope(resource=resource)
                objects += objects_of(self._cluster.client, scope)
            elif kind == WITH_RULES.name:
                raise CommandFailed(
                    f"the cluster does not have the kind {kind}; name policy"
                    " files, or install the CustomResourceDefinitions (crds)"
                )
        return stored_policies(objects)

    def objects(self, compiled: Compiled, namespace: str) -> list[dict[str, Json]]:
        """Return an even sample of the objects of the matched kinds."""
        resources = resources_of(kinds_of(compiled), (), self._directory)
        with Spool() as spool:
            selection = Wanted(namespace=namespace)
            loading = load_cluster(self._cluster.client, resources, selection, spool)
            for error in loading.errors:
                say(f"not listed: {error}", err=True)
            chosen = _sample(len(spool))
            if len(chosen) < len(spool):
                message = f"measured: {len(chosen)} of {len(spool)} objects"
                say(message, err=True)
            objects = [spool.object(position) for position in chosen]
        return [raw for raw in objects if self._has_namespace(raw)]

    def _has_namespace(self, raw: dict[str, Json]) -> bool:
        """Return whether the namespace of a listed object still exists."""
        namespace = metadata_text(raw, "namespace")
        try:
            if namespace:
                self._ports.labels(namespace)
        except NamespaceGone:
            path = f"{namespace}/{raw.get('kind')}/{metadata_text(raw, 'name')}"
            say(f"skipped, its namespace was deleted: {path}", err=True)
            return False
        return True

    def cluster_data(self) -> ClusterData:
        """Return the ports through which rules read the cluster."""
        return live_cluster_data(self._ports, None)


def _sample(count: int) -> Sequence[int]:
    """Return at most _OBJECTS_MAX positions, evenly distributed over all kinds."""
    if count <= _OBJECTS_MAX:
        return range(count)
    return [position * count // _OBJECTS_MAX for position in range(_OBJECTS_MAX)]


@contextmanager
def open_source(kubeconfig: str, context: str) -> Iterator[Source]:
    """Open the cluster. Raises: SettingInvalid, DependencyError."""
    with open_cluster(kubeconfig, context) as cluster:
        discovery = Discovery(cluster.client)
        discovery.refresh()
        for group_version in discovery.stale:
            message = f"the API server does not serve this group: {group_version}"
            say(message, err=True)
        yield Source(cluster, discovery.directory)

"""Let previews read the cluster like the pools, without writing.

Room: cli. Takes: a Cluster and its Directory. Gives: ``preview_data``, ``listed``.
Next: cli/cleanup.py, cli/generate.py. May touch: the API server through kube/ and
egress/, only reading and dry runs; informers' threads.
Source: docs/cleanup.md (preview), docs/background.md (preview).
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from kyverno_mp.cli.cluster.access import Cluster
from kyverno_mp.cli.cluster.live_data import ClusterPorts, live_cluster_data
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.egress.namespaces import LiveNamespaces
from kyverno_mp.egress.resources import LiveResources
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.discovery import Directory
from kyverno_mp.program.ports import ClusterData

_POLL_S: Final = 0.02


def preview_data(cluster: Cluster, directory: Directory) -> ClusterData:
    """Return the ports of a preview; a policy's ``resource.post`` is a dry run."""
    ports = ClusterPorts(cluster, directory)
    data = live_cluster_data(ports, None)
    namespaces = LiveNamespaces(lambda _name: None, cluster.client)

    def resources(*, is_namespaced: bool) -> LiveResources:
        return LiveResources(
            lambda: ports.client,
            ports.plural_of,
            is_namespaced=is_namespaced,
            is_dry_run=True,
        )

    cel = data.cel._replace(
        resources=resources(is_namespaced=False),
        own_resources=resources(is_namespaced=True),
        namespaces=namespaces,
    )
    return replace(data, namespace_objects=namespaces, cel=cel)


@contextmanager
def listed(informers: Iterable[Informer[Any]]) -> Iterator[None]:
    """Let informers list their objects before the block, and stop them after it.

    Raises: CommandFailed if a kind cannot be listed. A kind that is not served counts
    as empty.
    """
    started = list(informers)
    for informer in started:
        informer.start()
    try:
        for informer in started:
            # Each attempt ends, because each call has a deadline.
            while not informer.wait_synced(_POLL_S):
                if informer.failures and not informer.is_absent:
                    kind = informer.scope.resource.plural
                    raise CommandFailed(
                        f"{kind} cannot be listed: {informer.last_error}"
                    )
                if informer.failures:
                    break
        yield
    finally:
        for informer in started:
            informer.stop()

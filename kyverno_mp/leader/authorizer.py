"""Run the leader of an authorizer: policies of the cluster and of folders.

Room: leader. Takes: Settings, the runtime folder. Gives: nothing; ends at SIGTERM.
Next: leader/loop.py publishes. May touch: threads, the API server (reads only), the
folders.
Source: docs/behaviour/cel 15.6.

It registers nothing and holds no lease: it only reads ValidatingPolicies and
PolicyExceptions. Of two policies with one name, the cluster's applies.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kyverno_mp import __version__
from kyverno_mp.kube.access import access_of
from kyverno_mp.kube.pool import Pool
from kyverno_mp.kube.rest import Client
from kyverno_mp.leader import loop
from kyverno_mp.leader.cluster import authorizer_policies
from kyverno_mp.leader.cluster_data import ClusterDataFolder
from kyverno_mp.leader.configuration import FixedConfiguration
from kyverno_mp.leader.control.health import LeaderHealth, write_leader_health
from kyverno_mp.leader.folder import Changes, Folder
from kyverno_mp.leader.sources import PolicySource, Sources
from kyverno_mp.settings.read import environment
from kyverno_mp.settings.settings import Settings

USER_AGENT: Final = f"kyverno-mp/{__version__}"
_HEALTH_NS: Final = 1_000_000_000


class ManySources:
    """Several sources of policies as one."""

    def __init__(self, sources: Sequence[PolicySource]) -> None:
        self._sources = sources

    def poll(
        self,
        now_ns: int,
        *,
        force: bool = False,
        wait: Callable[[], None] | None = None,
    ) -> Changes:
        """Return the changes of all sources since the last call."""
        polled = [
            source.poll(now_ns, force=force, wait=wait) for source in self._sources
        ]
        return Changes(
            {
                name: data
                for changes in polled
                for name, data in changes.changed.items()
            },
            tuple(name for changes in polled for name in changes.removed),
            tuple(problem for changes in polled for problem in changes.problems),
            tuple(path for changes in polled for path in changes.unread),
        )


def folders_of(settings: Settings) -> list[Folder]:
    """Return the folders and files with an authorizer's policies."""
    paths = (settings.policies_dir, *settings.authz_sources.split(","))
    # Absolute: such names sort before those of the cluster's objects, which then apply.
    return [Folder(Path(path.strip()).absolute()) for path in paths if path.strip()]


def run_authorizer_leader(settings: Settings, runtime_dir: Path) -> None:
    """Publish the policies until SIGTERM. Raises: SettingInvalid."""
    folders = folders_of(settings)
    if settings.standalone:
        loop.run(settings, runtime_dir, _sources(settings, ManySources(folders)))
        return
    client = Client(Pool(access_of(settings.kubeconfig, environment())), USER_AGENT)
    policies = authorizer_policies(client)
    informers = policies.cel_informers
    sources = _sources(
        settings,
        ManySources((*folders, policies)),
        are_complete=lambda: policies.is_complete,
        on_change=policies.on_change,
    )
    health = _Health(runtime_dir, lambda: informers[0].last_message_ns)
    for informer in informers:
        informer.start()
    try:
        loop.run(settings, runtime_dir, sources, health.gauges)
    finally:
        for informer in informers:
            informer.stop()


def _sources(
    settings: Settings,
    policies: PolicySource,
    **more: Callable[..., Any],
) -> Sources:
    return Sources(
        policies, ClusterDataFolder(None), FixedConfiguration(settings), **more
    )


class _Health:
    """Reports once a second when the API server last confirmed the policies."""

    def __init__(self, runtime_dir: Path, confirmed_ns: Callable[[], int]) -> None:
        self._runtime_dir = runtime_dir
        self._confirmed_ns = confirmed_ns
        self._next_ns = 0

    def gauges(self) -> Mapping[str, int]:
        """Write the health when it is due; an authorizer has no gauges of its own."""
        now_ns = time.monotonic_ns()
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + _HEALTH_NS
            health = LeaderHealth(trusted=True, confirmed_ns=self._confirmed_ns())
            write_leader_health(self._runtime_dir, health)
        return {}

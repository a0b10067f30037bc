"""Run the leader of an authorizer: policies of the cluster, of folders and of images.

Room: leader. Takes: Settings, the runtime folder. Gives: nothing; ends at SIGTERM.
Next: leader/artifacts.py; leader/loop.py publishes. May touch: threads, the API server
(reads only), registries, the folders.
Source: docs/behaviour/cel 15.6.

It registers nothing and holds no lease: it only reads ValidatingPolicies and
PolicyExceptions. Of two policies with one name, the cluster's applies.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from kyverno_mp import __version__
from kyverno_mp.errors import KubeNotFound
from kyverno_mp.images.access import RegistrySettings, ServedClients
from kyverno_mp.kube.access import access_of
from kyverno_mp.kube.pool import Pool
from kyverno_mp.kube.resource import core
from kyverno_mp.kube.rest import Client
from kyverno_mp.leader import loop
from kyverno_mp.leader.artifacts import SCHEME, Artifact
from kyverno_mp.leader.cluster import authorizer_policies
from kyverno_mp.leader.cluster_data import ClusterDataFolder
from kyverno_mp.leader.configuration import FixedConfiguration
from kyverno_mp.leader.control.health import LeaderHealth, write_leader_health
from kyverno_mp.leader.folder import Changes, Folder
from kyverno_mp.leader.sources import PolicySource, Sources
from kyverno_mp.program.ports import RegistryAccess
from kyverno_mp.registry.credentials import DockerConfig, RegistryCertificates
from kyverno_mp.registry.exchange import exchange
from kyverno_mp.registry.reference import Reference, parse_reference
from kyverno_mp.settings.read import environment
from kyverno_mp.settings.settings import Settings
from kyverno_mp.values.jsonvalue import Json

USER_AGENT: Final = f"kyverno-mp/{__version__}"
_SECRETS: Final = core("secrets")
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
    paths = (settings.policies_dir, *_named_sources(settings))
    # Absolute: such names sort before those of the cluster's objects, which then apply.
    return [
        Folder(Path(path).absolute())
        for path in paths
        if path and not path.startswith(SCHEME)
    ]


def images_of(settings: Settings) -> list[Reference]:
    """Return the images with an authorizer's policies. Raises: RequestInvalid."""
    return [
        parse_reference(source.removeprefix(SCHEME))
        for source in _named_sources(settings)
        if source.startswith(SCHEME)
    ]


def _named_sources(settings: Settings) -> list[str]:
    sources = (source.strip() for source in settings.authz_sources.split(","))
    return [source for source in sources if source]


def run_authorizer_leader(settings: Settings, runtime_dir: Path) -> None:
    """Publish the policies until SIGTERM. Raises: SettingInvalid."""
    folders = folders_of(settings)
    if settings.standalone:
        artifacts = artifacts_of(settings, None)
        sources = _sources(settings, ManySources((*folders, *artifacts)), artifacts)
        _run(artifacts, lambda: loop.run(settings, runtime_dir, sources))
        return
    client = Client(Pool(access_of(settings.kubeconfig, environment())), USER_AGENT)
    policies = authorizer_policies(client)
    informers = policies.cel_informers
    artifacts = artifacts_of(settings, client)
    sources = _sources(
        settings, ManySources((*folders, *artifacts, policies)), artifacts, [policies]
    )
    health = _Health(runtime_dir, lambda: informers[0].last_message_ns)
    _run(
        (*informers, *artifacts),
        lambda: loop.run(settings, runtime_dir, sources, health.gauges),
    )


class _Watched(Protocol):
    """The policies of a cluster."""

    @property
    def is_complete(self) -> bool:
        """Whether all of them were listed."""

    def on_change(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` when there are changes to poll."""


class _Started(Protocol):
    """What has a thread of its own."""

    def start(self) -> None:
        """Start the thread."""

    def stop(self) -> None:
        """End the thread."""


def _run(threads: Sequence[_Started], run: Callable[[], None]) -> None:
    """Run while the threads do."""
    for one in threads:
        one.start()
    try:
        run()
    finally:
        for one in threads:
            one.stop()


def artifacts_of(settings: Settings, client: Client | None) -> list[Artifact]:
    """Return the images as sources; without a cluster, no Secret has credentials."""
    env = environment()
    folder = env.get("DOCKER_CONFIG")
    clients = ServedClients(
        RegistrySettings(
            namespace=settings.namespace,
            secrets=tuple(filter(None, settings.image_pull_secrets.split(","))),
            helpers=("default",),
            insecure=settings.allow_insecure_registry,
            certificates=RegistryCertificates(settings.registry_certificates),
        ),
        exchange,
        USER_AGENT,
        None if client is None else partial(_secret, client, settings.namespace),
        DockerConfig(
            Path(folder) if folder else Path(env.get("HOME") or "/") / ".docker"
        ),
    )
    interval_s = float(settings.authz_oci_interval_s)
    mode = "" if settings.allow_empty else settings.evaluation_mode
    return [
        Artifact(reference, lambda: clients(RegistryAccess()), interval_s, mode)
        for reference in images_of(settings)
    ]


def _secret(client: Client, namespace: str, name: str) -> Json | None:
    """Return a Secret of our namespace, None if it does not exist."""
    try:
        return client.get(_SECRETS.object((namespace, name)))
    except KubeNotFound:
        return None


def _sources(
    settings: Settings,
    sources: PolicySource,
    artifacts: Sequence[Artifact],
    watched: Sequence[_Watched] = (),
) -> Sources:
    """Return the sources of the leader, which waits for a first look at each."""

    def are_complete() -> bool:
        has_listed = all(source.is_complete for source in watched)
        return has_listed and all(artifact.is_tried for artifact in artifacts)

    def on_change(wake: Callable[[], None]) -> None:
        for artifact in artifacts:
            artifact.on_change(wake)
        for source in watched:
            source.on_change(wake)

    return Sources(
        sources,
        ClusterDataFolder(None),
        FixedConfiguration(settings),
        are_complete=are_complete,
        on_change=on_change,
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

"""Provide a pool with the data that the leader of its pod publishes, and live calls.

Room: process. Takes: the snapshot folder, a client of the pool's account. Gives:
PoolData: the ports of policies, the operator's resource filters, the namespaces in
which the account has a role. Next: process/roles/pool_start.py.
May touch: maps files of the snapshot folder; the API server through egress.
Source: docs/pools.md 1; docs/architecture.md 3 (shared data segments).
"""

import logging
import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

from kyverno_mp.egress.api_calls import LiveCalls
from kyverno_mp.egress.clients import open_services
from kyverno_mp.egress.config_maps import LiveConfigMaps
from kyverno_mp.egress.dry_runs import LiveDryRuns
from kyverno_mp.egress.hosts import resolve_host
from kyverno_mp.egress.kinds import KINDS, LiveKinds
from kyverno_mp.egress.lookups import Lookups
from kyverno_mp.egress.namespaces import LiveNamespaces
from kyverno_mp.egress.objects import LiveObjects
from kyverno_mp.egress.resources import LiveResources
from kyverno_mp.egress.schemas import LiveSchemas
from kyverno_mp.egress.types import LiveTypes
from kyverno_mp.errors import SnapshotUnusable
from kyverno_mp.kube.events import Successes
from kyverno_mp.kube.rest import Client
from kyverno_mp.policy.configuration import UPDATE_REQUEST_THRESHOLD, successes_of
from kyverno_mp.program.matching.filters import ResourceFilters, parse_resource_filters
from kyverno_mp.program.ports import CelPorts, ClusterData, RuleSettings
from kyverno_mp.program.request import Request
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.configured import SETTINGS, Configured, configured_of
from kyverno_mp.snapshot.control import ControlPage
from kyverno_mp.snapshot.data import DataSegment
from kyverno_mp.snapshot.follow import Follower
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.webhook.configured import rule_settings_of
from kyverno_mp.webhook.images import ServedImages, served_images
from kyverno_mp.webhook.live import named_secrets_of, secrets_of
from kyverno_mp.webhook.shared import SharedClusterData

_log = logging.getLogger(__name__)
_NEEDED: Final = ("namespaces", "configmaps", "roles", "globalcontext", "apicalls")
"""Without these segments, a policy could match an object that it must not match."""


class _Configured:
    """One generation of the operator's configuration, compiled."""

    def __init__(self, configured: Configured) -> None:
        configuration = configured.configuration
        self.successes = successes_of(configuration)
        self.filters = ResourceFilters(
            parse_resource_filters(configuration.resource_filters)
        )
        self.rule_settings = rule_settings_of(configuration)
        self.threshold = configuration.update_request_threshold


def follow_successes(snapshot: Path) -> Successes:
    """Return a function that names the policies whose successes cause Events.

    KYVERNO: until they are known, no success does, as is the default
    (generateSuccessEvents).
    """
    configured = _follow_configured(snapshot, ControlPage.open(snapshot))

    def successes() -> frozenset[str] | None:
        current = configured.current()
        return None if current is None else current.successes

    return successes


class PoolData:
    """The data that one pool reads; thread-safe."""

    def __init__(
        self,
        settings: Settings,
        snapshot: Path,
        client: Client,
        account: str,
        images: ServedImages | None = None,
    ) -> None:
        """``account`` is the name of the pool's ServiceAccount.

        ``images`` are the ports to registries, None for the ports of a pool that
        verifies no images.
        """
        served = images or served_images(
            settings,
            None,
            secrets_of(client, settings.namespace),
            is_scan=True,
            read_key_secret=named_secrets_of(client),
        )
        control = ControlPage.open(snapshot)
        self._followers = {
            name: Follower(snapshot, control, name, _data_of, on_refused=refused)
            for name in (*_NEEDED, KINDS)
        }
        self._configured = _follow_configured(snapshot, control)
        self._names = _names_of(settings.namespace, account)
        shared = SharedClusterData(
            {name: one.current for name, one in self._followers.items()}
        )
        kinds = LiveKinds(self._kinds, client)
        self.served = kinds.directory
        """Returns the resources that the leader has published, empty before."""
        objects = LiveObjects(client, kinds)
        services = open_services(settings)
        namespaces = LiveNamespaces(shared.namespace, client)
        self.cluster_data = ClusterData(
            config_maps=LiveConfigMaps(None, client),
            api_calls=LiveCalls(client, services),
            global_context=shared,
            namespaces=shared,
            namespace_objects=namespaces,
            objects=objects,
            scopes=objects,
            cel=CelPorts(
                resources=LiveResources(lambda: client, kinds.plural_of),
                own_resources=LiveResources(
                    lambda: client, kinds.plural_of, is_namespaced=True
                ),
                references=shared,
                services=services,
                namespaces=namespaces,
                images=served.metadata,
                own_images=served.own_metadata,
                types=LiveTypes(LiveSchemas(client)),
            ),
            images=served.data,
            reviewed_images=served.begin,
            manifests=served.manifests.with_dry_runs(
                LiveDryRuns(client, kinds, settings.namespace)
            ),
            random_bytes=os.urandom,
            resolve_host=Lookups(resolve_host).soon,
            settings=self._rule_settings,
        )

    def is_whole(self) -> bool:
        """Return whether the leader has published all data that policies need."""
        return self._configured.current() is not None and all(
            self._followers[name].current() is not None for name in _NEEDED
        )

    def segment(self, name: str) -> DataSegment | None:
        """Return the newest generation of a data segment, None before the first."""
        return self._followers[name].current()

    def is_excluded(self, request: Request) -> bool:
        """Return whether the operator's resourceFilters exempt an object.

        Raises: SnapshotUnusable before the first publication.
        """
        filters = self._current().filters
        return filters.skips_request(request) or filters.skips_policies(request)

    def update_request_threshold(self) -> int:
        """Return updateRequestThreshold; its default before the first publication."""
        current = self._configured.current()
        return UPDATE_REQUEST_THRESHOLD if current is None else current.threshold

    def bound_namespaces(self) -> Collection[str]:
        """Return the namespaces in which a RoleBinding names the account."""
        segment = self._followers["roles"].current()
        if segment is None:
            return ()
        return {
            namespace
            for name in self._names
            for namespace, _kind, _role in segment.get(name) or ()
            if namespace
        }

    def _rule_settings(self) -> RuleSettings:
        return self._current().rule_settings

    def _current(self) -> _Configured:
        configured = self._configured.current()
        if configured is None:
            raise SnapshotUnusable("pool.no_snapshot", "nothing is configured yet")
        return configured

    def _kinds(self) -> Json | None:
        segment = self._followers[KINDS].current()
        return None if segment is None else segment.get(KINDS)


def _follow_configured(snapshot: Path, control: ControlPage) -> Follower[_Configured]:
    return Follower(snapshot, control, SETTINGS, _configuration_of, on_refused=refused)


def _data_of(segment: Segment, _previous: DataSegment | None) -> DataSegment:
    return DataSegment(segment)


def _configuration_of(segment: Segment, _previous: _Configured | None) -> _Configured:
    return _Configured(configured_of(DataSegment(segment)))


def refused(error: SnapshotUnusable) -> None:
    """Log a generation that could not be used."""
    _log.error("%s", error.message)


def _names_of(namespace: str, account: str) -> tuple[str, ...]:
    """Return the keys of the segment ``roles`` (leader/cluster_data.py)."""
    groups = (
        "system:serviceaccounts",
        f"system:serviceaccounts:{namespace}",
        "system:authenticated",
    )
    user = f"system:serviceaccount:{namespace}:{account}"
    return (f"s:{user}", f"n:{user}", *(f"n:{group}" for group in groups))

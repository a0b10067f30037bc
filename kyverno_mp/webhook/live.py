"""Open the ports to the API server and to services, for one worker in a cluster.

Room: webhook. Takes: Settings, the shared cluster data. Gives: Live, None without a
cluster. Next: start.py. May touch: the environment through settings, the files of a
kubeconfig; the first call opens the connections.
Source: docs/architecture.md 3 (live calls through pooled connections);
docs/behaviour/controllers 5.9, 11.5-6.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kyverno_mp.admission.decode import TopKind, built_in_kind
from kyverno_mp.egress.access_reviews import LivePermissions
from kyverno_mp.egress.api_calls import LiveCalls
from kyverno_mp.egress.authority import LiveAuthority
from kyverno_mp.egress.clients import open_client, open_services
from kyverno_mp.egress.config_maps import LiveConfigMaps
from kyverno_mp.egress.dry_runs import LiveDryRuns
from kyverno_mp.egress.kinds import LiveKinds
from kyverno_mp.egress.namespaces import LiveNamespaces
from kyverno_mp.egress.objects import LiveObjects
from kyverno_mp.egress.resources import LiveResources
from kyverno_mp.egress.schemas import LiveSchemas
from kyverno_mp.egress.types import LiveTypes
from kyverno_mp.errors import KubeNotFound
from kyverno_mp.images.access import ReadSecret
from kyverno_mp.kube.queries import Labels
from kyverno_mp.kube.resource import core
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.rights import MissingRights
from kyverno_mp.policy.ports import ClusterView, account_of
from kyverno_mp.program.ports import (
    ApiCalls,
    Authority,
    CelPorts,
    ConfigMaps,
    KindScopes,
    NamespaceObjects,
    Objects,
    ReadNamedSecret,
)
from kyverno_mp.settings.settings import Settings
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.webhook.shared import SharedClusterData

_SECRETS: Final = core("secrets")
_SECRET_NS_MAX: Final = 5_000_000_000


@dataclass(frozen=True, slots=True)
class Live:
    """The ports that a folder of canned responses replaces without a cluster."""

    api_calls: ApiCalls
    config_maps: ConfigMaps
    objects: Objects
    scopes: KindScopes
    namespaces: NamespaceObjects
    authority: Authority
    cel: CelPorts
    read_secret: ReadSecret
    """Reads a Secret of our namespace with registry credentials."""
    read_key_secret: ReadNamedSecret
    """Reads a Secret with a public key, in any namespace that our account may read."""
    dry_runs: LiveDryRuns
    """Creates signed manifests in a dry run."""
    view: ClusterView
    """The view of the cluster for reviews of policies."""
    top_kind: TopKind
    """The cluster's kinds, for reviews of subresources."""


def live_ports(
    settings: Settings,
    shared: SharedClusterData,
    kinds: Callable[[], Json | None],
    on_query: Callable[[Labels], None],
    on_failure: Callable[[str], None] = lambda _code: None,
    rights: MissingRights | None = None,
) -> Live | None:
    """Return the ports of this worker. Raises: SettingInvalid.

    ``kinds`` returns the discovery rows that the leader published. ``on_query``
    receives each call to the API server, in any thread. ``on_failure`` receives the
    codes of failures that cause only warnings, in any thread. ``rights`` gets each
    answer of the API server.
    """
    if settings.standalone:
        return None
    client = open_client(settings)
    client.on_query, client.rights = on_query, rights
    known = LiveKinds(kinds, client)
    namespace = settings.namespace
    schemas = LiveSchemas(client, on_failure)
    permissions = LivePermissions(client, namespace)
    view = ClusterView(
        kinds=known,
        permissions=permissions,
        schemas=schemas,
        admission=account_of(namespace, "admission"),
        background=settings.background_service_account,
        reports=settings.reports_service_account,
        cleanup=settings.cleanup_service_account,
        opens=shared.opens,
        authors=permissions if settings.check_policy_authors else None,
    )
    objects = LiveObjects(client, known)
    services = open_services(settings)
    namespaces = LiveNamespaces(shared.namespace, client)
    return Live(
        api_calls=LiveCalls(client, services),
        config_maps=LiveConfigMaps(
            shared if settings.config_map_caching else None, client
        ),
        objects=objects,
        scopes=objects,
        namespaces=namespaces,
        authority=LiveAuthority(client),
        cel=CelPorts(
            resources=LiveResources(lambda: client, known.plural_of),
            own_resources=LiveResources(
                lambda: client, known.plural_of, is_namespaced=True
            ),
            references=shared,
            services=services,
            namespaces=namespaces,
            types=LiveTypes(schemas),
        ),
        read_secret=secrets_of(client, namespace),
        read_key_secret=named_secrets_of(client),
        dry_runs=LiveDryRuns(client, known, namespace, settings.image_threads),
        view=view,
        top_kind=_top_kind_of(known),
    )


def secrets_of(client: Client, namespace: str) -> ReadSecret:
    """Return a reader for Secrets of our namespace."""

    def read_secret(name: str) -> Json | None:
        deadline_ns = time.monotonic_ns() + _SECRET_NS_MAX
        try:
            path = _SECRETS.object((namespace, name))
            return client.get(path, deadline_ns=deadline_ns)
        except KubeNotFound:
            return None

    return read_secret


def named_secrets_of(client: Client) -> ReadNamedSecret:
    """Return a function that reads Secrets of any namespace, within the deadline."""

    def read_secret(namespace: str, name: str, deadline_ns: int) -> Json | None:
        latest_ns = time.monotonic_ns() + _SECRET_NS_MAX
        until_ns = min(deadline_ns or latest_ns, latest_ns)
        try:
            return client.get(_SECRETS.object((namespace, name)), deadline_ns=until_ns)
        except KubeNotFound:
            return None

    return read_secret


def _top_kind_of(live_kinds: LiveKinds) -> TopKind:
    def top_kind(group: str, version: str, resource: str) -> str | None:
        found = built_in_kind(group, version, resource)
        return found or live_kinds.kind_of(group, version, resource)

    return top_kind

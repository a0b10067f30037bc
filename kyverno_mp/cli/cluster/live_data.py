"""Let policies on the command line read the cluster, with a deadline for each call.

Room: cli. Takes: a Cluster and its Directory. Gives: the ports of program/ports.py.
Next: apply. May touch: the API server through kube/ and egress/; services through
egress/, which is closed by default, as in the service.
Source: docs/behaviour/cli 7, 7b; docs/behaviour/engine 3.7, 7.6.
"""

import os
import time
from collections.abc import Mapping
from typing import Final

from kyverno_mp.cli.cluster.access import USER_AGENT, Cluster
from kyverno_mp.cli.cluster.resources import objects_of
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.egress.addresses import read_rules
from kyverno_mp.egress.api_calls import LiveCalls
from kyverno_mp.egress.config_maps import LiveConfigMaps
from kyverno_mp.egress.hosts import resolve_host
from kyverno_mp.egress.resources import LiveResources
from kyverno_mp.egress.schemas import LiveSchemas
from kyverno_mp.egress.services import ServiceRules, Services
from kyverno_mp.egress.types import LiveTypes
from kyverno_mp.errors import (
    DependencyError,
    ExpressionFailed,
    KubeNotFound,
    NamespaceGone,
)
from kyverno_mp.images.metadata import RegistryMetadata
from kyverno_mp.kube.discovery import Directory
from kyverno_mp.kube.resource import Resource, core
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.program.ports import (
    ApiRequest,
    CelPorts,
    ClusterData,
    Images,
    ObjectQuery,
)
from kyverno_mp.settings.settings import Settings
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.kinds import KindSelector
from kyverno_mp.values.typed.schema import Schemas
from kyverno_mp.values.wildcard import contains_wildcard, matches

_NAMESPACES: Final = core("namespaces", namespaced=False)
_SECRETS: Final = core("secrets")
_CALL_NS: Final = 10 * 10**9


class _NoShared:
    """Stand-in for a service worker's segment of labelled ConfigMaps; always empty."""

    def config_map(self, namespace: str, name: str, deadline_ns: int) -> Json:
        del deadline_ns
        raise ExpressionFailed("context.configmap_not_found", f"{namespace}/{name}")


class ClusterPorts:
    """All ports of one run; forked processes open their own connections."""

    def __init__(self, cluster: Cluster, directory: Directory) -> None:
        self._cluster = cluster
        self._directory = directory
        defaults = Settings()
        rules = read_rules(
            defaults.http_allowlist,
            defaults.http_blocklist,
            for_namespaced=defaults.http_in_namespaced_policies,
        )
        self.services = Services(ServiceRules(urls=rules), resolve_host, USER_AGENT)
        self._labels: dict[str, dict[str, str]] = {}
        self._types: tuple[Client, LiveTypes] | None = None

    @property
    def client(self) -> Client:
        """The connections of this process."""
        return self._cluster.client

    def plural_of(self, api_version: str, kind: str) -> str:
        """Return the plural name of a kind, "" for an unknown kind."""
        resource = self._directory.of_kind(api_version, kind)
        return "" if resource is None else resource.plural

    def types(self, api_version: str, kind: str, deadline_ns: int) -> Schemas | None:
        """Return the types of a kind. Raises: DependencyError, InputError."""
        client = self._cluster.client
        if self._types is None or self._types[0] is not client:
            self._types = client, LiveTypes(LiveSchemas(client))
        return self._types[1].types(api_version, kind, deadline_ns)

    def config_map(self, namespace: str, name: str, deadline_ns: int) -> Json:
        """Return the ConfigMap. Raises: ExpressionFailed, DeadlinePassed."""
        # Runs of the command line have no deadline.
        deadline_ns = deadline_ns or time.monotonic_ns() + _CALL_NS
        live_config_maps = LiveConfigMaps(_NoShared(), self._cluster.client)
        return live_config_maps.config_map(namespace, name, deadline_ns)

    def call(self, request: ApiRequest, deadline_ns: int) -> Json:
        """Answer a call. Raises: ExpressionFailed, DeadlinePassed."""
        # Runs of the command line have no deadline.
        deadline_ns = deadline_ns or time.monotonic_ns() + _CALL_NS
        calls = LiveCalls(self._cluster.client, self.services)
        return calls.call(request, deadline_ns)

    def secret(self, namespace: str, name: str, deadline_ns: int) -> Json | None:
        """Return the Secret, None if it does not exist. Raises: DependencyError."""
        deadline_ns = deadline_ns or time.monotonic_ns() + _CALL_NS
        path = _SECRETS.object((namespace, name))
        try:
            return self._cluster.client.get(path, deadline_ns=deadline_ns)
        except KubeNotFound:
            return None

    def labels(self, namespace: str) -> Mapping[str, str]:
        """Return the labels of a namespace; each namespace is read once.

        Raises: NamespaceGone; CommandFailed for every other failure, because upstream
        ends the run.
        """
        labels = self._labels.get(namespace)
        if labels is None:
            try:
                raw = self._cluster.client.get(_NAMESPACES.object(("", namespace)))
            except DependencyError as error:
                message = f"failed to get the resource's namespace ({error.message})"
                if isinstance(error, KubeNotFound):
                    raise NamespaceGone("cluster.namespace_gone", message) from error
                raise CommandFailed(message) from error
            labels = raw["metadata"].get("labels") or {}
            self._labels[namespace] = labels
        return labels

    def objects(self, object_query: ObjectQuery, _deadline_ns: int) -> list[Json]:
        """Return the targets of a rule. Raises: ExpressionFailed, DependencyError."""
        kind = KindSelector(
            object_query.group, object_query.version, object_query.kind, ""
        )
        resources = self._directory.find(kind)
        if not resources:
            raise ExpressionFailed(
                "mutate.target", f"failed to find resource of kind {object_query.kind}"
            )
        targets = [
            raw for resource in resources for raw in self._list(resource, object_query)
        ]
        if not object_query.subresource:
            return targets
        parts = (self._part_of(raw, object_query.subresource) for raw in targets)
        return [part for part in parts if part is not None]

    def _list(self, resource: Resource, object_query: ObjectQuery) -> list[Json]:
        """Return the objects of one resource with the requested namespace and name."""
        plain = object_query.namespace and not contains_wildcard(object_query.namespace)
        scope = WatchScope(
            resource=resource,
            namespace=object_query.namespace if plain and resource.namespaced else "",
        )
        return [
            raw
            for raw in objects_of(self._cluster.client, scope)
            if matches(object_query.name or "*", raw["metadata"]["name"])
            and matches(
                object_query.namespace or "*", raw["metadata"].get("namespace", "")
            )
        ]

    def _part_of(self, raw: Json, subresource: str) -> Json | None:
        """Return the subresource of a listed object, None if it no longer exists."""
        resource = self._directory.of_kind(raw["apiVersion"], raw["kind"])
        assert resource is not None
        metadata = raw["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        try:
            return self._cluster.client.get(resource.object(key, subresource))
        except KubeNotFound:
            return None


def live_cluster_data(ports: ClusterPorts, images: Images | None) -> ClusterData:
    """Return the cluster data of ``apply --cluster``."""
    return ClusterData(
        config_maps=ports,
        api_calls=ports,
        namespaces=ports,
        objects=ports,
        images=images,
        key_secrets=ports.secret,
        cel=CelPorts(
            resources=LiveResources(lambda: ports.client, ports.plural_of),
            images=None if images is None else RegistryMetadata(images),
            services=ports.services,
            types=ports,
        ),
        random_bytes=os.urandom,
        resolve_host=resolve_host,
    )

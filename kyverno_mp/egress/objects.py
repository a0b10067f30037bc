"""Read the cluster objects that rules request by kind, namespace and name.

Room: egress. Takes: ObjectQuery. Gives: the objects; satisfies program/ports.Objects.
Next: webhook/live.py. May touch: the API server through kube/rest.py.
Source: docs/behaviour/engine 7.6 (targets), 6.4 (parameters);
docs/behaviour/controllers 5.4.

A rule requests one object or a collection; the size of a collection is bounded.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from kyverno_mp.egress.kinds import LiveKinds
from kyverno_mp.errors import ExpressionFailed, KubeNotFound, KubeUnavailable
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Call, Client
from kyverno_mp.limits import KUBE_PAGE_OBJECTS, LIVE_OBJECTS_BYTES_MAX
from kyverno_mp.program.ports import ObjectQuery
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.kinds import KindSelector
from kyverno_mp.values.wildcard import contains_wildcard, matches

_ANY: Final = ("", "*")


class _ListMeta(msgspec.Struct):
    next_page: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct):
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)
    items: list[dict[str, Json]] | None = None


_PAGE: Final = msgspec.json.Decoder(_Page)


class LiveObjects:
    """The current objects of the cluster; thread-safe."""

    def __init__(self, client: Client, kinds: LiveKinds) -> None:
        self._client = client
        self._kinds = kinds

    def objects(self, object_query: ObjectQuery, deadline_ns: int) -> Sequence[Json]:
        """Return the objects, sorted by namespace and name.

        Raises: ExpressionFailed, DependencyError; KubeNotFound only if the query
        matches a single resource. If one of several was removed meanwhile, it has no
        objects.
        """
        selector = KindSelector(
            object_query.group, object_query.version, object_query.kind, ""
        )
        resources = self._kinds.resources(selector)
        if not resources:
            raise ExpressionFailed(
                "egress.kind", f"failed to get GVR for kind {_shown(object_query)}"
            )
        objects: list[Json] = []
        for resource in resources:
            if object_query.namespace not in _ANY and not resource.namespaced:
                # A cluster-scoped resource has no objects in the requested namespace.
                continue
            try:
                objects += self._of_resource(resource, object_query, deadline_ns)
            except KubeNotFound:
                if len(resources) == 1:
                    raise
        if object_query.subresource:
            objects = [
                part
                for raw in objects
                for part in self._parts(raw, resources, object_query, deadline_ns)
            ]
        return sorted(objects, key=_place)

    def is_namespaced(self, group: str, version: str, kind: str) -> bool:
        """Return whether a kind is namespaced; satisfies program/ports.KindScopes.

        Raises: ExpressionFailed.
        """
        resources = self._kinds.resources(KindSelector(group, version, kind, ""))
        if not resources:
            raise ExpressionFailed(
                "egress.kind",
                f"failed to check if resource is namespaced or not ({kind} is not"
                " served)",
            )
        return resources[0].namespaced

    def _of_resource(
        self, resource: Resource, object_query: ObjectQuery, deadline_ns: int
    ) -> list[Json]:
        exact = (
            object_query.namespace
            if not contains_wildcard(object_query.namespace)
            else ""
        )
        named = bool(object_query.name) and not contains_wildcard(object_query.name)
        if named and (bool(exact) or not resource.namespaced):
            raw = self._one(resource.object((exact, object_query.name)), deadline_ns)
            return [] if raw is None else [_typed(raw, resource)]
        query: list[tuple[str, str]] = []
        if named:
            query.append(("fieldSelector", f"metadata.name={object_query.name}"))
        return [
            _typed(each, resource)
            for each in self._list(resource.collection(exact), query, deadline_ns)
            if _is_asked(each, object_query)
        ]

    def _one(self, path: str, deadline_ns: int) -> Json | None:
        try:
            return self._client.get(path, deadline_ns=deadline_ns)
        except KubeNotFound:
            return None

    def _list(
        self, path: str, query: list[tuple[str, str]], deadline_ns: int
    ) -> list[dict[str, Json]]:
        items: list[dict[str, Json]] = []
        size, token = 0, ""
        while True:
            paged = [*query, ("limit", str(KUBE_PAGE_OBJECTS))]
            if token:
                paged.append(("continue", token))
            body = self._client.call(
                Call(method="GET", path=path, query=paged), deadline_ns
            )
            size += len(body)
            if size > LIVE_OBJECTS_BYTES_MAX:
                raise ExpressionFailed(
                    "egress.too_large",
                    f"{path} has more than {LIVE_OBJECTS_BYTES_MAX} bytes",
                )
            page = _page(body, path)
            items += page.items or ()
            token = page.metadata.next_page
            if not token:
                return items

    def _parts(
        self,
        raw: Json,
        resources: Sequence[Resource],
        object_query: ObjectQuery,
        deadline_ns: int,
    ) -> list[Json]:
        """Return the requested subresources of one object."""
        version, kind = raw.get("apiVersion"), raw.get("kind")
        parts = []
        for resource in resources:
            if (resource.api_version, resource.kind) != (version, kind):
                continue
            selector = KindSelector(
                resource.group,
                resource.version,
                resource.kind,
                object_query.subresource,
            )
            for part in self._kinds.resources(selector):
                path = resource.object(_place(raw), part.subresource)
                subresource = self._one(path, deadline_ns)
                if subresource is not None:
                    parts.append(subresource)
        return parts


def _page(body: bytes, path: str) -> _Page:
    try:
        return _PAGE.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise KubeUnavailable(
            "kube.answer", f"{path}: the answer is not a list"
        ) from error


def _is_asked(raw: Json, object_query: ObjectQuery) -> bool:
    namespace, name = _place(raw)
    return (
        object_query.namespace in _ANY or matches(object_query.namespace, namespace)
    ) and (object_query.name in _ANY or matches(object_query.name, name))


def _typed(raw: Json, resource: Resource) -> Json:
    """K8S: items of a list carry neither kind nor apiVersion."""
    raw.setdefault("apiVersion", resource.api_version)
    raw.setdefault("kind", resource.kind)
    return raw


def _place(raw: Json) -> tuple[str, str]:
    metadata = raw.get("metadata") or {}
    return str(metadata.get("namespace") or ""), str(metadata.get("name") or "")


def _shown(object_query: ObjectQuery) -> str:
    return "/".join(
        filter(None, (object_query.group, object_query.version, object_query.kind))
    )

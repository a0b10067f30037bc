"""Provide rules with cluster data from the segments that the leader publishes.

Room: webhook. Takes: followers of data segments. Gives: the ports of program/ports.py,
Roles and NamespaceLabels of webhook/ports.py. Next: start.py wires them.
May touch: nothing outside its arguments; it makes no calls.
Source: docs/architecture.md 3 (shared data segments); leader/cluster_data.py (keys and
values); docs/behaviour/controllers 2.2 (roles).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from kyverno_mp.errors import ExpressionFailed, SnapshotUnusable
from kyverno_mp.limits import SHARED_ANSWERS_MAX
from kyverno_mp.program.ports import ApiRequest
from kyverno_mp.program.request import UNREAD_LABELS
from kyverno_mp.snapshot.data import DataSegment, opened_key, projection_key
from kyverno_mp.values.jsonvalue import Json

Current = Callable[[], DataSegment | None]
"""The newest generation of one segment, None before the first."""
_Roles = tuple[tuple[str, ...], tuple[str, ...]]
K = TypeVar("K")
T = TypeVar("T")


class SharedClusterData:
    """The ports of all published data; callers must not modify the returned values."""

    def __init__(self, segments: Mapping[str, Current]) -> None:
        """``segments`` are keyed by the names in leader/cluster_data.py."""
        self._namespaces = segments["namespaces"]
        self._config_maps = segments["configmaps"]
        self._roles = segments["roles"]
        self._global_context = segments["globalcontext"]
        self._api_calls = segments["apicalls"]
        self._label_cache: _Cache[str, Mapping[str, str] | None] = _Cache(None)
        self._role_cache: _Cache[tuple[str, str, tuple[str, ...]], _Roles] = _Cache(
            None
        )

    def labels(self, namespace: str) -> Mapping[str, str] | None:
        """Return the labels, None if the namespace does not exist.

        If no namespaces are published at all, any namespace can exist; its labels are
        UNREAD_LABELS.
        """
        segment = self._namespaces()
        cache = self._label_cache
        if cache.segment is not segment:
            cache = self._label_cache = _Cache(segment)
        return cache.get(namespace, lambda: _labels(segment, namespace))

    def namespace(self, name: str, deadline_ns: int = 0) -> Json | None:
        """Return the Namespace, None if it is unknown."""
        del deadline_ns  # nothing here blocks
        return _get(self._namespaces, f"{name}/")

    def config_map(self, namespace: str, name: str, deadline_ns: int) -> Json:
        """Return the object, without a call. Raises: ExpressionFailed."""
        del deadline_ns
        found = _get(self._config_maps, f"{namespace}/{name}")
        if found is None:
            raise ExpressionFailed(
                "context.configmap_not_found", f'configmaps "{name}" not found'
            )
        return found

    def entry(self, name: str) -> Json:
        """Return the data of ``entry[.projection]``. Raises: ExpressionFailed.

        KYVERNO: the name is split at dots and a third part is ignored, so an entry with
        a dot in its name cannot be read (docs/behaviour/controllers 11.4).
        """
        entry, _, rest = name.partition(".")
        projection = rest.partition(".")[0]
        key = projection_key(entry, projection) if projection else entry
        found = _get(self._global_context, key)
        if found is None:
            found = _get(self._global_context, projection_key(entry, ""))
        if found is None:
            known = _get(self._global_context, entry) is not None
            text = f'projection "{projection}" not found'
            found = {"error": text if known else f"failed to fetch entry key={entry}"}
        if "error" in found:
            raise ExpressionFailed("context.global_entry", found["error"])
        return found["data"]

    def opens(self, name: str, namespace: str) -> bool:
        """Return whether policies of the namespace may read the entry."""
        return _get(self._global_context, opened_key(name, namespace)) is True

    def reference(self, name: str, projection: str) -> Json:
        """Return the data of an entry for CEL, None for an unknown entry.

        Raises: ExpressionFailed for an entry that is not ready, and for a projection
        that does not exist.
        """
        key = projection_key(name, projection) if projection else name
        found = _get(self._global_context, key)
        if found is None:
            found = _get(self._global_context, projection_key(name, ""))
        if found is None:
            if not projection or _get(self._global_context, name) is None:
                return None
            found = {"error": f'projection "{projection}" not found'}
        if "error" in found:
            raise ExpressionFailed("context.global_entry", found["error"])
        return found["data"]

    def call(self, request: ApiRequest, deadline_ns: int) -> Json:
        """Return the canned response. Raises: ExpressionFailed."""
        del deadline_ns  # nothing here blocks
        target = request.path or request.url
        found = _get(self._api_calls, f"{request.method} {target}")
        if found is None or "error" in found:
            reason = found["error"] if found else "no answer is given for it"
            raise ExpressionFailed(
                "context.apicall",
                f"failed to {request.method} resource with raw url: {target}: {reason}",
            )
        return found["data"]

    def image_data(
        self, reference: str, deadline_ns: int, *, is_tenants: bool = False
    ) -> Json:
        """Return the canned data of an image. Raises: ExpressionFailed."""
        del deadline_ns, is_tenants  # nothing here blocks
        data = _get(self._api_calls, f"IMAGE {reference}")
        if data is None or "error" in data:
            reason = data["error"] if data else "no data is given for it"
            raise ExpressionFailed(
                "context.image",
                f"failed to fetch image descriptor: {reference}, error: {reason}",
            )
        return data["data"]

    def roles_of(
        self, namespace: str, username: str, groups: Sequence[str]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return ``(roles as ns:name, cluster roles)``, sorted, without duplicates.

        Raises: SnapshotUnusable before the first generation, because without roles, a
        rule that includes a user by role would not match, and the request would be
        allowed.
        """
        segment = self._roles()
        if segment is None:
            raise SnapshotUnusable("webhook.no_snapshot", "no roles are loaded yet")
        cache = self._role_cache
        if cache.segment is not segment:
            cache = self._role_cache = _Cache(segment)
        return cache.get(
            (namespace, username, tuple(groups)),
            lambda: _roles_of(segment, namespace, username, groups),
        )


class _Cache(Generic[K, T]):
    """Results computed from one generation of a segment.

    PERF: most users and namespaces need look-ups of seven absent keys, about 20 us.
    """

    __slots__ = ("_values", "segment")

    def __init__(self, segment: DataSegment | None) -> None:
        self.segment = segment
        self._values: dict[K, T] = {}

    def get(self, key: K, work_out: Callable[[], T]) -> T:
        """Return the cached value; compute it on first use."""
        try:
            return self._values[key]
        except KeyError:
            pass
        if len(self._values) >= SHARED_ANSWERS_MAX:
            self._values.clear()
        value = self._values[key] = work_out()
        return value


def _labels(segment: DataSegment | None, namespace: str) -> Mapping[str, str] | None:
    if segment is None:
        return UNREAD_LABELS
    found: Mapping[str, str] | None = segment.get(namespace)
    return UNREAD_LABELS if found is None and segment.get("") is None else found


def _roles_of(
    segment: DataSegment, namespace: str, username: str, groups: Sequence[str]
) -> _Roles:
    roles: set[str] = set()
    cluster_roles: set[str] = set()
    for key in (f"s:{username}", f"n:{username}", *(f"n:{g}" for g in groups)):
        for bound_in, kind, name in segment.get(key) or ():
            if bound_in and bound_in != namespace:
                continue
            if kind == "ClusterRole":
                cluster_roles.add(name)
            elif kind == "Role":
                roles.add(f"{bound_in}:{name}")
    return tuple(sorted(roles)), tuple(sorted(cluster_roles))


def _get(current: Current, key: str) -> Json | None:
    segment = current()
    return None if segment is None else segment.get(key)

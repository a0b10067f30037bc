"""Read single objects by name without a call, because each of them is watched.

Room: kube. Takes: a Client, the objects. Gives: FollowedObjects. Next:
leader/control/wire.py, for controllers that look at an object every second.
May touch: the API server through kube/cache.py and kube/apply.py.
Source: Kubernetes authorization: a list or watch with ``metadata.name`` in its field
selector needs the permission for this name only.

While a watch is not healthy, e.g. because the account may only get the object, reading
is a call again. A reader therefore gets an error, and no old state, while the API
server is away. What this process has written is returned until the watch has reached
it.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from kyverno_mp.kube.apply import Objects, key_of
from kyverno_mp.kube.cache import Informer, whole
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.values.jsonvalue import Json

_NAME: Final = "metadata.name="


def named(resource: Resource, key: Key) -> WatchScope:
    """Return the scope of one object."""
    namespace, name = key
    return WatchScope(
        resource=resource, namespace=namespace, field_selector=f"{_NAME}{name}"
    )


class _Watched:
    """The watch of one object, and what this process wrote since."""

    def __init__(self, client: Client, resource: Resource, key: Key) -> None:
        self._key = key
        self.informer = Informer(client, named(resource, key), whole)
        self._lock = threading.Lock()
        self._written: tuple[int, bytes] = (0, b"")

    @property
    def is_healthy(self) -> bool:
        return self.informer.synced and not self.informer.failures

    def newest(self) -> Json | None:
        """Return the object, None if it does not exist."""
        with self._lock:
            version, content = self._written
        if version and version > version_number(self.informer.notified_version):
            return msgspec.json.decode(content)
        cached = self.informer.get(self._key)
        return None if cached is None else msgspec.json.decode(cached)

    def wrote(self, raw: Json) -> None:
        version = version_number(str(raw["metadata"].get("resourceVersion")))
        with self._lock:
            self._written = version, msgspec.json.encode(raw)

    def deleted(self) -> None:
        with self._lock:
            self._written = 0, b""


class FollowedObjects(Objects):
    """Objects of which some are watched, once the informers are started."""

    def __init__(self, client: Client, names: Iterable[tuple[Resource, Key]]) -> None:
        """``names``: the objects to watch."""
        super().__init__(client)
        self._watched = {
            (resource, key): _Watched(client, resource, key) for resource, key in names
        }

    @property
    def informers(self) -> list[Informer[bytes]]:
        """The informers to start."""
        return [entry.informer for entry in self._watched.values()]

    @property
    def is_followed(self) -> bool:
        """Whether all watches work: their handlers get each change."""
        return all(entry.is_healthy for entry in self._watched.values())

    def guarded(self, guard: Callable[[], None]) -> "FollowedObjects":
        """Return a copy with another guard, which reads from the same watches."""
        copy = FollowedObjects(self._client, ())
        copy._guard, copy._watched = guard, self._watched
        return copy

    def find(self, resource: Resource, key: Key) -> Json | None:
        """Return the object, None when it does not exist. Raises: DependencyError."""
        watched = self._watched.get((resource, key))
        if watched is None or not watched.is_healthy:
            return super().find(resource, key)
        return watched.newest()

    def create(self, resource: Resource, raw: Json) -> Json:
        """Create the object. Raises: as Objects.create."""
        return self._noted(resource, super().create(resource, raw))

    def replace(self, resource: Resource, raw: Json, subresource: str = "") -> Json:
        """Replace the object. Raises: as Objects.replace."""
        return self._noted(resource, super().replace(resource, raw, subresource))

    def delete(
        self,
        resource: Resource,
        key: Key,
        uid: str | None = None,
        *,
        resource_version: str | None = None,
        propagation: str = "",
    ) -> bool:
        """Delete the object. Raises: as Objects.delete."""
        watched = self._watched.get((resource, key))
        if watched is not None:
            watched.deleted()
        return super().delete(
            resource,
            key,
            uid,
            resource_version=resource_version,
            propagation=propagation,
        )

    def _noted(self, resource: Resource, raw: Json) -> Json:
        watched = self._watched.get((resource, key_of(raw)))
        if watched is not None:
            watched.wrote(raw)
        return raw


def version_number(version: str) -> int:
    """Return a resource version; K8S: those of one resource can be compared."""
    return int(version) if version.isdecimal() else 0

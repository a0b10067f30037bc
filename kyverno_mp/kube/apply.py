"""Read and write single objects with the verbs of the API server.

Room: kube. Takes: a Client and a guard. Gives: objects as JSON. Next: kube/lease.py,
kube/events.py, controllers, leader. May touch: the API server through kube/rest.py.
Source: Kubernetes API concepts (verbs, server-side apply, dry run, preconditions).

``guard`` is called before each attempt of a write; a lease holder's guard raises
LeaseLost. Leases do not fence (docs/architecture.md 3), so a write may still arrive
late. Therefore all writes are idempotent.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from kyverno_mp.errors import KubeConflict, KubeNotFound, KubeUnavailable
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.kube.rest import (
    APPLY_PATCH,
    JSON,
    JSON_PATCH,
    MERGE_PATCH,
    Call,
    Client,
)
from kyverno_mp.kube.watch import IDENTITY, METADATA_ONLY
from kyverno_mp.values.jsonvalue import Json

_CONFLICTS_MAX: Final = 5
FIELD_MANAGER: Final = "kyverno-mp"
_BRIEF: Final = f"{METADATA_ONLY.format('PartialObjectMetadata')},{JSON}"
_UNCHECKED: Final = (("fieldValidation", "Ignore"),)
"""K8S: the server skips the check for unknown or repeated fields. PERF: for objects
that this program builds, the check only makes a write slower.
"""


def _always() -> None:
    """Allow every write: the guard of writers without a lease."""


class Objects:
    """Reads and writes single objects; threads may share it."""

    def __init__(
        self,
        client: Client,
        guard: Callable[[], None] = _always,
        manager: str = FIELD_MANAGER,
    ) -> None:
        """``manager``: the field manager of ``apply``."""
        self._client = client
        self._guard = guard
        self._manager = manager

    @property
    def is_followed(self) -> bool:
        """Whether watches report the changes of objects that are read often."""
        return False

    def guarded(self, guard: Callable[[], None]) -> "Objects":
        """Return a copy with another guard."""
        return Objects(self._client, guard, self._manager)

    def find(self, resource: Resource, key: Key) -> Json | None:
        """Return the object, None when it does not exist. Raises: DependencyError."""
        try:
            return self._client.get(resource.object(key))
        except KubeNotFound:
            return None

    def create(self, resource: Resource, raw: Json) -> Json:
        """Create the object.

        Raises: KubeConflict (``kube.exists``) when an object with this name exists.
        """
        namespace, _ = key_of(raw)
        return self._write("POST", resource.collection(namespace), raw)

    def replace(self, resource: Resource, raw: Json, subresource: str = "") -> Json:
        """Replace the object or its status if its version has not changed.

        Raises: KubeConflict if the version has changed, KubeNotFound.
        """
        return self._write("PUT", resource.object(key_of(raw), subresource), raw)

    def post(self, resource: Resource, namespace: str, body: bytes) -> str:
        """Create an object from its JSON; return its resource version.

        PERF: the server returns only the metadata. Raises: as ``create``.
        """
        return self._write_briefly("POST", resource.collection(namespace), body, JSON)

    def patch(self, resource: Resource, key: Key, operations: bytes) -> str:
        """Apply a JSON patch (RFC 6902) to the object; return its resource version.

        The patch must contain the version that it changes, so a retry has no further
        effect. Raises: KubeConflict, KubeNotFound; KubeRefused if the patch does not
        fit.
        """
        path = resource.object(key)
        return self._write_briefly("PATCH", path, operations, JSON_PATCH)

    def merge(
        self, resource: Resource, key: Key, patch: Json, subresource: str = ""
    ) -> Json:
        """Merge ``patch`` into the object (RFC 7386). Raises: KubeNotFound."""
        path = resource.object(key, subresource)
        return self._write("PATCH", path, patch, MERGE_PATCH)

    def apply(
        self, resource: Resource, raw: Json, *, force: bool = True, status: bool = False
    ) -> Json:
        """Apply ``raw`` server-side: create the object or take ownership of its fields.

        ``force`` takes fields from other managers; without it they cause a
        KubeConflict.
        """
        path = resource.object(key_of(raw), "status" if status else "")
        query = [("fieldManager", self._manager), ("force", str(force).lower())]
        self._guard()
        return self._client.send(
            Call(
                method="PATCH",
                path=path,
                query=query,
                body=msgspec.json.encode(raw),
                content_type=APPLY_PATCH,
                repeatable=True,
                guard=self._guard,
            )
        )

    def try_replace(self, resource: Resource, raw: Json) -> Json:
        """Return the object that ``replace`` would store; a dry run."""
        call = Call(
            method="PUT",
            path=resource.object(key_of(raw)),
            query=[("dryRun", "All")],
            body=msgspec.json.encode(raw),
        )
        return self._client.send(call)

    def try_apply(self, resource: Resource, raw: Json) -> Json:
        """Return the object that ``apply`` would store; a dry run."""
        query = [("fieldManager", self._manager), ("force", "true")]
        call = Call(
            method="PATCH",
            path=resource.object(key_of(raw)),
            query=[*query, ("dryRun", "All")],
            body=msgspec.json.encode(raw),
            content_type=APPLY_PATCH,
        )
        return self._client.send(call)

    def delete(
        self,
        resource: Resource,
        key: Key,
        uid: str | None = None,
        *,
        resource_version: str | None = None,
        propagation: str = "",
    ) -> bool:
        """Delete the object; return False when it does not exist.

        ``uid`` and ``resource_version`` are preconditions: if they do not match, a
        KubeConflict is raised. None = no precondition; an empty string matches nothing.
        ``propagation``: Foreground, Background or Orphan, "" = the default of the kind.
        """
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid == "" or resource_version == "":
            # SAFETY: without a known version, the delete would be unconditional.
            raise KubeConflict(
                "kube.conflict", f"{resource.object(key)}: its version is not known"
            )
        identity = {"uid": uid, "resourceVersion": resource_version}
        preconditions = {name: value for name, value in identity.items() if value}
        if preconditions:
            options["preconditions"] = preconditions
        if propagation:
            options["propagationPolicy"] = propagation
        try:
            self._write("DELETE", resource.object(key), options)
        except KubeNotFound:
            return False
        return True

    def change(
        self,
        resource: Resource,
        key: Key,
        edit: Callable[[Json], Json | None],
        subresource: str = "",
    ) -> Json | None:
        """Read, edit and replace an object; retry after a conflict.

        ``edit`` returns None to leave the object unchanged. Returns the resulting
        object, None if it does not exist. Raises: KubeConflict after five conflicts.
        """
        for attempt in range(1, _CONFLICTS_MAX + 1):
            current = self.find(resource, key)
            edited = None if current is None else edit(current)
            if edited is None:
                return current
            try:
                return self.replace(resource, edited, subresource)
            except KubeNotFound:
                return None
            except KubeConflict:
                if attempt == _CONFLICTS_MAX:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _write_briefly(
        self, method: str, path: str, body: bytes, content_type: str
    ) -> str:
        self._guard()
        call = Call(
            method=method,
            path=path,
            query=_UNCHECKED,
            body=body,
            content_type=content_type,
            accept=_BRIEF,
            # A repeated patch fails with a conflict, because it names a version.
            repeatable=method == "PATCH" or None,
            guard=self._guard,
        )
        return version_in(self._client.call(call), path)

    def _write(
        self, method: str, path: str, raw: Json, content_type: str = JSON
    ) -> Json:
        self._guard()
        return self._client.send(
            Call(
                method=method,
                path=path,
                body=msgspec.json.encode(raw),
                content_type=content_type,
                # K8S: PUT carries the resource version. A repeated PUT that has already
                # succeeded is a conflict, and the caller reads again.
                repeatable=method in ("PUT", "DELETE") or None,
                guard=self._guard,
            )
        )


def version_in(body: bytes, path: str) -> str:
    """Return the resource version of an object. Raises: KubeUnavailable if not JSON."""
    try:
        return IDENTITY.decode(body).metadata.resource_version
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise KubeUnavailable(
            "kube.answer", f"{path}: the response is not an object"
        ) from error


def key_of(raw: Json) -> Key:
    """Return namespace and name of an object."""
    metadata = raw.get("metadata") or {}
    return str(metadata.get("namespace") or ""), str(metadata.get("name") or "")

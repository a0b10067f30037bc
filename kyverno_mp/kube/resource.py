"""Identify a resource of the API server and build the paths of its objects.

Room: kube. Takes: group, version, plural. Gives: Resource. Next: every other file in
this room.
Source: Kubernetes API concepts (resource URIs).
"""

import msgspec

from kyverno_mp.kube.rest import segment

Key = tuple[str, str]
"""Namespace and name of an object; namespace "" = cluster-scoped."""


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """One resource or, with ``subresource``, one subresource of it."""

    group: str
    version: str
    plural: str
    kind: str = ""
    namespaced: bool = True
    subresource: str = ""
    verbs: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        """``group/version``, ``v1`` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def name(self) -> str:
        """The plural, with the subresource after a slash."""
        return f"{self.plural}/{self.subresource}" if self.subresource else self.plural

    def collection(self, namespace: str = "") -> str:
        """Return the path of all objects, or of the objects in one namespace."""
        root = f"/apis/{self.group}" if self.group else "/api"
        scope = f"/namespaces/{segment(namespace)}" if namespace else ""
        return f"{root}/{self.version}{scope}/{self.plural}"

    def object(self, key: Key, subresource: str = "") -> str:
        """Return the path of one object or of its subresource."""
        namespace, name = key
        tail = f"/{subresource}" if subresource else ""
        return f"{self.collection(namespace)}/{segment(name)}{tail}"


def core(plural: str, *, namespaced: bool = True) -> Resource:
    """Return a resource of the core group."""
    return Resource(group="", version="v1", plural=plural, namespaced=namespaced)

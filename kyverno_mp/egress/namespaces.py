"""Find a Namespace: first in the shared segment, then with a live call.

Room: egress. Takes: a name. Gives: LiveNamespaces, which satisfies
program/ports.NamespaceObjects. Next: webhook/live.py.
May touch: the API server through kube/rest.py.
Source: docs/behaviour/engine 6.4 (namespaceObject); docs/architecture.md 3.

A review can arrive for a new namespace before the leader publishes that namespace.
"""

from collections.abc import Callable
from typing import Final

from kyverno_mp.errors import KubeNotFound
from kyverno_mp.kube.resource import core
from kyverno_mp.kube.rest import Client
from kyverno_mp.values.jsonvalue import Json

_NAMESPACES: Final = core("namespaces", namespaced=False)


class LiveNamespaces:
    """Namespaces of the cluster; thread-safe."""

    def __init__(self, shared: Callable[[str], Json | None], client: Client) -> None:
        """``shared`` looks up a Namespace that the leader published."""
        self._shared = shared
        self._client = client

    def namespace(self, name: str, deadline_ns: int) -> Json | None:
        """Return the Namespace, None if it does not exist. Raises: DependencyError."""
        namespace = self._shared(name)
        if namespace is not None:
            return namespace
        path = _NAMESPACES.object(("", name))
        try:
            return self._client.get(path, deadline_ns=deadline_ns)
        except KubeNotFound:
            return None

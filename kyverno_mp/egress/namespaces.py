"""Find a Namespace: in the shared segment first, then live.

Room: egress. Takes: a name. Gives: LiveNamespaces, which satisfies
program/ports.NamespaceObjects. Next: webhook/live.py.
May touch: the API server through kube/rest.py.
Source: docs/behaviour/engine 6.4 (namespaceObject); docs/architecture.md 3.

What is created together with its namespace is judged before the leader has told of it.
"""

from collections.abc import Callable
from typing import Final

from kyverno_mp.errors import KubeNotFound
from kyverno_mp.kube.resource import core
from kyverno_mp.kube.rest import Client
from kyverno_mp.values.jsonvalue import Json

_NAMESPACES: Final = core("namespaces", namespaced=False)


class LiveNamespaces:
    """Namespaces of the cluster; for any thread."""

    def __init__(self, shared: Callable[[str], Json | None], client: Client) -> None:
        """``shared``: what the leader has published."""
        self._shared = shared
        self._client = client

    def namespace(self, name: str, deadline_ns: int) -> Json | None:
        """Return the Namespace, None when there is none. Raises: DependencyError."""
        found = self._shared(name)
        if found is not None:
            return found
        path = _NAMESPACES.object(("", name))
        try:
            return self._client.get(path, deadline_ns=deadline_ns)
        except KubeNotFound:
            return None

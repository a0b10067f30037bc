"""Follow the policies of a kind, cluster-wide and namespaced, and their exceptions.

Room: pool. Takes: a Client, a function that reads a stored policy. Gives:
StoredPolicies; which PolicyExceptions may apply. Next: background/stored.py,
cleanup/start.py. May touch: the API server through kube; informers' threads.
Source: docs/architecture.md 3 (events are hints).
"""

from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

import msgspec

from kyverno_mp.errors import KubeUnavailable
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.definitions import check_undefined
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.values.jsonvalue import Json

PolicyT = TypeVar("PolicyT")
ReadPolicy = Callable[[Resource, bytes | msgspec.Raw], PolicyT | None]
"""Returns the part of a policy to keep; None = ignore the policy."""


class StoredPolicies(Generic[PolicyT]):
    """The policies of one kind; threads may share it."""

    def __init__(
        self,
        client: Client,
        resources: tuple[Resource, Resource],
        read: ReadPolicy[PolicyT],
        find: Callable[[Resource, Key], Json | None] | None = None,
    ) -> None:
        """``resources``: cluster-wide, namespaced. ``find`` reads a policy live."""
        self._read = read
        self._find = find or Objects(client).find
        self.informers = [
            Informer(client, WatchScope(resource=resource), partial(read, resource))
            for resource in resources
        ]

    @property
    def synced(self) -> bool:
        """Whether all policies were listed at least once."""
        return all(informer.synced for informer in self.informers)

    def keys(self) -> list[Key]:
        """Return the keys of all policies."""
        return [key for informer in self.informers for key in informer.snapshot()]

    def get(self, key: Key) -> PolicyT | None:
        """Return a policy, or None if it is unknown."""
        return self._informer(key).get(key)

    def fresh(self, key: Key) -> PolicyT | None:
        """Return a policy; None if it is unknown or the watch is interrupted."""
        informer = self._informer(key)
        return None if informer.failures else informer.get(key)

    def live(self, key: Key) -> PolicyT | None:
        """Read a policy; return None if it does not exist. Raises: DependencyError."""
        resource = self._informer(key).scope.resource
        raw = self._find(resource, key)
        return None if raw is None else self._read(resource, msgspec.json.encode(raw))

    def newest(self, key: Key) -> PolicyT | None:
        """Return a policy; read it live while the watch is interrupted.

        Raises: DependencyError.
        """
        return self.live(key) if self._informer(key).failures else self.get(key)

    def _informer(self, key: Key) -> Informer[PolicyT]:
        return self.informers[1 if key[0] else 0]


def namespace_of_exceptions(exceptions_in: str, policy_namespace: str) -> str:
    """Return the only namespace whose exceptions apply to a policy; "" = any.

    ``exceptions_in``: the namespace that the operator has chosen, ``*`` = all.

    SAFETY: exceptions to a namespaced policy must be in its own namespace or in the one
    that the operator has chosen, so that other tenants cannot disable it.
    """
    if policy_namespace and exceptions_in in ("*", policy_namespace):
        return policy_namespace
    return "" if exceptions_in == "*" else exceptions_in


def names_policy(exception: Json, kind: str, name: str) -> bool:
    """Return whether a PolicyException to policies in CEL names a policy."""
    return any(
        (reference.get("name"), reference.get("kind")) == (name, kind)
        for reference in (exception.get("spec") or {}).get("policyRefs") or ()
    )


def check_listed(client: Client, exceptions: Informer[bytes]) -> None:
    """Raise an error unless the exceptions are known or cannot exist.

    Raises: KubeUnavailable; DependencyError.
    """
    if exceptions.synced:
        return
    resource = exceptions.scope.resource
    if exceptions.is_absent:
        check_undefined(client, resource)
        return
    message = f"{resource.plural}.{resource.group} are not listed yet"
    if exceptions.failures:
        message += f": {exceptions.last_error}"
    # SAFETY: without the exceptions, exempt objects would be generated or changed.
    raise KubeUnavailable("background.exceptions", message)

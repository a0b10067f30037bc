"""Delete one object only in the version that was read.

Room: cleanup. Takes: a resource, a key, uid and resource version. Gives: Deleter.
Next: cleanup/batch.py, cleanup/ttl/timers.py. May touch: the API server through
kube/apply.py.
Source: Kubernetes API concepts (DeleteOptions, preconditions);
docs/architecture.md 3 (leases do not fence).
"""

from collections.abc import Callable

import msgspec

from kyverno_mp.errors import LeaseLost
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.kube.rest import Client


class Preconditions(msgspec.Struct, frozen=True):
    """The version of the object for which the deletion was decided."""

    uid: str
    resource_version: str


class Deleter:
    """Deletes with preconditions while the lease is held; threads may share it."""

    def __init__(self, client: Client, holds_lease: Callable[[], bool]) -> None:
        self._objects = Objects(client, self._guard)
        self._holds_lease = holds_lease

    def delete(
        self,
        resource: Resource,
        key: Key,
        preconditions: Preconditions,
        propagation: str = "",
    ) -> bool:
        """Delete the object; return False if it no longer exists.

        Raises: KubeConflict when it has changed; LeaseLost; other DependencyErrors.
        """
        return self._objects.delete(
            resource,
            key,
            preconditions.uid,
            resource_version=preconditions.resource_version,
            propagation=propagation,
        )

    def _guard(self) -> None:
        if not self._holds_lease():
            raise LeaseLost("cleanup.lease_lost", "the clean-up lease is not held")

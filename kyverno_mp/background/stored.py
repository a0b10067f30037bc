"""Follow policies and PolicyExceptions, and return the newest version of a policy.

Room: background. Takes: a Client. Gives: StoredPolicies. Next: background/requests.py,
background/generate/policy_events.py. May touch: the API server through kube; informers'
threads.
Source: docs/behaviour/controllers 5.4; docs/architecture.md 3 (events are hints).
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from kyverno_mp.background.policies import (
    ReadyPolicies,
    ReadyPolicy,
    StoredPolicy,
    policy_key,
    policy_name,
    stored_policy,
)
from kyverno_mp.errors import KubeUnavailable
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.cache import Informer, Project
from kyverno_mp.kube.definitions import check_undefined
from kyverno_mp.kube.policy_resources import CLUSTER_POLICIES, EXCEPTIONS, POLICIES
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope

_NOT_SERVED: Final = re.compile(r"HTTP 404\b")


def is_absent(informer: Informer[Any]) -> bool:
    """Return whether the kind is missing because the installed CRDs are too old."""
    return bool(informer.failures and _NOT_SERVED.search(informer.last_error))


def check_listed(client: Client, exceptions: Informer[bytes]) -> None:
    """Raise an error unless the exceptions are known or cannot exist.

    Raises: KubeUnavailable; DependencyError.
    """
    if exceptions.synced:
        return
    resource = exceptions.scope.resource
    if is_absent(exceptions):
        check_undefined(client, resource)
        return
    text = f"{resource.plural}.{resource.group} are not listed yet"
    if exceptions.failures:
        text += f": {exceptions.last_error}"
    # SAFETY: without the exceptions, exempt objects would be generated or changed.
    raise KubeUnavailable("background.exceptions", text)


class StoredPolicies:
    """The policies of the cluster; threads may share it."""

    def __init__(self, client: Client, exceptions_in: str) -> None:
        """``exceptions_in``: the namespace whose exceptions apply, ``*`` = all."""
        self._client = client
        self._objects = Objects(client)
        self._ready = ReadyPolicies()
        self.policies = [
            Informer(client, WatchScope(resource=one), _projection(one))
            for one in (CLUSTER_POLICIES, POLICIES)
        ]
        self._exceptions: Informer[bytes] | None = None
        if exceptions_in:
            namespace = "" if exceptions_in == "*" else exceptions_in
            scope = WatchScope(resource=EXCEPTIONS, namespace=namespace)
            self._exceptions = Informer(client, scope, bytes)

    @property
    def informers(self) -> Iterator[Informer[StoredPolicy] | Informer[bytes]]:
        """All informers."""
        yield from self.policies
        if self._exceptions is not None:
            yield self._exceptions

    @property
    def synced(self) -> bool:
        """Whether all policies were listed at least once."""
        return all(informer.synced for informer in self.informers)

    def get(self, name: str) -> StoredPolicy | None:
        """Return a policy by ``name`` or ``namespace/name``; None if unknown."""
        key = policy_key(name)
        return self.policies[1 if key[0] else 0].get(key)

    def names(self) -> list[str]:
        """Return the names of all policies, ``name`` or ``namespace/name``."""
        return [
            policy_name(key) for one in self.policies for key in list(one.snapshot())
        ]

    def live(self, name: str) -> StoredPolicy | None:
        """Read a policy; return None if it is gone or has no background rules.

        Raises: DependencyError.
        """
        key = policy_key(name)
        resource = POLICIES if key[0] else CLUSTER_POLICIES
        raw = self._objects.find(resource, key)
        return (
            None if raw is None else stored_policy(resource, msgspec.json.encode(raw))
        )

    def ready(self, stored: StoredPolicy) -> ReadyPolicy:
        """Return the linked policy.

        Raises: PolicyInvalid, KubeUnavailable until the exceptions are known.
        """
        return self._ready.ready(stored, self._exceptions_now())

    def with_rule(self, name: str, rule: str) -> ReadyPolicy | None:
        """Return a policy with the rule; read it live if the cached one lacks it.

        An UpdateRequest may arrive before the watch delivers its policy, or while the
        watch is interrupted.

        Raises: PolicyInvalid, DependencyError.
        """
        informer = self.policies[1 if policy_key(name)[0] else 0]
        stored = None if informer.failures else self.get(name)
        ready = None if stored is None else self.ready(stored)
        if ready is not None and (rule in ready.generates or rule in ready.mutates):
            return ready
        live = self.live(name)
        return None if live is None else self.ready(live)

    def newest(
        self, policy: ReadyPolicy, exceptions: Sequence[str]
    ) -> ReadyPolicy | None:
        """Return the stored version of a policy, or None if it is gone.

        ``exceptions``: PolicyExceptions to read live, too, by ``namespace/name``.

        Raises: PolicyInvalid, DependencyError.
        """
        live = self.live(policy.stored.name)
        if live is None:
            return None
        known = self._exceptions_now()
        for name in exceptions:
            known = {
                stamp: raw
                for stamp, raw in known.items()
                if stamp.rpartition("@")[0] != name
            }
            raw = self._objects.find(EXCEPTIONS, policy_key(name))
            if raw is not None:
                stamp = f"{name}@{raw['metadata'].get('resourceVersion') or ''}"
                known[stamp] = msgspec.json.encode(raw)
        return self._ready.ready(live, known)

    def forget(self, key: Key) -> None:
        """Drop the linked form of a deleted policy."""
        self._ready.forget(key)

    def _exceptions_now(self) -> dict[str, bytes]:
        """Return the exceptions. Raises: the errors of ``check_listed``."""
        if self._exceptions is None:
            return {}
        informer = self._exceptions
        check_listed(self._client, informer)
        return {
            f"{'/'.join(key)}@{informer.version_of(key)}": raw
            for key, raw in informer.snapshot().items()
        }


def _projection(resource: Resource) -> Project[StoredPolicy]:
    return lambda raw: stored_policy(resource, raw)

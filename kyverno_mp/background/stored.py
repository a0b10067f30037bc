"""Follow policies and their exceptions, and link each version once.

Room: background. Takes: a Client, the operator's namespace of exceptions. Gives:
LinkedPolicies, ``policies_with_rules``. Next: background/requests.py,
background/generating/policies.py. May touch: the API server through kube; informers'
threads.
Source: docs/behaviour/controllers 5.4; docs/architecture.md 3 (events are hints).
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from kyverno_mp.background.policies import (
    ReadyPolicy,
    StoredPolicy,
    Version,
    policy_key,
    policy_name,
    ready_policy,
    stored_policy,
)
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.policy_resources import EXCEPTIONS, RULE_POLICIES
from kyverno_mp.kube.resource import Key
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.pool.stored import StoredPolicies, check_listed


class Linked(Protocol):
    """A compiled and linked policy."""

    @property
    def stored(self) -> StoredPolicy:
        """Return the policy as stored."""

    @property
    def version(self) -> Version:
        """Return what the linked policy was made of."""


LinkedT = TypeVar("LinkedT", bound=Linked)
Link = Callable[[StoredPolicy, Iterable[bytes], Version], LinkedT]
"""Compiles and links a policy with its exceptions. Raises: PolicyInvalid."""


class LinkedPolicies(Generic[LinkedT]):
    """The policies of one kind with their exceptions; threads may share it.

    A policy is named ``name`` or ``namespace/name``, as in UpdateRequests.
    """

    def __init__(
        self,
        client: Client,
        stored: StoredPolicies[StoredPolicy],
        exceptions: Informer[bytes] | None,
        link: Link[LinkedT],
        applies: Callable[[StoredPolicy, Key, bytes], bool] = lambda *_context: True,
    ) -> None:
        """``exceptions``: their informer; None if they are disabled.

        ``applies`` returns whether an exception may concern a policy.
        """
        self._client = client
        self._objects = Objects(client)
        self.stored = stored
        self._exceptions = exceptions
        self._link = link
        self._applies = applies
        self._lock = threading.Lock()
        self._linked: dict[Key, LinkedT] = {}

    @property
    def informers(self) -> Iterator[Informer[StoredPolicy] | Informer[bytes]]:
        """All informers."""
        yield from self.stored.informers
        yield from self.exceptions

    @property
    def exceptions(self) -> tuple[Informer[bytes], ...]:
        """The informer of the exceptions; empty if they are disabled."""
        return () if self._exceptions is None else (self._exceptions,)

    @property
    def synced(self) -> bool:
        """Whether all policies and exceptions were listed at least once."""
        return all(informer.synced for informer in self.informers)

    def get(self, name: str) -> StoredPolicy | None:
        """Return a policy; None if it is unknown."""
        return self.stored.get(policy_key(name))

    def names(self) -> list[str]:
        """Return the names of all policies."""
        return list(map(policy_name, self.stored.keys()))

    def live(self, name: str) -> StoredPolicy | None:
        """Read a policy; return None if it is gone. Raises: DependencyError."""
        return self.stored.live(policy_key(name))

    def newest(
        self, name: str, suffices: Callable[[LinkedT], bool] = lambda _policy: True
    ) -> LinkedT | None:
        """Return a policy; read it live if it is unknown, or its watch is interrupted.

        An UpdateRequest may arrive before the watch delivers its policy. ``suffices``
        returns whether the cached version is new enough.

        Raises: PolicyInvalid, DependencyError.
        """
        cached = self.stored.fresh(policy_key(name))
        policy = None if cached is None else self.ready(cached)
        if policy is not None and suffices(policy):
            return policy
        live = self.live(name)
        return None if live is None else self.ready(live)

    def reread(self, policy: LinkedT, exceptions: Sequence[str] = ()) -> LinkedT | None:
        """Return the stored version of a policy, or None if it is gone.

        ``exceptions``: PolicyExceptions to read live, too, by ``namespace/name``.

        Raises: PolicyInvalid, DependencyError.
        """
        live = self.live(policy.stored.name)
        if live is None:
            return None
        newest = self._exceptions_of(live)
        for name in exceptions:
            newest = {
                stamp: raw
                for stamp, raw in newest.items()
                if stamp.rpartition("@")[0] != name
            }
            raw = self._objects.find(EXCEPTIONS, policy_key(name))
            if raw is not None:
                stamp = f"{name}@{raw['metadata'].get('resourceVersion') or ''}"
                newest[stamp] = msgspec.json.encode(raw)
        return self._ready(live, newest)

    def ready(self, stored: StoredPolicy) -> LinkedT:
        """Return the linked policy.

        Raises: PolicyInvalid, KubeUnavailable until the exceptions are known.
        """
        return self._ready(stored, self._exceptions_of(stored))

    def _ready(self, stored: StoredPolicy, exceptions: Mapping[str, bytes]) -> LinkedT:
        """Link a policy with these exceptions, by version. Raises: PolicyInvalid."""
        version = (stored.uid, stored.metadata_generation, tuple(sorted(exceptions)))
        with self._lock:
            policy = self._linked.get(stored.key)
        if policy is None or policy.version != version:
            policy = self._link(stored, exceptions.values(), version)
            with self._lock:
                self._linked[stored.key] = policy
        return policy

    def forget(self, key: Key) -> None:
        """Drop the linked form of a deleted policy."""
        with self._lock:
            self._linked.pop(key, None)

    def _exceptions_of(self, stored: StoredPolicy) -> dict[str, bytes]:
        """Return the exceptions that may concern a policy, by name and version.

        Raises: the errors of ``check_listed``.
        """
        if self._exceptions is None:
            return {}
        check_listed(self._client, self._exceptions)
        return {
            f"{'/'.join(key)}@{self._exceptions.version_of(key)}": raw
            for key, raw in self._exceptions.snapshot().items()
            if self._applies(stored, key, raw)
        }


RulePolicies = LinkedPolicies[ReadyPolicy]
"""The policies with rules, of which some run in the background."""


def policies_with_rules(client: Client, exceptions_in: str) -> RulePolicies:
    """Follow policies with rules.

    ``exceptions_in``: the namespace whose exceptions apply, ``*`` = all, "" = none.
    """
    exceptions: Informer[bytes] | None = None
    if exceptions_in:
        namespace = "" if exceptions_in == "*" else exceptions_in
        scope = WatchScope(resource=EXCEPTIONS, namespace=namespace)
        exceptions = Informer(client, scope, bytes)
    stored = StoredPolicies(client, RULE_POLICIES, stored_policy)
    return LinkedPolicies(client, stored, exceptions, ready_policy)

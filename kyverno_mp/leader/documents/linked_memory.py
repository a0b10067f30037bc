"""Keep the linked policies of each namespace within a memory budget.

Room: leader. Takes: the policies in force. Gives: their replacements to publish, and
their status. Next: leader/policy_store.py.
Source: docs/architecture.md 1 (promise 4); limits.LINKED_NAMESPACE_BYTES_MAX.

Policies are sorted by size, then by name. A policy that a tenant adds affects only
larger policies of the same namespace, and all replicas decide alike. Cluster policies
have no budget. PolicyExceptions count toward the budgets of their own namespaces. All
namespaces together share the pod's room (leader/documents/tenant_room.py).
"""

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

import msgspec

from kyverno_mp.compiler.linked_size import linked_bytes
from kyverno_mp.compiler.unlinked import (
    is_missed,
    unlinked,
    unlinked_namespace,
    without_exceptions,
)
from kyverno_mp.ir.index import EncodedPolicy
from kyverno_mp.leader.documents.linked_exceptions import (
    dropped_exceptions,
    why_dropped,
)
from kyverno_mp.leader.documents.tenant_room import TenantRoom, fair_share
from kyverno_mp.leader.status import OVER_SHARE, UNLINKED, PolicyStatus
from kyverno_mp.leader.stored_document import Key
from kyverno_mp.limits import (
    LINKED_NAMESPACE_BYTES_MAX,
    LINKED_POLICY_BYTES_MAX,
    UNLINKED_NAMESPACE_BYTES_MAX,
    UNLINKED_SHARE_DIVISOR,
)

_RULES_FAIL = "; its rules are errors where they match"
_EQUAL_PART = "its part of what all namespaces may take of the"
_ENTRY_BYTES = 64
"""An index entry in a segment: most are shared by many rules."""
_ALL_FAIL = (
    "; the namespace has too many such policies, so with failurePolicy Fail each of its"
    " objects that is reviewed is an error"
)


class Limited(NamedTuple):
    """A policy that is not linked, or lost PolicyExceptions: its replacement, if any.

    ``status``: the policy's new status. ``is_missed``: reviews that ask for it fail.
    """

    encoded: EncodedPolicy | None
    status: PolicyStatus
    is_missed: bool = False


class _Weighed:
    """A policy and its estimated memory, without its exceptions; 0: no budget."""

    __slots__ = (
        "_instead",
        "_is_missed",
        "_kind",
        "_of_all",
        "_without",
        "encoded",
        "published",
        "size",
    )

    def __init__(self, encoded: EncodedPolicy, kind: str, namespace: str) -> None:
        self.encoded = encoded
        self.size = 0
        self.published = published_bytes(encoded)
        if namespace:
            exceptions = sum(size for _, size in encoded.exceptions)
            self.size = linked_bytes(encoded) - exceptions
        self._kind = kind
        self._instead: tuple[EncodedPolicy | None] | None = None
        self._of_all: tuple[EncodedPolicy | None] | None = None
        self._is_missed: bool | None = None
        self._without: tuple[frozenset[str], EncodedPolicy] | None = None

    def instead(self) -> EncodedPolicy | None:
        """Return the cached replacement to publish if the policy is not linked."""
        if self._instead is None:
            self._instead = (unlinked(self.encoded, self._kind),)
        return self._instead[0]

    def instead_of_all(self) -> EncodedPolicy | None:
        """Return the replacement for all further policies of the namespace, cached."""
        if self._of_all is None:
            self._of_all = (unlinked_namespace(self.encoded),)
        return self._of_all[0]

    def is_missed(self) -> bool:
        """Return whether reviews that ask for it must fail without a stub, cached."""
        if self._is_missed is None:
            self._is_missed = is_missed(self.encoded, self._kind)
        return self._is_missed

    def without(self, dropped: frozenset[str]) -> EncodedPolicy:
        """Return the policy without some of its exceptions, encoded once."""
        if self._without is None or self._without[0] != dropped:
            encoded = without_exceptions(self.encoded, self._kind, dropped)
            self._without = dropped, encoded
        return self._without[1]


class _Stubs:
    """The stubs of each namespace, and their memory, at most ``bytes_max``."""

    def __init__(self, bytes_max: float) -> None:
        self._bytes_max = bytes_max
        self._used: dict[str, int] = {}
        self._replaced: set[str] = set()
        """Namespaces with a policy that fails for every object."""

    def take(
        self, policy: _Weighed, namespace: str
    ) -> tuple[EncodedPolicy | None, str, bool]:
        """Return the replacement to publish, if any, its effect, and ``is_missed``."""
        used = self._used.get(namespace, 0)
        if used <= self._bytes_max:
            replacement = policy.instead()
            if replacement is not None:
                used += linked_bytes(replacement)
                self._used[namespace] = used
            if used <= self._bytes_max:
                return replacement, _RULES_FAIL, False
        replacement = None
        if namespace not in self._replaced:
            replacement = policy.instead_of_all()
        if replacement is not None:
            self._replaced.add(namespace)
        return replacement, _ALL_FAIL, policy.is_missed()


class _Shares:
    """What each namespace may take, and what it has taken."""

    def __init__(
        self, room: TenantRoom | None, weighed: Mapping[Key, _Weighed], cluster: int
    ) -> None:
        """``cluster``: what the administrators' policies publish. Unit: bytes."""
        self._linked: dict[str, int] = {}
        self._published: dict[str, int] = {}
        self._room = room
        self.linked_max: float = inf
        self.published_max: float = inf
        if room is None:
            return
        for key, policy in weighed.items():
            if key[1] and policy.size <= LINKED_POLICY_BYTES_MAX:
                self._add(policy, key[1])
        linked = [
            min(size, LINKED_NAMESPACE_BYTES_MAX) for size in self._linked.values()
        ]
        self.linked_max = fair_share(linked, room.linked)
        total = room.of_tenants(cluster)
        self.published_max = fair_share(self._published.values(), total)
        self._linked, self._published = {}, {}

    @property
    def stubs_max(self) -> float:
        """Return the most that a namespace's stubs may take."""
        share = self.linked_max // UNLINKED_SHARE_DIVISOR
        return min(UNLINKED_NAMESPACE_BYTES_MAX, share)

    def take(self, policy: _Weighed, namespace: str) -> tuple[str, str]:
        """Charge a policy; return the error's code, and its text, or "" if it fits."""
        size, linked = policy.size, self._linked.get(namespace, 0) + policy.size
        subject = f"all policies of namespace {namespace} may take"
        costs = f"it would take about {_mib(size)} MiB of memory in every process;"
        most = LINKED_NAMESPACE_BYTES_MAX
        if size > LINKED_POLICY_BYTES_MAX:
            most = LINKED_POLICY_BYTES_MAX
            return UNLINKED, f"{costs} one policy may take {_mib(most)} MiB"
        if linked > most:
            return UNLINKED, f"{costs} {subject} {_mib(most)} MiB"
        if linked > self.linked_max:
            share = f"{subject} {int(self.linked_max) >> 10} KiB"
            return OVER_SHARE, f"{costs} {share}, {_EQUAL_PART} memory of this pod"
        published = self._published.get(namespace, 0) + policy.published
        if published > self.published_max:
            costs = f"it takes {policy.published >> 10} KiB, compiled;"
            share = f"{subject} {int(self.published_max) >> 10} KiB"
            return OVER_SHARE, f"{costs} {share}, {_EQUAL_PART} folder of this pod"
        self._add(policy, namespace)
        return "", ""

    def _add(self, policy: _Weighed, namespace: str) -> None:
        self._linked[namespace] = self._linked.get(namespace, 0) + policy.size
        published = self._published.get(namespace, 0) + policy.published
        self._published[namespace] = published


class LinkedMemory:
    """The budgets of all namespaces; each version of a policy is weighed once."""

    def __init__(self, room: TenantRoom | None = None) -> None:
        """``room``: None without totals."""
        self._room = room
        self._weighed: dict[Key, _Weighed] = {}

    def limit(
        self, policies: Mapping[Key, tuple[EncodedPolicy | None, PolicyStatus]]
    ) -> dict[Key, Limited]:
        """Return the policies that exceed a budget, or whose exceptions do."""
        self._weigh(policies)
        limited = self._without_exceptions(policies)
        cluster = sum(
            published_bytes(encoded_policy)
            for key, (encoded_policy, _) in policies.items()
            if encoded_policy is not None and not key[1]
        )
        shares = _Shares(self._room, self._weighed, cluster)
        stubs = _Stubs(shares.stubs_max)
        sizes = [
            (weighed.size, key) for key, weighed in self._weighed.items() if key[1]
        ]
        for _, key in sorted(sizes):
            code, reason = shares.take(self._weighed[key], key[1])
            if not code:
                continue
            encoded, then, is_missing = stubs.take(self._weighed[key], key[1])
            status = policies[key][1]
            message = f"{reason}{then}"
            if not status.ready:
                message = f"{status.message}; {message}"
            limited[key] = Limited(
                encoded,
                msgspec.structs.replace(
                    status, ready=False, code=code, message=message
                ),
                is_missing,
            )
        return limited

    def _without_exceptions(
        self, policies: Mapping[Key, tuple[EncodedPolicy | None, PolicyStatus]]
    ) -> dict[Key, Limited]:
        all_dropped = dropped_exceptions(
            (key, weighed.encoded) for key, weighed in self._weighed.items()
        )
        exceptions: dict[Key, Limited] = {}
        for key, dropped in all_dropped.items():
            status = policies[key][1]
            exceptions[key] = Limited(
                self._weighed[key].without(dropped),
                msgspec.structs.replace(
                    status,
                    message=f"{status.message}; {why_dropped(dropped)}",
                    large_exceptions=len(dropped),
                ),
            )
        return exceptions

    def _weigh(
        self, policies: Mapping[Key, tuple[EncodedPolicy | None, PolicyStatus]]
    ) -> None:
        before, self._weighed = self._weighed, {}
        for key, (encoded, _) in policies.items():
            if encoded is None or not (key[1] or encoded.exceptions):
                continue
            weighed = before.get(key)
            if weighed is None or weighed.encoded is not encoded:
                weighed = _Weighed(encoded, key[0], key[1])
            self._weighed[key] = weighed


def published_bytes(encoded: EncodedPolicy) -> int:
    """Return about how many bytes a policy takes in a segment."""
    return len(encoded.content) + _ENTRY_BYTES * sum(map(len, encoded.entries))


def _mib(size: int) -> int:
    return -(-size // (1024 * 1024))

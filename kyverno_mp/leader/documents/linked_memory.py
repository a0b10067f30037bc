"""Keep the linked policies of each namespace within a memory budget.

Room: leader. Takes: the policies in force. Gives: their replacements to publish, and
their status. Next: leader/policy_store.py. May touch: nothing outside its arguments.
Source: docs/architecture.md 1 (promise 4); limits.LINKED_NAMESPACE_BYTES_MAX.

Policies are sorted by size, then by name. A policy that a tenant adds affects only
larger policies of the same namespace, and all replicas decide alike. Cluster policies
have no budget.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from kyverno_mp.compiler.linked_size import linked_bytes
from kyverno_mp.compiler.unlinked import unlinked
from kyverno_mp.ir.index import EncodedPolicy
from kyverno_mp.leader.status import UNLINKED, PolicyStatus
from kyverno_mp.leader.stored_document import Key
from kyverno_mp.limits import LINKED_NAMESPACE_BYTES_MAX, LINKED_POLICY_BYTES_MAX

_RULES_FAIL = "; its rules are errors where they match"


class Unlinked(NamedTuple):
    """A policy that is not linked: its replacement, if any, and its status."""

    encoded: EncodedPolicy | None
    status: PolicyStatus


class _Weighed:
    """A namespaced policy and its estimated memory."""

    __slots__ = ("_instead", "_kind", "encoded", "size")

    def __init__(self, encoded: EncodedPolicy, kind: str) -> None:
        self.encoded = encoded
        self.size = linked_bytes(encoded)
        self._kind = kind
        self._instead: tuple[EncodedPolicy | None] | None = None

    def instead(self) -> EncodedPolicy | None:
        """Return the cached replacement to publish if the policy is not linked."""
        if self._instead is None:
            self._instead = (unlinked(self.encoded, self._kind),)
        return self._instead[0]


class LinkedMemory:
    """The budgets of all namespaces; each version of a policy is weighed once."""

    def __init__(self) -> None:
        self._weighed: dict[Key, _Weighed] = {}

    def limit(
        self, policies: Mapping[Key, tuple[EncodedPolicy | None, PolicyStatus]]
    ) -> dict[Key, Unlinked]:
        """Return the policies that exceed a budget."""
        self._weigh(policies)
        found: dict[Key, Unlinked] = {}
        used: dict[str, int] = {}
        for size, key in sorted((one.size, key) for key, one in self._weighed.items()):
            namespace = key[1]
            total = used.get(namespace, 0) + size
            if size > LINKED_POLICY_BYTES_MAX:
                most, what = LINKED_POLICY_BYTES_MAX, "one policy"
            elif total > LINKED_NAMESPACE_BYTES_MAX:
                most = LINKED_NAMESPACE_BYTES_MAX
                what = f"all policies of namespace {namespace}"
            else:
                used[namespace] = total
                continue
            text = (
                f"it would take about {_mib(size)} MiB of memory in every process;"
                f" {what} may take {_mib(most)} MiB{_RULES_FAIL}"
            )
            status = policies[key][1]
            if not status.ready:
                text = f"{status.message}; {text}"
            found[key] = Unlinked(
                self._weighed[key].instead(),
                msgspec.structs.replace(
                    status, ready=False, code=UNLINKED, message=text
                ),
            )
        return found

    def _weigh(
        self, policies: Mapping[Key, tuple[EncodedPolicy | None, PolicyStatus]]
    ) -> None:
        before, self._weighed = self._weighed, {}
        for key, (encoded, _) in policies.items():
            if encoded is None or not key[1]:
                continue
            known = before.get(key)
            if known is None or known.encoded is not encoded:
                known = _Weighed(encoded, key[0])
            self._weighed[key] = known


def _mib(size: int) -> int:
    return -(-size // (1024 * 1024))

"""Define all policies at one moment, as they are published.

Room: leader. Takes: nothing. Gives: PolicySet, which leader/policy_store.py creates.
Next: leader/policy_segments.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kyverno_mp.ir.index import EncodedPolicy
from kyverno_mp.leader.status import PolicyStatus
from kyverno_mp.leader.stored_document import Key
from kyverno_mp.snapshot.policies import POLICIES


@dataclass(frozen=True, slots=True)
class PolicySet:
    """All policies at one moment; ``changes``: the (type, status) of each change."""

    encoded: tuple[EncodedPolicy, ...]
    policies: tuple[PolicyStatus, ...]
    problems: tuple[str, ...]
    changes: tuple[tuple[str, PolicyStatus], ...]
    unread: tuple[str, ...] = ()
    """The problems that concern whole files."""
    waiting: int = 0
    """Policies that wait for compilation in the next update."""
    awaits_cluster_wide: bool = False
    """Whether a cluster-wide policy is one of them."""
    cel: Mapping[str, tuple[EncodedPolicy, ...]] = field(default_factory=dict)
    """The policies in CEL, by the name of their segment."""
    missed: frozenset[Key] = frozenset()
    """Policies without a stub, so the reviews that ask for them must fail."""
    keys: Mapping[str, tuple[Key, ...]] = field(default_factory=dict)
    """The keys of the policies of each segment, in their order."""
    packed: Mapping[Key, bytes] = field(default_factory=dict)

    def by_segment(self, segment: str) -> dict[Key, EncodedPolicy]:
        """Return the policies of a segment by key."""
        policies = self.encoded if segment == POLICIES else self.cel.get(segment, ())
        return dict(zip(self.keys.get(segment, ()), policies, strict=True))

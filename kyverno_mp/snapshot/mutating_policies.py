"""Read the segment of MutatingPolicies: records by position and the resource index.

Room: snapshot. Takes: a segment that PoliciesWriter encoded. Gives:
MutatingPolicySegment. Next: program/validating_policy/source.py.
May touch: nothing outside its arguments.
Source: docs/architecture.md 1 (promise 2), 3; snapshot/policies.py (the layout).

The layout is the same as in the segment ``celpolicies``, but part 0 of a record is a
MutatingPolicyIR.
"""

from typing import Final

import msgspec

from kyverno_mp.ir.cel_policies import MutatingPolicyIR
from kyverno_mp.snapshot.policies import PolicySegment
from kyverno_mp.values.kubernetes.policy_kinds import MUTATING_POLICY

MUTATING_POLICIES: Final = MUTATING_POLICY.segment
_POLICY: Final = msgspec.msgpack.Decoder(MutatingPolicyIR)


class MutatingPolicySegment(PolicySegment):
    """The MutatingPolicies of one generation."""

    def mutating_policy(self, position: int) -> MutatingPolicyIR:
        """Return the policy at ``position`` in policy order."""
        return self._decode(position, 0, _POLICY)

    def bytes_of(self, position: int) -> int:
        """Return the size of the policy's record."""
        return self.rule_bytes(position, -1)

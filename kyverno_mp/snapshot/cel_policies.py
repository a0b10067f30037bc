"""Read the segment of policies in CEL: records by position and the resource index.

Room: snapshot. Takes: a segment that PoliciesWriter encoded. Gives: CelPolicySegment.
Next: program/validating_policy/source.py. May touch: nothing outside its arguments.
Source: docs/architecture.md 1 (promise 2), 3; snapshot/policies.py (the layout).

The layout is the same as in the segment ``policies``, but part 0 of a record is a
ValidatingPolicyIR, and the selectors name resources instead of kinds.
"""

from typing import Final

import msgspec

from kyverno_mp.ir.validating_policy import ValidatingPolicyIR
from kyverno_mp.snapshot.policies import PolicySegment
from kyverno_mp.values.kubernetes.policy_kinds import VALIDATING_POLICY

CEL_POLICIES: Final = VALIDATING_POLICY.segment
_POLICY: Final = msgspec.msgpack.Decoder(ValidatingPolicyIR)


class CelPolicySegment(PolicySegment):
    """The policies in CEL of one generation."""

    def validating_policy(self, position: int) -> ValidatingPolicyIR:
        """Return the policy at ``position`` in policy order."""
        return self._decode(position, 0, _POLICY)

    def bytes_of(self, position: int) -> int:
        """Return the size of the policy's record."""
        return self.rule_bytes(position, -1)

"""Read the segment of ImageValidatingPolicies: records by position, and their index.

Room: snapshot. Takes: a segment that PoliciesWriter encoded. Gives:
ImagePolicySegment. Next: program/image_policies/plan.py.
May touch: nothing outside its arguments.
Source: docs/architecture.md 1 (promise 2), 3; snapshot/policies.py (the layout).

The layout is the same as in the segment ``celpolicies``, but part 0 of a record is an
ImageValidatingPolicyIR.
"""

from typing import Final

import msgspec

from kyverno_mp.ir.image_policies import ImageValidatingPolicyIR
from kyverno_mp.snapshot.policies import PolicySegment
from kyverno_mp.values.kubernetes.policy_kinds import IMAGE_VALIDATING_POLICY

IMAGE_POLICIES: Final = IMAGE_VALIDATING_POLICY.segment
_POLICY: Final = msgspec.msgpack.Decoder(ImageValidatingPolicyIR)


class ImagePolicySegment(PolicySegment):
    """The ImageValidatingPolicies of one generation."""

    def image_policy(self, position: int) -> ImageValidatingPolicyIR:
        """Return the policy at ``position`` in policy order."""
        return self._decode(position, 0, _POLICY)

    def bytes_of(self, position: int) -> int:
        """Return the size of the policy's record."""
        return self.rule_bytes(position, -1)

"""Publish the segments of policies: policies of kyverno.io, and policies in CEL.

Room: leader. Takes: PolicySets. Gives: segments. Next: leader/loop.py calls it.
May touch: the snapshot directory through snapshot/publish, the log.
Source: docs/architecture.md 3 (snapshot).
"""

import logging
from collections.abc import Sequence

from kyverno_mp.leader.cel_kinds import CEL_KINDS, CEL_SEGMENTS
from kyverno_mp.leader.policy_store import PolicySet
from kyverno_mp.snapshot.policies import MISSED, POLICIES, PoliciesWriter
from kyverno_mp.snapshot.publish import Publisher
from kyverno_mp.telemetry.log import fields

_log = logging.getLogger(__name__)


class PolicySegments:
    """The segments, and the data that their writers keep between publications."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._writer = PoliciesWriter()
        self._cel_writers = {segment: PoliciesWriter() for segment in CEL_SEGMENTS}

    def publish(self, policy_set: PolicySet) -> int:
        """Publish the policies of kyverno.io; return their generation."""
        generation = self._publisher.publish(
            POLICIES,
            lambda generation, salt: self._writer.encode(
                policy_set.encoded,
                generation=generation,
                salt=salt,
                names=names_of(policy_set),
            ),
        )
        rejected = sum(not policy.ready for policy in policy_set.policies)
        _log.info(
            "policies published",
            extra=fields(
                generation=generation,
                policies=len(policy_set.policies),
                rejected=rejected,
            ),
        )
        return generation

    def publish_cel(
        self, policy_set: PolicySet, before: PolicySet | None, corrupt: Sequence[str]
    ) -> bool:
        """Publish the policies in CEL that changed; return whether any did.

        Publish the other policies afterwards: their generation stands for all policies,
        so a worker that serves it has these, too. ``before`` is None if nothing was
        published yet.
        """
        published = [
            self._publish_segment(segment, policy_set, before, corrupt)
            for segment in self._cel_writers
        ]
        return any(published)

    def _publish_segment(
        self,
        segment: str,
        policy_set: PolicySet,
        before: PolicySet | None,
        corrupt: Sequence[str],
    ) -> bool:
        names = names_of(policy_set, segment)
        policies = policy_set.cel.get(segment, ())
        if (
            before is not None
            and policies == before.cel.get(segment, ())
            and names == names_of(before, segment)
            and segment not in corrupt
        ):
            return False
        self._publisher.publish(
            segment,
            lambda generation, salt: self._cel_writers[segment].encode(
                policies,
                generation=generation,
                salt=salt,
                names=names,
                segment=segment,
            ),
        )
        return True


def names_of(policy_set: PolicySet, segment: str = POLICIES) -> list[str]:
    """Return the keys of the policies in a segment, as used in webhook paths.

    Those whose path must fail begin with MISSED.
    """
    found: list[str] = []
    for one in policy_set.policies:
        if _segment_of(one.kind) == segment:
            key = f"{one.namespace}/{one.name}" if one.namespace else one.name
            is_missed = (one.kind, one.namespace, one.name) in policy_set.missed
            found.append(MISSED + key if is_missed else key)
    return found


def _segment_of(kind: str) -> str:
    known = CEL_KINDS.get(kind)
    return POLICIES if known is None else known.segment

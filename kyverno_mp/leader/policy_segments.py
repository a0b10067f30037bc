"""Publish the segments of policies: those of kyverno.io, and those in CEL.

Room: leader. Takes: PolicySets. Gives: segments. Next: leader/loop.py says when.
May touch: the snapshot directory through snapshot/publish, the log.
Source: docs/architecture.md 3 (snapshot).
"""

import logging
from collections.abc import Sequence

from kyverno_mp.leader.policy_store import PolicySet
from kyverno_mp.policy.validating_policy import VALIDATING_POLICY_KINDS
from kyverno_mp.snapshot.cel_policies import CEL_POLICIES
from kyverno_mp.snapshot.policies import POLICIES, PoliciesWriter
from kyverno_mp.snapshot.publish import Publisher
from kyverno_mp.telemetry.log import fields

_log = logging.getLogger(__name__)


class PolicySegments:
    """The two segments, and what their writers keep between publications."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._writer = PoliciesWriter()
        self._cel_writer = PoliciesWriter()

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
        refused = sum(not policy.ready for policy in policy_set.policies)
        _log.info(
            "published",
            extra=fields(
                generation=generation,
                policies=len(policy_set.policies),
                refused=refused,
            ),
        )
        return generation

    def publish_cel(
        self, policy_set: PolicySet, before: PolicySet | None, corrupt: Sequence[str]
    ) -> bool:
        """Publish the policies in CEL if they changed; return whether it did.

        The other policies must follow with their next generation, which is that of
        both: a worker that serves it has these, too. ``before`` None: nothing was
        published yet.
        """
        names = names_of(policy_set, is_cel=True)
        if (
            before is not None
            and policy_set.cel == before.cel
            and names == names_of(before, is_cel=True)
            and CEL_POLICIES not in corrupt
        ):
            return False
        self._publisher.publish(
            CEL_POLICIES,
            lambda generation, salt: self._cel_writer.encode(
                policy_set.cel,
                generation=generation,
                salt=salt,
                names=names,
                segment=CEL_POLICIES,
            ),
        )
        return True


def names_of(policy_set: PolicySet, *, is_cel: bool = False) -> list[str]:
    """Return the keys of all policies, as in the paths of their webhooks."""
    return [
        f"{one.namespace}/{one.name}" if one.namespace else one.name
        for one in policy_set.policies
        if (one.kind in VALIDATING_POLICY_KINDS) is is_cel
    ]

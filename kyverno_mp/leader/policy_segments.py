"""Publish the segments of policies: policies of kyverno.io, and policies in CEL.

Room: leader. Takes: PolicySets. Gives: segments, and the statuses of policies that
found no room. Next: leader/loop.py calls it.
May touch: the snapshot directory through snapshot/publish, the log.
Source: docs/architecture.md 3 (snapshot).

A segment that cannot be written keeps its last version. If only the administrators'
policies fit beside the tenants' last ones, these are published: what tenants store
holds up nothing that an administrator stores.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from kyverno_mp.errors import SnapshotUnusable
from kyverno_mp.ir.index import EncodedPolicy
from kyverno_mp.leader.policy_set import PolicySet
from kyverno_mp.leader.status import UNPUBLISHED, PolicyStatus
from kyverno_mp.leader.stored_document import Key
from kyverno_mp.snapshot.policies import MISSED, POLICIES, PoliciesWriter
from kyverno_mp.snapshot.publish import Publisher
from kyverno_mp.telemetry.log import fields
from kyverno_mp.values.kubernetes.policy_kinds import CEL_SEGMENTS, SEGMENT_OF

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Content:
    """The policies of one segment, and the names that it has."""

    policies: Mapping[Key, EncodedPolicy]
    names: Sequence[str]
    packed: Mapping[Key, bytes]
    """The document of each policy."""

    def with_tenants_of(self, before: "_Content") -> "_Content":
        """Return our cluster policies beside the namespaced ones of ``before``."""
        mine = {key: policy for key, policy in self.policies.items() if not key[1]}
        tenants = {key: policy for key, policy in before.policies.items() if key[1]}
        names = [name for name in self.names if "/" not in name]
        names += [name for name in before.names if "/" in name]
        packed = {key: self.packed[key] for key in mine if key in self.packed}
        packed |= {key: before.packed[key] for key in tenants if key in before.packed}
        return _Content(dict(sorted((mine | tenants).items())), names, packed)

    def is_same(self, content: "_Content") -> bool:
        """Return whether both publish the same."""
        return self.policies == content.policies and self.names == content.names


class PolicySegments:
    """The segments, and the data that their writers keep between publications."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._writers = {name: PoliciesWriter() for name in (*CEL_SEGMENTS, POLICIES)}
        self._in_force: dict[str, _Content] = {}
        """What this process published last, by segment."""
        self.unpublished: dict[str, str] = {}
        """The segments whose newest content could not be written, and why."""
        self.generation = 0
        """The last generation of the policies of kyverno.io."""

    def publish(self, policy_set: PolicySet, corrupt: Sequence[str]) -> bool:
        """Publish the segments that changed or are corrupt; return whether any did.

        The policies of kyverno.io come last: their generation stands for all policies,
        so a worker that serves it has the others, too.
        """
        moved = [
            self._publish(name, policy_set, is_due=name in corrupt)
            for name in CEL_SEGMENTS
        ]
        is_due = any(moved) or POLICIES in corrupt
        if not self._publish(POLICIES, policy_set, is_due=is_due):
            return False
        _log.info(
            "policies published",
            extra=fields(
                generation=self.generation,
                policies=len(policy_set.policies),
                rejected=sum(not policy.ready for policy in policy_set.policies),
            ),
        )
        return True

    def statuses(self, policy_set: PolicySet) -> tuple[PolicyStatus, ...]:
        """Return the statuses; a policy whose version found no room is not ready."""
        if not self.unpublished:
            return policy_set.policies
        due = {name: policy_set.by_segment(name) for name in self.unpublished}
        return tuple(self._status(due, policy) for policy in policy_set.policies)

    def _publish(self, name: str, policy_set: PolicySet, *, is_due: bool) -> bool:
        content = _Content(
            policy_set.by_segment(name), names_of(policy_set, name), policy_set.packed
        )
        before = self._in_force.get(name)
        if before is not None and content.is_same(before) and not is_due:
            self.unpublished.pop(name, None)
            return False
        try:
            self._write(name, content)
        except SnapshotUnusable as error:
            self._note(name, error)
            return before is not None and self._publish_ours(name, content, before)
        self.unpublished.pop(name, None)
        return True

    def _publish_ours(self, name: str, content: _Content, before: _Content) -> bool:
        """Publish only what administrators changed; return whether it succeeded."""
        own_content = content.with_tenants_of(before)
        if own_content.is_same(before):
            return False
        try:
            self._write(name, own_content)
        except SnapshotUnusable:
            return False
        return True

    def _write(self, name: str, content: _Content) -> None:
        generation = self._publisher.publish(
            name,
            lambda generation, salt: self._writers[name].encode(
                tuple(content.policies.values()),
                generation=generation,
                salt=salt,
                names=content.names,
                segment=name,
            ),
        )
        if name == POLICIES:
            self.generation = generation
        self._in_force[name] = content

    def _note(self, name: str, error: SnapshotUnusable) -> None:
        if name not in self.unpublished:
            _log.error(
                "segment not published, its last version stays in force",
                extra=fields(segment=name, code=error.code, reason=error.message),
            )
        self.unpublished[name] = error.message

    def _status(
        self, due: Mapping[str, Mapping[Key, EncodedPolicy]], status: PolicyStatus
    ) -> PolicyStatus:
        key = (status.kind, status.namespace, status.name)
        name = segment_of(status.kind)
        in_force = self._in_force.get(name)
        reason = self.unpublished.get(name)
        if reason is None or in_force is None:
            return status
        before = in_force.policies.get(key)
        if before == due[name].get(key):
            return status
        stays = "; the last published version stays in force" if before else ""
        return msgspec.structs.replace(
            status,
            ready=False,
            code=UNPUBLISHED,
            message=f"this version is not in force: {reason}{stays}",
            in_force=in_force.packed.get(key, b"").decode() if before else "",
        )


def names_of(policy_set: PolicySet, segment: str = POLICIES) -> list[str]:
    """Return the keys of the policies in a segment, as used in webhook paths.

    Those whose path must fail begin with MISSED.
    """
    keys: list[str] = []
    for policy in policy_set.policies:
        if segment_of(policy.kind) == segment:
            key = (
                f"{policy.namespace}/{policy.name}" if policy.namespace else policy.name
            )
            is_missed = (
                policy.kind,
                policy.namespace,
                policy.name,
            ) in policy_set.missed
            keys.append(MISSED + key if is_missed else key)
    return keys


def segment_of(kind: str) -> str:
    """Return the segment of the policies of a kind."""
    return SEGMENT_OF.get(kind, POLICIES)

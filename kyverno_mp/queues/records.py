"""Define the record of one answered review that a worker sends to the leader.

Room: queues. Takes: outcomes of rules as strings. Gives: bytes for a Journal, and back.
Next: controllers/admission_events.py writes Events from it.
Source: docs/behaviour/controllers 9.1 (content of events), 2.10 (content of reports).

The policies of a ReviewRecord are bytes that many reviews share: equal outcomes are
encoded only once (webhook/audit/sink.py).
"""

from typing import Final

import msgspec

from kyverno_mp.errors import StateError
from kyverno_mp.values.records import UNDECODABLE


class RuleRecord(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of one rule.

    ``message``: "" for a Secret, because a message may quote values. ``exceptions``:
    keys (``ns/name``) of the PolicyExceptions because of which the rule was skipped.
    """

    rule: str
    status: str
    message: str = ""
    exceptions: tuple[str, ...] = ()


class PolicyRecord(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of one policy. ``mutates``: it has only mutate rules."""

    kind: str
    name: str
    namespace: str
    uid: str
    mutates: bool
    rules: tuple[RuleRecord, ...]


class ObjectRecord(msgspec.Struct, frozen=True, array_like=True):
    """The identity of a review's object, as the review contains it."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""


class ReviewRecord(msgspec.Struct, frozen=True, array_like=True):
    """One answered review. ``at_ns``: wall-clock time; ``policies``: still encoded."""

    at_ns: int
    uid: str
    object: ObjectRecord
    blocked: bool
    policies: msgspec.Raw


_ENCODER: Final = msgspec.msgpack.Encoder()
_REVIEW: Final = msgspec.msgpack.Decoder(ReviewRecord)
_POLICIES: Final = msgspec.msgpack.Decoder(tuple[PolicyRecord, ...])


def encode_policies(policies: tuple[PolicyRecord, ...]) -> msgspec.Raw:
    """Encode the policies, which many reviews may share."""
    return msgspec.Raw(_ENCODER.encode(policies))


def encode_record(review: ReviewRecord) -> bytes:
    """Encode one review. Cost: a microsecond."""
    return _ENCODER.encode(review)


def decode_record(record: bytes) -> ReviewRecord:
    """Decode a review. Raises: StateError if the bytes are not a record."""
    try:
        return _REVIEW.decode(record)
    except UNDECODABLE as error:
        raise StateError("queues.record", f"not a record: {error}") from error


def decode_policies(review: ReviewRecord) -> tuple[PolicyRecord, ...]:
    """Decode the policies of a review. Raises: StateError."""
    try:
        return _POLICIES.decode(review.policies)
    except UNDECODABLE as error:
        raise StateError("queues.record", f"not a record: {error}") from error

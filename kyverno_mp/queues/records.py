"""The outcomes of one answered review, as a worker sends them to the leader.

Room: queues. Takes: outcomes of rules as texts. Gives: bytes for a Journal, and back.
Next: controllers/admission_events.py makes Events of it.
May touch: nothing outside its arguments.
Source: docs/behaviour/controllers 9.1 (what an event says), 2.10 (what a report says).

The policies of a ReviewRecord are bytes that many reviews share: equal outcomes are
encoded only once (webhook/audit/sink.py).
"""

from typing import Final

import msgspec

from kyverno_mp.errors import StateError


class RuleRecord(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of one rule.

    ``message``: "" for a Secret, because it may quote values. ``exceptions``: keys
    (``ns/name``) of the PolicyExceptions that made it a skip.
    """

    rule: str
    status: str
    message: str = ""
    exceptions: tuple[str, ...] = ()


class PolicyRecord(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of one policy. ``mutates``: all its rules are mutate rules."""

    kind: str
    name: str
    namespace: str
    uid: str
    mutates: bool
    rules: tuple[RuleRecord, ...]


class ObjectRecord(msgspec.Struct, frozen=True, array_like=True):
    """The object of a review, as the review names it."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""


class ReviewRecord(msgspec.Struct, frozen=True, array_like=True):
    """One answered review. ``at_ns``: wall-clock time; ``policies``: policies_of it."""

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


def encode_record(told: ReviewRecord) -> bytes:
    """Encode one review. Cost: a microsecond."""
    return _ENCODER.encode(told)


def decode_record(record: bytes) -> ReviewRecord:
    """Return a review. Raises: StateError for anything else."""
    try:
        return _REVIEW.decode(record)
    except msgspec.DecodeError as error:
        raise StateError("queues.record", f"not a record: {error}") from error


def decode_policies(told: ReviewRecord) -> tuple[PolicyRecord, ...]:
    """Return the policies of a review. Raises: StateError."""
    try:
        return _POLICIES.decode(told.policies)
    except msgspec.DecodeError as error:
        raise StateError("queues.record", f"not a record: {error}") from error

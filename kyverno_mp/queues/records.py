"""The outcomes of one answered review, as a worker sends them to the leader.

Room: queues. Takes: outcomes of rules as texts. Gives: bytes for a Journal, and back.
Next: controllers/admission_events.py makes Events of it.
May touch: nothing outside its arguments.
Source: spec/controllers.md 9.1 (what an event says), 2.10 (what a report says).

The policies of a Told are bytes that many reviews share: equal outcomes are encoded
only once (webhook/sink.py).
"""

from typing import Final

import msgspec

from kyverno_mp.errors import StateError


class ToldRule(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of one rule.

    ``message``: "" for a Secret, because it may quote values. ``exceptions``: keys
    (``ns/name``) of the PolicyExceptions that made it a skip.
    """

    rule: str
    status: str
    message: str = ""
    exceptions: tuple[str, ...] = ()


class ToldPolicy(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of one policy. ``mutates``: all its rules are mutate rules."""

    kind: str
    name: str
    namespace: str
    uid: str
    mutates: bool
    rules: tuple[ToldRule, ...]


class ToldObject(msgspec.Struct, frozen=True, array_like=True):
    """The object of a review, as the review names it."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""


class Told(msgspec.Struct, frozen=True, array_like=True):
    """One answered review. ``at_ns``: wall-clock time; ``policies``: policies_of it."""

    at_ns: int
    uid: str
    object: ToldObject
    blocked: bool
    policies: msgspec.Raw


_ENCODER: Final = msgspec.msgpack.Encoder()
_TOLD: Final = msgspec.msgpack.Decoder(Told)
_POLICIES: Final = msgspec.msgpack.Decoder(tuple[ToldPolicy, ...])


def encode_policies(policies: tuple[ToldPolicy, ...]) -> msgspec.Raw:
    """Encode the policies, which many reviews may share."""
    return msgspec.Raw(_ENCODER.encode(policies))


def encode_told(told: Told) -> bytes:
    """Encode one review. Cost: a microsecond."""
    return _ENCODER.encode(told)


def decode_told(record: bytes) -> Told:
    """Return a review. Raises: StateError for anything else."""
    try:
        return _TOLD.decode(record)
    except msgspec.DecodeError as error:
        raise StateError("queues.record", f"not a record: {error}") from error


def decode_policies(told: Told) -> tuple[ToldPolicy, ...]:
    """Return the policies of a review. Raises: StateError."""
    try:
        return _POLICIES.decode(told.policies)
    except msgspec.DecodeError as error:
        raise StateError("queues.record", f"not a record: {error}") from error

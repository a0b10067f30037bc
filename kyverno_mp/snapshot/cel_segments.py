"""Read the segment of one kind of policies in CEL: records by position, and the index.

Room: snapshot. Takes: a segment that PoliciesWriter encoded, the type of its records.
Gives: CelSegment. Next: program/validating_policy/source.py.
Source: docs/architecture.md 1 (promise 2), 3; snapshot/policies.py (the layout).

The layout is the same as in the segment ``policies``, but part 0 of a record is the IR
of the kind, and the selectors name resources instead of kinds.
"""

from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from kyverno_mp.errors import SnapshotUnusable
from kyverno_mp.ir.authorization import AuthorizationPolicyIR
from kyverno_mp.ir.cel_policies import (
    GeneratingPolicyIR,
    MutatingBodyIR,
    MutatingPolicyIR,
)
from kyverno_mp.ir.image_policies import ImageBodyIR, ImageValidatingPolicyIR
from kyverno_mp.ir.validating_policy import ValidatingBodyIR, ValidatingPolicyIR
from kyverno_mp.snapshot.policies import PolicySegment
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.snapshot.undecoded import UndecodedRecords
from kyverno_mp.values.records import field_decoders

RecordT = TypeVar(
    "RecordT",
    ValidatingPolicyIR,
    MutatingPolicyIR,
    GeneratingPolicyIR,
    ImageValidatingPolicyIR,
)
_BODIES: Final[Mapping[type[msgspec.Struct], type[msgspec.Struct] | None]] = {
    ValidatingPolicyIR: ValidatingBodyIR,
    MutatingPolicyIR: MutatingBodyIR,
    GeneratingPolicyIR: None,
    ImageValidatingPolicyIR: ImageBodyIR,
}
_DECODERS: Final[Mapping[type, msgspec.msgpack.Decoder[Any]]] = {
    record: msgspec.msgpack.Decoder(record) for record in _BODIES
}
_UNDECODED: Final[Mapping[type, UndecodedRecords[Any]]] = {
    record: UndecodedRecords(
        record, field_decoders(record), body, field_decoders(body or record)
    )
    for record, body in _BODIES.items()
}


class CelSegment(PolicySegment, Generic[RecordT]):
    """The policies of one kind and of one generation."""

    def __init__(self, segment: Segment, record: type[RecordT]) -> None:
        super().__init__(segment)
        self._decoder: msgspec.msgpack.Decoder[RecordT] = _DECODERS[record]
        self._undecoded: UndecodedRecords[RecordT] = _UNDECODED[record]

    def record(self, position: int) -> RecordT:
        """Return the policy at ``position`` in policy order."""
        try:
            return self._decode(position, 0, self._decoder)
        except SnapshotUnusable as error:
            key = self._note(position, error)
            return self._undecoded.of(self._bytes(position, 0), key, self.kind)

    def bytes_of(self, position: int) -> int:
        """Return the size of the policy's record."""
        return self.rule_bytes(position, -1)


class _Either(msgspec.Struct, frozen=True, array_like=True):
    """The beginning of a record; the second field of an authorizer's is its mode."""

    policy: msgspec.Raw
    second: str | tuple[msgspec.Raw, ...]


class AuthorizationSegment(PolicySegment):
    """The policies of an authorizer, in the segment of ValidatingPolicies.

    All of them are used for each request. Those in evaluation mode JSON, with which it
    may judge payloads, are beside them.
    """

    def records(self) -> list[AuthorizationPolicyIR]:
        """Return all policies that authorize requests.

        Raises: SnapshotUnusable if one cannot be decoded: without it, requests that it
        denies would be allowed, so the generation in force stays.
        """
        return [self._decode(at, 0, _AUTHORIZATION) for at in self._at(str)]

    def of_payloads(self) -> list[ValidatingPolicyIR]:
        """Return the policies that judge payloads. Raises: SnapshotUnusable."""
        decoder = _DECODERS[ValidatingPolicyIR]
        return [self._decode(at, 0, decoder) for at in self._at(tuple)]

    def _at(self, second: type) -> list[int]:
        """Return the positions of the records whose second field has a type."""
        return [
            at
            for at in range(self.policy_count)
            if type(self._decode(at, 0, _EITHER).second) is second
        ]


_EITHER: Final = msgspec.msgpack.Decoder(_Either)
_AUTHORIZATION: Final = msgspec.msgpack.Decoder(AuthorizationPolicyIR)

ValidatingSegment = CelSegment[ValidatingPolicyIR]
MutatingSegment = CelSegment[MutatingPolicyIR]
GeneratingSegment = CelSegment[GeneratingPolicyIR]
ImageSegment = CelSegment[ImageValidatingPolicyIR]

"""Define the record of the background rules that an answered review triggers.

Room: queues. Takes: names of policies and rules, the trigger, the review. Gives: bytes
for the journal of triggers, and back. Next: leader/triggers makes UpdateRequests.
Source: docs/behaviour/controllers 5.1, 5.2; docs/pools.md 3.
"""

from typing import Final

import msgspec

from kyverno_mp.errors import StateError
from kyverno_mp.values.records import UNDECODABLE

_GENERATE: Final = "generate"
_OF_CEL: Final = frozenset({"cel-generate", "cel-mutate"})
LOST_ROLE: Final = "lost"
"""Role of a record without a trigger: some of the policy's triggers were lost."""
UNPROVED_ROLE: Final = "unproved"
"""Role of a record without a trigger: reviews may trigger the policy, and nobody has
proved that the API server sent them."""

LEFT_ROLE: Final = "left"
"""Role of a record without a trigger: reviews without proof triggered the policy, and
it is not carried out for them, which its status says."""


class Wanted(msgspec.Struct, frozen=True, array_like=True):
    """The content of one UpdateRequest.

    ``type``: generate, mutate, cel-generate or cel-mutate. ``policy``: its key.
    ``with_objects``: the request carries the objects of the review, because they cannot
    be read later. ``unchecked``: the conditions of the policy were not evaluated.
    """

    type: str
    policy: str
    rules: tuple[str, ...]
    deletes: bool = False
    synchronize: bool = False
    with_objects: bool = False
    unchecked: bool = False


class TriggerObject(msgspec.Struct, frozen=True, array_like=True):
    """The trigger. ``version``: resourceVersion before the request; "" if unknown."""

    api_version: str
    kind: str
    namespace: str = ""
    name: str = ""
    uid: str = ""
    version: str = ""

    @property
    def is_nameless(self) -> bool:
        """Whether it has no name or UID, because the API server has yet to set them."""
        return not (self.name or self.uid)


class _Uid(msgspec.Struct):
    uid: str = ""


_UID: Final = msgspec.json.Decoder(_Uid)


class TriggerRecord(msgspec.Struct, frozen=True, array_like=True):
    """The background rules that one review triggers.

    ``at_ns``: wall-clock time. ``review``: the AdmissionRequest as JSON, without
    objects. ``objects``: JSON of the object and oldObject, b"" when not needed.
    ``changed``: the object of the review if it is a clone source or a generated object
    (see ``role``). ``trigger`` is then the trigger of the generated object, or the
    source itself.
    """

    at_ns: int
    wanted: tuple[Wanted, ...]
    trigger: TriggerObject
    operation: str
    roles: tuple[str, ...] = ()
    cluster_roles: tuple[str, ...] = ()
    review: bytes = b"{}"
    objects: bytes = b""
    role: str = ""
    changed: TriggerObject | None = None

    @property
    def who(self) -> str:
        """Return an identifier of the trigger, unique within its kind and namespace.

        A trigger without a name or UID gets the UID of its review. An object that is
        deleted and created again counts as another trigger.
        """
        trigger = self.trigger
        if trigger.is_nameless:
            return _UID.decode(self.review).uid
        return trigger.uid or trigger.name

    @property
    def is_of_policy(self) -> bool:
        """Whether the pool has to find the triggers of the policy itself."""
        return self.role in (LOST_ROLE, UNPROVED_ROLE, LEFT_ROLE)


def lost_record(
    policy: str, at_ns: int, kind: str = _GENERATE, role: str = LOST_ROLE
) -> TriggerRecord:
    """Return the record of a policy that lost triggers; "" = all policies.

    ``kind``: type of the lost tasks. ``role``: LOST_ROLE, UNPROVED_ROLE or LEFT_ROLE.
    """
    wanted = Wanted(kind if kind in _OF_CEL else _GENERATE, policy, ())
    return TriggerRecord(at_ns, (wanted,), TriggerObject("", ""), "", role=role)


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(TriggerRecord)


def encode_trigger(record: TriggerRecord) -> bytes:
    """Encode a record."""
    return _ENCODER.encode(record)


def decode_trigger(record: bytes) -> TriggerRecord:
    """Decode a record. Raises: StateError if the bytes are not a record."""
    try:
        return _DECODER.decode(record)
    except UNDECODABLE as error:
        raise StateError("queues.record", f"not a record: {error}") from error

"""Encode and read the segment of policies: records by position and the rule index.

Room: snapshot. Takes: EncodedPolicy records in policy order. Gives: bytes of a segment;
PolicySegment, which satisfies program's RuleIndex by shape.
Next: snapshot/publish; program/candidates. May touch: nothing outside its arguments.
Source: design.md 1 (promise 2), 3; ir/index.

    p<position>             PolicyIR and its RuleIRs, each as msgpack, packed
    k<kind>                 selector rows whose kind is this very text
    w                       selector rows whose kind has a wildcard
    d<selector>,<op>        mask of the dimensions in use, u32
    l<selector>,<dim>,<op>  lengths of the values of a prefix dimension, a byte each
    i...                    posting: references of rules, u64 each, ascending
    c                       number of policies and of rules, u64 each
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from kyverno_mp.errors import SnapshotUnusable
from kyverno_mp.ir.index import (
    BY_GROUP_PREFIX,
    BY_NAME_PREFIX,
    BY_NAMESPACE_PREFIX,
    BY_USER_PREFIX,
    EncodedPolicy,
    IndexEntryIR,
    PolicyHeadIR,
    RuleHeadIR,
    SelectorRow,
    part_of,
    posting_key,
)
from kyverno_mp.ir.match import KindIR
from kyverno_mp.ir.rules import PolicyIR, RuleIR
from kyverno_mp.snapshot.encode import encode_segment
from kyverno_mp.snapshot.read import Segment

POLICIES: Final = "policies"
_COUNTS: Final = b"c"
_WILD: Final = b"w"
_PREFIX_DIMENSIONS: Final = frozenset(
    (BY_NAMESPACE_PREFIX, BY_NAME_PREFIX, BY_USER_PREFIX, BY_GROUP_PREFIX)
)
T = TypeVar("T")


def encode_policies(
    policies: Iterable[EncodedPolicy], *, generation: int, salt: bytes
) -> bytearray:
    """Return the file content of the policies segment.

    Cost: linear in the number of policies, whatever changed; their encoding is not
    repeated here.
    """
    records: dict[bytes, bytes] = {}
    index = _IndexWriter()
    policy_count = rule_count = 0
    for position, encoded in enumerate(policies):
        records[b"p%d" % position] = encoded.content
        for number, entries in enumerate(encoded.entries):
            index.add(position << 16 | number, entries)
        policy_count += 1
        rule_count += len(encoded.entries)
    records[_COUNTS] = array("Q", (policy_count, rule_count)).tobytes()
    index.store(records)
    return encode_segment(POLICIES, records, generation=generation, salt=salt)


class _IndexWriter:
    """Collect index entries, number kind selectors, then store postings."""

    def __init__(self) -> None:
        self._numbers: dict[KindIR, int] = {}
        self._postings: dict[tuple[int, str, int, str], list[int]] = {}

    def add(self, reference: int, entries: Iterable[IndexEntryIR]) -> None:
        """Enter one rule; references must come in ascending order."""
        numbers, postings = self._numbers, self._postings
        for entry in entries:
            number = numbers.setdefault(entry.kind, len(numbers))
            key = (number, entry.operation, entry.dimension, entry.value)
            posting = postings.get(key)
            if posting is None:
                postings[key] = [reference]
            else:
                posting.append(reference)

    def store(self, records: dict[bytes, bytes]) -> None:
        """Add selectors, masks and postings to the records."""
        self._store_selectors(records)
        masks: dict[bytes, int] = {}
        lengths: dict[bytes, set[int]] = {}
        for (number, operation, dimension, value), posting in self._postings.items():
            key = posting_key(number, operation, dimension, value)
            records[key] = array("Q", posting).tobytes()
            mask_key = _mask_key(number, operation)
            masks[mask_key] = masks.get(mask_key, 0) | 1 << dimension
            if dimension in _PREFIX_DIMENSIONS:
                length_key = _length_key(number, operation, dimension)
                lengths.setdefault(length_key, set()).add(len(value))
        for key, mask in masks.items():
            records[key] = mask.to_bytes(4, "little")
        for key, used in lengths.items():
            records[key] = bytes(sorted(used))

    def _store_selectors(self, records: dict[bytes, bytes]) -> None:
        rows: dict[bytes, list[SelectorRow]] = {}
        for selector, number in self._numbers.items():
            rows.setdefault(_selector_key(selector.kind), []).append(
                SelectorRow(number, selector)
            )
        for key, found in rows.items():
            records[key] = msgspec.msgpack.encode(found)


class PolicySegment:
    """The policies of one generation, decoded record by record when asked.

    ``decoded_count`` counts the policy and rule records decoded so far.
    """

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self.decoded_count = 0
        counts = self._record(_COUNTS)
        if len(counts) != 16:  # noqa: PLR2004 - two numbers of 8 bytes
            raise SnapshotUnusable("snapshot.record", "segment has no counts")
        self.policy_count, self.rule_count = counts.cast("Q")

    @property
    def generation(self) -> int:
        """The generation the segment was published as."""
        return self._segment.generation

    def policy(self, position: int) -> PolicyIR:
        """Return the policy at ``position`` in policy order."""
        return self._decode(position, 0, _POLICY)

    def policy_head(self, position: int) -> PolicyHeadIR:
        """Return the leading fields of the policy."""
        return self._decode(position, 0, _POLICY_HEAD)

    def rule(self, position: int, number: int) -> RuleIR:
        """Return the rule ``number`` of the policy at ``position``."""
        return self._decode(position, 1 + number, _RULE)

    def rule_head(self, position: int, number: int) -> RuleHeadIR:
        """Return the leading fields of the rule: what matching needs."""
        return self._decode(position, 1 + number, _RULE_HEAD)

    def selectors(self, kind: str) -> Sequence[SelectorRow]:
        """Return the kind selectors that may name ``kind``."""
        rows: list[SelectorRow] = []
        for key in {_selector_key(kind), _WILD}:
            value = self._segment.get(key)
            if value is not None:
                found: list[SelectorRow] = _decode_with(_ROWS, value)
                rows += found
        return rows

    def dimensions(self, selector: int, operation: str) -> int:
        """Return a mask: bit d is set when there are entries by dimension d."""
        value = self._segment.get(_mask_key(selector, operation))
        return 0 if value is None else int.from_bytes(value, "little")

    def find(self, selector: int, operation: str, dimension: int, value: str) -> int:
        """Return a handle of the rules under one key, 0 when there are none."""
        return self._segment.find(posting_key(selector, operation, dimension, value))

    def prefix_lengths(
        self, selector: int, operation: str, dimension: int
    ) -> Sequence[int]:
        """Return the lengths of the values entered by a prefix dimension."""
        value = self._segment.get(_length_key(selector, operation, dimension))
        return () if value is None else bytes(value)

    def posting(self, handle: int) -> Sequence[int]:
        """Return the references of the rules behind a handle, ascending."""
        value = self._segment.value_at(handle)
        if len(value) % 8:
            raise SnapshotUnusable("snapshot.record", "a posting has a broken length")
        return value.cast("Q").tolist()

    def _record(self, key: bytes) -> memoryview:
        value = self._segment.get(key)
        if value is None:
            raise SnapshotUnusable("snapshot.record", f"segment lacks {key!r}")
        return value

    def _decode(
        self, position: int, part: int, decoder: "msgspec.msgpack.Decoder[T]"
    ) -> T:
        self.decoded_count += 1
        content = self._record(b"p%d" % position)
        try:
            record = part_of(content, part)
        except (IndexError, ValueError, TypeError) as error:
            raise SnapshotUnusable(
                "snapshot.record", f"policy {position} has no readable part {part}"
            ) from error
        return _decode_with(decoder, record)


_POLICY: Final = msgspec.msgpack.Decoder(PolicyIR)
_POLICY_HEAD: Final = msgspec.msgpack.Decoder(PolicyHeadIR)
_RULE: Final = msgspec.msgpack.Decoder(RuleIR)
_RULE_HEAD: Final = msgspec.msgpack.Decoder(RuleHeadIR)
_ROWS: Final = msgspec.msgpack.Decoder(list[SelectorRow])


def _decode_with(decoder: msgspec.msgpack.Decoder[T], value: memoryview) -> T:
    try:
        return decoder.decode(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise SnapshotUnusable(
            "snapshot.record", f"a record cannot be read: {error}"
        ) from error


def _selector_key(kind: str) -> bytes:
    if "*" in kind or "?" in kind:
        return _WILD
    return b"k" + kind.encode("utf-8", "surrogatepass")


def _mask_key(selector: int, operation: str) -> bytes:
    return b"d%d," % selector + operation.encode("utf-8", "surrogatepass")


def _length_key(selector: int, operation: str, dimension: int) -> bytes:
    text = operation.encode("utf-8", "surrogatepass")
    return b"l%d,%d," % (selector, dimension) + text

"""Encode and read the segment of policies: records by position and the rule index.

Room: snapshot. Takes: EncodedPolicy records in policy order. Gives: bytes of a segment;
PolicySegment, which satisfies program's RuleIndex by shape.
Next: snapshot/publish; program/matching/candidates.
Source: docs/architecture.md 1 (promise 2), 3; ir/index.

    p<position>             PolicyIR and its RuleIRs, each as msgpack, packed
    k<kind>                 selector rows whose kind is exactly this text
    w                       selector rows whose kind contains wildcards
    d<selector>,<op>        mask of the dimensions in use, u32
    l<selector>,<dim>,<op>  lengths of the values of a prefix dimension, a byte each
    i...                    posting: references of rules, u64 each, ascending
    m                       keys of the postings with many references
    c                       number of policies and of rules, u64 each
    n                       keys of all existing policies, including rejected ones,
                            those of the records first, in their order
"""

import logging
from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final, TypeVar

import msgspec

from kyverno_mp.errors import SnapshotUnusable
from kyverno_mp.ir.index import (
    BY_GROUP_PREFIX,
    BY_NAME_PREFIX,
    BY_NAMESPACE_PREFIX,
    BY_USER_PREFIX,
    EXCLUDING,
    EncodedPolicy,
    IndexEntryIR,
    PolicyHeadIR,
    RuleHeadIR,
    SelectorRow,
    count_of,
    part_of,
    posting_key,
)
from kyverno_mp.ir.match import KindIR
from kyverno_mp.ir.rules import PolicyIR, RuleIR
from kyverno_mp.limits import LINKED_AHEAD_REFERENCES_MIN
from kyverno_mp.snapshot.encode import Packed, encode_segment, pack_records
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.snapshot.undecoded import CODE, undecoded_policy, undecoded_rule
from kyverno_mp.values.kubernetes.policy_kinds import KIND_OF
from kyverno_mp.values.records import UNDECODABLE

_LOG = logging.getLogger(__name__)
POLICIES: Final = "policies"
_COUNTS: Final = b"c"
_NAMES: Final = b"n"
MISSED: Final = "!"
"""The prefix of the key of a policy that is left out although reviews need it."""
_WILD: Final = b"w"
_CROWDED: Final = b"m"
_DIGEST_BYTES: Final = 16
_PREFIX_DIMENSIONS: Final = frozenset(
    (BY_NAMESPACE_PREFIX, BY_NAME_PREFIX, BY_USER_PREFIX, BY_GROUP_PREFIX)
)
T = TypeVar("T")


class PoliciesWriter:
    """Encode successive versions of the policies.

    PERF: the index is most of the work. It does not change while every policy keeps its
    position and its keys, e.g. when patterns or messages are edited.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[tuple[IndexEntryIR, ...], ...]] = []
        self._index: Packed | None = None

    def encode(
        self,
        policies: Sequence[EncodedPolicy],
        *,
        generation: int,
        salt: bytes,
        names: Sequence[str] = (),
        segment: str = POLICIES,
    ) -> bytearray:
        """Return the file content of the policies segment, or of a similar segment.

        ``names``: keys of all policies, including rejected ones; see MISSED. Cost:
        linear in the size of all policies, and in their index entries if these or the
        salt differ from the last call.
        """
        entries = [policy.entries for policy in policies]
        index = self._index
        if index is None or index.salt != salt or entries != self._entries:
            index = self._index = _index_of(entries, salt)
            self._entries = entries
        records = {b"p%d" % at: policy.content for at, policy in enumerate(policies)}
        keys = [policy.key for policy in policies]
        other_names = set(names).difference(keys)
        records[_NAMES] = msgspec.msgpack.encode([*keys, *sorted(other_names)])
        return encode_segment(
            segment, records, generation=generation, salt=salt, packed=index
        )


def _index_of(
    policies: Sequence[tuple[tuple[IndexEntryIR, ...], ...]], salt: bytes
) -> Packed:
    """Return all records except those of the policies themselves."""
    index = _IndexWriter()
    for position, rules in enumerate(policies):
        for number, entries in enumerate(rules):
            index.add(position << 16 | number, entries)
    counts = array("Q", (len(policies), sum(map(len, policies))))
    records = {_COUNTS: counts.tobytes()}
    index.store(records)
    # ``more``: one record per policy, and one with the names.
    return pack_records(records, salt=salt, more=len(policies) + 1)


class _IndexWriter:
    """Collects index entries, numbers the kind selectors, then writes the postings."""

    def __init__(self) -> None:
        self._numbers: dict[KindIR, int] = {}
        self._groups: dict[tuple[KindIR, str, int], dict[str, list[int]]] = {}

    def add(self, reference: int, entries: Iterable[IndexEntryIR]) -> None:
        """Add one rule; references must be added in ascending order."""
        groups = self._groups
        for entry in entries:
            key = (entry.kind, entry.operation, entry.dimension)
            group = groups.get(key)
            if group is None:
                group = groups[key] = {}
                self._numbers.setdefault(entry.kind, len(self._numbers))
            posting = group.get(entry.value)
            if posting is None:
                group[entry.value] = [reference]
            else:
                posting.append(reference)

    def store(self, records: dict[bytes, bytes]) -> None:
        """Add selectors, masks and postings to the records."""
        self._store_selectors(records)
        masks: dict[bytes, int] = {}
        crowded: list[bytes] = []
        for (kind, operation, dimension), postings in self._groups.items():
            number = self._numbers[kind]
            mask_key = _mask_key(number, operation)
            masks[mask_key] = masks.get(mask_key, 0) | 1 << dimension
            if dimension in _PREFIX_DIMENSIONS:
                lengths = bytes(sorted({len(value) for value in postings}))
                records[_length_key(number, operation, dimension)] = lengths
            # The key of a value consists of the key of its group and the value.
            head = posting_key(number, operation, dimension, "")
            for value, posting in postings.items():
                key = head + value.encode("utf-8", "surrogatepass")
                records[key] = array("Q", posting).tobytes()
                is_many = len(posting) >= LINKED_AHEAD_REFERENCES_MIN
                if is_many and dimension < EXCLUDING:
                    crowded.append(key)
        records[_CROWDED] = msgspec.msgpack.encode(crowded)
        for key, mask in masks.items():
            records[key] = mask.to_bytes(4, "little")

    def _store_selectors(self, records: dict[bytes, bytes]) -> None:
        rows: dict[bytes, list[SelectorRow]] = {}
        for selector, number in self._numbers.items():
            rows.setdefault(_selector_key(selector.kind), []).append(
                SelectorRow(number, selector)
            )
        for key, selector_rows in rows.items():
            records[key] = msgspec.msgpack.encode(selector_rows)


class PolicySegment:
    """The policies of one generation; each record is decoded on first use.

    ``decoded_count`` counts the policy and rule records decoded so far. A record that
    cannot be decoded is replaced by one that is an error, see undecoded.py.
    """

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self.kind = KIND_OF[segment.name]
        self.decoded_count = 0
        self.undecoded: set[str] = set()
        """The keys of the policies of which a record could not be decoded."""
        self._names: frozenset[str] | None = None
        counts = self._record(_COUNTS)
        if len(counts) != 16:  # noqa: PLR2004 - two numbers of 8 bytes
            raise SnapshotUnusable(CODE, "segment has no counts")
        self.policy_count, self.rule_count = counts.cast("Q")

    @property
    def generation(self) -> int:
        """The generation under which the segment was published."""
        return self._segment.generation

    def knows(self, key: str) -> bool:
        """Return whether such a policy exists, in force or rejected.

        Cost: the first call decodes the keys of all policies.
        """
        if self._names is None:
            self._names = frozenset(self._keys())
        return key in self._names

    def misses(self, key: str) -> bool:
        """Return whether such a policy exists, but is not in the segment."""
        return self.knows(MISSED + key)

    def policy(self, position: int) -> PolicyIR:
        """Return the policy at ``position`` in policy order."""
        self.decoded_count += 1
        return self._policy(position)

    def policy_head(self, position: int) -> PolicyHeadIR:
        """Return the leading fields of the policy."""
        try:
            return self._decode(position, 0, _POLICY_HEAD)
        except SnapshotUnusable:
            policy = self._policy(position)
            return PolicyHeadIR(policy.kind, policy.name, policy.namespace)

    def rule(self, position: int, number: int) -> RuleIR:
        """Return rule ``number`` of the policy at ``position``.

        It is an error unless both it and its policy can be decoded.
        """
        policy = self._policy(position)
        try:
            rule = self._decode(position, 1 + number, _RULE)
        except SnapshotUnusable as error:
            self._note(position, error)
        else:
            if policy.is_decoded:
                return rule
        return undecoded_rule(self._bytes(position, 1 + number), policy, number)

    def rule_head(self, position: int, number: int) -> RuleHeadIR:
        """Return the leading fields of the rule, which matching needs."""
        try:
            return self._decode(position, 1 + number, _RULE_HEAD)
        except SnapshotUnusable:
            rule = self.rule(position, number)
            return RuleHeadIR(rule.name, rule.rule_type, rule.match, rule.exclude)

    def digest(self, position: int) -> bytes:
        """Return a digest of the policy's record, on which alone linking depends."""
        record = self._record(b"p%d" % position)
        return blake2b(record, digest_size=_DIGEST_BYTES).digest()

    def crowded(self) -> list[Sequence[int]]:
        """Return the postings of which one review may need many rules at once."""
        value = self._segment.get(_CROWDED)
        keys: list[bytes] = [] if value is None else _decode_with(_POSTING_KEYS, value)
        return [self.posting(self._segment.find(key)) for key in keys]

    def rules_of(self, position: int) -> int:
        """Return the number of rules of the policy at ``position``."""
        content = self._record(b"p%d" % position)
        count = count_of(content)
        # One rule stands for those that cannot even be counted.
        return count - 1 if 0 < count <= len(content) // 4 else 1

    def rule_bytes(self, position: int, number: int) -> int:
        """Return the size of the rule's record."""
        return len(self._bytes(position, 1 + number))

    def selectors(self, kind: str) -> Sequence[SelectorRow]:
        """Return the kind selectors that may name ``kind``."""
        rows: list[SelectorRow] = []
        for key in {_selector_key(kind), _WILD}:
            value = self._segment.get(key)
            if value is not None:
                decoded: list[SelectorRow] = _decode_with(_ROWS, value)
                rows += decoded
        return rows

    def dimensions(self, selector: int, operation: str) -> int:
        """Return a mask: bit d is set if dimension d has entries."""
        value = self._segment.get(_mask_key(selector, operation))
        return 0 if value is None else int.from_bytes(value, "little")

    def find(self, selector: int, operation: str, dimension: int, value: str) -> int:
        """Return a handle of the rules under one key, 0 if there are none."""
        return self._segment.find(posting_key(selector, operation, dimension, value))

    def prefix_lengths(
        self, selector: int, operation: str, dimension: int
    ) -> Sequence[int]:
        """Return the lengths of the values in a prefix dimension."""
        value = self._segment.get(_length_key(selector, operation, dimension))
        return () if value is None else bytes(value)

    def posting(self, handle: int) -> Sequence[int]:
        """Return the references of the rules of a handle, ascending."""
        value = self._segment.value_at(handle)
        if len(value) % 8:
            raise SnapshotUnusable(CODE, "a posting has an invalid length")
        return value.cast("Q").tolist()

    def _record(self, key: bytes) -> memoryview:
        value = self._segment.get(key)
        if value is None:
            raise SnapshotUnusable(CODE, f"segment lacks {key!r}")
        return value

    def _keys(self) -> list[str]:
        keys: list[str] = _decode_with(_KEYS, self._record(_NAMES))
        return keys

    def _policy(self, position: int) -> PolicyIR:
        try:
            return _decode_with(_POLICY, self._part(position, 0))
        except SnapshotUnusable as error:
            key = self._note(position, error)
            return undecoded_policy(self._bytes(position, 0), key, self.kind)

    def _note(self, position: int, error: SnapshotUnusable) -> str:
        """Log a policy that cannot be decoded, once; return its key.

        Raises: the error if there is no such policy.
        """
        if position >= self.policy_count:
            raise error
        key = self._keys()[position]
        if key not in self.undecoded:
            self.undecoded.add(key)
            _LOG.error(
                "a stored policy cannot be decoded, so it is an error: %s",
                error.message,
                extra={"fields": {"policy": key, "code": error.code}},
            )
        return key

    def _decode(
        self, position: int, part: int, decoder: "msgspec.msgpack.Decoder[T]"
    ) -> T:
        self.decoded_count += 1
        return _decode_with(decoder, self._part(position, part))

    def _bytes(self, position: int, part: int) -> memoryview:
        """Return a part of a record, nothing if there is none."""
        try:
            return self._part(position, part)
        except SnapshotUnusable:
            return memoryview(b"")

    def _part(self, position: int, part: int) -> memoryview:
        content = self._record(b"p%d" % position)
        try:
            return part_of(content, part)
        except (IndexError, ValueError, TypeError) as error:
            raise SnapshotUnusable(
                CODE, f"policy {position} has no readable part {part}"
            ) from error


_POLICY: Final = msgspec.msgpack.Decoder(PolicyIR)
_POLICY_HEAD: Final = msgspec.msgpack.Decoder(PolicyHeadIR)
_RULE: Final = msgspec.msgpack.Decoder(RuleIR)
_RULE_HEAD: Final = msgspec.msgpack.Decoder(RuleHeadIR)
_ROWS: Final = msgspec.msgpack.Decoder(list[SelectorRow])
_POSTING_KEYS: Final = msgspec.msgpack.Decoder(list[bytes])
_KEYS: Final = msgspec.msgpack.Decoder(list[str])


def _decode_with(decoder: msgspec.msgpack.Decoder[T], value: memoryview) -> T:
    try:
        return decoder.decode(value)
    except UNDECODABLE as error:
        raise SnapshotUnusable(CODE, f"a record cannot be read: {error}") from error


def _selector_key(kind: str) -> bytes:
    if "*" in kind or "?" in kind:
        return _WILD
    return b"k" + kind.encode("utf-8", "surrogatepass")


def _mask_key(selector: int, operation: str) -> bytes:
    return b"d%d," % selector + operation.encode("utf-8", "surrogatepass")


def _length_key(selector: int, operation: str, dimension: int) -> bytes:
    encoded = operation.encode("utf-8", "surrogatepass")
    return b"l%d,%d," % (selector, dimension) + encoded

"""Build the bytes of a segment from keys and values.

Room: snapshot. Takes: records, a generation, a salt. Gives: bytes of a whole file.
Next: snapshot/write.
Source: snapshot/layout.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from sys import byteorder

from kyverno_mp.errors import SnapshotUnusable
from kyverno_mp.ir.rules import LAYOUT_VERSION
from kyverno_mp.limits import SEGMENT_BYTES_MAX
from kyverno_mp.snapshot.layout import (
    CHECKSUM_BYTES,
    CONTAINER_VERSION,
    HEADER_BYTES,
    MAGIC,
    RECORD_PREFIX,
    SALT_BYTES,
    SLOT_BYTES,
    TRAILER_BYTES,
    Header,
    checksum_of,
    hash_key,
    pack_header,
)

_NAME_BYTES = 16


@dataclass(frozen=True, slots=True)
class Packed:
    """Records laid out once, to be the first records of many files with one salt.

    ``table`` is the hash table of a file of ``slot_count`` slots with only these
    records in it.
    """

    salt: bytes
    slot_count: int
    content: bytes
    table: bytes
    record_count: int


def pack_records(
    records: Mapping[bytes, bytes], *, salt: bytes, more: int = 0
) -> Packed:
    """Lay out records for files in which ``more`` other records follow them."""
    slot_count = _slots_for(len(records) + more)
    table = array("Q", bytes(slot_count * SLOT_BYTES))
    chunks: list[bytes] = []
    _lay_out(records, HEADER_BYTES, table, salt, chunks)
    return Packed(salt, slot_count, b"".join(chunks), table.tobytes(), len(records))


def encode_segment(
    name: str,
    records: Mapping[bytes, bytes],
    *,
    generation: int,
    salt: bytes,
    packed: Packed | None = None,
) -> bytearray:
    """Return the file content of segment ``name``.

    ``salt``: 16 random bytes that the authors of keys cannot know. ``packed``: records
    placed before ``records``; no key may be in both, and the salt must be the same.

    Raises: SnapshotUnusable if the content would exceed the size limit of a segment.
    """
    assert len(salt) == SALT_BYTES
    assert len(name.encode()) <= _NAME_BYTES
    if packed is None:
        packed = pack_records({}, salt=salt, more=len(records))
    record_count = packed.record_count + len(records)
    slot_count = packed.slot_count
    assert packed.salt == salt
    assert slot_count >= 2 * record_count
    table = array("Q", packed.table)
    chunks = [b"", packed.content]
    at = HEADER_BYTES + len(packed.content)
    at = _lay_out(records, at, table, salt, chunks)
    padding = -at % 8
    file_bytes = at + padding + slot_count * SLOT_BYTES + TRAILER_BYTES
    if file_bytes > SEGMENT_BYTES_MAX:
        raise SnapshotUnusable(
            "snapshot.size", f"segment {name} would take {file_bytes} bytes"
        )
    header = Header(
        magic=MAGIC,
        container_version=CONTAINER_VERSION,
        record_version=LAYOUT_VERSION,
        name=name.encode(),
        generation=generation,
        file_bytes=file_bytes,
        table_at=at + padding,
        slot_count=slot_count,
        record_count=record_count,
        salt=salt,
        checksum=bytes(CHECKSUM_BYTES),
    )
    chunks[0] = pack_header(header)
    trailer = MAGIC.to_bytes(TRAILER_BYTES, byteorder)
    chunks += (bytes(padding), table.tobytes(), trailer)
    content = bytearray().join(chunks)
    checksum = checksum_of(memoryview(content))
    content[:HEADER_BYTES] = pack_header(header._replace(checksum=checksum))
    return content


def _lay_out(
    records: Mapping[bytes, bytes],
    at: int,
    table: "array[int]",
    salt: bytes,
    chunks: list[bytes],
) -> int:
    """Append records from offset ``at``, add them to the table, and return the end."""
    pack, size, mask = RECORD_PREFIX.pack, RECORD_PREFIX.size, len(table) // 2 - 1
    for key, value in records.items():
        hashed = hash_key(key, salt)
        slot = hashed & mask
        while table[2 * slot + 1]:
            slot = (slot + 1) & mask
        table[2 * slot] = hashed
        table[2 * slot + 1] = at
        chunks += (pack(len(key), len(value)), key, value)
        at += size + len(key) + len(value)
    return at


def _slots_for(record_count: int) -> int:
    slots = 8
    while slots < 2 * record_count:
        slots *= 2
    return slots

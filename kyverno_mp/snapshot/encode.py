"""Build the bytes of a segment from keys and values.

Room: snapshot. Takes: records, a generation, a salt. Gives: bytes of a whole file.
Next: snapshot/write. May touch: nothing outside its arguments.
Source: snapshot/layout.
"""

from array import array
from collections.abc import Mapping

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
    Header,
    checksum_of,
    hash_key,
    pack_header,
)

_NAME_BYTES = 16


def encode_segment(
    name: str, records: Mapping[bytes, bytes], *, generation: int, salt: bytes
) -> bytearray:
    """Return the file content of segment ``name``.

    ``salt`` must be fresh random bytes (16) for each file.

    Raises: SnapshotUnusable when the content would exceed the bound of a segment.
    """
    assert len(salt) == SALT_BYTES
    assert len(name.encode()) <= _NAME_BYTES
    slot_count = _slots_for(len(records))
    table = array("Q", bytes(slot_count * SLOT_BYTES))
    chunks = [b""]
    at = HEADER_BYTES
    pack, mask = RECORD_PREFIX.pack, slot_count - 1
    for key, value in records.items():
        hashed = hash_key(key, salt)
        slot = hashed & mask
        while table[2 * slot + 1]:
            slot = (slot + 1) & mask
        table[2 * slot] = hashed
        table[2 * slot + 1] = at
        chunks += (pack(len(key), len(value)), key, value)
        at += RECORD_PREFIX.size + len(key) + len(value)
    padding = -at % 8
    file_bytes = at + padding + slot_count * SLOT_BYTES
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
        record_count=len(records),
        salt=salt,
        checksum=bytes(CHECKSUM_BYTES),
    )
    chunks[0] = pack_header(header)
    chunks += (bytes(padding), table.tobytes())
    content = bytearray().join(chunks)
    checksum = checksum_of(memoryview(content))
    content[:HEADER_BYTES] = pack_header(header._replace(checksum=checksum))
    return content


def _slots_for(record_count: int) -> int:
    slots = 8
    while slots < 2 * record_count:
        slots *= 2
    return slots

"""Define the bytes of a segment file: header, records, hash table.

Room: snapshot. Gives: the header's shape and the hash of a key, for encode and read.
Source: docs/architecture.md 3 (snapshot).

    header    128 bytes: magic, versions, name, generation, lengths, salt, checksum
    records   each: key length u32, value length u32, key bytes, value bytes
    table     slots of (hash u64, offset of the record u64); offset 0 = empty; a power
              of two of them, at most half full, probed linearly
    trailer   the magic again: the truncated part of a mapped file reads as zeros

Numbers are in the machine's byte order, because the files never leave the pod. The
magic is also a number, so a different byte order is detected. The checksum covers every
byte except its own.
"""

from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple

from kyverno_mp.errors import SnapshotUnusable

MAGIC: Final = 0x4B59564D50534E31
CONTAINER_VERSION: Final = 2
HEADER_BYTES: Final = 128
SLOT_BYTES: Final = 16
SALT_BYTES: Final = 16
TRAILER_BYTES: Final = 8
CHECKSUM_BYTES: Final = 16
RECORD_PREFIX: Final = Struct("=II")
_HEADER: Final = Struct("=QII16sQQQQQ16s24x16s")
_CHECKSUM_AT: Final = HEADER_BYTES - CHECKSUM_BYTES
assert _HEADER.size == HEADER_BYTES


class Header(NamedTuple):
    """The header of one segment file."""

    magic: int
    container_version: int
    record_version: int
    name: bytes
    generation: int
    file_bytes: int
    table_at: int
    slot_count: int
    record_count: int
    salt: bytes
    checksum: bytes


def pack_header(header: Header) -> bytes:
    """Return the header's bytes."""
    return _HEADER.pack(*header)


def unpack_header(content: memoryview) -> Header:
    """Read the header; only its length is checked here."""
    if len(content) < HEADER_BYTES:
        raise SnapshotUnusable("snapshot.cut", "segment is shorter than its header")
    return Header._make(_HEADER.unpack_from(content))


def checksum_of(content: memoryview) -> bytes:
    """Return the checksum of a whole file, without the checksum field itself.

    Cost: about one second per gigabyte; other threads run meanwhile.
    """
    digest = blake2b(digest_size=CHECKSUM_BYTES)
    digest.update(content[:_CHECKSUM_AT])
    digest.update(content[HEADER_BYTES:])
    return digest.digest()


def hash_key(key: bytes, salt: bytes) -> int:
    """Return the hash of a key.

    SAFETY: keyed with the file's salt, so that policy authors cannot choose names that
    collide. A hash of zero is valid, because an empty slot has offset zero.
    """
    return int.from_bytes(blake2b(key, digest_size=8, key=salt).digest(), "little")

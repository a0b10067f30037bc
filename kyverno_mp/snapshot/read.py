"""Attach a segment file read-only and look up keys in it without copying.

Room: snapshot. Takes: a path, or bytes of this process. Gives: Segment.
Next: snapshot/policies, snapshot/data. May touch: the file it is given.
Source: snapshot/layout; docs/architecture.md 3 (a damaged or foreign file is rejected).
"""

import mmap
import os
import stat
from pathlib import Path
from sys import byteorder

from kyverno_mp.errors import SnapshotUnusable, Where
from kyverno_mp.ir.rules import LAYOUT_VERSION
from kyverno_mp.limits import SEGMENT_BYTES_MAX
from kyverno_mp.snapshot.layout import (
    CONTAINER_VERSION,
    HEADER_BYTES,
    MAGIC,
    RECORD_PREFIX,
    SLOT_BYTES,
    TRAILER_BYTES,
    Header,
    checksum_of,
    hash_key,
    unpack_header,
)


class Segment:
    """One validated segment: an immutable map of bytes to bytes.

    The memory is freed with the last reference (including views of values).
    """

    __slots__ = ("_content", "_mask", "_salt", "_table", "_table_at", "header", "name")

    def __init__(self, content: memoryview, name: str) -> None:
        header = unpack_header(content)
        _check_header(header, content, name)
        self.name = name
        self.header: Header = header
        self._content = content
        self._mask = header.slot_count - 1
        self._salt = header.salt
        self._table_at = header.table_at
        # Includes the trailer as the last number.
        self._table = content[header.table_at :].cast("Q")

    @classmethod
    def attach(cls, path: Path, name: str) -> "Segment":
        """Map a file, which must be private, complete and in this layout.

        Raises: SnapshotUnusable.
        """
        try:
            content = _map_file(path)
        except (OSError, ValueError) as error:
            raise SnapshotUnusable(
                "snapshot.open", f"cannot attach: {error}", Where(file=str(path))
            ) from error
        try:
            return cls(memoryview(content), name)
        except SnapshotUnusable as error:
            raise SnapshotUnusable(
                error.code, error.message, Where(file=str(path))
            ) from error

    @classmethod
    def from_bytes(cls, content: bytes | bytearray, name: str) -> "Segment":
        """Validate content in memory, as ``attach`` does for a file."""
        return cls(memoryview(content), name)

    @property
    def generation(self) -> int:
        """The generation under which the file was published."""
        return self.header.generation

    def get(self, key: bytes) -> memoryview | None:
        """Return a view of the value, None if the key is absent."""
        at = self._find(key)
        return None if at == 0 else self.value_at(at)

    def find(self, key: bytes) -> int:
        """Return a handle of the record for ``value_at``, 0 if the key is absent."""
        return self._find(key)

    def value_at(self, handle: int) -> memoryview:
        """Return the value of a record that ``find`` returned."""
        key_bytes, value_bytes = self._prefix(handle)
        start = handle + RECORD_PREFIX.size + key_bytes
        return self._content[start : start + value_bytes]

    def list_keys(self) -> list[bytes]:
        """Return all keys, unordered. Cost: one pass over the whole table."""
        offsets = self._table.tolist()[1:-1:2]
        return [bytes(self._key_at(at)) for at in offsets if at]

    def _find(self, key: bytes) -> int:
        hashed = hash_key(key, self._salt)
        table, mask = self._table, self._mask
        first = slot = hashed & mask
        while at := table[2 * slot + 1]:
            if table[2 * slot] == hashed and self._key_at(at) == key:
                return at
            slot = (slot + 1) & mask
            if slot == first:
                raise SnapshotUnusable("snapshot.bounds", "segment's table is full")
        self._check_whole()
        return 0

    def _check_whole(self) -> None:
        """Raise SnapshotUnusable if the file was truncated after it was mapped.

        SAFETY: the rest of the last page reads as zeros, so rules would appear to be
        absent.
        """
        if self._table[-1] != MAGIC:
            raise SnapshotUnusable("snapshot.cut", "segment was truncated while in use")

    def _key_at(self, at: int) -> memoryview:
        key_bytes, _ = self._prefix(at)
        start = at + RECORD_PREFIX.size
        return self._content[start : start + key_bytes]

    def _prefix(self, at: int) -> tuple[int, int]:
        self._check_whole()
        last = self._table_at - RECORD_PREFIX.size
        if HEADER_BYTES <= at <= last:
            key_bytes, value_bytes = RECORD_PREFIX.unpack_from(self._content, at)
            if at + key_bytes + value_bytes <= last:
                return key_bytes, value_bytes
        raise SnapshotUnusable("snapshot.bounds", "a record lies outside its segment")


def _map_file(path: Path) -> mmap.mmap:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(path, flags)
    try:
        check_private_file(os.fstat(descriptor))
        # SAFETY: our writer renames complete files into place and never truncates one.
        # If another program does, reading a page beyond the new end causes a SIGBUS,
        # and the rest of the last page reads as zeros: see _check_whole.
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)


def check_private_file(status: os.stat_result) -> None:
    """Raise SnapshotUnusable unless the file is ours and closed to other users."""
    if not stat.S_ISREG(status.st_mode):
        raise SnapshotUnusable("snapshot.foreign", "not a regular file")
    if status.st_uid != os.geteuid():
        raise SnapshotUnusable("snapshot.foreign", "file belongs to another user")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise SnapshotUnusable("snapshot.foreign", "file is open to other users")
    if status.st_size > SEGMENT_BYTES_MAX:
        raise SnapshotUnusable("snapshot.size", "file is larger than a segment may be")


def _check_header(header: Header, content: memoryview, name: str) -> None:
    if header.magic != MAGIC:
        raise SnapshotUnusable("snapshot.foreign", "not a segment of kyverno-mp")
    if (header.container_version, header.record_version) != (
        CONTAINER_VERSION,
        LAYOUT_VERSION,
    ):
        raise SnapshotUnusable("snapshot.layout", "segment has another layout version")
    if header.file_bytes != len(content):
        raise SnapshotUnusable("snapshot.cut", "segment does not have its full length")
    if checksum_of(content) != header.checksum:
        raise SnapshotUnusable("snapshot.checksum", "segment is damaged")
    if header.name.rstrip(b"\0") != name.encode():
        raise SnapshotUnusable("snapshot.foreign", "segment has another name")
    slots = header.slot_count
    if (
        slots <= header.record_count
        or slots & (slots - 1)
        or header.table_at % 8
        or header.table_at < HEADER_BYTES
        or header.table_at + slots * SLOT_BYTES + TRAILER_BYTES != header.file_bytes
        or int.from_bytes(content[-TRAILER_BYTES:], byteorder) != MAGIC
    ):
        raise SnapshotUnusable("snapshot.bounds", "segment has an invalid table")

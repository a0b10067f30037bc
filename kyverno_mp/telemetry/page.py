"""Keep the metric values of one process in a file that other processes can read.

Room: telemetry. Takes: a private directory. Gives: Page (written by its one owner) and
View (read by the health process). Next: record, collect. A page outlives its owner: the
next process of the role takes over the page, so counters survive kill -9. May touch:
page files below the directory, /proc for start times.

Layout (little endian, 8-byte cells):
    0        header of 512 bytes: magic, layout, cells used, key bytes used, pid, start
             ticks, then GAUGES
    512      CELL_COUNT cells of float64
    KEYS_AT  records: cell u32, family u16, table u16, length u32, JSON of label values

A histogram has one cell for each bucket boundary, one for larger values, one for the
sum. The boundaries are in a record of the family TABLE, whose cell is its number.
Series refer to that number, so one page can contain histograms with different
boundaries.
"""

import errno
import fcntl
import logging
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from kyverno_mp.errors import StateError
from kyverno_mp.limits import BUCKET_TABLES_MAX
from kyverno_mp.settings.machine import anonymous_file, reserve, start_ticks
from kyverno_mp.snapshot.room import has_room

_MAGIC: Final = 0x314D504B  # "KPM1"
_LAYOUT: Final = 5
_HEADER_BYTES: Final = 512
CELL_COUNT: Final = 128 * 1024
"""2,000 series of each of three histograms need 102,000 cells; unused cells cost
nothing, because the file is sparse."""
_KEYS_AT: Final = _HEADER_BYTES + CELL_COUNT * 8
_KEY_BYTES_MAX: Final = 4 * 1024 * 1024
_FILE_BYTES: Final = _KEYS_AT + _KEY_BYTES_MAX
_PAGES_MAX: Final = 2048
_RESERVED_BYTES: Final = 64 * 1024
"""Bytes of cells and of records, reserved with the page so that a process can start
counting."""
_NO_MEMORY: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_RECORD: Final = struct.Struct("<IHHI")
_CELLS_USED, _KEYS_USED, _PID, _TICKS, _EPOCH = 2, 3, 4, 5, 6
_TABLE: Final = 0xFFFE
_ATTEMPTS: Final = 3
GAUGES: Final = (
    "heartbeat_ns",
    "generation",
    "attached_ns",
    "snapshot_bytes",
    "linked_rules",
    "audit_queue_depth",
    "audit_queue_dropped",
    "io_queue_depth",
    "io_queue_dropped",
    "long_queue_depth",
    "long_queue_dropped",
    "image_queue_depth",
    "image_queue_dropped",
    "connections",
    "events_queue_depth",
    "events_queue_dropped",
    "held_bytes",
    "controllers_queue_depth",
    "controllers_queue_dropped",
    "unpublished_segments",
    "undecoded_policies",
)
"""Gauges of one process; times are ``time.monotonic_ns()``, which all processes
share."""
_GAUGES_AT: Final = 8
_log = logging.getLogger(__name__)
_BOUNDS: Final = msgspec.json.Decoder(list[float])


def is_running(pid: int, ticks: int) -> bool:
    """Return whether the process that started at ``ticks`` lives.

    A reused process id is detected by the start time.
    """
    return 0 < start_ticks(pid) == ticks


class Page:
    """The metric values of this process; one writer, no lock on the hot path."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.is_read = True
        """Whether other processes can read this page."""
        self._descriptor = descriptor  # holds the lock
        mark = os.pread(descriptor, 16, 0)
        if mark != struct.pack("<QQ", _MAGIC, _LAYOUT):
            # Cells of another layout would be misread as counts.
            os.ftruncate(descriptor, 0)
            os.ftruncate(descriptor, _FILE_BYTES)
        for at in (0, _KEYS_AT):
            if not _has_memory(descriptor, at, _RESERVED_BYTES):
                os.close(descriptor)
                raise StateError("telemetry.no_room", f"no room for {path.name}")
        self._map = mmap.mmap(descriptor, _FILE_BYTES)
        view = memoryview(self._map)
        self._header = view[:_HEADER_BYTES].cast("Q")
        self.cells = view[_HEADER_BYTES:_KEYS_AT].cast("d")
        self._header[1] = _LAYOUT
        self._header[0] = _MAGIC
        for index in range(_GAUGES_AT, _GAUGES_AT + len(GAUGES)):
            self._header[index] = 0
        self._tables = [list(bounds) for bounds in self._read_tables()]
        self._header[_TICKS] = start_ticks(os.getpid())
        self._header[_PID] = os.getpid()

    @classmethod
    def claim(cls, directory: Path, role: str) -> "Page":
        """Return the first page of ``role`` that no living process holds.

        Cost: one lock attempt per living process of the role.

        Without room in the folder, the page is one that no other process reads, until
        Recorder.settled has another one.

        Raises: StateError (``telemetry.no_room``) when there is not enough memory.
        """
        path, descriptor = _first_free(directory, role)
        try:
            return cls(path, descriptor)
        except StateError:
            # In a full folder, workers of an arbiter that died hold their pages until
            # they have finished. The next ones serve meanwhile with a page that nobody
            # reads, rather than not at all.
            _log.warning(
                "no room for a metric page: metrics and heartbeat of this process are"
                " not read until there is",
                extra={"page": path.name},
            )
        unread = anonymous_file(path.name)
        os.ftruncate(unread, _FILE_BYTES)
        page = cls(path, unread)
        page.is_read = False
        return page

    def followed_by(self) -> "Page | None":
        """Return a page of this role that others read, None without room for it.

        It has this page's gauges; the caller moves the series and closes this page.
        """
        directory, role = self.path.parent, self.path.name.rpartition("-")[0]
        try:
            page = Page(*_first_free(directory, role))
        except StateError:
            return None
        gauges = slice(_GAUGES_AT, _GAUGES_AT + len(GAUGES))
        page._header[gauges] = self._header[gauges]
        return page

    def set_gauge(self, name: str, value: int) -> None:
        """Store one of GAUGES."""
        self._header[_GAUGES_AT + GAUGES.index(name)] = value

    def add_series(
        self, family: int, cell_count: int, labels: object, table: int = 0
    ) -> int:
        """Return the first cell of a new series, -1 when the page is full.

        ``table``: number of the boundaries of a histogram, as ``table_of`` returned it.
        """
        cell = self._header[_CELLS_USED]
        if cell + cell_count > CELL_COUNT or not _may_grow(
            self._descriptor, _HEADER_BYTES, cell * 8, cell_count * 8
        ):
            return -1
        if not self._add_record(cell, family, table, labels):
            return -1
        self._header[_CELLS_USED] = cell + cell_count
        return cell

    def table_of(self, bounds: Sequence[float]) -> int:
        """Return the number of these bucket boundaries, -1 when the page is full."""
        given = list(bounds)
        if given in self._tables:
            return self._tables.index(given)
        number = len(self._tables)
        if number >= BUCKET_TABLES_MAX or not self._add_record(
            number, _TABLE, 0, given
        ):
            return -1
        self._tables.append(given)
        return number

    def bounds_of(self, table: int) -> tuple[float, ...]:
        """Return the bucket boundaries with this number."""
        return tuple(self._tables[table])

    def latest_table(self) -> tuple[int, tuple[float, ...]]:
        """Return the number and values of the latest boundaries; number -1 = none."""
        if not self._tables:
            return -1, ()
        return len(self._tables) - 1, tuple(self._tables[-1])

    def series(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Yield (family, cell, table, JSON labels) of the former owner's series."""
        return _series(self._keys())

    def reset(self) -> None:
        """Delete all series; concurrent readers notice it by the epoch."""
        used = self._header[_CELLS_USED]
        self._header[_EPOCH] += 1
        self._header[_KEYS_USED] = 0
        self._header[_CELLS_USED] = 0
        self.cells[:used] = memoryview(bytes(used * 8)).cast("d")
        self._tables = []

    def _add_record(self, cell: int, family: int, table: int, labels: object) -> bool:
        """Append a record; return False if there is no space.

        The record is complete before it is counted, so a reader or the next owner never
        reads a partial record, even if this process dies at any time.
        """
        used = self._header[_KEYS_USED]
        key = msgspec.json.encode(labels)
        size = _RECORD.size + len(key)
        at = _KEYS_AT + used
        if used + size > _KEY_BYTES_MAX or not _may_grow(
            self._descriptor, _KEYS_AT, used, size
        ):
            return False
        self._map[at : at + size] = _RECORD.pack(cell, family, table, len(key)) + key
        self._header[_KEYS_USED] = used + size
        return True

    def _keys(self) -> bytes:
        return self._map[_KEYS_AT : _KEYS_AT + self._header[_KEYS_USED]]

    def _read_tables(self) -> Iterator[list[float]]:
        for family, _, _, text in _records(self._keys()):
            if family == _TABLE:
                yield _BOUNDS.decode(text)

    def close(self) -> None:
        """Close the page; only for tests and orderly shutdowns."""
        self._header.release()
        self.cells.release()
        # The mapping has a descriptor of its own, which also holds the lock.
        self._map.close()
        os.close(self._descriptor)


def _first_free(directory: Path, role: str) -> tuple[Path, int]:
    """Lock the first page of ``role`` that no living process holds."""
    for number in range(_PAGES_MAX):
        path = directory / f"{role}-{number}.page"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            continue
        os.ftruncate(descriptor, _FILE_BYTES)
        return path, descriptor
    raise AssertionError(f"{_PAGES_MAX} living processes of role {role}")


def _has_memory(descriptor: int, at: int, size: int) -> bool:
    """Reserve memory for these bytes; without it, a store could cause a SIGBUS."""
    try:
        reserve(descriptor, at, size)
    except OSError as error:
        return error.errno not in _NO_MEMORY
    return True


def _may_grow(descriptor: int, start: int, used: int, size: int) -> bool:
    """Reserve memory for a new series, which must not take the room that is kept."""
    is_reserved = used + size <= _RESERVED_BYTES
    may_grow = is_reserved or has_room(descriptor, size)
    return may_grow and _has_memory(descriptor, start + used, size)


class View:
    """A page as read by another process: its header at one time.

    ``readable`` is False for a file that is not a page or has another layout.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self._path = path
        self._header: tuple[int, ...] = ()
        with path.open("rb") as file:
            self.readable = self._read_header(file)

    @property
    def role(self) -> str:
        """The role, from the page's name."""
        return self.name.rpartition("-")[0]

    @property
    def pid(self) -> int:
        """The owner's process id, even if the owner is dead."""
        return self._header[_PID]

    def gauge(self, name: str) -> int:
        """Return one of GAUGES."""
        return self._header[_GAUGES_AT + GAUGES.index(name)]

    def alive(self) -> bool:
        """Return whether the owner is running; detects a reused process id."""
        return is_running(self.pid, self._header[_TICKS])

    def series(self) -> Iterator[tuple[int, bytes, list[float], tuple[float, ...]]]:
        """Yield (family, JSON labels, cells of the series, bucket boundaries).

        Reads only the used part of the file.
        """
        cells, keys = self._content()
        tables: list[tuple[float, ...]] = []
        for family, cell, table, text in _records(keys):
            if family == _TABLE:
                tables.append(tuple(_BOUNDS.decode(text)))
                continue
            bounds = tables[table] if tables else ()
            yield family, text, cells[cell : cell + len(bounds) + 2], bounds

    def _content(self) -> tuple[list[float], bytes]:
        """Return cells and keys of one epoch; nothing if the page keeps changing."""
        for _ in range(_ATTEMPTS):
            used = min(self._header[_CELLS_USED], CELL_COUNT)
            keys_used = min(self._header[_KEYS_USED], _KEY_BYTES_MAX)
            epoch = self._header[_EPOCH]
            with self._path.open("rb") as file:
                file.seek(_HEADER_BYTES)
                cells = list(struct.unpack(f"<{used}d", file.read(used * 8)))
                file.seek(_KEYS_AT)
                keys = file.read(keys_used)
                file.seek(0)
                self._read_header(file)
            if self._header[_EPOCH] == epoch:
                return cells, keys
        return [], b""

    def _read_header(self, file: BinaryIO) -> bool:
        data = file.read(_HEADER_BYTES)
        if len(data) < _HEADER_BYTES:
            return False
        self._header = struct.unpack(f"<{_HEADER_BYTES // 8}Q", data)
        return self._header[:2] == (_MAGIC, _LAYOUT)


def _series(keys: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    return (record for record in _records(keys) if record[0] != _TABLE)


def _records(keys: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    at = 0
    while at + _RECORD.size <= len(keys):
        cell, family, table, length = _RECORD.unpack_from(keys, at)
        at += _RECORD.size
        yield family, cell, table, keys[at : at + length]
        at += length

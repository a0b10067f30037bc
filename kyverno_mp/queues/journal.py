"""Pass records from processes of a pod to another process through files in memory.

Room: queues. Takes: records as bytes, a Channel. Gives: Journal (written by the one
process that holds it) and JournalReader. Next: queues/records.py defines the content of
the channel of Events. May touch: files of that channel's folder, mapped.
Source: docs/architecture.md 3 (audit queue), 1 (every queue is bounded and counts what
it dropped).

A record is in the file when ``append`` returns, without a system call, so a kill -9 of
the writer loses no records. After a kill -9 of the reader, the records that it had not
taken are read again. A new worker takes over the file of a dead worker and continues in
it. The files outlive the container, so its restart loses no records either.

Each channel has its own folder and file size, so a full channel takes no space from
other channels.

    0      header of 4096 bytes, numbers of 8 bytes: magic, layout version; bytes and
           records written so far, records the writer dropped; bytes and records read
           so far, records the reader gave up
    4096   the ring, the rest of the file: length u32, CRC-32 u32, content; a record
           wraps around at the end

SAFETY: every number is written by one process with one aligned 8-byte store, after the
bytes that it counts. Over 400 lines: both sides of one layout, and its channels.
"""

import fcntl
import mmap
import os
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kyverno_mp.errors import StateError
from kyverno_mp.limits import (
    DENIAL_JOURNAL_BYTES_MAX,
    JOURNAL_BYTES_MAX,
    LOST_JOURNAL_BYTES_MAX,
    RESULT_JOURNAL_BYTES_MAX,
    TRIGGER_JOURNAL_BYTES_MAX,
)
from kyverno_mp.queues.fair import FairRing
from kyverno_mp.settings.machine import reserve

FOLDER: Final = "journals"
"""Name of the folder of all channels below the runtime folder."""


@dataclass(frozen=True, slots=True)
class Channel:
    """A kind of records: its folder, and the size of each writer's ring."""

    name: str
    ring_bytes: int

    def folder(self, runtime_dir: Path) -> Path:
        """Return the folder of the channel's journals."""
        return runtime_dir / FOLDER / self.name


EVENTS: Final = Channel("events", JOURNAL_BYTES_MAX)
"""Records for Events: from webhook workers to the leader."""
TRIGGERS: Final = Channel("triggers", TRIGGER_JOURNAL_BYTES_MAX)
"""Records for UpdateRequests: from webhook workers to the leader."""
LOST: Final = Channel("lost", LOST_JOURNAL_BYTES_MAX)
"""Policies whose triggers were dropped for lack of space: from webhook workers to the
leader."""
RESULTS: Final = Channel("results", RESULT_JOURNAL_BYTES_MAX)
"""Results that only reviews can produce, for reports: from webhook workers to the
leader."""
DENIALS: Final = Channel("denials", DENIAL_JOURNAL_BYTES_MAX)
"""Denials by steps of gradually enforced policies: from webhook workers to the leader.
"""
CHANNELS: Final[Sequence[Channel]] = (EVENTS, TRIGGERS, LOST, RESULTS, DENIALS)
_MAGIC: Final = 0x314A504B  # "KPJ1"
_LAYOUT: Final = 1
_HEADER_BYTES: Final = 4096
_FRAME: Final = struct.Struct("<II")
_WRITTEN, _RECORDS, _DROPPED, _TAKEN, _TAKEN_RECORDS, _GIVEN_UP = range(2, 8)
_JOURNALS_MAX: Final = 2048
_SUFFIX: Final = ".journal"
_TICK_NS: Final = 100_000_000
"""Much coarser than the time stamps of any file system."""
_READS_MAX: Final = 3
"""Attempts to read an unreadable record before it counts as corrupt: a processor may
make its length visible before its content."""


class _Mapped:
    """A journal file as mapped by its writer or a reader."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor  # holds the lock
        size = os.fstat(descriptor).st_size
        self._ring_bytes = size - _HEADER_BYTES
        self._map = mmap.mmap(descriptor, size)
        view = memoryview(self._map)
        self._numbers = view[:_HEADER_BYTES].cast("Q")
        self._ring = view[_HEADER_BYTES:]

    @property
    def waiting(self) -> int:
        """Number of records that have not been taken yet."""
        return max(0, self._numbers[_RECORDS] - self._numbers[_TAKEN_RECORDS])

    @property
    def written(self) -> int:
        """Number of bytes written so far."""
        return self._numbers[_WRITTEN]

    @property
    def taken(self) -> int:
        """Number of bytes taken so far."""
        return self._numbers[_TAKEN]

    @property
    def dropped(self) -> int:
        """Number of records that did not fit or that the reader gave up."""
        return self._numbers[_DROPPED] + self._numbers[_GIVEN_UP]

    def close(self) -> None:
        """Close the file; for tests and orderly shutdowns."""
        self._numbers.release()
        self._ring.release()
        self._map.close()
        os.close(self._descriptor)


class Journal(_Mapped):
    """The writer's side; threads of its process may share it."""

    def __init__(self, path: Path, descriptor: int, records_max: int) -> None:
        super().__init__(path, descriptor)
        self._records_max = records_max
        self.on_append: Callable[[], object] | None = None
        """Called after each record that was added; it must not wait."""
        self.on_first: Callable[[], object] | None = None
        """The same, after a record before which the reader had taken all."""
        self._lock = threading.Lock()
        self._fair = FairRing(records_max, self._ring_bytes)
        numbers = self._numbers
        if (numbers[0], numbers[1]) != (_MAGIC, _LAYOUT):
            for place in range(_WRITTEN, _GIVEN_UP + 1):
                numbers[place] = 0
            numbers[1] = _LAYOUT
            numbers[0] = _MAGIC

    @classmethod
    def claim(
        cls, folder: Path, records_max: int, ring_bytes: int = EVENTS.ring_bytes
    ) -> "Journal":
        """Return the first journal of a channel that no living process holds.

        A file of a different size, left by another version, is emptied.

        Raises: StateError when there is not enough memory.
        """
        size = _HEADER_BYTES + ring_bytes
        for number in range(_JOURNALS_MAX):
            path = folder / f"{number}{_SUFFIX}"
            descriptor = os.open(
                path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                continue
            if os.fstat(descriptor).st_size not in (0, size):
                os.ftruncate(descriptor, 0)
            try:
                # Without reserved memory, a store to the page would cause a SIGBUS
                # later.
                reserve(descriptor, 0, size)
            except OSError as error:
                os.close(descriptor)
                raise StateError(
                    "queues.no_room", f"no room for {path.name}: {error.strerror}"
                ) from error
            return cls(path, descriptor, records_max)
        raise AssertionError(f"{_JOURNALS_MAX} living writers")

    def append(self, record: bytes, namespace: str | None = None) -> bool:
        """Add a record; return False when it was dropped for lack of space.

        ``namespace``: whose record it is, so that one namespace leaves room to others.
        Cost: about two microseconds; no system call, no wait for the reader.
        """
        frame = _FRAME.pack(len(record), zlib.crc32(record)) + record
        numbers = self._numbers
        with self._lock:
            entries, size = self.waiting, len(frame)
            written, taken = numbers[_WRITTEN], numbers[_TAKEN]
            fits = size <= self._ring_bytes - (written - taken)
            if fits and entries < self._records_max and namespace is not None:
                fits = self._fair.admits(namespace, size, entries, written, taken)
            if not fits or entries >= self._records_max:
                numbers[_DROPPED] += 1
                return False
            at = written % self._ring_bytes
            before_end = self._ring_bytes - at
            if len(frame) <= before_end:
                self._ring[at : at + len(frame)] = frame
            else:
                self._ring[at:] = frame[:before_end]
                self._ring[: len(frame) - before_end] = frame[before_end:]
            # A kill between the two stores leaves the count one too low, which is
            # harmless.
            numbers[_WRITTEN] = written + len(frame)
            numbers[_RECORDS] += 1
        if self.on_append is not None:
            self.on_append()
        # Looked at after the record is there: the reader looks in the other order.
        if self.on_first is not None and numbers[_TAKEN] == written:
            self.on_first()
        return True


class _Followed(_Mapped):
    """The reader's side of one journal."""

    def __init__(self, path: Path, descriptor: int) -> None:
        super().__init__(path, descriptor)
        self._failed_reads = 0

    def first(self) -> tuple[bytes, int] | None:
        """Return the oldest record and its end position, or None if none waits."""
        numbers = self._numbers
        if (numbers[0], numbers[1]) != (_MAGIC, _LAYOUT):
            return None
        taken = numbers[_TAKEN]
        if taken == numbers[_WRITTEN]:
            return None
        found = self.at(taken)
        if found is None:
            self._count_failed_read()
        else:
            self._failed_reads = 0
        return found

    def at(self, taken: int) -> tuple[bytes, int] | None:
        """Return the record at a position, or None if it is not readable."""
        written = self._numbers[_WRITTEN]
        found = None
        if _FRAME.size <= written - taken <= self._ring_bytes:
            length, checksum = _FRAME.unpack(self._bytes(taken, _FRAME.size))
            end = taken + _FRAME.size + length
            if end <= written:
                content = self._bytes(taken + _FRAME.size, length)
                if zlib.crc32(content) == checksum:
                    found = content, end
        return found

    def take(self, end: int, *, gave_up: bool = False) -> None:
        """Remove the record that ``first`` returned and free its space."""
        numbers = self._numbers
        numbers[_GIVEN_UP] += gave_up
        numbers[_TAKEN_RECORDS] += 1
        numbers[_TAKEN] = end

    def _count_failed_read(self) -> None:
        """Discard all waiting records after too many failed attempts to read them."""
        self._failed_reads += 1
        if self._failed_reads < _READS_MAX:
            return
        self._failed_reads = 0
        numbers = self._numbers
        records, written = numbers[_RECORDS], numbers[_WRITTEN]
        numbers[_GIVEN_UP] += max(0, records - numbers[_TAKEN_RECORDS])
        numbers[_TAKEN_RECORDS] = records
        numbers[_TAKEN] = written

    def _bytes(self, at: int, length: int) -> bytes:
        start = at % self._ring_bytes
        piece = bytes(self._ring[start : start + length])
        return piece + bytes(self._ring[: length - len(piece)])


class Record:
    """A record that waits in a journal."""

    __slots__ = ("_end", "_journal", "content")

    def __init__(self, content: bytes, journal: _Followed, end: int) -> None:
        self.content = content
        self._journal = journal
        self._end = end

    def done(self) -> None:
        """Remove the processed record from its journal."""
        self._journal.take(self._end)

    def give_up(self) -> None:
        """Remove the record unprocessed and count it as dropped."""
        self._journal.take(self._end, gave_up=True)


class JournalReader:
    """All journals of a folder; for one thread of one process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._followed: dict[Path, _Followed] = {}
        self._seen_ns = -1
        """Modification time of the folder when all its journals were last opened."""

    def records(self) -> Iterator[Record]:
        """Yield waiting records, one from each journal in turn, until none is left.

        The caller must take each record before it requests the next. Otherwise this
        pass skips the rest of that journal, and the next pass begins with the same
        record.
        """
        self._discover()
        turns = list(self._followed.values())
        while turns:
            going_on = []
            for journal in turns:
                found = journal.first()
                if found is None:
                    continue
                yield Record(found[0], journal, found[1])
                if journal.taken == found[1]:
                    going_on.append(journal)
            turns = going_on

    def ahead(self, most: int) -> Iterator[list["Record"]]:
        """Yield the oldest waiting records of each journal, at most ``most`` of each.

        The caller must take the records of a journal in this order.
        """
        self._discover()
        for journal in list(self._followed.values()):
            found: list[Record] = []
            next_one = journal.first()
            while next_one is not None and len(found) < most:
                content, end = next_one
                found.append(Record(content, journal, end))
                next_one = journal.at(end)
            if found:
                yield found

    def journals(self) -> list[_Followed]:
        """Return all journals, for queues/ahead.py."""
        self._discover()
        return list(self._followed.values())

    @property
    def waiting(self) -> int:
        """Return the number of waiting records in all journals."""
        return sum(journal.waiting for journal in self._followed.values())

    def close(self) -> None:
        """Close all journal files."""
        for journal in self._followed.values():
            journal.close()
        self._followed.clear()

    def _discover(self) -> None:
        """Open the journals that exist.

        PERF: reading the folder's modification time takes 2 us, listing its files 20 us
        or more.
        """
        changed_ns = self._changed_ns()
        if changed_ns == self._seen_ns:
            return
        is_whole = True
        for path in self._folder.glob(f"*{_SUFFIX}"):
            if path in self._followed:
                continue
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            if os.fstat(descriptor).st_size <= _HEADER_BYTES:
                # The writer is still creating the file.
                os.close(descriptor)
                is_whole = False
                continue
            self._followed[path] = _Followed(path, descriptor)
        # A file created within the same clock tick leaves the folder's time unchanged.
        is_past = time.time_ns() - changed_ns > _TICK_NS
        self._seen_ns = changed_ns if is_whole and is_past else -1

    def _changed_ns(self) -> int:
        """Return the folder's modification time; -2 if the folder does not exist."""
        try:
            return self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return -2


def waiting_in(runtime_dir: Path) -> int:
    """Return the number of waiting records in all channels.

    Call it only while no process writes or reads them.
    """
    count = 0
    for channel in CHANNELS:
        reader = JournalReader(channel.folder(runtime_dir))
        for _ in reader.records():
            break
        count += reader.waiting
        reader.close()
    return count

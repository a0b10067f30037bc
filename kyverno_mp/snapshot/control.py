"""Share a page of generations between the leader and the workers of a pod.

Room: snapshot. Takes: the snapshot directory. Gives: ControlPage: the generation of
each segment, and per worker the generations it serves.
Next: snapshot/publish, snapshot/follow, health checks.
May touch: the file ``control`` in that directory.
Source: docs/architecture.md 3 (a fixed-size control page; one 8-byte read per request).

    number 0            magic
    number 1            layout version
    number 2            failed calls of workers that are gone (see ``exposures``)
    numbers 8..23       generation of each segment, in the order of SEGMENTS
    then 256 slots      of 32 numbers: process id, start time, connections, failed
                        calls, 4 spare, 16 generations

SAFETY: every number is one aligned 8-byte store or load, never torn. The file is
created once and never replaced or truncated, because workers keep it mapped.
"""

import fcntl
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kyverno_mp.errors import SnapshotUnusable, Where
from kyverno_mp.settings.machine import reserve
from kyverno_mp.snapshot.read import check_private_file
from kyverno_mp.snapshot.write import prepare_directory
from kyverno_mp.values.kubernetes.policy_kinds import (
    CEL_SEGMENTS,
    WITH_RULES,
)

SEGMENTS: Final = (
    WITH_RULES.segment,
    "namespaces",
    "configmaps",
    "roles",
    "globalcontext",
    "apicalls",
    "exceptions",
    "settings",
    "kinds",
    "callers",
    "rollouts",
    *CEL_SEGMENTS,
)
"""Names of the segments; another position or number needs a new version."""

_MAGIC: Final = 0x4B59564D5043544C
_VERSION: Final = 3
_GENERATIONS_AT: Final = 8
_SEGMENTS_MAX: Final = 16
_SLOTS_AT: Final = _GENERATIONS_AT + _SEGMENTS_MAX
_SLOT_NUMBERS: Final = 32
_SLOT_COUNT: Final = 256
_EXPOSURES: Final = 2
_SLOT_CONNECTIONS: Final = 2
_SLOT_EXPOSURES: Final = 3
_SLOT_GENERATIONS: Final = 8
_PAGE_BYTES: Final = 8 * (_SLOTS_AT + _SLOT_NUMBERS * _SLOT_COUNT)
_FILE: Final = "control"


@dataclass(frozen=True, slots=True)
class WorkerEntry:
    """The report of one worker; generations by segment name."""

    slot: int
    pid: int
    started: int
    """The start time given to ``claim``; it distinguishes processes that reuse an id.
    """
    generations: dict[str, int]


class ControlPage:
    """The mapped page. ``numbers[generation_at(name)]`` is a segment's generation."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._descriptor = descriptor
        self._mapped = mmap.mmap(descriptor, _PAGE_BYTES)
        self.numbers = memoryview(self._mapped).cast("Q")
        if (self.numbers[0], self.numbers[1]) != (_MAGIC, _VERSION):
            raise SnapshotUnusable(
                "snapshot.control", "not a control page", Where(file=str(path))
            )

    @classmethod
    def create(cls, directory: Path) -> "ControlPage":
        """Open the page, creating it if absent; call this before workers start.

        A damaged magic is repaired in place; the other numbers stay.

        Raises: SnapshotUnusable, also if there is no memory for it.
        """
        prepare_directory(directory)
        path = directory / _FILE
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = _open_private(path, flags)
        if os.fstat(descriptor).st_size < _PAGE_BYTES:
            os.ftruncate(descriptor, _PAGE_BYTES)
        try:
            # Without reserved memory, a later store to the page would cause a SIGBUS.
            reserve(descriptor, 0, _PAGE_BYTES)
        except OSError as error:
            os.close(descriptor)
            raise SnapshotUnusable(
                "snapshot.no_room",
                f"no room for the control page: {error.strerror}",
                Where(file=str(path)),
            ) from error
        mark = memoryview(bytearray(16)).cast("Q")
        mark[0], mark[1] = _MAGIC, _VERSION
        os.pwrite(descriptor, mark.cast("B"), 0)
        return cls(path, descriptor)

    @classmethod
    def open(cls, directory: Path) -> "ControlPage":
        """Open the page that ``create`` created. Raises: SnapshotUnusable."""
        path = directory / _FILE
        descriptor = _open_private(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        if os.fstat(descriptor).st_size < _PAGE_BYTES:
            os.close(descriptor)
            raise SnapshotUnusable(
                "snapshot.control", "control page is truncated", Where(file=str(path))
            )
        return cls(path, descriptor)

    def generation(self, name: str) -> int:
        """Return the published generation of a segment, 0 before the first."""
        return self.numbers[generation_at(name)]

    def set_generation(self, name: str, generation: int) -> None:
        """Announce a generation; its file must already be in place."""
        self.numbers[generation_at(name)] = generation

    def claim(self, pid: int, started: int) -> "WorkerSlot":
        """Reserve a slot for a worker. Raises: SnapshotUnusable if none is free."""
        with self._locked():
            for slot in range(_SLOT_COUNT):
                at = _slot_at(slot)
                if self.numbers[at] in (0, pid):
                    self._forget(at)
                    self.numbers[at + 1] = started
                    self.numbers[at] = pid
                    return WorkerSlot(self.numbers, at, pid)
        raise SnapshotUnusable("snapshot.slots", "all worker slots are taken")

    def workers(self) -> list[WorkerEntry]:
        """Return the reports of the workers."""
        return [
            WorkerEntry(
                slot=slot,
                pid=self.numbers[at],
                started=self.numbers[at + 1],
                generations={
                    name: self.numbers[at + _SLOT_GENERATIONS + number]
                    for number, name in enumerate(SEGMENTS)
                },
            )
            for slot in range(_SLOT_COUNT)
            if self.numbers[at := _slot_at(slot)]
        ]

    def clear_stale(self, is_alive: Callable[[int, int], bool]) -> int:
        """Free the slots of workers that have exited; return their number.

        ``is_alive`` receives a process id and the start time given to ``claim``.
        """
        exited = [
            worker
            for worker in self.workers()
            if not is_alive(worker.pid, worker.started)
        ]
        if not exited:
            return 0
        # A leader that is stopped while it holds the lock blocks new workers, so it
        # holds it for only a few stores.
        cleared = 0
        with self._locked():
            for entry in exited:
                at = _slot_at(entry.slot)
                if (self.numbers[at], self.numbers[at + 1]) == (
                    entry.pid,
                    entry.started,
                ):
                    # The API server may have waited for its answers.
                    self.numbers[_EXPOSURES] += 1
                    self._forget(at)
                    cleared += 1
        return cleared

    def exposures(self) -> int:
        """Return how many calls have failed so far, a killed worker counting as one.

        The API server may show the path of a failed call to the requester.
        """
        slots = self.numbers[_SLOTS_AT + _SLOT_EXPOSURES :: _SLOT_NUMBERS]
        return self.numbers[_EXPOSURES] + sum(slots.tolist())

    def _forget(self, at: int) -> None:
        self.numbers[_EXPOSURES] += self.numbers[at + _SLOT_EXPOSURES]
        self._clear(at)

    def _clear(self, at: int) -> None:
        for number in range(at, at + _SLOT_NUMBERS):
            self.numbers[number] = 0

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # SAFETY: the lock belongs to an open file description, which forked children
        # share. Therefore, a worker opens the page itself before it claims a slot.
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)


class WorkerSlot:
    """A worker's own slot in the page."""

    def __init__(self, numbers: memoryview, at: int, pid: int) -> None:
        self._numbers = numbers
        self._at = at
        self._pid = pid
        # PERF: read at each new connection; iterating over the slots takes far longer.
        self._connections = numbers[_SLOTS_AT + _SLOT_CONNECTIONS :: _SLOT_NUMBERS]

    def serve(self, name: str, generation: int) -> None:
        """Record the generation of a segment that this worker serves from now on."""
        position = self._at + _SLOT_GENERATIONS + SEGMENTS.index(name)
        self._numbers[position] = generation

    def report(self, connections: int) -> None:
        """Record this worker's number of connections; -1 if it accepts no more."""
        # Incremented by one, because a fresh slot contains 0.
        self._numbers[self._at + _SLOT_CONNECTIONS] = connections + 1

    def expose(self) -> None:
        """Count a call that the API server gave up before its answer."""
        self._numbers[self._at + _SLOT_EXPOSURES] += 1

    def others(self) -> list[int]:
        """Return the connection counts of the other workers that accept connections."""
        counts = self._connections.tolist()
        counts[(self._at - _SLOTS_AT) // _SLOT_NUMBERS] = 0
        return [connections - 1 for connections in counts if connections]

    def release(self) -> None:
        """Free the slot, unless another process has claimed it already."""
        if self._numbers[self._at] == self._pid:
            self._numbers[self._at] = 0


def generation_at(name: str) -> int:
    """Return the index of a segment's generation among the page's numbers."""
    return _GENERATIONS_AT + SEGMENTS.index(name)


def _slot_at(slot: int) -> int:
    return _SLOTS_AT + slot * _SLOT_NUMBERS


def _open_private(path: Path, flags: int) -> int:
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise SnapshotUnusable(
            "snapshot.control", f"cannot open: {error}", Where(file=str(path))
        ) from error
    try:
        check_private_file(os.fstat(descriptor))
    except SnapshotUnusable:
        os.close(descriptor)
        raise
    return descriptor

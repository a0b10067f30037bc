"""Wake processes that wait for a publication, its attachment by workers, or records.

Room: snapshot. Takes: the snapshot directory, a name. Gives: Bell, which becomes
readable when another process rings it; ring, ring_workers.
Next: snapshot/publish rings the workers, webhook/start and webhook/attach/journals
ring the leader.
May touch: named pipes in the folder ``bells`` of that directory; the log.
Source: docs/architecture.md 3 (a worker polls the control page; a bell lets it
poll at once).

A ring carries no information. A lost or repeated ring causes only a short delay,
because the listener reads the control page, which it also polls without a ring. PERF:
with polling every 200 ms alone, a worker enforced a new policy 100 ms later in the
median (perf/propagation.py).
"""

import contextlib
import errno
import logging
import os
import select
import stat
from pathlib import Path
from typing import Final

from kyverno_mp.errors import SnapshotUnusable
from kyverno_mp.snapshot.write import prepare_directory

_log = logging.getLogger(__name__)
LEADER: Final = "leader"
"""Name of the bell of the process that waits for workers to attach generations."""
TRIGGERS: Final = "triggers"
"""Name of the bell of the thread that writes the triggers of reviews."""
DENIALS: Final = "denials"
"""Name of the bell of the thread that counts denials by gradual enforcement."""
EVENTS: Final = "events"
"""Name of the bell of the thread that writes the Events of reviews."""
RESULTS: Final = "results"
"""Name of the bell of the thread that stores results for reports."""
_OF_RECORDS: Final = (TRIGGERS, DENIALS, EVENTS, RESULTS)
_FOLDER: Final = "bells"
_WORKER: Final = "worker-"
_NEW: Final = ".new-"
_READ_BYTES: Final = 4096
_GONE: Final = frozenset({errno.ENXIO, errno.ENOENT})
"""No process has the pipe open for reading, because its owner was killed."""


class Bell:
    """A named pipe; an event loop can watch ``fileno``."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def create(cls, directory: Path, name: str) -> "Bell":
        """Create the bell ``name``; replaces the bell of a process that has exited.

        Raises: OSError, SnapshotUnusable; the caller then polls instead.
        """
        folder = directory / _FOLDER
        prepare_directory(folder)
        new, path = folder / f"{_NEW}{name}", folder / name
        with contextlib.suppress(FileNotFoundError):
            new.unlink()
        os.mkfifo(new, 0o600)
        # SAFETY: open for writing as well, so that it never reports end of file. The
        # pipe is renamed once it is open, because ring() removes a pipe without a
        # reader.
        flags = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(new, flags)
        new.rename(path)
        return cls(path, descriptor)

    @classmethod
    def of_worker(cls, directory: Path, pid: int) -> "Bell":
        """Create the bell that ``ring_workers`` rings."""
        return cls.create(directory, f"{_WORKER}{pid}")

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._descriptor

    def wait(self, timeout_s: float) -> bool:
        """Wait until the bell rings; return False on time-out."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def ring(self) -> None:
        """Ring the own bell; any thread may call it."""
        with contextlib.suppress(OSError):
            os.write(self._descriptor, b"\1")

    def clear(self) -> None:
        """Discard all rings so far."""
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self._descriptor, _READ_BYTES)) == _READ_BYTES:
                pass

    def remove(self) -> None:
        """Remove the bell."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(self._descriptor)


def new_bell(directory: Path, name: str) -> Bell | None:
    """Create the bell ``name``; None if that fails: the caller polls instead."""
    try:
        return Bell.create(directory, name)
    except (OSError, SnapshotUnusable) as error:
        _log.warning("no notifications from workers, polling instead: %s", error)
        return None


def ring_workers(directory: Path) -> int:
    """Ring every worker's bell; return how many workers were reached.

    Bells of killed workers are removed.
    """
    try:
        names = [path.name for path in (directory / _FOLDER).iterdir()]
    except OSError:
        return 0
    return sum(ring(directory, name) for name in names if name.startswith(_WORKER))


def ring_readers(directory: Path) -> None:
    """Ring all bells of records: a worker died, perhaps between a record and a ring."""
    for name in _OF_RECORDS:
        ring(directory, name)


def ring(directory: Path, name: str) -> bool:
    """Ring one bell; return False if it has no owner. Never waits, never raises."""
    path = directory / _FOLDER / name
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno in _GONE:
            with contextlib.suppress(OSError):
                path.unlink()
        return False
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return False
        # A full pipe was rung already, and its owner has not read it yet.
        with contextlib.suppress(OSError):
            os.write(descriptor, b"\1")
        return True
    finally:
        os.close(descriptor)

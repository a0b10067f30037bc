"""Ask the machine for what only Linux offers, with a fallback for other systems.

Room: settings. Takes: descriptors, process ids. Gives: cores, reserve, anonymous_file,
start_ticks, boot_ns. Next: process/supervision/parent_death.py, whose calls
have fallbacks, too. May touch: files of descriptors, /proc, clocks.

macOS runs the command line and the standalone service (docs/get.md). Names that a
system lacks are looked up by name, so that importing a module never fails.
"""

import os
import time
from pathlib import Path
from typing import Final

_BLOCK_BYTES: Final = 4096
_TICKS_PER_S: Final = 100


def cores() -> int:
    """Return how many cores this process may use; elsewhere, all of the machine."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def reserve(descriptor: int, at: int, size: int) -> None:
    """Take the room of these bytes of a file, which keep their content.

    Without it, a later store to the mapped file could end the process (SIGBUS).
    Raises: OSError.
    """
    allocate = getattr(os, "posix_fallocate", None)
    if allocate:
        allocate(descriptor, at, size)
        return
    for offset in (*range(at, at + size, _BLOCK_BYTES), at + size - 1):
        os.pwrite(descriptor, os.pread(descriptor, 1, offset) or b"\0", offset)


def anonymous_file(name: str) -> int:
    """Return the descriptor of a file without a path, which forks inherit."""
    create = getattr(os, "memfd_create", None)
    if create:
        return int(create(name))
    # Imported late: most commands come here never, and start faster without it.
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def start_ticks(pid: int) -> int:
    """Return the start time of a process, in clock ticks; 0 if it has exited.

    PERF: on Linux, this reads one file.
    """
    path = Path(f"/proc/{pid}/stat")
    try:
        words = path.read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0 if Path("/proc/self/stat").exists() else _start_elsewhere(pid)
    return 0 if words[0] in "ZX" else int(words[19])


def _start_elsewhere(pid: int) -> int:
    # Imported late: the command line comes here on no system.
    import psutil

    try:
        process = psutil.Process(pid)
        is_dead = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        return 0 if is_dead else int(process.create_time() * _TICKS_PER_S)
    except psutil.Error:
        return 0


def boot_ns() -> int:
    """Return the time since boot, sleep included. Unit: nanoseconds."""
    # macOS' monotonic clock counts sleep already.
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock)

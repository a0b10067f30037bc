"""Ask the machine for what only Linux offers, with a fallback for other systems.

Room: settings. Takes: descriptors, process ids. Gives: cores, memory_limit, reserve,
anonymous_file, start_ticks, boot_ns. Next: process/supervision/parent_death.py, whose
calls have fallbacks, too. May touch: files of descriptors, /proc, /sys/fs/cgroup,
clocks. Source: cgroups(7); the kernel's cgroup-v2 (cpu.max, memory.max), sched-bwc
(cpu.cfs_quota_us), cgroup-v1/memory (memory.limit_in_bytes).

macOS runs the command line and the standalone service (docs/get.md). Names that a
system lacks are looked up by name, so that importing a module never fails.
"""

import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_BLOCK_BYTES: Final = 4096
_TICKS_PER_S: Final = 100
_MOUNTS: Final = Path("/sys/fs/cgroup")
_MEMBERSHIP: Final = Path("/proc/self/cgroup")


def cores(mounts: Path = _MOUNTS, membership: Path = _MEMBERSHIP) -> int:
    """Return how many cores this process may use; elsewhere, all of the machine.

    A container's limit of CPU time counts as cores, rounded up: its node may have many
    more, and each process that has no time only costs memory.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    limits = (math.ceil(limit) for limit in _cpu_limits(mounts, membership))
    return max(1, min(count, *limits, count))


def memory_limit(mounts: Path = _MOUNTS, membership: Path = _MEMBERSHIP) -> int:
    """Return the memory limit of this process, at most the machine's memory.

    Unit: bytes.
    """
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for folder in _cgroups("memory", mounts, membership):
        for name in ("memory.max", "memory.limit_in_bytes"):
            # Absent, unreadable or "max": no limit. The older one has a huge number.
            with suppress(OSError, ValueError):
                limit = min(limit, int((folder / name).read_text()))
    return limit


def _cpu_limits(mounts: Path, membership: Path) -> Iterator[float]:
    """Yield the limits of this process' cgroup and of those above. Unit: cores."""
    for folder in _cgroups("cpu", mounts, membership):
        # Absent, unreadable or "max": no limit. So is -1, in the older hierarchy.
        with suppress(OSError, ValueError, ZeroDivisionError):
            quota, period = (folder / "cpu.max").read_text().split()
            yield int(quota) / int(period)
        with suppress(OSError, ValueError, ZeroDivisionError):
            quota = (folder / "cpu.cfs_quota_us").read_text()
            if int(quota) > 0:
                yield int(quota) / int((folder / "cpu.cfs_period_us").read_text())


def _cgroups(controller: str, mounts: Path, membership: Path) -> Iterator[Path]:
    """Yield the folders of both hierarchies that can have a limit of the controller.

    A container may see the host's path of its cgroup, of which only the mount exists.
    """
    yield from (mounts, mounts / controller)
    try:
        lines = membership.read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        root = mounts / controllers
        cgroup = Path(path.lstrip("/"))
        if ".." not in cgroup.parts:
            yield from (root / each for each in (cgroup, *cgroup.parents))
        yield root


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

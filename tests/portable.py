"""Run the program as on a system that lacks Linux's own calls.

``python -m tests.portable ARGUMENTS`` is ``kyverno-mp ARGUMENTS`` without them: names
of the standard library are deleted, the C library lacks prctl, malloc_trim and
sigtimedwait, and our own code finds no /proc and no /sys. It cannot show what a system
adds.
"""

import ctypes
import os
import signal
import socket
import sys
import time
from types import FrameType
from typing import Any, Final

LINUX_ONLY: Final = {
    os: (
        *("sched_getaffinity", "memfd_create", "posix_fallocate", "posix_fadvise"),
        *("O_PATH", "O_TMPFILE", "eventfd", "pidfd_open", "copy_file_range", "splice"),
        *("fdatasync", "pipe2", "setresuid", "getrandom", "sched_setaffinity"),
    ),
    socket: (
        *("SO_PEERCRED", "TCP_KEEPIDLE", "TCP_USER_TIMEOUT", "SOCK_CLOEXEC"),
        *("SOCK_NONBLOCK", "TCP_QUICKACK", "TCP_DEFER_ACCEPT", "AF_NETLINK"),
    ),
    time: ("CLOCK_BOOTTIME", "CLOCK_TAI"),
    signal: ("sigtimedwait", "sigwaitinfo"),
}
_MISSING: Final = frozenset({"prctl", "malloc_trim", "sigtimedwait"})
_LOCAL_PEERCRED: Final = (0, 1)


class _Library:
    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        if name in _MISSING:
            raise AttributeError(name)
        return getattr(self._library, name)


class _Socket(socket.socket):
    """Answers the option of macOS, which Linux lacks."""

    def getsockopt(self, *words: int) -> Any:
        if words[:2] == _LOCAL_PEERCRED:
            return bytes(4) + os.getuid().to_bytes(4, sys.byteorder) + bytes(68)
        return super().getsockopt(*words)


def take_away() -> None:
    """Remove them, for the rest of this process and for its forks."""
    for module, names in LINUX_ONLY.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    library, stat = ctypes.CDLL, os.stat

    def opened(name: str | None, *rest: Any, **more: Any) -> Any:
        found = library(name, *rest, **more)
        return found if name else _Library(found)

    def looked(path: Any, *rest: Any, **more: Any) -> os.stat_result:
        _refuse("open", (path,))
        return stat(path, *rest, **more)

    ctypes.CDLL = opened  # type: ignore[misc, assignment]
    os.stat = looked
    socket.socket = _Socket  # type: ignore[misc]
    sys.addaudithook(_refuse)


def _refuse(event: str, values: tuple[Any, ...]) -> None:
    if event != "open" or not str(values[0]).startswith(("/proc/", "/sys/")):
        return
    if _is_ours(sys._getframe(1)):
        raise FileNotFoundError(2, "this system has none", str(values[0]))


def _is_ours(frame: FrameType | None) -> bool:
    """Return whether our code calls, and no library that has its own way elsewhere."""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("psutil"):
            return False
        if name.startswith("kyverno_mp"):
            return True
        frame = frame.f_back
    return False


if __name__ == "__main__":
    take_away()
    from kyverno_mp.__main__ import main

    sys.exit(main())

"""Reserve ports of 127.0.0.1 until this process ends.

Takes: how many. Gives: port numbers. Next: callers that start a program on a given
port. May touch: loopback ports, lock files in the temporary folder.

A released port that the kernel chose may be taken a moment later by a parallel test
process or by any outgoing connection.
"""

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import Final

_PORTS: Final = range(20000, 30000)
"""Below Linux's range for outgoing connections, and below Kubernetes' node ports."""
_held: Final[list[int]] = []
"""Descriptors of the lock files of our ports."""


def free_ports(count: int) -> list[int]:
    """Return different ports that are not in use and reserved for us from now on."""
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        if len(found) == count:
            return found
        if _claim(port):
            found.append(port)
    raise AssertionError(f"there are no {count} free ports")


def free_port() -> int:
    """Return one reserved port."""
    return free_ports(1)[0]


def _claim(port: int) -> bool:
    folder = Path(tempfile.gettempdir()) / f"kyverno-mp-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    lock = os.open(folder / str(port), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
    except OSError:
        os.close(lock)
        return False
    _held.append(lock)
    return True

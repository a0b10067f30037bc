"""Assign pods addresses of their own on this machine.

Takes: nothing. Gives: addresses of a range for documentation, which this machine
answers for as long as the network is up; without the right to route, the machine's own
address for one pod after the other. May touch: one route of the loopback device.
Source: RFC 5737; Linux AnyIP (``ip route add local``). K8S: endpoints may not be
127.0.0.0/8.
"""

import itertools
import socket
import subprocess
from collections.abc import Iterator
from typing import Final

_RANGES: Final = tuple(
    f"{prefix}.{first}"
    for prefix in ("198.51.100", "203.0.113", "192.0.2")
    for first in (0, 64, 128, 192)
)
_SIZE: Final = 64


class PodNetwork:
    """The addresses of the pods of one cluster."""

    def __init__(self) -> None:
        self._range = ""
        self._addresses: Iterator[str] = iter(())

    def start(self) -> None:
        """Claim a range if permitted: other clusters' pods use other ranges."""
        # A killed test run leaves its range behind; the last range is taken over.
        free = (one for one in _RANGES if _route("add", one))
        self._range = next(free, "")
        if not self._range and _route("replace", _RANGES[-1]):
            self._range = _RANGES[-1]
        prefix, _, first = self._range.rpartition(".")
        if prefix:
            numbers = range(int(first) + 1, int(first) + _SIZE - 1)
            self._addresses = itertools.cycle(f"{prefix}.{one}" for one in numbers)

    def stop(self) -> None:
        """Release the range."""
        if self._range:
            _route("del", self._range)

    def next_address(self) -> str:
        """Return the address of one more pod."""
        return next(self._addresses) if self._range else _own_address()


def _route(verb: str, first: str) -> bool:
    route = ("local", f"{first}/26", "dev", "lo")
    try:
        done = subprocess.run(
            ["ip", "route", verb, *route], capture_output=True, check=False
        )
    except OSError:
        return False
    return done.returncode == 0


def _own_address() -> str:
    """Return the machine's outgoing address; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        address: str = probe.getsockname()[0]
        return address

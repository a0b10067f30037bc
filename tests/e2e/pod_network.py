"""Give pods addresses of their own on this machine.

Takes: nothing. Gives: addresses of a documentation range, which this machine answers
for as long as the network is up; without the right to route, the machine's own address
for one pod after the other. May touch: one route of the loopback device.
Source: Linux AnyIP (``ip route add local``). K8S: endpoints may not be 127.0.0.0/8.
"""

import itertools
import socket
import subprocess
from collections.abc import Iterator
from typing import Final

_PREFIX: Final = "198.51.100"
_ROUTE: Final = ("local", f"{_PREFIX}.0/24", "dev", "lo")


class PodNetwork:
    """The addresses of the pods of one cluster."""

    def __init__(self) -> None:
        self._is_routed = False
        self._addresses: Iterator[int] = itertools.cycle(range(1, 255))

    def start(self) -> None:
        """Claim the range where that is allowed."""
        self._is_routed = _route("replace")

    def stop(self) -> None:
        """Give the range back."""
        if self._is_routed:
            _route("del")

    def next_address(self) -> str:
        """Give the address for one more pod."""
        if self._is_routed:
            return f"{_PREFIX}.{next(self._addresses)}"
        return _own_address()


def _route(verb: str) -> bool:
    try:
        done = subprocess.run(
            ["ip", "route", verb, *_ROUTE], capture_output=True, check=False
        )
    except OSError:
        return False
    return done.returncode == 0


def _own_address() -> str:
    """Give the address by which this machine would go out; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        address: str = probe.getsockname()[0]
        return address

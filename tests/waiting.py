"""Wait for a condition, and clocks that do not depend on the machine's speed.

Takes: a condition. Gives: its value; the only limit, ``HANG_S``, is one that a hang
reaches and a slow machine does not. Next: all tests that wait for another thread,
process or server. May touch: the real clock.
"""

import asyncio
import contextlib
import secrets
import socket
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

HANG_S: Final = 120.0
"""The limit of every wait. Never tune it: a test that comes near it is wrong."""
HANG_NS: Final = int(HANG_S * 1e9)
_POLL_S: Final = 0.01

T = TypeVar("T")


def wait_for(condition: Callable[[], T | None], seconds: float = HANG_S) -> T:
    """Return the condition's value once it is true; ``seconds`` only lengthens it."""
    until = time.monotonic() + max(seconds, HANG_S)
    while not (value := condition()):
        assert time.monotonic() < until, "waited in vain"
        time.sleep(_POLL_S)
    return value


def process_ids(health: Callable[[], Any]) -> dict[str, int]:
    """Return the ids by the names of the roles, once every process runs.

    ``health`` reads /healthz, which says 0 of one that waits for its next start: a test
    that kills the process 0 ends itself.
    """

    def running() -> dict[str, int] | None:
        ids = {one["name"]: int(one["pid"]) for one in health()["processes"]}
        return ids if all(ids.values()) else None

    return wait_for(running)


def pause() -> None:
    """Let other threads and processes run for a moment, in a loop without a count."""
    time.sleep(_POLL_S)


async def wait_on_loop(condition: Callable[[], T | None]) -> T:
    """Return the condition's value once it is true, while the event loop runs."""
    until = time.monotonic() + HANG_S
    while not (value := condition()):
        assert time.monotonic() < until, "waited in vain"
        await asyncio.sleep(_POLL_S)
    return value


def receive_message(link: socket.socket) -> bytes:
    """Return an HTTP request or answer; as much as came if the peer closes before.

    A body comes after its head, now and then a moment later. One in chunks is left.
    """
    message = b""
    while not _is_whole(message) and (part := link.recv(65536)):
        message += part
    return message


def _is_whole(message: bytes) -> bool:
    head, end, body = message.partition(b"\r\n\r\n")
    lengths = [
        int(line.partition(b":")[2])
        for line in head.lower().split(b"\r\n")
        if line.startswith(b"content-length:")
    ]
    return bool(end) and len(body) >= sum(lengths)


def drip(peer: socket.socket) -> None:
    """Send a byte now and then, until the other side closes the connection."""
    with contextlib.suppress(OSError):
        while True:
            peer.sendall(b"H")
            time.sleep(_POLL_S)


def unique() -> str:
    """Return a text for the name of an object; no other run uses it."""
    return secrets.token_hex(6)


def far_ns() -> int:
    """Return a deadline on the real clock that only a hang reaches."""
    return time.monotonic_ns() + HANG_NS


def soon_ns(seconds: float = 0.2) -> int:
    """Return a deadline on the real clock that passes during the test."""
    return time.monotonic_ns() + int(seconds * 1e9)


def real_ns() -> int:
    """Return the real time, for code that waits for sockets; limit it with HANG_NS."""
    return time.monotonic_ns()


def still_ns() -> int:
    """Return the same time always: on this clock no deadline passes."""
    return 1_000_000_000_000


class TicksNs:
    """A clock that advances by ``tick_ns`` with each reading."""

    def __init__(self, tick_ns: int) -> None:
        self.tick_ns = tick_ns
        self.now_ns = still_ns()

    def __call__(self) -> int:
        self.now_ns += self.tick_ns
        return self.now_ns


class HandTimers:
    """The timers of an event loop, which fire when a test calls ``ring``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timers: list[asyncio.Handle] = []
        loop.call_later = self._call_later  # type: ignore[method-assign, assignment]

    def _call_later(
        self, _delay_s: float, callback: Callable[..., Any], *args: Any
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self._loop)
        self._timers.append(handle)
        return handle

    def ring(self) -> None:
        """Let the time of all timers come; any thread may call this."""
        timers, self._timers = self._timers, []
        for handle in timers:
            self._loop.call_soon_threadsafe(_fire, handle)


def _fire(handle: asyncio.Handle) -> None:
    if not handle.cancelled():
        handle._run()


FAR_NS: Final = still_ns() + HANG_NS
"""A deadline on the still clock."""

"""Hold what all connections of one worker share, and watch over them.

Room: webhook. Takes: the service, the app, limits. Gives: Door, made in wire.py.
Next: protocol. May touch: the event loop's clock.
Source: spec/controllers.md 2.1 (read, write and header timeouts 30 s, idle 5 min).
"""

import asyncio
from collections.abc import Callable
from email.utils import formatdate
from typing import Final, Protocol

from kyverno_mp.webhook.asgi import App
from kyverno_mp.webhook.service import Service

READ_TIMEOUT_S: Final = 30.0
LINGER_S: Final = 1.0
QUIET_S: Final = 0.5
"""On a drain, a connection that asked nothing for so long is closed."""

IDLE: Final = 0
READING: Final = 1
ANSWERING: Final = 2
CLOSING: Final = 3


class Connection(Protocol):
    """What the door knows of a connection."""

    state: int
    """IDLE, READING, ANSWERING or CLOSING."""
    since: float
    """When it entered that state, by the event loop's clock."""

    def drain(self) -> None:
        """Close when nothing is under way, else after the answer."""

    def abort(self) -> None:
        """Close at once."""


class Door:
    """The shared side of all connections of a worker."""

    def __init__(  # noqa: PLR0913 - one record of independent facts, keyword-only
        self,
        loop: asyncio.AbstractEventLoop,
        service: Service,
        app: App,
        *,
        body_bytes_max: int,
        keepalive_s: float,
        time_s: Callable[[], float],
        read_timeout_s: float = READ_TIMEOUT_S,
        linger_s: float = LINGER_S,
        quiet_s: float = QUIET_S,
    ) -> None:
        self.loop = loop
        self.service = service
        self.app = app
        self.body_bytes_max = body_bytes_max
        self.linger_s = linger_s
        self.quiet_s = quiet_s
        self._keepalive_s = keepalive_s
        self._read_timeout_s = read_timeout_s
        self._time_s = time_s
        self.connections: set[Connection] = set()
        self.draining = False
        self.date_header = b""
        self.review_head = b""
        self.tick()

    def tick(self) -> None:
        """Do once a second what would cost too much at each request.

        Renews the Date header and closes connections that were idle, or that needed for
        one request, longer than allowed.
        """
        date = formatdate(self._time_s(), usegmt=True).encode()
        self.date_header = b"date: " + date
        self.review_head = (
            b"HTTP/1.1 200 OK\r\n" + self.date_header + b"\r\n"
            b"content-type: application/json; charset=utf-8\r\ncontent-length: "
        )
        now = self.loop.time()
        late = [
            connection
            for connection in self.connections
            if (connection.state == IDLE and now - connection.since > self._keepalive_s)
            or (
                connection.state == READING
                and now - connection.since > self._read_timeout_s
            )
        ]
        for connection in late:
            connection.abort()

    def drain(self) -> None:
        """Let every connection end with the answer to its next or present request."""
        self.draining = True
        for connection in list(self.connections):
            connection.drain()

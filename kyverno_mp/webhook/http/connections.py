"""Track the connections of one worker and enforce their limits.

Room: webhook. Takes: the service, the app, limits, the other workers' counts. Gives:
Connections, created in webhook/wire.py. Next: accept, protocol. May touch: the event
loop's clock, the sockets of idle connections.
Source: docs/behaviour/controllers 2.1 (read, write and header timeouts 30 s, idle 5
min); Go 1.26 net/http transport.go, shouldRetryRequest (see ``close_idle``).
"""

import asyncio
import ctypes
import math
import termios
from collections import deque
from collections.abc import Callable, Sequence
from email.utils import formatdate
from typing import Final, Protocol

from kyverno_mp.limits import ARRIVING_BYTES_MAX, CONNECTIONS_MAX, EVALUATING_BYTES_MAX
from kyverno_mp.webhook.http.asgi import App
from kyverno_mp.webhook.http.budget import Budget
from kyverno_mp.webhook.http.callers import CallerCheck
from kyverno_mp.webhook.review.service import Answer
from kyverno_mp.webhook.route import Route

READ_TIMEOUT_S: Final = 30.0
WRITE_TIMEOUT_S: Final = 30.0
LINGER_S: Final = 1.0
_SHARE_MAX: Final = 1.25
"""A worker with more than this multiple of its fair share closes some connections, if
it has at least two too many. A single surplus connection would move between workers
endlessly."""
QUIET_S: Final = 0.5
"""During a drain, a connection is closed after this time without a request: many of its
clients' next requests arrive before, and their answers say that the connection ends."""
FIRST_REQUEST_S: Final = 5.0
"""A client opens a connection for a request, but may be slow between the two. It does
not repeat the first request of a connection."""
UNREAD_PAUSE_S: Final = 0.02
"""Then, the time between two looks for bytes that the loop has not read yet."""
_LIBC: Final = ctypes.PyDLL(None)
"""Its calls keep the interpreter's lock, so no thread runs between two of them."""
_NO_ADDRESS: Final = bytes(16)
"""A struct sockaddr of the family AF_UNSPEC, which is 0."""

IDLE: Final = 0
READING: Final = 1
ANSWERING: Final = 2
CLOSING: Final = 3


class Connection(Protocol):
    """The interface of a connection as used by Connections."""

    state: int
    """IDLE, READING, ANSWERING or CLOSING."""
    since: float
    """The time at which the connection entered that state, by the event loop's clock.
    """
    unread_since: float
    """The time at which the client stopped reading its answers, 0 while it reads."""

    def drain(self) -> None:
        """Close if idle, otherwise after the answer."""

    def end_idle(self) -> bool:
        """Close an idle connection; False if one side has not received all bytes."""

    def abort(self) -> None:
        """Close at once."""


class Peers(Protocol):
    """The connection counts of all workers of this pod, reported by each worker."""

    def report(self, connections: int) -> None:
        """Report this worker's count; -1 if it accepts no more."""

    def others(self) -> Sequence[int]:
        """Return the counts of the other workers that accept connections."""

    def expose(self) -> None:
        """Count a proved call that its caller gave up before the answer."""


class Reviews(Protocol):
    """What answers admission reviews, and counts refused requests."""

    def answer(  # noqa: PLR0913 - as webhook/review/service.py
        self,
        route: Route,
        query: bytes,
        body: bytes | bytearray,
        arrived_ns: int = 0,
        weight: int = 0,
        *,
        is_proved: bool = True,
        traceparent: bytes = b"",
    ) -> Answer:
        """Answer a review. Raises: HttpError."""

    def refused(self, code: str) -> None:
        """Count a request that was refused."""


class Connections:
    """The shared state of all connections of a worker."""

    def __init__(  # noqa: PLR0913 - one record of independent facts, keyword-only
        self,
        loop: asyncio.AbstractEventLoop,
        service: Reviews,
        app: App,
        *,
        body_bytes_max: int,
        keepalive_s: float,
        time_s: Callable[[], float],
        read_timeout_s: float = READ_TIMEOUT_S,
        write_timeout_s: float = WRITE_TIMEOUT_S,
        linger_s: float = LINGER_S,
        quiet_s: float = QUIET_S,
        first_request_s: float = FIRST_REQUEST_S,
        arriving_bytes_max: int = ARRIVING_BYTES_MAX,
        evaluating_bytes_max: int = EVALUATING_BYTES_MAX,
        peers: Peers | None = None,
        callers: CallerCheck | None = None,
        serves_reviews: bool = True,
    ) -> None:
        """``peers`` is None if this worker is the only one.

        ``serves_reviews``: False if the app answers all paths.
        ``callers`` is None if every caller is trusted.
        """
        self.loop = loop
        self.service = service
        self.app = app
        self.serves_reviews = serves_reviews
        self.body_bytes_max = body_bytes_max
        self.linger_s = linger_s
        self.quiet_s = quiet_s
        self.first_request_s = first_request_s
        self._keepalive_s = keepalive_s
        self._read_timeout_s = read_timeout_s
        self._write_timeout_s = write_timeout_s
        self._time_s = time_s
        self._peers = peers
        self.callers = callers or CallerCheck()
        self.arriving = Budget(arriving_bytes_max)
        """Incomplete or waiting requests, and unread answers."""
        self.evaluating = Budget(evaluating_bytes_max)
        """Decoded reviews that threads evaluate."""
        self.open: set[Connection] = set()
        self.handshakes = 0
        """Accepted connections that are not open yet."""
        self.ended = 0
        """Connections that were open and have ended."""
        self.draining = False
        self.leaving = False
        """Every answer ends its connection, but new connections are accepted."""
        self.letting_go = 0
        """The number of connections to close after their next answer."""
        self._turns: deque[Callable[[], None]] = deque()
        self.date_header = b""
        self.review_head = b""
        self.tick()

    def take_turn(self, begin: Callable[[], None]) -> None:
        """Call ``begin``, which blocks the event loop for long, one per loop iteration.

        Decoding a body of some MiB takes tens of milliseconds; several in one iteration
        would delay small reviews by the sum.
        """
        self._turns.append(begin)
        if len(self._turns) == 1:
            self.loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        begin = self._turns.popleft()
        if self._turns:
            self.loop.call_soon(self._next_turn)
        begin()

    def tick(self) -> None:
        """Do periodic work, once a second.

        It updates the Date header and closes connections that were idle for too long,
        or took too long for one request.
        """
        date = formatdate(self._time_s(), usegmt=True).encode()
        self.date_header = b"date: " + date
        self.review_head = (
            b"HTTP/1.1 200 OK\r\n" + self.date_header + b"\r\n"
            b"content-type: application/json; charset=utf-8\r\ncontent-length: "
        )
        now = self.loop.time()
        for connection in list(self.open):
            if (
                connection.state == READING
                and now - connection.since > self._read_timeout_s
            ) or (
                connection.unread_since
                and now - connection.unread_since > self._write_timeout_s
            ):
                connection.abort()
            elif connection.state == IDLE and (
                now - connection.since > self._keepalive_s
            ):
                connection.end_idle()
        self._weigh()

    def opened(self, connection: Connection) -> None:
        """Add a connection; the acceptor reports the count to the other workers."""
        self.open.add(connection)
        if len(self.open) > CONNECTIONS_MAX:
            self._close_oldest()
        if self.draining:
            # The drain began during the handshake, and the client may send nothing.
            connection.drain()

    def closed(self, connection: Connection) -> None:
        """Remove a connection."""
        self.open.discard(connection)
        self.ended += 1
        self.report_count()

    def _close_oldest(self) -> None:
        """Close the connection that has waited longest for its client."""
        silent = [one for one in self.open if one.state in (IDLE, READING)]
        if silent:
            oldest = min(silent, key=lambda one: one.since)
            # Remove it now, or the next new connection would select it again.
            self.open.discard(oldest)
            oldest.abort()

    def report_count(self) -> None:
        """Report this worker's count to the other workers."""
        if self._peers is not None:
            self._peers.report(-1 if self.draining else self._count())

    def gave_up(self) -> None:
        """Report a caller that left before the answer to a proved call.

        The API server may have shown its path to the requester.
        """
        if self._peers is not None:
            self._peers.expose()

    def has_most(self) -> bool:
        """Return whether another worker has fewer connections."""
        others = self._peers.others() if self._peers is not None else ()
        return bool(others) and self._count() > min(others)

    def others_accept(self) -> bool:
        """Return whether another worker accepts connections."""
        return self._peers is not None and bool(self._peers.others())

    def should_close(self) -> bool:
        """Return whether to close the current connection after its answer."""
        if self.leaving or not self.letting_go:
            return self.leaving
        self.letting_go -= 1
        return True

    def leave(self) -> None:
        """Close every connection with its next answer, while this pod still accepts.

        The client opens the next one elsewhere, as soon as the Service names no ending
        pod. Idle connections stay: a request may be in transit on them.
        """
        self.leaving = True
        self.letting_go = 1

    def drain(self) -> None:
        """Close every connection after the answer to its current or next request."""
        self.leave()
        self.draining = True
        self.report_count()
        for connection in list(self.open):
            connection.drain()

    def _count(self) -> int:
        return len(self.open) + self.handshakes

    def _weigh(self) -> None:
        """Close half of the surplus; clients then reconnect to another worker.

        A restarted worker starts without connections, and an API server that has enough
        connections opens no new one for a long time.
        """
        if self._peers is None or self.draining:
            return
        self.report_count()
        if self.leaving:
            return
        others = self._peers.others()
        count = self._count()
        fair = (count + sum(others)) / (len(others) + 1)
        many = count > max(fair * _SHARE_MAX, fair + 1)
        self.letting_go = math.ceil((count - fair) / 2) if many else 0


def close_idle(transport: asyncio.Transport) -> bool:
    """Reset the connection; False if bytes of a request or an answer are in transit.

    K8S: an API server does not repeat a call of which it wrote a byte to a connection
    that then ends. A reset reaches its kernel, which rejects every later write at once,
    and a call of which nothing was written is repeated. After an orderly end, the
    kernel would accept writes until the API server's program has read that end: on a
    busy machine, some calls in a thousand failed. So nothing may happen between the
    look at the kernel's buffer and the reset.
    """
    if transport.is_closing():
        # Its number may already be that of another connection.
        return True
    sock = transport.get_extra_info("socket")
    number = -1 if sock is None else sock.fileno()
    # A reset would discard what the client has not received of the last answer.
    if _bytes(number, termios.TIOCOUTQ) or _bytes(number, termios.FIONREAD):
        return False
    # Linux dissolves a connection by a reset (connect(2)); other sockets refuse.
    if _LIBC.connect(number, _NO_ADDRESS, len(_NO_ADDRESS)):
        transport.close()
    else:
        transport.abort()
    return True


def _bytes(number: int, queue: int) -> int:
    """Return the bytes in a queue of a socket, 0 if it has no such queue."""
    count = ctypes.c_int(0)
    _LIBC.ioctl(number, ctypes.c_ulong(queue), ctypes.byref(count))
    return count.value

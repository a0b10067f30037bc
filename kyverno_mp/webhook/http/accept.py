"""Accept connections from the socket that all workers share, and balance them.

Room: webhook. Takes: a listening socket, the worker's connections. Gives: connections
to protocol.
Next: protocol. May touch: the socket, the event loop.
Source: docs/behaviour/lessons 2.8.

K8S: an API server keeps few connections for a long time; without balancing, the worker
that wakes first would get most of them.

No connection is refused: a worker with more connections than another one waits 20 ms,
so that the other one can accept the new connection, and then accepts it itself. A wrong
count (of a dead worker) therefore costs at most this delay.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

from kyverno_mp.limits import CONNECTIONS_MAX
from kyverno_mp.webhook.http.connections import Connections
from kyverno_mp.webhook.http.protocol import Protocol

_LOG = logging.getLogger(__name__)
_HANDSHAKE_TIMEOUT_S: Final = 10.0
_CLOSE_TIMEOUT_S: Final = 1.0
"""A peer that does not answer the TLS shutdown must not delay a drain."""
_LET_OTHERS_S: Final = 0.02
"""A worker does not accept connections while it evaluates a review, which takes some
milliseconds if workers share a core."""
_LOOK_AGAIN_S: Final = 0.005
_EXHAUSTED_S: Final = 1.0


class Acceptor:
    """A worker's use of a listening socket; call ``start`` and ``close``."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        connections: Connections,
        context: ssl.SSLContext | None,
    ) -> None:
        """``context`` is None for plain HTTP."""
        self._loop = loop
        self._listener = listener
        self._connections = connections
        self._context = context
        self._handshakes: dict[asyncio.Task[None], None] = {}
        """Handshakes in progress, the oldest first."""
        self._let_until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._open = False

    def start(self) -> None:
        """Start to accept connections."""
        self._listener.setblocking(False)
        self._open = True
        self._listen()

    def close(self) -> None:
        """Stop accepting; handshakes in progress can still finish."""
        if self._open:
            self._open = False
            if self._timer is None:
                self._loop.remove_reader(self._listener)
            else:
                self._timer.cancel()

    def accept_waiting(self) -> int:
        """Accept what no other worker accepts any more; return the number.

        K8S: an API server that opens a connection before it knows of a pod's end does
        not repeat the call if the kernel resets the connection.
        """
        if self._connections.others_accept():
            return 0
        for count in range(CONNECTIONS_MAX):
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return count
            self._start_handshake(accepted)
        return CONNECTIONS_MAX

    def _listen(self) -> None:
        self._timer = None
        self._loop.add_reader(self._listener, self._try_accept)

    def _pause(self, seconds: float, then: Callable[[], None]) -> None:
        self._loop.remove_reader(self._listener)
        self._timer = self._loop.call_later(seconds, then)

    def _try_accept(self) -> None:
        """Accept one connection, or let the other workers accept it first."""
        if self._connections.has_most() and self._may_wait():
            self._pause(_LOOK_AGAIN_S, self._listen)
            return
        try:
            accepted, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            # Another worker was faster, or the client has disconnected.
            return
        except OSError as error:
            # No file descriptor or memory is left; retry when other connections end.
            _LOG.error("cannot accept a connection: %s", error.strerror)
            self._pause(_EXHAUSTED_S, self._listen)
            return
        self._start_handshake(accepted)

    def _may_wait(self) -> bool:
        """Return whether other workers can still take the connection first.

        After it has waited, this worker accepts at once for the same time. So even if
        another worker hangs, it still accepts half of the time.
        """
        now = self._loop.time()
        if now > self._let_until + _LET_OTHERS_S:
            self._let_until = now + _LET_OTHERS_S
        return now < self._let_until

    def _start_handshake(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        self._connections.handshakes += 1
        self._connections.report_count()
        handshake = self._loop.create_task(self._handshake(accepted))
        # The loop itself keeps only weak references to tasks.
        self._handshakes[handshake] = None
        handshake.add_done_callback(self._handshake_done)
        if len(self._handshakes) > CONNECTIONS_MAX:
            # A normal handshake takes milliseconds, so the oldest one has stalled.
            next(iter(self._handshakes)).cancel()

    def _handshake_done(self, handshake: asyncio.Task[None]) -> None:
        self._handshakes.pop(handshake, None)

    async def _handshake(self, accepted: socket.socket) -> None:
        connections = self._connections
        try:
            if self._context is None:
                await self._loop.connect_accepted_socket(
                    lambda: Protocol(connections), accepted
                )
            else:
                await self._loop.connect_accepted_socket(
                    lambda: Protocol(connections),
                    accepted,
                    ssl=self._context,
                    ssl_handshake_timeout=_HANDSHAKE_TIMEOUT_S,
                    ssl_shutdown_timeout=_CLOSE_TIMEOUT_S,
                )
        except (OSError, asyncio.CancelledError) as error:
            # A port scan, a probe without TLS, a client that distrusts our certificate.
            _LOG.debug("the TLS handshake failed: %s", type(error).__name__)
            accepted.close()
        finally:
            connections.handshakes -= 1
            connections.report_count()

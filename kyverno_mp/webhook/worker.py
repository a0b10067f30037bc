"""Run one webhook worker under Gunicorn: an event loop, the listeners, a heartbeat.

Room: webhook. Takes: the Worker's app, whose ``wsgi()`` returns a Start. Gives: answers
to connections until it is stopped. Next: webhook/http/accept, webhook/http/connections.
May touch: the process's signals, sockets, one event loop.
Source: gunicorn 27 workers/base.py (the contract with the arbiter).
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import uvloop
from gunicorn.workers import base

from kyverno_mp.settings.machine import anonymous_file
from kyverno_mp.webhook.http.accept import Acceptor
from kyverno_mp.webhook.http.connections import Connections
from kyverno_mp.webhook.http.tls import Certificates

_LOG = logging.getLogger(__name__)
_TICK_S: Final = 1.0
_STOP_STEP_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The objects that a worker serves; a Start creates them after the fork."""

    connections: Connections
    certificates: Certificates | None
    """None for plain HTTP (tests)."""
    tick: Callable[[], None]
    """Called about once a second, even without requests (snapshot, metrics)."""
    stop: Callable[[float], None]
    """Called once at the end, with the seconds left for queued work."""
    is_leaving: Callable[[], bool] = lambda: False
    """Returns whether the pod is about to end, but still accepts connections."""


Start = Callable[[asyncio.AbstractEventLoop], Served]


# Gunicorn has no type hints.
class WebhookWorker(base.Worker):  # type: ignore[misc]
    """A Gunicorn worker whose HTTP server is webhook.protocol."""

    def __init__(self, *arguments: Any) -> None:
        """Create the worker in the arbiter, before the fork."""
        super().__init__(*arguments)
        self._served = anonymous_file("served")
        """A file in memory for the arbiter, not empty once this worker has served."""
        self._leaving = asyncio.Event()

    def has_served(self) -> bool:
        """Return whether this worker has accepted connections; for the arbiter."""
        return os.fstat(self._served).st_size > 0

    def forget(self) -> None:
        """Close the file of ``has_served`` in the arbiter."""
        os.close(self._served)

    def init_signals(self) -> None:
        """Keep the default signal handlers until the event loop sets its own."""
        for number in self.SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        # Ctrl-C reaches every process of the terminal, but the supervisor stops this
        # one.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # The arbiter sends SIGABRT to a silent worker, whose loop may hang.
        signal.signal(signal.SIGABRT, self.handle_abort)

    def run(self) -> None:
        """Serve until SIGTERM (graceful) or SIGQUIT (immediate)."""
        loop = uvloop.new_event_loop()
        asyncio.set_event_loop(loop)
        loop.add_signal_handler(signal.SIGQUIT, self._leave_now)
        loop.add_signal_handler(signal.SIGTERM, self._leave)
        loop.add_signal_handler(signal.SIGUSR1, self.log.reopen_files)
        start: Start = self.wsgi
        try:
            loop.run_until_complete(self._serve(loop, start(loop)))
        finally:
            loop.close()
        sys.exit(0)

    def _leave(self) -> None:
        self.alive = False
        self._leaving.set()

    def _leave_now(self) -> None:
        self.cfg.set("graceful_timeout", 0)
        self._leave()

    async def _serve(self, loop: asyncio.AbstractEventLoop, served: Served) -> None:
        certificates = served.certificates
        context = None if certificates is None else certificates.context
        acceptors = [
            Acceptor(loop, sock.sock, served.connections, context)
            for sock in self.sockets
        ]
        for acceptor in acceptors:
            acceptor.start()
        os.write(self._served, b"1")
        _LOG.info("worker ready", extra={"fields": {"listeners": len(acceptors)}})
        while self.alive:
            self._tick(served)
            # PERF: ten looks a second at ``alive`` cost an idle worker 0.2 % of a core.
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), _TICK_S)
        await self._stop(loop, served, acceptors)

    def _tick(self, served: Served) -> None:
        self.notify()
        if self.ppid != os.getppid():
            _LOG.warning("the arbiter has exited, stopping")
            self._leave()
        if served.is_leaving():
            served.connections.leave()
        served.connections.tick()
        served.tick()
        if served.certificates is not None and served.certificates.refresh():
            _LOG.info("serving a new certificate")

    async def _stop(
        self,
        loop: asyncio.AbstractEventLoop,
        served: Served,
        acceptors: list[Acceptor],
    ) -> None:
        """Answer the requests in progress and in transit, then run queued work."""
        for acceptor in acceptors:
            acceptor.close()
        served.connections.drain()
        end = loop.time() + float(self.cfg.graceful_timeout)
        connections = served.connections
        while loop.time() < end:
            waiting = sum(acceptor.accept_waiting() for acceptor in acceptors)
            if not (waiting or connections.open or connections.handshakes):
                break
            self.notify()
            await asyncio.sleep(_STOP_STEP_S)
        for connection in list(connections.open):
            connection.abort()
        # A separate thread, because reviews of policies can occupy the loop's threads.
        stopper = ThreadPoolExecutor(1, thread_name_prefix="stop")
        with contextlib.suppress(asyncio.TimeoutError):
            left = max(0.0, end - loop.time())
            await asyncio.wait_for(
                loop.run_in_executor(stopper, served.stop, left), left + 1.0
            )

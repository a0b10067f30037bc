"""Send batches of work to evaluators; requeue the batch of a dead evaluator.

Room: pool. Takes: batches as bytes. Gives: Evaluators (the coordinator's side) and
``evaluate`` (the evaluator's). Next: process/roles/reports.py.
May touch: one Unix socket in the runtime folder, threads, the clock.
Source: docs/pools.md 1.

An evaluator connects, receives one batch, answers it, and receives the next. A closed
connection means that the evaluator died: its batch returns to the front of the queue. A
batch that fails three times, because the evaluator died or took too long, is abandoned,
because it might kill every evaluator of the pool.
"""

import contextlib
import logging
import os
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kyverno_mp.errors import StateError
from kyverno_mp.pool.frames import read_frame, write_frame

_log = logging.getLogger(__name__)
_ATTEMPTS_MAX: Final = 3
_BACKLOG: Final = 64
_CONNECT_PAUSE_S: Final = 0.1
_CONNECT_PAUSE_S_MAX: Final = 1.0
"""While another replica holds the lease, there is no coordinator to connect to."""
_CREDENTIALS: Final = struct.Struct("3i")
_SOL_LOCAL: Final = 0
_LOCAL_PEERCRED: Final = 1
_XUCRED: Final = struct.Struct("2I")
"""The begin of xucred of macOS: version, uid (sys/ucred.h)."""
_XUCRED_BYTES: Final = 76


@dataclass(slots=True)
class _Batch:
    content: bytes
    answer: "Future[bytes]" = field(default_factory=Future)
    attempts: int = 0


class Evaluators:
    """The coordinator's side of the connections; any thread may call ``submit``."""

    def __init__(self, path: Path, *, queued_max: int, batch_s_max: float) -> None:
        """``path``: the socket. ``batch_s_max``: how long a batch may take."""
        self._path = path
        self._queued_max = queued_max
        self._batch_s_max = batch_s_max
        self._changed = threading.Condition()
        self._waiting: deque[_Batch] = deque()
        self._closed = False
        self._links: set[socket.socket] = set()
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _short(path) as name:
            self._listener.bind(name)
        path.chmod(0o600)
        self._listener.listen(_BACKLOG)
        self.requeued = 0
        """Number of batches requeued because their evaluator died or took too long."""

    def start(self) -> None:
        """Start to accept connections from evaluators."""
        threading.Thread(target=self._accept, name="evaluators", daemon=True).start()

    def submit(self, content: bytes) -> "Future[bytes]":
        """Queue a batch; return a future of the evaluator's answer.

        The future fails with a StateError (``pool.batch``) when the batch is abandoned.

        Raises: StateError (``pool.full``) when too many batches wait.
        """
        batch = _Batch(content)
        with self._changed:
            if self._closed or len(self._waiting) >= self._queued_max:
                raise StateError("pool.full", "no room for another batch")
            self._waiting.append(batch)
            self._changed.notify()
        return batch.answer

    @property
    def connected_count(self) -> int:
        """Number of connected evaluators."""
        return len(self._links)

    def close(self) -> None:
        """Close all connections and cancel the queued batches."""
        with self._changed:
            self._closed = True
            for batch in self._waiting:
                batch.answer.cancel()
            self._waiting.clear()
            self._changed.notify_all()
        for link in (self._listener, *self._links):
            # Closing a socket does not wake a thread that is blocked on it; a shutdown
            # does.
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()
        self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        while not self._closed:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            if _uid_of(link) != os.getuid():
                link.close()
                continue
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        """Send batches to one evaluator until its connection ends."""
        link.settimeout(self._batch_s_max)
        self._links.add(link)
        try:
            while (batch := self._take(link)) is not None:
                answer = self._ask(link, batch)
                if answer is None:
                    self._put_back(batch)
                    return
                batch.answer.set_result(answer)
        finally:
            self._links.discard(link)
            link.close()

    def _take(self, link: socket.socket) -> _Batch | None:
        """Wait for a batch; return None if the evaluator left or the pool is closed."""
        while True:
            with self._changed:
                if self._closed or _is_gone(link):
                    return None
                if self._waiting:
                    return self._waiting.popleft()
                self._changed.wait(1.0)

    def _ask(self, link: socket.socket, batch: _Batch) -> bytes | None:
        """Send a batch; return its answer, or None if the evaluator does not answer."""
        batch.attempts += 1
        try:
            write_frame(link, batch.content)
            return read_frame(link)
        except (OSError, StateError) as error:
            _log.warning("lost an evaluator: %s", error)
            return None

    def _put_back(self, batch: _Batch) -> None:
        with self._changed:
            self.requeued += 1
            if self._closed:
                batch.answer.cancel()
            elif batch.attempts >= _ATTEMPTS_MAX:
                message = f"{batch.attempts} evaluators did not answer the batch"
                batch.answer.set_exception(StateError("pool.batch", message))
            else:
                self._waiting.appendleft(batch)
                self._changed.notify()


def evaluate(
    path: Path,
    handle: Callable[[bytes], bytes],
    stop: threading.Event,
    *,
    on_link: Callable[[bool], None] = lambda _is_open: None,
    await_link: Callable[[], bool] = lambda: True,
) -> None:
    """Answer batches until ``stop`` is set; wait while there is no coordinator.

    ``on_link``: called after a connection was made or lost. ``await_link``: called
    after a failed attempt; waits until one may succeed. PERF: one thread of a process
    tries twice a second, the others wait for it. An exception from ``handle`` ends the
    process, and another evaluator gets the batch.
    """
    pause_s = _CONNECT_PAUSE_S
    while not stop.is_set():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            try:
                with _short(path) as name:
                    link.connect(name)
            except OSError:
                await_link()
                stop.wait(pause_s)
                pause_s = min(2 * pause_s, _CONNECT_PAUSE_S_MAX)
                continue
            pause_s = _CONNECT_PAUSE_S
            on_link(True)
            while (content := _next(link)) is not None:
                answer = handle(content)
                # If the coordinator is gone, the answer is discarded.
                with contextlib.suppress(OSError):
                    write_frame(link, answer)
            on_link(False)


def _next(link: socket.socket) -> bytes | None:
    """Return the next batch, or None if the coordinator is gone."""
    try:
        return read_frame(link)
    except (OSError, StateError):
        return None


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """Yield a path of the socket that fits into the 108 bytes of a Unix address.

    Elsewhere than on Linux, the runtime folder must have a short name.
    """
    flags = getattr(os, "O_PATH", None)
    if flags is None:
        yield str(path)
        return
    folder = os.open(path.parent, flags | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _uid_of(link: socket.socket) -> int:
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        data = link.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED_BYTES)
        return int(_XUCRED.unpack_from(data)[1])
    data = link.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(data)[1])


def _is_gone(link: socket.socket) -> bool:
    """Return whether an idle connection was closed: only then is it readable."""
    poll = select.poll()
    poll.register(link, select.POLLIN)
    return bool(poll.poll(0))

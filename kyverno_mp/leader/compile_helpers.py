"""Compile many policies in helper processes, when a leader starts.

Room: leader. Takes: sockets to helpers, which process/roles/leader.py forks; files of
policies. Gives: CompileHelpers for the leader, serve for a helper.
Next: leader/documents/outcomes.py uses the outcomes. May touch: the sockets, the helper
processes, the clock.
Source: docs/decisions.md (the first policies are compiled on all cores).

Helpers only prepare outcomes that the leader would compute itself. What a helper does
not answer in time, because it died or its policies are costly, the leader compiles.
"""

import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from kyverno_mp.leader.compile_cache import CompileCache, Compiled, CompileOutcome
from kyverno_mp.leader.folder import Changes
from kyverno_mp.leader.policy_store import PolicyStore
from kyverno_mp.limits import (
    COMPILE_HELPERS_BATCH_BYTES,
    COMPILE_HELPERS_BATCH_FILES,
    COMPILE_HELPERS_BYTES_MAX,
    COMPILE_HELPERS_FILES_MIN,
    COMPILE_HELPERS_S,
)
from kyverno_mp.telemetry.log import fields
from kyverno_mp.values.records import UNDECODABLE

_log = logging.getLogger(__name__)
_LENGTH_BYTES: Final = 8
_BEAT_S: Final = 0.5
_ANSWER_S: Final = 5.0
"""A helper sends an answer that it has, and reads a message, within this time."""
_EXCEPTION: Final = b"PolicyException"
_FILES: Final = msgspec.msgpack.Decoder(dict[str, bytes])
_OUTCOMES: Final = msgspec.msgpack.Decoder(tuple[Compiled, ...])
Files = Mapping[str, bytes]


class _Collected(CompileCache):
    """Keeps every outcome until it is taken to be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: list[Compiled] = []

    def take(self, identity: bytes, generation: int) -> None:
        """Return nothing: what is sent once is not needed again."""

    def keep(self, identity: bytes, outcome: CompileOutcome, steps: int) -> None:
        """Keep any outcome."""
        content = msgspec.msgpack.encode(outcome)
        self.outcomes.append(Compiled(identity, content, steps))


def serve(
    link: socket.socket, new_store: Callable[[CompileCache], PolicyStore]
) -> None:
    """Answer the leader until it closes the connection.

    The first files are those with exceptions, which apply to all later ones.
    """
    cache = _Collected()
    store = new_store(cache)
    is_first = True
    with suppress(OSError):
        while message := _receive(link):
            files = _FILES.decode(message)
            store.update(Changes(files, ()))
            if not is_first:
                store.update(Changes({}, tuple(files)))
            is_first = False
            _send(link, msgspec.msgpack.encode(cache.outcomes))
            cache.outcomes.clear()


class CompileHelpers:
    """The helpers of a leader, until they have compiled its first policies."""

    def __init__(
        self, links: Iterable[socket.socket] = (), pids: Sequence[int] = ()
    ) -> None:
        self._links = list(links)
        self._pids = pids
        for link in self._links:
            link.settimeout(_ANSWER_S)

    def outcomes(
        self, files: Files, on_progress: Callable[[], None]
    ) -> Iterator[Compiled]:
        """Yield outcomes of the policies in the files, of few files nothing.

        ``on_progress`` is called repeatedly. The limits of time and memory are
        COMPILE_HELPERS_S and COMPILE_HELPERS_BYTES_MAX.
        """
        if len(files) < COMPILE_HELPERS_FILES_MIN or not self._links:
            return
        until_s = time.monotonic() + COMPILE_HELPERS_S
        exceptions = {name: data for name, data in files.items() if _EXCEPTION in data}
        batches = _batches({n: d for n, d in files.items() if n not in exceptions})
        size = count = 0
        with selectors.DefaultSelector() as selector:
            for link in self._links:
                if _is_sent(link, exceptions):
                    selector.register(link, selectors.EVENT_READ, link)
            while selector.get_map() and time.monotonic() < until_s:
                on_progress()
                for key, _ in selector.select(_BEAT_S):
                    helper: socket.socket = key.data
                    answer = _answer_of(helper)
                    yield from answer or ()
                    size += sum(len(each.content) for each in answer or ())
                    count += len(answer or ())
                    is_asked = answer is not None and size < COMPILE_HELPERS_BYTES_MAX
                    batch = next(batches, None) if is_asked else None
                    if batch is None or not _is_sent(helper, batch):
                        selector.unregister(helper)
        _log.info("policies compiled by helpers", extra=fields(policies=count))

    def close(self) -> None:
        """End the helpers; later, no files have outcomes."""
        for link in self._links:
            link.close()
        self._links.clear()
        for pid in self._pids:
            # SAFETY: not reaped yet, so the id is no other process's.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._pids = ()


def _batches(files: Files) -> Iterator[Files]:
    batch: dict[str, bytes] = {}
    size = 0
    for name, data in files.items():
        batch[name] = data
        size += len(data)
        if (
            len(batch) >= COMPILE_HELPERS_BATCH_FILES
            or size >= COMPILE_HELPERS_BATCH_BYTES
        ):
            yield batch
            batch, size = {}, 0
    if batch:
        yield batch


def _is_sent(link: socket.socket, files: Files) -> bool:
    try:
        _send(link, msgspec.msgpack.encode(files))
    except OSError:
        return False
    return True


def _answer_of(link: socket.socket) -> tuple[Compiled, ...] | None:
    """Return the outcomes that a helper sends; None if it is of no more use."""
    try:
        message = _receive(link)
        return _OUTCOMES.decode(message) if message else None
    except (OSError, *UNDECODABLE):
        return None


def _send(link: socket.socket, message: bytes) -> None:
    link.sendall(len(message).to_bytes(_LENGTH_BYTES) + message)


def _receive(link: socket.socket) -> bytes:
    """Return a message, b"" if the other side is gone. Raises: OSError."""
    length = int.from_bytes(_read(link, _LENGTH_BYTES))
    return _read(link, length) if length <= COMPILE_HELPERS_BYTES_MAX else b""


def _read(link: socket.socket, length: int) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        part = link.recv(min(length - len(parts), 1 << 20))
        if not part:
            return b""
        parts += part
    return bytes(parts)

"""Compile many policies in helper processes, when a leader starts.

Room: leader. Takes: sockets to helpers, which process/roles/leader.py forks; files of
policies. Gives: CompileHelpers for the leader, serve for a helper.
Next: leader/documents/outcomes.py uses the outcomes. May touch: the sockets, the helper
processes, the clock, its metric page.
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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

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
    FIRST_PUBLICATION_S,
)
from kyverno_mp.telemetry.families import COMPILE_HELPERS, COMPILE_HELPERS_FAILED
from kyverno_mp.telemetry.log import fields
from kyverno_mp.telemetry.record import Recorder
from kyverno_mp.values.records import UNDECODABLE

_log = logging.getLogger(__name__)
_LENGTH_BYTES: Final = 8
_BEAT_S: Final = 0.5
_ANSWER_BEATS: Final = 10
"""A helper sends what it has of an answer, and reads a message, within this time."""
_EXCEPTION: Final = b"PolicyException"
_FILES: Final = msgspec.msgpack.Decoder(dict[str, bytes])
_OUTCOMES: Final = msgspec.msgpack.Decoder(tuple[Compiled, ...])
Files = Mapping[str, bytes]
OnProgress = Callable[[], None]
T = TypeVar("T")


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
        is_rejected = outcome.status is None
        self.outcomes.append(Compiled(identity, content, steps, is_rejected))


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
        self,
        links: Iterable[socket.socket] = (),
        pids: Sequence[int] = (),
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._links = list(links)
        self._pids = pids
        self._clock_s = clock_s
        self._recorder: Recorder | None = None
        for link in self._links:
            link.settimeout(_BEAT_S)

    def count_in(self, recorder: Recorder) -> None:
        """Count what helpers compile, and those that fail."""
        self._recorder = recorder

    def outcomes(self, files: Files, on_progress: OnProgress) -> Iterator[Compiled]:
        """Yield outcomes of the policies in the files, of few files nothing.

        ``on_progress`` is called every _BEAT_S at least, and may end the work with an
        exception. The limits of time and memory are COMPILE_HELPERS_S without an
        answer, FIRST_PUBLICATION_S in all, and COMPILE_HELPERS_BYTES_MAX.
        """
        if len(files) < COMPILE_HELPERS_FILES_MIN or not self._links:
            return
        began_s = answered_s = self._clock_s()
        exceptions = {name: data for name, data in files.items() if _EXCEPTION in data}
        batches = _batches({n: d for n, d in files.items() if n not in exceptions})
        size = count = failed = 0
        with selectors.DefaultSelector() as selector:
            for link in self._links:
                if _is_sent(link, exceptions, on_progress):
                    selector.register(link, selectors.EVENT_READ, link)
                else:
                    failed += 1
            while selector.get_map() and not self._is_over(began_s, answered_s):
                on_progress()
                for key, _ in selector.select(_BEAT_S):
                    helper: socket.socket = key.data
                    answer = _answer_of(helper, on_progress)
                    yield from answer or ()
                    if answer is not None:
                        answered_s = self._clock_s()
                    size += sum(len(each.content) for each in answer or ())
                    count += len(answer or ())
                    self._count(answer or ())
                    is_asked = answer is not None and size < COMPILE_HELPERS_BYTES_MAX
                    batch = next(batches, None) if is_asked else None
                    is_lost = batch and not _is_sent(helper, batch, on_progress)
                    failed += answer is None or bool(is_lost)
                    if batch is None or is_lost:
                        selector.unregister(helper)
            failed += len(selector.get_map())
        if self._recorder is not None:
            self._recorder.series(COMPILE_HELPERS_FAILED).count((), failed)
        counted = fields(policies=count, failed_helpers=failed)
        _log.info("policies compiled by helpers", extra=counted)

    def _is_over(self, began_s: float, answered_s: float) -> bool:
        """Return whether the helpers that have not answered yet are given up."""
        now_s = self._clock_s()
        is_silent = now_s - answered_s >= COMPILE_HELPERS_S
        return is_silent or now_s - began_s >= FIRST_PUBLICATION_S

    def _count(self, compiled: Collection[Compiled]) -> None:
        if self._recorder is None or not compiled:
            return
        rejected = sum(each.is_rejected for each in compiled)
        series = self._recorder.series(COMPILE_HELPERS)
        series.count(("compiled",), len(compiled) - rejected)
        series.count(("rejected",), rejected)

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


def _is_sent(link: socket.socket, files: Files, on_progress: OnProgress) -> bool:
    try:
        _send(link, msgspec.msgpack.encode(files), on_progress)
    except OSError:
        return False
    return True


def _answer_of(
    link: socket.socket, on_progress: OnProgress
) -> tuple[Compiled, ...] | None:
    """Return the outcomes that a helper sends; None if it is of no more use."""
    try:
        message = _receive(link, on_progress)
        return _OUTCOMES.decode(message) if message else None
    except (OSError, *UNDECODABLE):
        return None


def _nothing() -> None:
    """Do nothing: a helper waits for its leader without an end."""


def _send(
    link: socket.socket, message: bytes, on_progress: OnProgress = _nothing
) -> None:
    left = memoryview(len(message).to_bytes(_LENGTH_BYTES) + message)
    while left:
        left = left[_in_beats(partial(link.send, left), on_progress) :]


def _receive(link: socket.socket, on_progress: OnProgress = _nothing) -> bytes:
    """Return a message, b"" if the other side is gone. Raises: OSError."""
    length = int.from_bytes(_read(link, _LENGTH_BYTES, on_progress))
    if length > COMPILE_HELPERS_BYTES_MAX:
        return b""
    return _read(link, length, on_progress)


def _read(link: socket.socket, length: int, on_progress: OnProgress) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        size = min(length - len(parts), 1 << 20)
        part = _in_beats(partial(link.recv, size), on_progress)
        if not part:
            return b""
        parts += part
    return bytes(parts)


def _in_beats(call: Callable[[], T], on_progress: OnProgress) -> T:
    """Return the result of a call that waits for a beat, and is repeated then."""
    for _ in range(_ANSWER_BEATS):
        with suppress(TimeoutError):
            return call()
        on_progress()
    raise TimeoutError

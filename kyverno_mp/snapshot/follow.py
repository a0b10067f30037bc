"""Follow a segment: keep the newest usable generation attached.

Room: snapshot. Takes: a control page, a segment's name, a wrapper of segments.
Gives: Follower. Next: the webhook's and the pools' loops, once per request or item.
May touch: reads the snapshot directory.
Source: docs/architecture.md 3 (swapped between two requests; the last good one stays in
force).
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from kyverno_mp.errors import SnapshotUnusable, Where
from kyverno_mp.snapshot.control import ControlPage, generation_at
from kyverno_mp.snapshot.publish import segment_file
from kyverno_mp.snapshot.read import Segment

T = TypeVar("T")


class Follower(Generic[T]):
    """The newest usable generation of one segment, as returned by ``wrap``.

    ``wrap`` receives the new segment and the previous wrapped one (None at first), e.g.
    to link in advance the rules that the previous one had linked. ``on_refused`` is
    called with each generation that could not be used. ``defer`` runs a function soon
    on another thread, which then attaches the file while requests use the old
    generation. If it is None, the caller's thread attaches the file.
    """

    def __init__(
        self,
        directory: Path,
        page: ControlPage,
        name: str,
        wrap: Callable[[Segment, T | None], T],
        *,
        on_refused: Callable[[SnapshotUnusable], None],
        defer: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self._path = directory / segment_file(name)
        self._name = name
        self._wrap = wrap
        self._on_refused = on_refused
        self._defer = defer
        self._numbers = page.numbers
        self._at = generation_at(name)
        self._seen = 0
        self._current: T | None = None
        self._attaching = threading.Lock()
        self.generation = 0

    def current(self) -> T | None:
        """Return the newest usable generation, None before the first.

        Cost: one 8-byte read if nothing changed.
        """
        announced = self._numbers[self._at]
        if announced != self._seen:
            self._move(announced)
        return self._current

    @property
    def is_behind(self) -> bool:
        """Whether a newer generation was announced than the one in use."""
        return self._numbers[self._at] > self.generation

    @property
    def is_deferred(self) -> bool:
        """Whether the next generation is attached by another thread."""
        return self._defer is not None and self._current is not None

    def catch_up(self) -> None:
        """Wait until the newest generation is attached, or attach it here."""
        with self._attaching:
            if self.is_behind:
                self._attach_locked(self._numbers[self._at])

    def refresh(self) -> None:
        """Attach the file now, e.g. to retry after it was rejected.

        Does nothing while another thread is attaching it.
        """
        if self._attaching.acquire(blocking=False):
            try:
                self._attach_locked(self._numbers[self._at])
            finally:
                self._attaching.release()

    def _move(self, announced: int) -> None:
        # Each announcement is tried once, so that a damaged file does not slow down
        # every request.
        if self._defer is None or self._current is None:
            self._attach_now(announced)
        else:
            self._seen = announced
            self._defer(lambda: self._attach(announced))

    def _attach_now(self, announced: int) -> None:
        """Attach the file, or wait until another thread has done so.

        A thread of a pool that was told about a change must not read the old data.
        """
        with self._attaching:
            if self._seen == announced:
                return
            try:
                self._attach_locked(announced)
            finally:
                self._seen = announced

    def _attach(self, announced: int) -> None:
        # One at a time, so that a slow older attempt does not replace a newer
        # generation.
        with self._attaching:
            if announced > self.generation:
                self._attach_locked(announced)

    def _attach_locked(self, announced: int) -> None:
        try:
            segment = self._open(announced)
            if segment.generation <= self.generation and self._current is not None:
                return
            self._current = self._wrap(segment, self._current)
            self.generation = segment.generation
        except SnapshotUnusable as error:
            self._on_refused(error)

    def _open(self, announced: int) -> Segment:
        segment = Segment.attach(self._path, self._name)
        if segment.generation < announced:
            raise SnapshotUnusable(
                "snapshot.stale",
                f"file has generation {segment.generation}, not {announced}",
                Where(file=str(self._path)),
            )
        return segment

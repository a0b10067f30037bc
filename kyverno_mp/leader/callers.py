"""Publish the path segments that prove the API server's calls to the workers.

Room: leader. Takes: Callers from their controller. Gives: the values of the segment
``callers``, and whether every worker has them. Next: leader/cluster.py publishes them.
Source: docs/SECURITY.md (the caller); docs/architecture.md 3 (generations).
"""

from collections.abc import Callable, Mapping

from kyverno_mp.snapshot.callers import CALLERS, Callers, values_of
from kyverno_mp.snapshot.control import ControlPage
from kyverno_mp.telemetry.page import is_running

_Wake = Callable[[], None]


class PublishedCallers:
    """The newest Callers; the controllers' thread sets them, the loop publishes."""

    def __init__(self) -> None:
        self._current = self._polled = self._settled = Callers()
        self._wake: _Wake | None = None
        self.is_set = False
        """Whether the newest Callers are known. Before that, nothing is published, so
        that workers keep the segments of an earlier leader."""
        self._values = values_of(self._current)

    def set(self, callers: Callers) -> None:
        """Publish at the next poll, which follows at once."""
        self.is_set = True
        if callers != self._current:
            self._current = callers
            if self._wake is not None:
                self._wake()

    def on_change(self, wake: _Wake) -> None:
        """Call ``wake`` when there is something to publish."""
        self._wake = wake

    def poll(self) -> bool:
        """Return whether the values changed since the last call."""
        current = self._current
        if current == self._polled:
            return False
        self._polled, self._values = current, values_of(current)
        return True

    def values(self) -> Mapping[str, bytes]:
        """Return the values of the last poll."""
        return self._values

    def published(self) -> None:
        """Record that the values of the last poll are published."""
        self._settled = self._polled

    def known(self, page: ControlPage) -> int:
        """Return the number of the newest segment that every worker accepts."""
        settled = self._settled
        page.clear_stale(is_running)
        workers, generation = page.workers(), page.generation(CALLERS)
        if not workers or any(
            worker.generations.get(CALLERS, 0) < generation for worker in workers
        ):
            return 0
        return settled.serial

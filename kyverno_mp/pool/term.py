"""Run the threads of a pool for one term of the lease.

Room: pool. Takes: the parts of a pool, an event that stops them. Gives: ``run_term``;
what the parts share: threads, problems of watches. Next: background/start.py,
cleanup/start.py, reports/start.py. May touch: the clock, threads.
Source: docs/pools.md 1.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from kyverno_mp.kube.cache import Informer

_TICK_S: Final = 0.5
_HEALTH_S: Final = 5.0
_STOP_S: Final = 3.0
FAILING: Final = 3
"""Failures after which a watch counts as a problem."""


class TermDependencies(Protocol):
    """What a term needs of the dependencies of a pool."""

    @property
    def holds_lease(self) -> Callable[[], bool]:
        """Return whether this replica may write."""

    @property
    def health(self) -> Callable[[Sequence[str]], None]:
        """Report the current problems."""


class Parts(Protocol):
    """The parts and threads of a pool."""

    def start(self) -> None:
        """Start all threads."""

    def report(self) -> None:
        """Set the gauges, every few seconds."""

    def problems(self) -> list[str]:
        """Return the current problems."""

    def stop(self) -> None:
        """Stop all threads; wait for calls in progress."""


def run_term(
    parts: Parts,
    dependencies: TermDependencies,
    stop: threading.Event,
    tick: Callable[[], None] | None = None,
    finish: Callable[[], None] = lambda: None,
) -> None:
    """Run the parts until ``stop`` is set, as the coordinator does without its lease.

    ``tick`` is called twice a second. ``finish`` is called before the parts are
    stopped, while this replica still holds the lease.
    """
    parts.start()
    reported_s, pause_s = float("-inf"), _TICK_S
    try:
        while not stop.wait(pause_s) and dependencies.holds_lease():
            if tick is None:
                pause_s = _HEALTH_S
            else:
                tick()
            if time.monotonic() - reported_s >= _HEALTH_S:
                parts.report()
                dependencies.health(parts.problems())
                reported_s = time.monotonic()
        if dependencies.holds_lease():
            finish()
    finally:
        parts.stop()


def watch_problems(informers: Iterable[Informer[Any]]) -> list[str]:
    """Return the problems of watches that fail repeatedly."""
    return [
        f"watch of {informer.scope.resource.name}: {informer.last_error}"
        for informer in informers
        if informer.failures >= FAILING
    ]


def join(threads: Iterable[threading.Thread]) -> None:
    """Wait for the threads, but for three seconds at most."""
    end_s = time.monotonic() + _STOP_S
    for thread in threads:
        thread.join(max(0.0, end_s - time.monotonic()))

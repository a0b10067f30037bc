"""Run the coordinator of a pool, which works only while it holds the lease.

Room: pool. Takes: Settings, a client of the pool's account, the pool's work. Gives:
nothing; ends at SIGTERM. Next: process/roles/pool_start.py provides the work of a pool.
May touch: threads, signals, the API server through kube, files of the runtime folder.
Source: docs/pools.md 1; docs/architecture.md 3 (leases do not fence).

The threads:
    main    heartbeat, metrics, health; starts and stops the work
    lease   takes and renews the lease
    work    the work of the pool, which may start more threads
    events  writes queued Events

The coordinator stops the work when the lease is lost. Work that is stopping may still
write, so it calls ``holds_lease`` before each batch, and its writes have preconditions.
A coordinator exits if its work returns early, fails or does not stop in time; the
supervisor restarts it and reports a crash loop in the pod's health.
"""

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.events import EventFilter, Events, Successes, omitted_reasons
from kyverno_mp.kube.lease import Election, Terms
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.rights import MissingRights
from kyverno_mp.limits import OTLP_FLUSH_S_MAX, POOL_END_S_MAX
from kyverno_mp.pool.event_writer import EventWriter
from kyverno_mp.pool.health import PoolHealth, write_pool_health
from kyverno_mp.pool.metrics import PoolMetrics
from kyverno_mp.queues.signals import WAKE, await_signal, waker
from kyverno_mp.settings.settings import Settings
from kyverno_mp.telemetry import traces
from kyverno_mp.telemetry.families import LEASE_HELD, RIGHTS_MISSING, SPANS
from kyverno_mp.telemetry.page import Page
from kyverno_mp.telemetry.record import Recorder
from kyverno_mp.telemetry.tracing import start_tracing

_log = logging.getLogger(__name__)
ASIDE: Final = 0
"""The number of the term of a replica beside a foreign holder of the lease."""
_TICK_S: Final = 1.0
"""For the heartbeat and the page of metrics; whatever happens wakes the thread."""
_STOP_S: Final = 10.0
"""If the work still runs this long after the lease was lost, the process exits."""
_SHUTDOWN_S: Final = POOL_END_S_MAX
_RELEASE_S: Final = 1.0
_LEASE_FAILING_S: Final = 60.0
"""Shorter failures are normal while an API server restarts."""
_INTERNAL_ERROR_EXIT: Final = 70
_STOP_SIGNALS: Final = frozenset({signal.SIGTERM})
_SIGNALS: Final = _STOP_SIGNALS | {WAKE}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlace:
    """The name of a pool, its lease, and the paths of its files."""

    name: str
    lease: str
    """Name of the Lease in our namespace, the same as upstream's."""
    settings: Settings
    runtime_dir: Path
    pages: Path
    snapshot: Path


class HealthReasons:
    """The latest problems that the work reported; any thread may report them."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self.reasons: tuple[str, ...] = ()
        self._on_change = on_change

    def __call__(self, reasons: Sequence[str]) -> None:
        """Replace the problems; an empty sequence means healthy."""
        before, self.reasons = self.reasons, tuple(reasons)
        if self.reasons != before:
            self._on_change()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The dependencies of the work of a pool."""

    place: PoolPlace
    client: Client
    """Acts as the pool's ServiceAccount."""
    election: Election
    events: Events
    successes: Successes
    metrics: PoolMetrics
    rights: MissingRights = field(default_factory=MissingRights)
    """The permissions that the account lacks."""
    health: HealthReasons = field(default_factory=HealthReasons)
    term: int | None = None
    """The number of the work's term of the lease, or ASIDE; None = any."""

    @property
    def is_aside(self) -> bool:
        """Whether another program holds the lease, and the work leaves all to it."""
        return self.term == ASIDE

    def holds_lease(self) -> bool:
        """Return whether this replica may write now; call it before each batch.

        Aside, it may write what it leaves to the other program.

        SAFETY: if the lease was lost and held again, e.g. by a process that was
        suspended, another replica may have written what the work still has in memory.
        """
        if self.is_aside:
            return bool(self.election.foreign_holder)
        # The number is read last: the election counts a term before it holds it.
        is_held = self.election.holds()
        return is_held and self.term in (None, self.election.terms_held)


Work = Callable[[Tools, threading.Event], None]
"""Runs until the event is set or the lease is lost; called once for each term."""


@dataclass(slots=True)
class _Term:
    """The work of one term of the lease."""

    number: int
    stop: threading.Event
    thread: threading.Thread
    ended: threading.Event
    stopped_s: float = 0.0
    """Time at which the coordinator told the work to stop; 0 = not yet."""


class Coordinator:
    """Runs the work while the lease is held; one thread calls ``tick``.

    Call it after ``pause_s``, and when ``wake`` is called, in any thread. ``end`` exits
    the process at once, for failures that only a new process can fix.
    """

    def __init__(
        self,
        tools: Tools,
        work: Work,
        end: Callable[[str], None],
        clock_s: Callable[[], float] = time.monotonic,
        wake: Callable[[], None] = lambda: None,
        *,
        works_aside: bool = False,
    ) -> None:
        """``works_aside``: the work also runs while another program has the lease."""
        self._wake = wake
        self._works_aside = works_aside
        self._tools = tools
        self._work = work
        self._end = end
        self._clock_s = clock_s
        self._term: _Term | None = None
        self._lease_checked_s = clock_s()
        """Time of the last lease check without an error."""
        self._health: PoolHealth | None = None

    @property
    def is_working(self) -> bool:
        """Whether the work of any term is running."""
        return self._term is not None

    def tick(self) -> None:
        """Start or stop the work; write the health if it changed."""
        election = self._tools.election
        holds, number = election.holds(), election.terms_held
        is_aside = self._works_aside and not holds and election.foreign_holder != ""
        due = number if holds else ASIDE if is_aside else None
        term = self._term
        if term is not None:
            self._check_term(term, should_run=term.number == due)
        if self._term is None and due is not None:
            self._term = self._start(due)
        self._report_health(holds=holds)

    @property
    def pause_s(self) -> float:
        """The time to the next ``tick`` if nothing happens: the lease may expire."""
        fence_s = self._tools.election.fence_s
        return min(_TICK_S, fence_s) if fence_s else _TICK_S

    def stop(self, within_s: float = _SHUTDOWN_S) -> bool:
        """Stop the work; return whether it ended in time."""
        if self._term is None:
            return True
        self._term.stop.set()
        self._term.thread.join(within_s)
        return not self._term.thread.is_alive()

    def _check_term(self, term: _Term, *, should_run: bool) -> None:
        if term.ended.is_set():
            # Aside, the work may see a holder go that another one follows.
            if should_run and term.number != ASIDE:
                self._end("its work ended unexpectedly")
            self._term = None
        elif not should_run and not term.stopped_s:
            _log.info("the holder of %s changed, stopping", self._tools.place.lease)
            term.stop.set()
            term.stopped_s = self._clock_s()
        elif term.stopped_s and self._clock_s() - term.stopped_s > _STOP_S:
            self._end(f"its work still runs {_STOP_S:.0f} s after the lease was lost")

    def _start(self, number: int) -> _Term:
        if number == ASIDE:
            holder = self._tools.election.foreign_holder
            _log.info("another program holds %s: %s", self._tools.place.lease, holder)
        stop, ended = threading.Event(), threading.Event()

        def run() -> None:
            try:
                self._work(replace(self._tools, term=number), stop)
            finally:
                ended.set()
                self._wake()

        thread = threading.Thread(target=run, name="work", daemon=True)
        thread.start()
        return _Term(number, stop, thread, ended)

    def _report_health(self, *, holds: bool) -> None:
        pool_place = self._tools.place
        reasons = self._tools.health.reasons if self._term is not None else ()
        missing = self._tools.rights.problems()
        health = PoolHealth(
            pool_place.name, holds, (*self._lease_reasons(), *reasons, *missing)
        )
        if health == self._health:
            return
        self._tools.metrics.hold(LEASE_HELD, (pool_place.lease,), float(holds))
        if write_pool_health(pool_place.runtime_dir, health):
            self._health = health

    def _lease_reasons(self) -> tuple[str, ...]:
        """Return the lease error if lease requests have failed for a minute."""
        error = self._tools.election.last_error
        now_s = self._clock_s()
        if not error:
            self._lease_checked_s = now_s
        if now_s - self._lease_checked_s < _LEASE_FAILING_S:
            return ()
        return (f"lease {self._tools.place.lease}: {error}",)


def run_coordinator(
    pool_place: PoolPlace,
    client: Client,
    work: Work,
    successes: Successes,
    *,
    works_aside: bool = False,
) -> None:
    """Run the coordinator until SIGTERM; ``works_aside``: see Coordinator."""
    threading.excepthook = _exit_after_thread_failure
    # Threads inherit the mask: only the main thread waits for signals.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS | {signal.SIGHUP})
    wake = waker()
    settings = pool_place.settings
    page = Page.claim(pool_place.pages, pool_place.name)
    start_tracing(settings, pool_place.name)
    recorder = Recorder(page, settings.metrics_series_max)
    tools = _tools_of(pool_place, client, successes, wake)
    election = tools.election
    election.on_term(wake)
    lease = threading.Thread(target=election.run, name="lease", daemon=True)
    writer = EventWriter(tools.events)
    coordinator = Coordinator(
        tools, work, _end_process, wake=wake, works_aside=works_aside
    )
    lease.start()
    writer.start()
    while await_signal(_SIGNALS, coordinator.pause_s) not in _STOP_SIGNALS:
        recorder.settled().set_gauge("heartbeat_ns", time.monotonic_ns())
        coordinator.tick()
        _write(tools, recorder)
    if coordinator.stop():
        # If the work does not stop, the lease is left to expire: the work may still
        # write.
        election.stop()
        lease.join(_RELEASE_S)
    writer.stop()
    traces.finish(OTLP_FLUSH_S_MAX)
    _write(tools, recorder)


def _tools_of(
    pool_place: PoolPlace,
    client: Client,
    successes: Successes,
    wake: Callable[[], None],
) -> Tools:
    settings = pool_place.settings
    metrics = PoolMetrics()
    client.on_query = metrics.query
    client.rights = MissingRights(pool_place.lease)
    identity = settings.pod_name or socket.gethostname()
    terms = Terms(
        namespace=settings.namespace,
        name=pool_place.lease,
        identity=identity,
        retry_s=settings.lease_retry_s,
    )
    events = Events(
        Objects(client),
        identity,
        event_filter=EventFilter(omitted_reasons(settings.omit_events), successes),
        queued_max=settings.events_queued_max,
    )
    return Tools(
        place=pool_place,
        client=client,
        election=Election.watching(client, terms),
        events=events,
        successes=successes,
        metrics=metrics,
        rights=client.rights,
        health=HealthReasons(wake),
    )


def _write(tools: Tools, recorder: Recorder) -> None:
    """Write the metrics page."""
    events = tools.events
    gauges = {
        "events_queue_depth": events.queued_count,
        "events_queue_dropped": events.dropped,
    }
    tools.metrics.set_gauges(gauges)
    for labels, value in tools.rights.gauges():
        tools.metrics.hold(RIGHTS_MISSING, (tools.rights.account, *labels), value)
    tools.metrics.write(recorder)
    for outcome, count in traces.counts().items():
        recorder.series(SPANS).count(outcome, float(count))


def _end_process(reason: str) -> None:
    _log.critical("the coordinator exits: %s", reason)
    os._exit(_INTERNAL_ERROR_EXIT)


def _exit_after_thread_failure(failed: threading.ExceptHookArgs) -> None:
    """Exit after an unexpected exception in a thread, so that the pool is restarted."""
    name = failed.thread.name if failed.thread else "?"
    error = failed.exc_value or failed.exc_type()
    _log.critical("thread %s failed", name, exc_info=error)
    os._exit(_INTERNAL_ERROR_EXIT)

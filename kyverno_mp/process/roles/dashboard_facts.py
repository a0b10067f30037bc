"""Gather the facts about the pod for the pages of the dashboard.

Room: process. Takes: the runtime folder that the other processes write, a Reporter.
Gives: PodFacts, the Facts of the dashboard.
Next: process/roles/dashboard.py. May touch: files of the runtime folder, /proc through
psutil, the clock.

Facts that cost milliseconds or more are gathered at most every two seconds, regardless
of the number of requested pages.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

from kyverno_mp.dashboard.activity import Activity, Pace, activity_of
from kyverno_mp.dashboard.exceptions import Published, published_of
from kyverno_mp.dashboard.facts import ProcessRow
from kyverno_mp.leader.loop import PAGES, SNAPSHOT
from kyverno_mp.leader.status import NOTHING, Status, StatusReader
from kyverno_mp.process.gauges import Pod, measure
from kyverno_mp.process.roles.health import Reporter
from kyverno_mp.process.roles.pool_data import refused
from kyverno_mp.process.supervision.status import read_supervisor_status
from kyverno_mp.snapshot.control import ControlPage
from kyverno_mp.snapshot.follow import Follower
from kyverno_mp.snapshot.policies import POLICIES, PolicySegment
from kyverno_mp.telemetry.collect import merge, views
from kyverno_mp.telemetry.denials import Denial, last_denials
from kyverno_mp.telemetry.families import CPU, PSS

_FRESH_S: Final = 2.0
_PACE_S: Final = 10.0
T = TypeVar("T")


class _Fresh(Generic[T]):
    """A value that is recomputed when it is older than two seconds."""

    def __init__(self, compute: Callable[[], T]) -> None:
        self._compute = compute
        self._value: T | None = None
        self._since_s = 0.0

    def get(self) -> T:
        now_s = time.monotonic()
        if self._value is None or now_s - self._since_s >= _FRESH_S:
            self._value = self._compute()
            # After the computation, so that a slow one does not run all the time.
            self._since_s = time.monotonic()
        return self._value


class PodFacts:
    """Facts about this pod; use it from one thread only."""

    def __init__(self, runtime_dir: Path, reporter: Reporter) -> None:
        self._runtime_dir = runtime_dir
        self._reporter = reporter
        self._status = StatusReader(runtime_dir)
        self._published = Published()
        self._segments: Follower[PolicySegment] = Follower(
            runtime_dir / SNAPSHOT,
            ControlPage.open(runtime_dir / SNAPSHOT),
            POLICIES,
            lambda segment, _previous: PolicySegment(segment),
            on_refused=refused,
        )
        self._unready = _Fresh(reporter.unready)
        self._activity = _Fresh(self._read_activity)
        self._processes = _Fresh(self._read_processes)
        self._denials = _Fresh(lambda: last_denials(self._runtime_dir / PAGES))
        self._samples: deque[tuple[float, int, float]] = deque(maxlen=2)

    def unready(self) -> Sequence[str]:
        """Return the reasons why the pod is not ready, empty if it is."""
        return self._unready.get()

    def status(self) -> Status:
        """Return the leader's last publication."""
        return self._status.read()

    def generation(self) -> int:
        """Return the generation of policies that every worker serves."""
        return self._reporter.generation()

    def activity(self) -> Activity:
        """Return the results of reviews since the start."""
        return self._activity.get()

    def sample(self, now_s: float) -> None:
        """Remember the number of reviews, every ten seconds. ``now_s``: monotonic."""
        if not self._samples or now_s - self._samples[-1][0] >= _PACE_S:
            activity = self.activity()
            self._samples.append((now_s, activity.reviews, activity.seconds))

    def pace(self) -> Pace | None:
        """Return the reviews of the last 10 to 20 seconds."""
        if not self._samples:
            return None
        since_s, reviews, seconds = self._samples[0]
        elapsed_s = time.monotonic() - since_s
        activity = self.activity()
        count = activity.reviews - reviews
        # A restarted process can begin to count anew.
        if elapsed_s < 1 or count < 0:
            return None
        mean_us = 1e6 * (activity.seconds - seconds) / count if count else 0.0
        return Pace(count / elapsed_s, mean_us)

    def denials(self) -> Sequence[Denial]:
        """Return the last denials, the newest first."""
        return self._denials.get()

    def published(self) -> Published:
        """Return the policies in force."""
        segment = self._segments.current()
        if segment is not None and segment.generation != self._published.generation:
            self._published = published_of(segment)
        return self._published

    def processes(self) -> Sequence[ProcessRow]:
        """Return the processes, the supervisor first."""
        return self._processes.get()

    def _read_activity(self) -> Activity:
        return activity_of(
            merge(views(self._runtime_dir / PAGES)), self.published().about
        )

    def _read_processes(self) -> Sequence[ProcessRow]:
        supervisor = read_supervisor_status(self._runtime_dir)
        pages = views(self._runtime_dir / PAGES)
        pod = Pod(
            supervisor=supervisor,
            is_ready=False,
            certificate_ends_s=0,
            policies_heard_ns=0,
        )
        gauges = measure(pages, NOTHING, pod, now_ns=0, rule_series_max=1, queues={})
        states = (
            {}
            if supervisor is None
            else {process.name: process for process in supervisor.processes}
        )
        names = {page.pid: page.name for page in pages if page.alive()}
        # A process with a metric page has the page's name in the metrics.
        named = {names.get(one.pid, one.name): one for one in states.values()}
        pids = {**{name: pid for pid, name in names.items()}}
        pids |= {name: one.pid for name, one in named.items()}
        if supervisor is not None:
            pids["supervisor"] = supervisor.pid
        processes = []
        for name in sorted(pids, key=lambda one: (one != "supervisor", one)):
            state = named.get(name)
            processes.append(
                ProcessRow(
                    name=name,
                    pid=pids[name],
                    restarts=state.restarts if state else 0,
                    crash_loop=bool(state and state.crash_loop),
                    pss_bytes=gauges[PSS].get((name,), 0.0),
                    cpu_s=gauges[CPU].get((name,), 0.0),
                )
            )
        return processes

"""Run one lane of the pool, which keeps the rows of some rules up to date.

Room: reports. Takes: a scan with its Feed, Evaluators, a Writer, a Plan. Gives: Lane,
with its own threads. Next: reports/start.py runs two lanes; the image lane waits for
registries. May touch: the API server through kube, threads, the clock.
Source: docs/pools.md 4.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from kyverno_mp.errors import DependencyError, KubeNotFound, LeaseLost
from kyverno_mp.kube.rest import Call
from kyverno_mp.limits import REPORTS_RETRIES_MAX
from kyverno_mp.queues.work_queue import Backoff, WorkQueue
from kyverno_mp.reports.batches import Evaluated
from kyverno_mp.reports.feed import Feed, Item
from kyverno_mp.reports.notify import Notifier
from kyverno_mp.reports.plan import Plan
from kyverno_mp.reports.scan.coordinator import Scan
from kyverno_mp.reports.scan.dependencies import Evaluators, ReportsDependencies
from kyverno_mp.reports.scan.dispatch import NAME, Dispatch
from kyverno_mp.reports.scan.events import ScanEvents
from kyverno_mp.reports.scan.image_lane import ImageScan
from kyverno_mp.reports.stored import StoredReports
from kyverno_mp.reports.writer import Applied, Writer
from kyverno_mp.telemetry.families import DEFECTS, REPORTS_DROPPED, REPORTS_STALENESS

_log = logging.getLogger(__name__)
_BACKOFF: Final = Backoff(least_s=1.0, most_s=300.0)
_TICK_S: Final = 0.5
AnyScan: TypeAlias = Scan | ImageScan


class _Failed(NamedTuple):
    group: str
    plural: str
    namespace: str
    name: str


def _failed(item: Item) -> _Failed:
    resource = item.source.resource
    return _Failed(resource.group, resource.plural, *item.key)


class Lane:
    """The threads and queues for the rules of one lane."""

    def __init__(  # noqa: PLR0913 - independent parts, each made by the caller
        self,
        dependencies: ReportsDependencies,
        feed: Feed,
        scan: AnyScan,
        *,
        evaluators: Evaluators,
        writer: Writer,
        stored: StoredReports,
        plan: Callable[[], Plan],
        events: ScanEvents,
        notifier: Notifier | None,
        threads: int,
        name: str,
        is_observed: bool,
    ) -> None:
        """``threads``: the number of batches processed at the same time.

        ``is_observed``: whether the histogram of outdated reports covers this lane.
        """
        self._dependencies = dependencies
        self.feed = feed
        self.scan = scan
        self.events = events
        self._notifier = notifier
        self._name = name
        self._stored = stored
        self._is_observed = is_observed
        self._stopping = threading.Event()
        self._outdated: dict[_Failed, tuple[float, bool]] = {}
        """The time since which a report could not be updated, and whether its object
        changed."""
        self.retries: WorkQueue[_Failed] = WorkQueue(
            depth_max=REPORTS_RETRIES_MAX,
            backoff=_BACKOFF,
            clock_s=dependencies.clock.monotonic_s,
        )
        self.dispatch = Dispatch(
            feed,
            evaluators,
            writer,
            plan,
            dependencies.metrics,
            self,
            clock_s=dependencies.clock.monotonic_s,
        )
        works = [("scan", self._scan), ("retry", self._feed_retries)]
        works += [(str(number), self._dispatch) for number in range(threads)]
        self.threads = [
            threading.Thread(target=work, name=f"{name}-{part}", daemon=True)
            for part, work in works
        ]

    def start(self) -> None:
        """Start all threads."""
        for thread in self.threads:
            thread.start()

    def stop(self) -> None:
        """Tell the threads to stop."""
        self._stopping.set()
        self.feed.close()
        self.retries.shut_down(drain=False)
        self.scan.stop()

    def failed(self, item: Item) -> None:
        """Feed an object again after a back-off."""
        key = _failed(item)
        since = self._outdated.get(key)
        if since is not None or len(self._outdated) < REPORTS_RETRIES_MAX:
            since_now = (item.since_s, item.is_change)
            self._outdated[key] = since_now if since is None else min(since, since_now)
        dropped = self.retries.dropped
        self.retries.retry(key)
        if self.retries.dropped != dropped:
            self._forget(key)
            self._dependencies.metrics.count(REPORTS_DROPPED, ())

    def found(
        self, item: Item, applied: Applied, evaluated: Evaluated, plan: Plan
    ) -> None:
        """Submit the Events of changed rows, and notify of failures among them."""
        if self._notifier is not None:
            self._notifier.add_changed(item.subject, applied.changed, evaluated)
        self.events.submit(item, applied, evaluated, plan, self._name)

    def succeeded(self, item: Item, *, is_written: bool) -> None:
        """Reset an object's back-off; observe how long its report was outdated."""
        key = _failed(item)
        self.retries.forget(key)
        since_now = (item.since_s, item.is_change)
        since_s, is_change = min(since_now, self._outdated.pop(key, since_now))
        if is_written and self._is_observed:
            cause = "object" if is_change else "scan"
            age_s = self._dependencies.clock.monotonic_s() - since_s
            metrics = self._dependencies.metrics
            metrics.observe(REPORTS_STALENESS, (cause,), max(0.0, age_s))

    def feed_due(self, timeout_s: float | None = 0) -> bool:
        """Feed the next object whose retry is due; return False if there is none."""
        key = self.retries.get(timeout_s)
        if key is None:
            return False
        try:
            self._read(key)
        except DependencyError as error:
            _log.warning(error.message)
            self.retries.retry(key)
        except Exception:  # noqa: BLE001 - a dead thread would end all retries
            _log.exception("unexpected error with %s, trying again", key)
            self._dependencies.metrics.count(DEFECTS, (NAME,))
            self.retries.retry(key)
        finally:
            self.retries.done(key)
        return True

    def _read(self, key: "_Failed") -> None:
        """Read and feed an object, unless it is gone. Raises: DependencyError."""
        scanned = self.scan.resources.get((key.group, key.plural))
        if scanned is None:
            self._forget(key)
            return
        path = scanned.resource.object((key.namespace, key.name))
        try:
            raw = self._dependencies.client.call(Call(method="GET", path=path))
        except KubeNotFound:
            self._forget(key)
            return
        scanned.watch.evaluate(raw, self._dependencies.clock.monotonic_s())

    def _forget(self, key: "_Failed") -> None:
        """Release the memory of an object that is not retried."""
        self._outdated.pop(key, None)
        self.retries.forget(key)

    def _feed_retries(self) -> None:
        while self.feed_due(timeout_s=None):
            pass

    def _scan(self) -> None:
        while not self._stopping.is_set():
            try:
                self.scan.tick()
            except LeaseLost:
                _log.info("the lease is lost")
            except Exception:  # noqa: BLE001 - a dead thread would stop the pool
                _log.exception("unexpected error in a scan, trying again")
                self._dependencies.metrics.count(DEFECTS, (NAME,))
            self._stopping.wait(_TICK_S)

    def _dispatch(self) -> None:
        # Without the list of stored reports, each object would cost a call.
        while not self._stored.synced:
            if self._stopping.wait(_TICK_S / 10):
                return
        self.dispatch.work()

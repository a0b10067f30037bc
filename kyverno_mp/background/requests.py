"""Process UpdateRequests, in order for each trigger and in parallel otherwise.

Room: background. Takes: the keys of triggers; their stored requests and the tasks of
policy events. Gives: Requests, a Reconciler. Next: background/start.py.
May touch: the API server through the parts of this room, the clock, the log.
Source: docs/behaviour/controllers 5.1; docs/pools.md 3; docs/background.md.

A finished request is deleted with its uid and version. If it was marked again in the
meantime, its new version stays and is processed.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from kyverno_mp.background.dependencies import BackgroundDependencies
from kyverno_mp.background.failure import Failure, failure_of_defect
from kyverno_mp.background.looks import Looks
from kyverno_mp.background.outage import OUTAGES
from kyverno_mp.background.outcome import ABSENT_S, Outcome
from kyverno_mp.background.pacing import Crowd, Pace
from kyverno_mp.background.progress import Lane, Progress
from kyverno_mp.background.recorder import PolicyRecorder
from kyverno_mp.background.runner import Runner
from kyverno_mp.background.slow import PAUSE_S, SlowTenants
from kyverno_mp.background.update_request import (
    CEL_GENERATE,
    COMPLETED,
    FAILED,
    MUTATE,
    StoredRequest,
    Task,
    joined,
    number_of,
)
from kyverno_mp.errors import DependencyError, KubeConflict, LeaseLost
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.resource import Key
from kyverno_mp.limits import (
    BACKGROUND_ATTEMPTS_MAX,
    BACKGROUND_MESSAGE_CHARACTERS_MAX,
)
from kyverno_mp.queues.reconcile import Result
from kyverno_mp.queues.update_requests import UPDATE_REQUESTS
from kyverno_mp.telemetry.families import BACKGROUND_REQUESTS
from kyverno_mp.telemetry.log import fields

_log = logging.getLogger(__name__)
NAME: Final = "background-trigger"
DONE: Final = "done"
FAILING: Final = "failed"
GIVEN_UP: Final = "dropped_failing"


class Requests:
    """The reconciler of triggers; threads may share it."""

    def __init__(
        self,
        dependencies: BackgroundDependencies,
        runner: Runner,
        guard: Callable[[], None],
        add: Callable[[str], bool],
    ) -> None:
        """``guard``: called before writes. ``add`` queues the key of a trigger."""
        self._dependencies = dependencies
        self._runner = runner
        self._add = add
        self._objects = Objects(dependencies.client, guard)
        self._lock = threading.Lock()
        self._lanes: dict[str, Lane] = {}
        self._lane_of: dict[Key, str] = {}
        self._progress: dict[Key, Progress] = {}
        self._crowd = Crowd(dependencies.threshold)
        self._long = Crowd(dependencies.threshold)
        """Requests that wait for the end of a deletion or of a contest."""
        workers = dependencies.settings.background_workers
        self.looks = Looks(dependencies, runner)
        self._slow = SlowTenants(dependencies.clock.monotonic_s, workers, add)
        self._unqueued: dict[str, None] = {}
        """Lanes with requests for which the queue had no room."""
        self.informer: Informer[StoredRequest] | None = None

    def follow(self, informer: Informer[StoredRequest]) -> None:
        """Follow the requests of an informer; call it before the informer starts."""
        self.informer = informer
        informer.on_change(self._changed)

    def submit(self, task: Task) -> bool:
        """Add a task of a policy event; return False when the queue is full."""
        key = task.trigger.key
        with self._lock:
            lane = self._lanes.setdefault(key, Lane())
            name = (task.type, task.policy, task.rule)
            before, pace = lane.tasks.get(name, (None, Pace()))
            if task.type == CEL_GENERATE and before is not None:
                task = joined(before, task)
            lane.tasks[name] = (task, pace.changed())
        if self._add(key):
            return True
        with self._lock:
            lane.tasks.pop(name, None)
            self._tidy(key)
        return False

    @property
    def waiting(self) -> int:
        """Return the number of stored requests."""
        with self._lock:
            return len(self._lane_of)

    def _changed(self, key: Key) -> None:
        """Add or remove a request; called in the informer's thread."""
        assert self.informer is not None
        request = self.informer.get(key)
        with self._lock:
            before = self._lane_of.get(key)
            queue_key = None if request is None else request.queue_key
            if before is not None and before != queue_key:
                self._drop(key, before)
            if queue_key is None:
                self._forget(key)
                return
            self._lane_of[key] = queue_key
            self._lanes.setdefault(queue_key, Lane()).requests.add(key)
        if not self._add(queue_key):
            with self._lock:
                self._unqueued[queue_key] = None

    def _queue_rest(self) -> None:
        """Queue the lanes for which there was no room; requests must not be lost."""
        while self._unqueued:
            with self._lock:
                lane = next(iter(self._unqueued), "")
                self._unqueued.pop(lane, None)
            if lane and not self._add(lane):
                with self._lock:
                    self._unqueued[lane] = None
                return

    def _forget(self, key: Key) -> None:
        """Drop what is known about a request that is gone."""
        self._progress.pop(key, None)
        self._crowd.drop(key)
        self._long.drop(key)

    def _drop(self, key: Key, lane: str) -> None:
        del self._lane_of[key]
        self._lanes[lane].requests.discard(key)
        self._tidy(lane)

    def _tidy(self, lane: str) -> None:
        entry = self._lanes.get(lane)
        if entry is not None and not entry.requests and not entry.tasks:
            del self._lanes[lane]

    def reconcile(self, key: str) -> Result:
        """Process the due requests and tasks of one trigger.

        Raises: DependencyError, after the last one; LeaseLost, at once.
        """
        self._queue_rest()
        with self._lock:
            lane = self._lanes.get(key)
            if lane is None:
                return Result()
            tasks = dict(lane.tasks)
            names = list(lane.requests)
        calls = [partial(self._run_task, key, *task) for task in tasks.values()]
        calls += [partial(self._isolated, name) for name in self._in_order(names)]
        pauses_s: list[float | None] = []
        refused: DependencyError | None = None
        for call in calls:
            try:
                pauses_s.append(call())
            except DependencyError as error:
                refused = refused or error
        with self._lock:
            self._tidy(key)
            # Some were deleted while they were processed.
            for name in set(names) - self._lane_of.keys():
                self._forget(name)
        if refused is not None:
            raise refused
        later = (pause_s for pause_s in pauses_s if pause_s is not None)
        return Result(after_s=min(later, default=None))

    def _in_order(self, names: Iterable[Key]) -> list[Key]:
        assert self.informer is not None
        version = self.informer.version_of
        return sorted(names, key=lambda name: number_of(version(name)))

    def _run_task(self, lane: str, task: Task, pace: Pace) -> float | None:
        """Run a task of a policy event if it is due; return the pause until it is."""
        early_s = pace.due_s - self._dependencies.clock.monotonic_s()
        if early_s > 0:
            return early_s
        key = (task.type, task.policy, task.rule)
        pause_s = self._try_task(task, pace)
        with self._lock:
            tasks = self._lanes.setdefault(lane, Lane()).tasks
            newest, _ = tasks.get(key, (None, pace))
            if newest is not None and newest is not task:
                # The task was submitted again in the meantime.
                tasks[key] = (newest, Pace() if pause_s is None else pace.changed())
                return 0.0
            if pause_s is None:
                tasks.pop(key, None)
        return pause_s

    def _try_task(self, task: Task, pace: Pace) -> float | None:
        """Run a task; return the pause until its retry, None if it is finished."""
        clock = self._dependencies.clock
        try:
            with self._slow.turn(task.policy, task.trigger.key) as has_turn:
                if not has_turn:
                    return PAUSE_S
                failure, waits = self._runner.run_tasks([task])
        except OUTAGES:
            return pace.fail_for_outage(clock.monotonic_s())
        if failure:
            pause_s = pace.fail(clock.monotonic_s())
            self._record_failure(failure, is_new=pace.failures == 1)
            if not pace.is_over():
                return pause_s
            self._drop_task(task, failure)
            return None
        pace.outages = 0
        if waits is not None and waits.pause_s:
            return pace.wait(clock.monotonic_s(), waits.pause_s)
        return None

    def _drop_task(self, task: Task, failure: Failure) -> None:
        """Drop a task of a policy event; the next scan submits it again."""
        self._dependencies.metrics.count(BACKGROUND_REQUESTS, (task.type, GIVEN_UP))
        _log.warning(
            "%s after %d attempts: %s",
            *(GIVEN_UP, BACKGROUND_ATTEMPTS_MAX, failure.reason),
            extra=fields(policy=task.policy, rule=task.rule, trigger=task.trigger.key),
        )

    def _isolated(self, key: Key) -> float | None:
        """Process a request unless it is gone; an unexpected error only fails it."""
        request = self.informer.get(key) if self.informer else None
        if request is None:
            return None
        try:
            return self._request(request)
        except (DependencyError, LeaseLost):
            raise
        except Exception:  # noqa: BLE001 - one request must not stop the others
            self._runner.on_defect()
            _log.exception("unexpected error of a request", extra=_fields_of(request))
            return self._fail(request, self._progress_of(request), failure_of_defect())

    def _request(self, request: StoredRequest) -> float | None:
        """Process a request if it is due; return the pause until it is due."""
        clock_s = self._dependencies.clock.monotonic_s
        progress = self._progress_of(request)
        if progress.is_done:
            return None
        early_s = progress.pace.due_s - clock_s()
        if early_s > 0:
            return early_s
        if request.status.state == COMPLETED:
            self._remove(request, progress)
            return None
        try:
            with self._slow.turn(request.spec.policy, request.queue_key) as has_turn:
                if not has_turn:
                    return PAUSE_S
                failure, waits = self._runner.run(request)
                limit_s = waits.limit_s if waits and waits.runs_then else None
                if limit_s is not None and progress.has_waited(clock_s(), limit_s):
                    # E.g. an update that changes nothing never gets a new version.
                    self.looks.last(request)
                    failure, late = self._runner.run(request, is_late=True)
                    progress.waiting_since_s = progress.marked_s
                    if progress.is_over(clock_s(), limit_s):
                        waits = late
                elif waits and progress.looks_early(clock_s(), waits.early_s):
                    self.looks.early(request)
        except OUTAGES:
            return progress.pace.fail_for_outage(clock_s())
        progress.pace.outages = 0
        if failure:
            return self._fail(request, progress, failure)
        self._crowd.drop(request.key)
        waits = self._capped(request, waits)
        if waits is not None and not progress.is_over(clock_s(), waits.limit_s):
            return progress.poll(clock_s(), waits.pause_s)
        if waits is not None and waits.drops_as:
            _log.info("%s: %s", waits.drops_as, waits.reason, extra=_fields_of(request))
        self._remove(request, progress)
        self._count(request, waits.drops_as or DONE if waits else DONE)
        return None

    def _progress_of(self, request: StoredRequest) -> Progress:
        """Return the progress of a request; a newly marked version starts over."""
        metadata = request.metadata
        with self._lock:
            progress = self._progress.get(request.key)
            uid, version = metadata.uid, metadata.resource_version
            if progress is not None and progress.covers(uid, version):
                return progress
            new = Progress(
                *(uid, version),
                Pace.of(0 if progress else request.status.retry_count),
                marked_s=self._dependencies.clock.monotonic_s(),
            )
            if progress and progress.uid == new.uid and not progress.is_done:
                new.follow(progress)
            self._progress[request.key] = new
            return new

    def _capped(self, request: StoredRequest, waits: Outcome | None) -> Outcome | None:
        """Shorten a long wait while those of its tenant could delay all others."""
        if waits is None or waits.limit_s <= ABSENT_S:
            self._long.drop(request.key)
        elif self._long.add(request.key, request.spec.policy):
            return waits.shortened()
        return waits

    def _fail(
        self, request: StoredRequest, progress: Progress, failure: Failure
    ) -> float | None:
        is_crowded = self._crowd.add(request.key, request.spec.policy)
        now_s = self._dependencies.clock.monotonic_s()
        pause_s = progress.pace.fail(now_s, is_crowded=is_crowded)
        reason = failure.reason[:BACKGROUND_MESSAGE_CHARACTERS_MAX]
        self._record_failure(failure, is_new=reason != request.status.message)
        if progress.pace.is_over(is_crowded=is_crowded):
            self._remove(request, progress)
            self._count(request, GIVEN_UP)
            return None
        self._count(request, FAILING)
        self._write_failure(request, progress, reason)
        return pause_s

    def _write_failure(
        self, request: StoredRequest, progress: Progress, reason: str
    ) -> None:
        status = {
            "state": FAILED,
            "message": reason,
            "retryCount": progress.pace.failures,
        }
        patch = {
            "metadata": {"resourceVersion": progress.version},
            "status": status,
        }
        try:
            written = self._objects.merge(UPDATE_REQUESTS, request.key, patch, "status")
        except DependencyError:
            # The watch reports marks and deletions; the next attempt writes the status.
            return
        progress.version = str(written["metadata"].get("resourceVersion") or "")

    def _remove(self, request: StoredRequest, progress: Progress) -> None:
        """Delete a request at the version that was processed.

        Raises: DependencyError, LeaseLost.
        """
        # On a conflict, the request was marked meanwhile; the watch delivers the new
        # version.
        with contextlib.suppress(KubeConflict):
            self._objects.delete(
                UPDATE_REQUESTS,
                request.key,
                request.metadata.uid,
                resource_version=progress.version,
            )
        progress.is_done = True
        self._crowd.drop(request.key)
        self._long.drop(request.key)

    def _record_failure(self, failure: Failure, *, is_new: bool) -> None:
        task = failure.task
        if failure.policy is None or task is None or not is_new:
            return
        recorder = PolicyRecorder(
            failure.policy, self._dependencies.events, self._dependencies.metrics
        )
        recorder.failed(
            task.rule, task.trigger, failure.reason, mutates=task.type == MUTATE
        )

    def _count(self, request: StoredRequest, outcome: str) -> None:
        labels = (request.spec.request_type, outcome)
        self._dependencies.metrics.count(BACKGROUND_REQUESTS, labels)


def _fields_of(request: StoredRequest) -> dict[str, object]:
    return fields(policy=request.spec.policy, trigger=request.queue_key)

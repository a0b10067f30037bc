"""Delete labelled objects when they are due, with one timer and one call for each.

Room: cleanup. Takes: keys that changed in the informers' caches. Gives: Timers, whose
``work`` is the body of a worker thread. Next: cleanup/ttl/run.py.
May touch: the API server through cleanup/deletion.py, the clock, the log.
Source: docs/behaviour/controllers 7 (TTL), 14.26.

Timers are hints: a worker reads the cache when a timer fires. ``resync`` restores
timers that were dropped because the queue was full, and corrects timers after the wall
clock was adjusted.
"""

import heapq
import logging
import threading
from typing import Final

from kyverno_mp.cleanup.deletion import Deleter, Preconditions
from kyverno_mp.cleanup.dependencies import CleanupDependencies
from kyverno_mp.cleanup.recorder import CONTROLLER, ERROR, NONE
from kyverno_mp.cleanup.ttl.label import Labelled, fault_of
from kyverno_mp.cleanup.ttl.watches import Place, Watches, labels_of
from kyverno_mp.errors import (
    DependencyError,
    KubeConflict,
    KubeRefused,
    LeaseLost,
)
from kyverno_mp.kube.events import EventInfo, Reference
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.limits import CLEANUP_TTL_TIMERS_MAX
from kyverno_mp.program.secrecy import reason_for
from kyverno_mp.queues.work_queue import Backoff, WorkQueue
from kyverno_mp.telemetry.families import TTL_DELETED, TTL_ERRORS
from kyverno_mp.telemetry.log import fields

_log = logging.getLogger(__name__)
_SOON_S: Final = 120.0
"""``resync`` runs at least this often."""
_FORBIDDEN_S: Final = 60.0
_BACKOFF: Final = Backoff(least_s=0.1, most_s=10.0)
_LONGEST_S: Final = 86_400.0
"""The longest pause, so that each object is checked at least once a day."""
Timer = tuple[Place, Key]


class Timers:
    """The timers of the labelled objects; threads share it."""

    def __init__(self, dependencies: CleanupDependencies, deleter: Deleter) -> None:
        self._dependencies = dependencies
        self._deleter = deleter
        self._clock = dependencies.clock
        self.watches: Watches | None = None
        """Set once, before the first timer, because the two objects depend on each
        other."""
        self.queue: WorkQueue[Timer] = WorkQueue(
            depth_max=CLEANUP_TTL_TIMERS_MAX,
            backoff=_BACKOFF,
            clock_s=dependencies.clock.monotonic_s,
        )
        self._lock = threading.Lock()
        self._done: dict[Timer, str] = {}
        """Processed versions of objects, and reported label values."""
        self._refused: dict[Timer, tuple[str, float]] = {}
        """The version whose deletion was rejected, and the time of the next attempt."""

    def on_change(self, location: Place, key: Key) -> None:
        """Set the timer of a changed object."""
        timer = (location, key)
        labelled = self._found(timer)
        with self._lock:
            if labelled is None or self._done.get(timer) not in _marks(labelled):
                self._done.pop(timer, None)
                is_done = False
            else:
                is_done = True
        if labelled is not None and not is_done:
            self.queue.add_after(timer, self._pause_s(timer, labelled))

    def resync(self) -> None:
        """Set the timers of all objects that are due soon."""
        assert self.watches is not None
        places = self.watches.all()
        with self._lock:
            for timer in [timer for timer in self._done if timer[0] not in places]:
                del self._done[timer]
            now_s = self._clock.monotonic_s()
            for timer in [
                timer for timer, at in self._refused.items() if at[1] <= now_s
            ]:
                del self._refused[timer]
        soon: list[tuple[float, Timer]] = []
        for location, informer in places.items():
            for key, labelled in informer.snapshot().items():
                left_s = self._pause_s((location, key), labelled)
                if left_s < _SOON_S and not self._is_done((location, key), labelled):
                    soon.append((left_s, (location, key)))
        for left_s, timer in heapq.nsmallest(CLEANUP_TTL_TIMERS_MAX, soon):
            self.queue.add_after(timer, left_s)

    def work(self) -> None:
        """Process timers until the queue is shut down."""
        while (timer := self.queue.get()) is not None:
            self._process(timer)

    def work_due(self) -> int:
        """Process the timers that are due, without waiting; return their number."""
        count = 0
        while (timer := self.queue.get(0)) is not None:
            self._process(timer)
            count += 1
        return count

    def _process(self, timer: Timer) -> None:
        try:
            again_s = self._reconcile(timer)
            self.queue.forget(timer)
            if again_s is not None:
                self.queue.add_after(timer, again_s)
        except (DependencyError, LeaseLost):
            self.queue.retry(timer)
        except Exception:  # noqa: BLE001 - one object must not end the thread of others
            _log.exception("TTL clean-up of %s", timer)
            self.queue.retry(timer)
        finally:
            self.queue.done(timer)

    def _reconcile(self, timer: Timer) -> float | None:
        """Delete an object if it is due; return the seconds to the next check."""
        location, key = timer
        labelled, resource = self._found(timer), self._resource(location)
        if labelled is None or resource is None or self._is_done(timer, labelled):
            return None
        if labelled.due_s is None:
            self._report(resource, key, labelled, fault_of(labelled.value))
            self._dependencies.metrics.count(TTL_ERRORS, (key[0], *labels_of(resource)))
            self._finish(timer, _marks(labelled)[1])
            return None
        left_s = self._pause_s(timer, labelled)
        if left_s > 0:
            return left_s
        if self._dependencies.settings.cleanup_dry_run:
            note = f"dry run: the TTL {labelled.value} expired; it would be deleted"
            self._report(resource, key, labelled, note)
            self._finish(timer, _marks(labelled)[1])
            return None
        return self._delete(timer, resource, labelled)

    def _delete(
        self, timer: Timer, resource: Resource, labelled: Labelled
    ) -> float | None:
        """Delete an object. Raises: DependencyError when the call must be retried."""
        _, key = timer
        preconditions = Preconditions(labelled.uid, labelled.resource_version)
        labels = (key[0], *labels_of(resource))
        try:
            is_deleted = self._deleter.delete(
                resource, key, preconditions, labelled.propagation
            )
        except KubeConflict:
            # The cache is stale; the watch will deliver the new version.
            raise
        except KubeRefused as error:
            self._dependencies.metrics.count(TTL_ERRORS, labels)
            reason = reason_for(resource.kind, error)
            _log.warning("TTL deletion rejected", extra=fields(reason=reason))
            return self._refuse(timer, labelled)
        except DependencyError:
            self._dependencies.metrics.count(TTL_ERRORS, labels)
            raise
        self._finish(timer, _marks(labelled)[0])
        if is_deleted:
            self._dependencies.metrics.count(TTL_DELETED, labels)
        return None

    def _report(
        self, resource: Resource, key: Key, labelled: Labelled, note: str
    ) -> None:
        _log.warning(
            note, extra=fields(kind=resource.kind, namespace=key[0], name=key[1])
        )
        reference = Reference(
            resource.api_version, resource.kind, key[1], key[0], labelled.uid
        )
        self._dependencies.events.submit(
            EventInfo(
                regarding=reference,
                reason=ERROR,
                action=NONE,
                note=note,
                controller=CONTROLLER,
            )
        )

    def _found(self, timer: Timer) -> Labelled | None:
        assert self.watches is not None
        location, key = timer
        informer = self.watches.get(location)
        return None if informer is None else informer.get(key)

    def _resource(self, location: Place) -> Resource | None:
        assert self.watches is not None
        informer = self.watches.get(location)
        return None if informer is None else informer.scope.resource

    def _left_s(self, labelled: Labelled) -> float:
        """Return the seconds until an object is due; 0 for an invalid value."""
        if labelled.due_s is None:
            return 0.0
        return min(labelled.due_s - self._clock.now().timestamp(), _LONGEST_S)

    def _pause_s(self, timer: Timer, labelled: Labelled) -> float:
        """Return the seconds to the next attempt; a rejected version waits longer."""
        with self._lock:
            version, at_s = self._refused.get(timer, ("", 0.0))
        left_s = self._left_s(labelled)
        if version != _marks(labelled)[0]:
            return left_s
        return max(left_s, at_s - self._clock.monotonic_s())

    def _refuse(self, timer: Timer, labelled: Labelled) -> float:
        """Defer the next attempt; return the pause in seconds."""
        at_s = self._clock.monotonic_s() + _FORBIDDEN_S
        with self._lock:
            self._refused[timer] = (_marks(labelled)[0], at_s)
        return _FORBIDDEN_S

    def _is_done(self, timer: Timer, labelled: Labelled) -> bool:
        with self._lock:
            return self._done.get(timer) in _marks(labelled)

    def _finish(self, timer: Timer, mark: str) -> None:
        with self._lock:
            self._done[timer] = mark


def _marks(labelled: Labelled) -> tuple[str, str]:
    """Return the marks for a deletion and for a reported label value."""
    return (
        f"{labelled.uid} at {labelled.resource_version}",
        f"{labelled.uid} with {labelled.value}",
    )

"""Record clean-up runs: Events, metrics and log lines with upstream's names.

Room: cleanup. Takes: deletions and failures. Gives: Events, counts. Next:
cleanup/runner.py, cleanup/ttl/timers.py. May touch: the log; the ports of
CleanupDependencies.
Source: docs/behaviour/controllers 7 (Events), 9.1, 9.2.
"""

import logging
import threading
from collections.abc import Sequence
from typing import Final, NamedTuple

from kyverno_mp.cleanup.policy import StoredPolicy
from kyverno_mp.cleanup.scan import Candidate
from kyverno_mp.kube.events import EventInfo, Reference
from kyverno_mp.limits import CLEANUP_EVENTS_MAX, CLEANUP_SHOWN_MAX
from kyverno_mp.pool.sinks import EventSink, Metrics
from kyverno_mp.telemetry.families import (
    CLEANED,
    CLEANUP_ERRORS,
    CLEANUP_HALTED,
    DELETED,
    DELETING_ERRORS,
    Family,
)
from kyverno_mp.telemetry.log import fields

_log = logging.getLogger(__name__)
CONTROLLER: Final = "kyverno-cleanup"
APPLIED: Final = "PolicyApplied"
ERROR: Final = "PolicyError"
CLEANED_UP: Final = "Resource Cleaned Up"
NONE: Final = "None"


class _Words(NamedTuple):
    """The Event messages and metrics of one family of policies.

    ``by_plural``: the metrics name the resource, not the kind.
    """

    past: str
    infinitive: str
    deleted: Family
    errors: Family
    by_plural: bool


_CLEANS: Final = _Words("cleaned up", "clean up", CLEANED, CLEANUP_ERRORS, False)
_DELETES: Final = _Words("deleted", "delete", DELETED, DELETING_ERRORS, True)


class RunRecorder:
    """Records one run of one policy; threads may share it."""

    def __init__(
        self,
        policy: StoredPolicy,
        propagation: str,
        events: EventSink,
        metrics: Metrics,
    ) -> None:
        self._policy = policy
        self._words = _DELETES if policy.is_deleting else _CLEANS
        self._propagation = propagation
        self._events = events
        self._metrics = metrics
        self._lock = threading.Lock()
        self._reported = {APPLIED: 0, ERROR: 0}

    def deleted(self, candidate: Candidate) -> None:
        """Count a deleted object; send an Event for each of the first ones."""
        labels = (self._named(candidate), candidate.key[0], self._propagation)
        self._metrics.count(self._words.deleted, (*self._policy.labels, *labels))
        note = f"successfully {self._words.past} the target resource {candidate.shown}"
        self._record_first(APPLIED, CLEANED_UP, note, candidate)

    def failed(self, candidate: Candidate, reason: str) -> None:
        """Count a failed deletion; send an Event for each of the first ones."""
        self.count_error(self._named(candidate), candidate.key[0])
        infinitive = self._words.infinitive
        note = f"failed to {infinitive} the target resource {candidate.shown}: {reason}"
        _log.warning(note, extra=fields(policy=self._policy.shown))
        self._record_first(ERROR, NONE, note, candidate)

    def count_error(self, kind: str, namespace: str = "") -> None:
        """Count a failed list or deletion."""
        labels = (*self._policy.labels, kind, namespace, self._propagation)
        self._metrics.count(self._words.errors, labels)

    def error(self, note: str) -> None:
        """Report a failure of the whole run."""
        _log.warning(note, extra=fields(policy=self._policy.shown))
        self._submit(ERROR, NONE, note)

    def would_delete(self, note: str) -> None:
        """Report a dry run."""
        _log.info(note, extra=fields(policy=self._policy.shown))
        self._submit("PolicySkipped", NONE, note)

    def hold_halted(self, *, is_halted: bool) -> None:
        """Set the gauge that shows whether the budget halted the last run."""
        self._metrics.hold(CLEANUP_HALTED, self._policy.labels, float(is_halted))

    def end(self) -> None:
        """Report the number of objects without an Event of their own."""
        past, infinitive = self._words.past, self._words.infinitive
        for reason, action, note in (
            (APPLIED, CLEANED_UP, f"successfully {past}"),
            (ERROR, NONE, f"failed to {infinitive}"),
        ):
            more = self._reported[reason] - CLEANUP_EVENTS_MAX
            if more > 0:
                self._submit(reason, action, f"{note} {more} more resources")

    def _named(self, candidate: Candidate) -> str:
        """Return the object's kind or resource as the metrics name it."""
        resource = candidate.resource
        return resource.plural if self._words.by_plural else resource.kind

    def _record_first(
        self, reason: str, action: str, note: str, candidate: Candidate
    ) -> None:
        with self._lock:
            self._reported[reason] += 1
            if self._reported[reason] > CLEANUP_EVENTS_MAX:
                return
        resource, (namespace, name) = candidate.resource, candidate.key
        related = Reference(resource.api_version, resource.kind, name, namespace)
        self._submit(reason, action, note, related)

    def _submit(
        self, reason: str, action: str, note: str, related: Reference | None = None
    ) -> None:
        policy = self._policy
        regarding = Reference(
            policy.resource.api_version,
            policy.kind,
            policy.name,
            policy.namespace,
            policy.uid,
        )
        self._events.submit(
            EventInfo(
                regarding=regarding,
                related=related,
                reason=reason,
                action=action,
                note=note,
                controller=CONTROLLER,
            )
        )


def shown(candidates: Sequence[Candidate]) -> str:
    """Return the names of the first candidates, and the number of the others."""
    names = [candidate.shown for candidate in candidates[:CLEANUP_SHOWN_MAX]]
    more = len(candidates) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")

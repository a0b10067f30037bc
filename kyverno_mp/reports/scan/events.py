"""Create Events from the results of a scan, for the changed rows of a report.

Room: reports. Takes: a Subject, the results of an evaluator, the changed rows, the
Plan. Gives: ScanEvents. Next: reports/scan/dispatch.py calls it. May touch: an
EventSink, which never waits.
Source: docs/behaviour/controllers 6.4, 9.1; Kyverno pkg/controllers/report/utils.

KYVERNO: upstream writes the Events of all rows at each scan of an object. Here, a scan
writes Events only for changed rows. Each rule has a budget, because a new policy may
fail for every object of the cluster.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from kyverno_mp.kube.events import EventInfo, Reference, Successes
from kyverno_mp.kube.policy_events import PASSED, PolicyMessages
from kyverno_mp.limits import (
    REPORTS_EVENTS_BURST,
    REPORTS_EVENTS_PER_S,
    REPORTS_EVENTS_RULES_MAX,
)
from kyverno_mp.pool.sinks import EventSink, Metrics
from kyverno_mp.reports.batches import Evaluated
from kyverno_mp.reports.entries import ROW, Row, Subject
from kyverno_mp.reports.fingerprints import KEY_BYTES, each_fingerprint, result_of
from kyverno_mp.reports.plan import Plan
from kyverno_mp.reports.writer import Applied
from kyverno_mp.telemetry.families import REPORTS_EVENTS_DROPPED

CONTROLLER: Final = "kyverno-scan"
_FAILED: Final = frozenset({"fail", "warn", "error"})


class _Budget(NamedTuple):
    left: float
    at_s: float


class ScanEvents:
    """Submits Events; thread-safe."""

    def __init__(
        self,
        sink: EventSink,
        metrics: Metrics,
        successes: Successes,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._sink = sink
        self._metrics = metrics
        self._successes = successes
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._budgets: OrderedDict[bytes, _Budget] = OrderedDict()

    def tell(
        self,
        subject: Subject,
        applied: Applied,
        evaluated: Evaluated,
        plan: Plan,
    ) -> None:
        """Submit the Events of the changed rows."""
        if not applied.changed:
            return
        exceptions = dict(evaluated.exceptions)
        prints = list(each_fingerprint(evaluated.fingerprints))
        for at in applied.changed:
            key, word = prints[at][:KEY_BYTES], result_of(prints[at])
            skipped = exceptions.get(key, ()) if word == "skip" else ()
            # PERF: most rows passed; only rows with an Event are decoded.
            if (word in _FAILED or skipped) and self._has_budget(key):
                row = ROW.decode(evaluated.rows[at])
                policy = plan.references.get((row.source, row.policy))
                if policy is not None:
                    self._submit(_infos(_messages(policy, subject), row, skipped))
        self._tell_applied(subject, applied, evaluated, plan)

    def _tell_applied(
        self, subject: Subject, applied: Applied, evaluated: Evaluated, plan: Plan
    ) -> None:
        """Submit the Events of policies whose rules all passed, if enabled."""
        actions = self._successes()
        if actions is None or (actions and PASSED not in actions):
            return
        found = [ROW.decode(one) for one in evaluated.rows]
        changed = [found[at] for at in applied.changed]
        other = {(row.source, row.policy) for row in found if row.result != "pass"}
        for key in dict.fromkeys((row.source, row.policy) for row in changed):
            policy = plan.references.get(key)
            if policy is None or key in other:
                continue
            name = f"{policy.kind}/{policy.namespace}/{policy.name}"
            if self._has_budget(name.encode()):
                self._submit([_messages(policy, subject).applied(mutates=False)])

    def _submit(self, infos: Iterable[EventInfo]) -> None:
        for info in infos:
            self._sink.submit(info)

    def _has_budget(self, key: bytes) -> bool:
        """Take an Event from a rule's budget; count and return False if it is spent."""
        now_s = self._monotonic_s()
        with self._lock:
            left, at_s = self._budgets.pop(key, _Budget(REPORTS_EVENTS_BURST, now_s))
            left += max(0.0, now_s - at_s) * REPORTS_EVENTS_PER_S
            left = min(left, float(REPORTS_EVENTS_BURST))
            has_one = left >= 1
            self._budgets[key] = _Budget(left - has_one, now_s)
            if len(self._budgets) > REPORTS_EVENTS_RULES_MAX:
                self._budgets.popitem(last=False)
        if not has_one:
            self._metrics.count(REPORTS_EVENTS_DROPPED, ())
        return has_one


def _infos(
    messages: PolicyMessages, row: Row, exceptions: tuple[str, ...]
) -> Iterator[EventInfo]:
    if row.result in _FAILED:
        # KYVERNO: the Event has the rule's original status, even if an unscored failure
        # becomes a warning.
        status = "fail" if row.result == "warn" and not row.scored else row.result
        yield messages.violation_on_object(row.rule, status, row.message)
        yield messages.violation_on_policy(row.rule, status, row.message)
    elif exceptions:
        yield from messages.skipped(row.rule, exceptions)


def _messages(policy: Reference, subject: Subject) -> PolicyMessages:
    about = Reference(
        subject.api_version,
        subject.kind,
        subject.name,
        subject.namespace,
        subject.uid,
    )
    return PolicyMessages(policy, about, CONTROLLER)

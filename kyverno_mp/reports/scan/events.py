"""Create Events from the results of a scan, for the changed rows of a report.

Room: reports. Takes: an Item, the results of an evaluator, the changed rows, the
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

import msgspec

from kyverno_mp.kube.events import EventInfo, Reference, Successes
from kyverno_mp.kube.policy_events import PASSED, PolicyMessages
from kyverno_mp.limits import (
    REPORTS_EVENTS_BURST,
    REPORTS_EVENTS_OBJECTS_MAX,
    REPORTS_EVENTS_PER_S,
    REPORTS_EVENTS_RULES_MAX,
)
from kyverno_mp.pool.sinks import EventSink, Metrics
from kyverno_mp.reports.batches import Evaluated
from kyverno_mp.reports.feed import Item
from kyverno_mp.reports.fingerprints import KEY_BYTES, each_fingerprint, result_of
from kyverno_mp.reports.plan import Plan
from kyverno_mp.reports.writer import Applied
from kyverno_mp.results.entries import ROW, Row, Subject
from kyverno_mp.telemetry.families import REPORTS_EVENTS_DROPPED

CONTROLLER: Final = "kyverno-scan"
_FAILED: Final = frozenset({"fail", "warn", "error"})
_LANES: Final = 2
_Policy = tuple[str, str]
"""The source and policy of a row."""


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
        self._joint = _JointVerdicts(self._count_dropped)

    def submit(
        self,
        item: Item,
        applied: Applied,
        evaluated: Evaluated,
        plan: Plan,
        lane: str,
    ) -> None:
        """Submit the Events of the changed rows, and of policies that passed."""
        if applied.changed:
            self._submit_rows(item.subject, applied, evaluated, plan)
        actions = self._successes()
        if actions is None or (actions and PASSED not in actions):
            return
        for policy in self._passed(item, applied, evaluated, plan, lane):
            name = f"{policy.kind}/{policy.namespace}/{policy.name}"
            if self._has_budget(name.encode()):
                messages = _messages(policy, item.subject)
                self._submit([messages.applied(mutates=False)])

    def _submit_rows(
        self, subject: Subject, applied: Applied, evaluated: Evaluated, plan: Plan
    ) -> None:
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

    def _passed(
        self,
        item: Item,
        applied: Applied,
        evaluated: Evaluated,
        plan: Plan,
        lane: str,
    ) -> Iterator[Reference]:
        """Yield the policies of changed rows whose rules all passed.

        The decision includes the rows of the other lane, once that lane has evaluated
        the same object, and rows that only reviews produce.
        """
        rows = [ROW.decode(raw) for raw in evaluated.rows]
        changed = dict.fromkeys(_policy_of(rows[at]) for at in applied.changed)
        failing = {_policy_of(row) for row in rows if row.result != "pass"}
        failing |= _unpassed(applied.after, plan)
        open_ = _policies_of(evaluated.waiting, plan)
        shared = {
            key: joint
            for key, joint in plan.shared.items()
            if joint.is_shared_for(item.source.resource)
        }
        for key in changed:
            if key not in failing | open_ and key not in shared:
                yield from _reference(key, plan)
        for key, joint in shared.items():
            if item.only is None or joint.keys & item.only:
                version = b"" if key in open_ else item.digest + joint.signature
                verdict = _Verdict(version, key not in failing)
                policy_of_object = (item.uid, *key)
                if self._joint.add(
                    policy_of_object, lane, verdict, is_changed=key in changed
                ):
                    yield from _reference(key, plan)

    def _submit(self, infos: Iterable[EventInfo]) -> None:
        for info in infos:
            self._sink.submit(info)

    def _has_budget(self, key: bytes) -> bool:
        """Take an Event from a rule's budget; count and return False if it is spent."""
        now_s = self._monotonic_s()
        with self._lock:
            budget, at_s = self._budgets.pop(key, _Budget(REPORTS_EVENTS_BURST, now_s))
            budget += max(0.0, now_s - at_s) * REPORTS_EVENTS_PER_S
            budget = min(budget, float(REPORTS_EVENTS_BURST))
            has_one = budget >= 1
            self._budgets[key] = _Budget(budget - has_one, now_s)
            if len(self._budgets) > REPORTS_EVENTS_RULES_MAX:
                self._budgets.popitem(last=False)
        if not has_one:
            self._count_dropped()
        return has_one

    def _count_dropped(self) -> None:
        self._metrics.count(REPORTS_EVENTS_DROPPED, ())


class _Verdict(NamedTuple):
    """The result of one lane. ``version``: of the object and rules; b"" = not known."""

    version: bytes
    passed: bool


class _Joint(msgspec.Struct):
    lanes: dict[str, _Verdict]
    is_changed: bool = False
    """A row has changed since both lanes last agreed on a version."""


class _JointVerdicts:
    """Joins the verdicts of both lanes on an object and a policy; thread-safe."""

    def __init__(self, on_drop: Callable[[], None]) -> None:
        self._on_drop = on_drop
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, ...], _Joint] = OrderedDict()

    def add(
        self, key: tuple[str, ...], lane: str, verdict: _Verdict, *, is_changed: bool
    ) -> bool:
        """Add a verdict; return whether all rows passed and some of them are new."""
        with self._lock:
            joint = self._known.pop(key, None) or _Joint({})
            joint.lanes[lane] = verdict
            joint.is_changed |= is_changed
            self._known[key] = joint
            if len(self._known) > REPORTS_EVENTS_OBJECTS_MAX:
                _, dropped = self._known.popitem(last=False)
                if dropped.is_changed:
                    self._on_drop()
            if len(joint.lanes) < _LANES or not verdict.version:
                return False
            verdicts = joint.lanes.values()
            if any(
                lane_verdict.version != verdict.version for lane_verdict in verdicts
            ):
                return False
            is_changed, joint.is_changed = joint.is_changed, False
            return is_changed and all(lane_verdict.passed for lane_verdict in verdicts)


def _policy_of(row: Row) -> _Policy:
    return row.source, row.policy


def _reference(key: _Policy, plan: Plan) -> Iterator[Reference]:
    reference = plan.references.get(key)
    if reference is not None:
        yield reference


def _unpassed(after: bytes, plan: Plan) -> set[_Policy]:
    """Return the policies with a row in the report that is not a pass.

    Rows of policies that both lanes scan may be outdated, because the lanes write at
    the same time.
    """
    joint = frozenset().union(*(joint.keys for joint in plan.shared.values()))
    unpassed = (
        fingerprint
        for fingerprint in each_fingerprint(after)
        if result_of(fingerprint) != "pass"
    )
    keys = (fingerprint[:KEY_BYTES] for fingerprint in unpassed)
    return _policies_of((key for key in keys if key not in joint), plan)


def _policies_of(keys: Iterable[bytes], plan: Plan) -> set[_Policy]:
    """Return the policies of rules. A CEL policy has one row, which needs no place."""
    policies = (plan.places.get(key) for key in keys)
    return {(policy[2], policy[0]) for policy in policies if policy is not None}


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

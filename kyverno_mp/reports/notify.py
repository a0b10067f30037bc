"""Tell the operator's receiver about new failures, in groups.

Room: reports. Takes: new rows of reports, a function that posts bytes. Gives: Notifier,
with a thread of its own. Next: reports/start.py runs it, process/roles/reports.py gives
the function. May touch: one thread; the receiver, through that function.
Source: docs/reports.md (notifications); Alertmanager's API v2 (POST /alerts).

A receiver that hangs or refuses delays no scan and no report: whoever adds a failure
only counts it. What waits is bounded, and grouped by rule, result and namespace, as a
new policy may fail for every object of the cluster.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC
from typing import Any, Final

import msgspec

from kyverno_mp.errors import DependencyError, ExpressionFailed
from kyverno_mp.limits import (
    NOTIFY_CHARACTERS_MAX,
    NOTIFY_GROUPS_MAX,
    NOTIFY_GROUPS_SENT_MAX,
    NOTIFY_OBJECTS_MAX,
    NOTIFY_PAUSE_S_MAX,
)
from kyverno_mp.pool.sinks import Metrics
from kyverno_mp.queues.clock import Clock
from kyverno_mp.reports.batches import Evaluated
from kyverno_mp.reports.fingerprints import each_fingerprint, key_of, result_of
from kyverno_mp.results.entries import ROW, Row, Subject
from kyverno_mp.telemetry.families import DEFECTS, NOTIFICATIONS

_log = logging.getLogger(__name__)
ALERTMANAGER: Final = "alertmanager"
ALERT: Final = "KyvernoPolicyFailure"
"""The label ``alertname`` of all our alerts."""
FAILURES: Final = frozenset({"fail", "error"})
SENT, FAILED, REJECTED, DROPPED = "sent", "failed", "rejected", "dropped"
"""Outcomes: a message was accepted; will be tried again; is not tried again; a failure
was left out, because too many groups waited."""
_NAME: Final = "notify"
_BUSY: Final = frozenset({408, 425, 429})
"""Statuses of clients' errors that pass by themselves."""
Post = Callable[[bytes], int]
"""Posts JSON and returns the status. Raises: ExpressionFailed, DependencyError."""


class Group(msgspec.Struct):
    """New failures of one rule in one namespace; ``objects`` are the first of them."""

    policy: str
    rule: str
    result: str
    severity: str
    category: str
    namespace: str
    message: str
    since: str
    count: int = 0
    objects: list[str] = []


class Notifier:
    """Sends groups at an interval while the lease is held; thread-safe."""

    def __init__(  # noqa: PLR0913 - independent parts
        self,
        post: Post,
        metrics: Metrics,
        holds_lease: Callable[[], bool],
        known: Callable[[Subject], Mapping[bytes, str]],
        clock: Clock,
        *,
        interval_s: float,
        form: str,
    ) -> None:
        """``known``: returns the results in the report of an object, by rule.

        ``form``: ALERTMANAGER, or anything else for our own JSON.
        """
        self.known = known
        self._post = post
        self._metrics = metrics
        self._holds_lease = holds_lease
        self._clock = clock
        self._interval_s = interval_s
        self._body = _alerts if form == ALERTMANAGER else _message
        self._lock = threading.Lock()
        self._groups: dict[tuple[str, ...], Group] = {}
        self._left_out = 0
        self._failures = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=_NAME, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Send nothing from now on; a post in progress is not waited for."""
        self._stopping.set()

    def add(self, subject: Subject, rows: Iterable[Row]) -> None:
        """Add those of an object's new rows that are failures; never waits."""
        for row in rows:
            if row.result in FAILURES:
                with self._lock:
                    is_added = self._add(subject, row)
                if not is_added:
                    self._metrics.count(NOTIFICATIONS, (DROPPED,))

    def add_changed(
        self, subject: Subject, changed: Sequence[int], evaluated: Evaluated
    ) -> None:
        """Add the failures among the changed rows of a scan."""
        prints = list(each_fingerprint(evaluated.fingerprints))
        # PERF: most rows passed; only failures are decoded.
        failed = [at for at in changed if result_of(prints[at]) in FAILURES]
        self.add(subject, (ROW.decode(evaluated.rows[at]) for at in failed))

    def add_reviewed(
        self, subject: Subject, rows: Iterable[Row], results_before: Mapping[bytes, str]
    ) -> None:
        """Add the failures among results of reviews that are new.

        ``results_before``: the results of the report before, by rule.
        """
        self.add(
            subject,
            (row for row in rows if results_before.get(key_of(row)) != row.result),
        )

    def _add(self, subject: Subject, row: Row) -> bool:
        key = (row.source, row.policy, row.rule, row.result, subject.namespace)
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) >= NOTIFY_GROUPS_MAX:
                self._left_out += 1
                return False
            group = self._groups[key] = Group(
                row.policy,
                row.rule,
                row.result,
                row.severity,
                row.category,
                subject.namespace,
                row.message[:NOTIFY_CHARACTERS_MAX],
                self._clock.now().astimezone(UTC).isoformat(),
            )
        group.count += 1
        name = f"{subject.kind}/{subject.name}"[:NOTIFY_CHARACTERS_MAX]
        if name not in group.objects and len(group.objects) < NOTIFY_OBJECTS_MAX:
            group.objects.append(name)
        return True

    def send(self) -> bool:
        """Send what waits, up to a limit; return whether something still waits."""
        if not self._holds_lease():
            return False
        with self._lock:
            keys = list(self._groups)[:NOTIFY_GROUPS_SENT_MAX]
            sent = {key: self._groups.pop(key) for key in keys}
            left_out = self._left_out
        if not sent:
            return False
        outcome = FAILED
        try:
            outcome = self._outcome(self._body(list(sent.values()), left_out))
        finally:
            with self._lock:
                if outcome == FAILED:
                    self._put_back(sent)
                else:
                    self._left_out -= left_out
        self._metrics.count(NOTIFICATIONS, (outcome,))
        self._failures = self._failures + 1 if outcome == FAILED else 0
        return bool(self._groups)

    def _put_back(self, sent: dict[tuple[str, ...], Group]) -> None:
        """Let the groups of a failed message wait, with what came in the meantime."""
        for key, group in sent.items():
            if later := self._groups.pop(key, None):
                group.count += later.count
                new = [name for name in later.objects if name not in group.objects]
                group.objects = (group.objects + new)[:NOTIFY_OBJECTS_MAX]
        self._groups = {**sent, **self._groups}

    def _outcome(self, body: bytes) -> str:
        try:
            status = self._post(body)
        except (ExpressionFailed, DependencyError) as error:
            # SAFETY: the URL may contain a secret, and messages of errors may quote it.
            return self._failed(error.code)
        if 200 <= status < 300:  # noqa: PLR2004 - the range of success
            if self._failures:
                _log.info("the receiver of notifications accepts them again")
            return SENT
        if 400 <= status < 500 and status not in _BUSY:  # noqa: PLR2004 - our error
            _log.warning("the receiver rejects notifications: HTTP %s", status)
            return REJECTED
        return self._failed(f"HTTP {status}")

    def _failed(self, reason: str) -> str:
        if not self._failures:
            _log.warning("the receiver of notifications fails: %s", reason)
        return FAILED

    def _run(self) -> None:
        pause_s = self._interval_s
        while not self._stopping.wait(pause_s):
            try:
                self.send()
            except Exception:  # noqa: BLE001 - notifications must not end the pool
                _log.exception("unexpected error with notifications, trying again")
                self._metrics.count(DEFECTS, (_NAME,))
                self._failures += 1
            pause_s = self._interval_s * 2 ** min(self._failures, 16)
            pause_s = min(pause_s, max(self._interval_s, NOTIFY_PAUSE_S_MAX))


def _message(groups: Sequence[Group], left_out: int) -> bytes:
    """Return our own form: the groups, and how many failures have no group."""
    content = {"version": 1, "failures": groups, "leftOut": left_out}
    return msgspec.json.encode(content)


def _alerts(groups: Sequence[Group], _left_out: int) -> bytes:
    """Return alerts of Alertmanager, one for each group."""
    return msgspec.json.encode([_alert(group) for group in groups])


def _alert(group: Group) -> dict[str, Any]:
    labels = {
        "alertname": ALERT,
        "policy": group.policy,
        "rule": group.rule,
        "result": group.result,
        "severity": group.severity,
        "category": group.category,
        "namespace": group.namespace,
    }
    objects = ", ".join(group.objects)
    more = group.count - len(group.objects)
    return {
        # Alertmanager takes a label without a value for a missing one.
        "labels": {name: value for name, value in labels.items() if value},
        "annotations": {
            "summary": f"{objects} and {more} more" if more > 0 else objects,
            "description": group.message,
        },
        "startsAt": group.since,
    }

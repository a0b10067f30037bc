"""Report PolicyExceptions a week before they expire, when they do, and invalid ones.

Room: controllers. Takes: the stored PolicyExceptions of both groups, an Election.
Gives: Events of the lease holder, and counts for metrics. Next: leader/control/wire.py.
May touch: the clock. Source: docs/exceptions.md.

It ends no exception: each evaluation compares the time itself (policy/expiry.py).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from kyverno_mp.kube.events import EventInfo, Reference
from kyverno_mp.kube.lease import Election
from kyverno_mp.policy.expiry import (
    EXPIRED,
    EXPIRING,
    INVALID,
    LASTING,
    REASON,
    STANDINGS,
    expiry_ns,
    expiry_problems,
    standing,
    written,
)
from kyverno_mp.queues.clock import Clock
from kyverno_mp.queues.reconcile import Result

CONTROLLER: Final = "exceptions-controller"
ALL: Final = "all"
"""The only key."""
_RESYNC_S: Final = 60.0
_REPORTED_NS: Final = 24 * 3600 * 10**9
"""A new lease holder repeats the Event of an end only for a day."""
_ACTION: Final = "Expire"
_EVENT_REASONS: Final[Mapping[str, str]] = {
    EXPIRING: "PolicyExceptionExpiring",
    EXPIRED: "PolicyExceptionExpired",
    INVALID: "PolicyExceptionInvalid",
}


class _Metadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    annotations: dict[str, str] = {}


class _Spec(msgspec.Struct, rename="camel"):
    expires_at: str = ""


class _Exception(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    metadata: _Metadata
    spec: _Spec

    @property
    def expires_at_ns(self) -> int | None:
        return expiry_ns(self.metadata.annotations, self.spec.expires_at)


_DECODER: Final = msgspec.json.Decoder(_Exception)


class _Report(NamedTuple):
    """What is reported once: an exception, its state, and its end."""

    about: Reference
    state: str
    expires_at_ns: int
    note: str


class ExceptionExpiryController:
    """Submits Events and counts; call ``reconcile`` from one thread only."""

    def __init__(
        self,
        election: Election,
        documents: Callable[[], Iterable[bytes]],
        allows: Callable[[str], bool],
        submit: Callable[[EventInfo], bool],
        clock: Clock,
    ) -> None:
        """``allows`` returns whether exceptions in a namespace count."""
        self._election = election
        self._documents = documents
        self._allows = allows
        self._submit = submit
        self._clock = clock
        self._counts = dict.fromkeys(STANDINGS, 0)
        self._reported: set[_Report] = set()
        """What this process has reported since it holds the lease."""

    def counts(self) -> Mapping[str, int]:
        """Return the number of exceptions by state, for metrics; from any thread."""
        return self._counts

    def reconcile(self, _key: str) -> Result:
        """Count the exceptions, and submit the Events that are due."""
        counts = dict.fromkeys(STANDINGS, 0)
        if not self._election.holds():
            self._counts = counts
            self._reported.clear()
            return Result(after_s=_RESYNC_S)
        now_ns = int(self._clock.now().timestamp()) * 10**9
        reports = set()
        for exception in self._exceptions():
            state = standing(exception.expires_at_ns, now_ns)
            counts[state] += 1
            if state != LASTING:
                reports.add(_report_of(exception, state))
        self._counts = counts
        self._reported &= reports
        for report in sorted(reports - self._reported, key=_age_order):
            if _is_due(report, now_ns) and self._submit(_event_of(report)):
                self._reported.add(report)
        return Result(after_s=_RESYNC_S)

    def _exceptions(self) -> Iterator[_Exception]:
        for text in self._documents():
            try:
                exception = _DECODER.decode(text)
            except msgspec.MsgspecError:
                # The leader reports documents that cannot be read.
                continue
            if self._allows(exception.metadata.namespace):
                yield exception


def _age_order(report: _Report) -> tuple[int, str, str]:
    return report.expires_at_ns, report.about.namespace, report.about.name


def _is_due(report: _Report, now_ns: int) -> bool:
    if report.state != EXPIRED:
        return True
    return now_ns - report.expires_at_ns < _REPORTED_NS


def _report_of(exception: _Exception, state: str) -> _Report:
    metadata = exception.metadata
    about = Reference(
        exception.api_version,
        exception.kind,
        metadata.name,
        metadata.namespace,
        metadata.uid,
    )
    expires_at_ns = exception.expires_at_ns
    assert expires_at_ns is not None
    if state == INVALID:
        problems = expiry_problems(metadata.annotations, exception.spec.expires_at)
        note = f"It exempts nothing: {next(problems)}"
        return _Report(about, state, expires_at_ns, note)
    verb = "expires" if state == EXPIRING else "has expired and exempts nothing since"
    reason = metadata.annotations.get(REASON)
    suffix = f" Its reason: {reason}" if reason else ""
    return _Report(
        about, state, expires_at_ns, f"It {verb} {written(expires_at_ns)}.{suffix}"
    )


def _event_of(report: _Report) -> EventInfo:
    # After a restart, the Event of an end is not written again.
    at_ns = report.expires_at_ns if report.state == EXPIRED else 0
    return EventInfo(
        regarding=report.about,
        reason=_EVENT_REASONS[report.state],
        action=_ACTION,
        note=report.note,
        controller=CONTROLLER,
        at_ns=at_ns,
        seed=f"{report.about.uid} {report.expires_at_ns}",
    )

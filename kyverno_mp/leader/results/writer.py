"""Pass the results that workers record to the reports pool, without losing any.

Room: leader. Takes: the journals of results, the API server. Gives: ResultWriter,
whose thread writes. Next: reports/ephemeral.py reads the EphemeralReports.
May touch: the journals, the API server through leader/results/reports.py, threads, the
log.
Source: docs/pools.md 3, 4; docs/behaviour/controllers 2.10.

A record is removed from its journal after it is stored. If this process is killed, the
next one stores some records again. This is harmless, because only the newest result of
a rule for a subject counts. A write contains the results of one second; a large report
is written less often. Every replica writes the results of its own workers, without a
Lease.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from typing import Final

from kyverno_mp.errors import DependencyError, KubeRefused, StateError
from kyverno_mp.leader.results.reports import EphemeralPair
from kyverno_mp.limits import (
    EPHEMERAL_REPORT_BYTES_MAX,
    EPHEMERAL_REPORT_PAUSE_S_MAX,
    RESULTS_AT_ONCE_MAX,
)
from kyverno_mp.queues.journal import JournalReader, Record
from kyverno_mp.queues.record_pause import RecordPause
from kyverno_mp.results.newest import Results
from kyverno_mp.results.records import decode_results
from kyverno_mp.snapshot.bell import Bell
from kyverno_mp.telemetry.families import REPORTED, REPORTED_AGE, REPORTED_WAITING
from kyverno_mp.telemetry.record import Recorder
from kyverno_mp.telemetry.tally import Tally

_log = logging.getLogger(__name__)
_POLL_S: Final = 0.25
_BATCH_S: Final = 1.0
_BATCH_BYTES: Final = 64 * 1024
"""A report is written every second up to this size; a larger one is written less often.
"""
_AT_ONCE_BYTES: Final = EPHEMERAL_REPORT_BYTES_MAX // 2
_PAUSE_S_MAX: Final = 15.0
_STOP_S: Final = 5.0
STORED: Final = "stored"
OVERWRITTEN: Final = "overwritten"
GIVEN_UP: Final = "given_up"
_NEVER: Final = frozenset({"kube.invalid", "kube.refused"})
"""Rejections of the content, for which a retry is pointless."""


class ResultWriter:
    """The thread that writes EphemeralReports."""

    def __init__(
        self,
        reader: JournalReader,
        pair: EphemeralPair,
        monotonic_s: Callable[[], float] = time.monotonic,
        bell: Callable[[], Bell | None] = lambda: None,
    ) -> None:
        """``bell`` creates what workers ring."""
        self._reader = reader
        self._pair = pair
        self._monotonic_s = monotonic_s
        self._pause = RecordPause(bell)
        self._thread = threading.Thread(target=self._run, name="results", daemon=True)
        self._failures = 0
        self._stored_s = float("-inf")
        self.outcomes = Tally()
        """Counts of results by outcome since the last ``count``."""
        self.oldest_ns = 0
        """The wall-clock time of the oldest pending record, 0 if none is pending."""
        self.waiting = 0
        """Pending records at the last read of the journals."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Store the pending results, if the API server accepts them, and stop."""
        self._pause.stop()
        self._thread.join(timeout=_STOP_S)

    def step(self, *, now: bool = False) -> bool:
        """Store pending results if a write is due; return False if it must be retried.

        ``now`` makes the write due.
        """
        self.waiting = self._reader.waiting
        if not (now or self._is_time() or self.waiting >= RESULTS_AT_ONCE_MAX):
            return True
        records = _in_turn(self._reader.ahead(RESULTS_AT_ONCE_MAX))
        new, accepted = self._read(records)
        if not accepted:
            self._failures = self.oldest_ns = 0
            return True
        try:
            self._store(new)
        except DependencyError as error:
            self._failures += 1
            self._pair.forget()
            _log.warning("cannot write EphemeralReports, will retry: %s", error)
            return False
        for record in accepted:
            record.done()
        self._failures = 0
        self._stored_s = self._monotonic_s()
        return True

    def count(self, recorder: Recorder) -> None:
        """Write the counts to the page; call it in the page's writer thread."""
        series = recorder.series(REPORTED)
        for labels, number in self.outcomes.drain().items():
            series.count(labels, float(number))
        recorder.series(REPORTED_WAITING).hold((), float(self.waiting))
        oldest_ns = self.oldest_ns
        age_s = max(0.0, (time.time_ns() - oldest_ns) / 1e9) if oldest_ns else 0.0
        recorder.series(REPORTED_AGE).hold((), round(age_s, 3))

    def _read(self, records: Iterable[Record]) -> tuple[Results, list[Record]]:
        """Return the newest results of records, up to the size of one write.

        Skips damaged records.
        """
        new, accepted = Results(), []
        self.oldest_ns = 0
        for record in records:
            accepted.append(record)
            try:
                at_ns, subject, rows = decode_results(record.content)
            except StateError as error:
                _log.error("journal of results: %s", error.message)
                self.outcomes.add((GIVEN_UP,))
                continue
            self.oldest_ns = min(at_ns, self.oldest_ns or at_ns)
            for row in rows:
                new.add(at_ns, subject, row)
            if new.size_bytes > _AT_ONCE_BYTES:
                break
        return new, accepted

    def _store(self, results: Results) -> None:
        """Store results, or drop those that the API server never accepts.

        Raises: DependencyError.
        """
        try:
            lost = self._pair.store(results) if len(results) else 0
        except KubeRefused as error:
            if error.code not in _NEVER:
                raise
            self._pair.forget()
            self._note(GIVEN_UP, len(results))
            _log.error("the API server rejects results for reports: %s", error.code)
            return
        self._note(STORED, len(results))
        if lost:
            self._note(OVERWRITTEN, lost)
            _log.warning(
                "results are not merged into reports: the oldest are dropped",
                extra={"fields": {"results": lost}},
            )

    def _note(self, outcome: str, number: int) -> None:
        if number:
            self.outcomes.add((outcome,), number)

    def _is_time(self) -> bool:
        pause_s = _BATCH_S * max(1.0, self._pair.size_bytes / _BATCH_BYTES)
        pause_s = min(pause_s, float(EPHEMERAL_REPORT_PAUSE_S_MAX))
        return self._monotonic_s() - self._stored_s >= pause_s

    def _run(self) -> None:
        while not self._pause.is_last(self._pause_s()):
            self.step()
        self.step(now=True)

    def _pause_s(self) -> float | None:
        if not self._failures:
            return _POLL_S if self._reader.waiting else None
        return min(_PAUSE_S_MAX, _POLL_S * 2.0 ** min(self._failures, 10))


def _in_turn(batches: Iterable[list[Record]]) -> Iterator[Record]:
    """Yield the records of all journals round-robin, each journal in order."""
    for row in zip_longest(*batches):
        yield from (record for record in row if record is not None)

"""Claim the journals of one worker, and build the sinks that write to them.

Room: webhook. Takes: Settings, Places, the metric page. Gives: Journals. Next:
webhook/audit/sink.py, webhook/triggers/sink.py, webhook/results/sink.py.
May touch: files of the runtime folder; the log.
Source: docs/architecture.md 3 (audit queue and journal).
"""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from kyverno_mp.errors import StateError
from kyverno_mp.limits import (
    RESULTS_WAITING_MAX,
    ROLLOUT_DENIALS_KEPT_MAX,
    TRIGGERS_WAITING_MAX,
)
from kyverno_mp.program.gradual import Standings
from kyverno_mp.program.reporting import Reporting
from kyverno_mp.queues.journal import DENIALS, LOST, RESULTS, TRIGGERS, Journal
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.bell import DENIALS as DENIALS_BELL
from kyverno_mp.snapshot.bell import EVENTS as EVENTS_BELL
from kyverno_mp.snapshot.bell import RESULTS as RESULTS_BELL
from kyverno_mp.snapshot.bell import TRIGGERS as BELL
from kyverno_mp.snapshot.bell import ring
from kyverno_mp.telemetry.record import Recorder
from kyverno_mp.webhook.attach.places import Places
from kyverno_mp.webhook.audit.metrics import PageRecords
from kyverno_mp.webhook.audit.sink import EventOptions, JournalSink, LogSink
from kyverno_mp.webhook.ports import AuditSink
from kyverno_mp.webhook.results.sink import ResultSink
from kyverno_mp.webhook.review.denials import DenialSink
from kyverno_mp.webhook.triggers.lost import LostPolicies
from kyverno_mp.webhook.triggers.sink import TriggerSink

_LOG = logging.getLogger(__name__)


class Journals:
    """The journals of one worker; None for each one that is switched off."""

    def __init__(self, settings: Settings, places: Places, recorder: Recorder) -> None:
        """Raises: StateError without free space for triggers or results.

        A worker that answers without recording would lose all of them. Without a
        journal of events, it answers.
        """
        self._recorder = recorder
        self.events = self._claim_events(settings, places.journals)
        if self.events is not None:
            # PERF: a ring costs four system calls; a flood of denials rings rarely.
            self.events.on_first = partial(ring, places.snapshot, EVENTS_BELL)
        self.triggers: Journal | None = None
        self._lost: Journal | None = None
        if places.triggers is not None and places.lost is not None:
            most = TRIGGERS_WAITING_MAX
            self.triggers = self._claim(places.triggers, most, TRIGGERS.ring_bytes)
            self._lost = self._claim(places.lost, most, LOST.ring_bytes)
            for journal in (self.triggers, self._lost):
                journal.on_append = partial(ring, places.snapshot, BELL)
        self._denials: Journal | None = None
        if places.denials is not None:
            most = ROLLOUT_DENIALS_KEPT_MAX
            self._denials = self._claim(places.denials, most, DENIALS.ring_bytes)
            self._denials.on_append = partial(ring, places.snapshot, DENIALS_BELL)
        self.results: Journal | None = None
        if places.results is not None:
            most = RESULTS_WAITING_MAX
            self.results = self._claim(places.results, most, RESULTS.ring_bytes)
            self.results.on_first = partial(ring, places.snapshot, RESULTS_BELL)

    def _claim(self, folder: Path, most: int, ring_bytes: int) -> Journal:
        try:
            return Journal.claim(folder, most, ring_bytes)
        except StateError as error:
            self._recorder.errors.count((error.code,))
            raise

    def _claim_events(self, settings: Settings, folder: Path | None) -> Journal | None:
        if folder is None or settings.events_queued_max == 0:
            return None
        try:
            return Journal.claim(folder, settings.events_queued_max)
        except StateError as error:
            self._recorder.errors.count((error.code,))
            _LOG.error("this worker writes no events: %s", error.message)
            return None

    def event_sink(
        self,
        records: PageRecords,
        loop: asyncio.AbstractEventLoop,
        records_successes: Callable[[], bool],
    ) -> AuditSink:
        """Return the sink for the results of reviews."""
        if self.events is None:
            return LogSink(records, loop)
        options = EventOptions(records_successes=records_successes, now_ns=time.time_ns)
        return JournalSink(self.events, records, loop, options)

    def trigger_sink(self, records: PageRecords) -> TriggerSink | None:
        """Return the sink for triggers, None without a background pool."""
        if self.triggers is None or self._lost is None:
            return None
        lost = LostPolicies(self._lost, records, time.time_ns)
        return TriggerSink(self.triggers, records, time.time_ns, lost)

    def denial_sink(
        self, records: PageRecords, standing: Standings
    ) -> DenialSink | None:
        """Return the sink for denials by new steps, None without a cluster."""
        if self._denials is None:
            return None
        return DenialSink(self._denials, standing, records, time.time)

    def result_sink(
        self, records: PageRecords, reporting: Reporting | None
    ) -> ResultSink | None:
        """Return the sink for results for reports, None without a reports pool."""
        if self.results is None or reporting is None:
            return None
        return ResultSink(self.results, records, reporting, time.time_ns)

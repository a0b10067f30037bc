"""Collect the counts of a worker's threads; write them to its metric page.

Room: webhook. Takes: the metric page, the operator's metric options. Gives: Counts.
Next: webhook/start.py.
Source: docs/metrics.md.

A page has one writer, the thread of the event loop. Other threads add to tallies.
"""

from collections.abc import Callable

from kyverno_mp.policy.metrics_configuration import MetricsConfiguration
from kyverno_mp.settings.settings import Settings
from kyverno_mp.telemetry import traces
from kyverno_mp.telemetry.families import (
    GC_PAUSES,
    IMAGE_CACHE,
    IMAGE_VERIFICATIONS,
    QUERIES,
    RECORDED_REVIEWS,
    RECORDING_FILES_DELETED,
    REGISTRY_CALLS,
    SPANS,
)
from kyverno_mp.telemetry.record import Recorder
from kyverno_mp.telemetry.tally import Tally, Timings
from kyverno_mp.webhook.collector import Pauses
from kyverno_mp.webhook.recording.recorder import recorder_of


class Counts:
    """The tallies of one worker."""

    def __init__(
        self, settings: Settings, recorder: Recorder, now_s: Callable[[], float]
    ) -> None:
        """Raises: SettingInvalid."""
        self._recorder = recorder
        self._now_s = now_s
        self.queries = Tally()
        self.image_cache, self.registry_calls = Tally(), Tally()
        self.verifications = Timings()
        self._deleted = Tally()
        self.recording = recorder_of(settings, lambda: self._deleted.add(()))
        """The recorder of reviews; None if nothing is recorded."""
        self._pauses = Pauses()
        self._pauses.watch()
        self._options: MetricsConfiguration | None = None
        self._since_s = now_s()

    def write(self, options: MetricsConfiguration) -> None:
        """Write all counts to the page; call it only in the loop's thread."""
        if options is not self._options:
            self._options = options
            self._recorder.configure(options)
        for family, tally in (
            (QUERIES, self.queries),
            (IMAGE_CACHE, self.image_cache),
            (REGISTRY_CALLS, self.registry_calls),
            (RECORDING_FILES_DELETED, self._deleted),
        ):
            for labels, count in tally.drain().items():
                self._recorder.series(family).count(labels, float(count))
        for labels, count in traces.counts().items():
            self._recorder.series(SPANS).count(labels, float(count))
        for labels, seconds in self.verifications.drain():
            self._recorder.series(IMAGE_VERIFICATIONS).observe(labels, seconds)
        for generation, seconds in self._pauses.drain():
            self._recorder.series(GC_PAUSES).observe((generation,), seconds)
        if self.recording is not None:
            for labels, count in self.recording.drain().items():
                self._recorder.series(RECORDED_REVIEWS).count(labels, float(count))
        interval_s = options.refresh_interval_s
        if interval_s and self._now_s() - self._since_s > interval_s:
            self._since_s = self._now_s()
            self._recorder.reset()

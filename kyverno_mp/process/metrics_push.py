"""Push all metrics to the operator's collector, if there is one.

Room: process. Takes: Settings, what measures the metrics. Gives: Pusher. Next:
process/roles/health.py runs it. May touch: one thread; the collector, through
telemetry/push.py. Source: docs/behaviour/controllers 9.2.

A collector that hangs delays no probe and no scrape: it is called in a thread of its
own, which waits for nobody else.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable

from kyverno_mp.policy.metrics_configuration import MetricsConfiguration
from kyverno_mp.settings.settings import Settings
from kyverno_mp.telemetry import collector, tracing
from kyverno_mp.telemetry.collect import Merged
from kyverno_mp.telemetry.families import Family
from kyverno_mp.telemetry.traces import EXPORTED, FAILED

_log = logging.getLogger(__name__)
Gauges = dict[Family, dict[tuple[str, ...], float]]
Measured = tuple[Merged, Gauges, MetricsConfiguration]
Send = Callable[[Merged, Gauges, MetricsConfiguration], bool]
_ROLE = "health"


class Pusher:
    """Pushes in a thread, at an interval and once at the end."""

    def __init__(
        self,
        measured: Callable[[], Measured],
        send: Send,
        counts: Counter[tuple[str, ...]],
        interval_s: float,
    ) -> None:
        self._measured = measured
        self._send = send
        self._counts = counts
        self._interval_s = interval_s
        self._stopping = threading.Event()
        self._is_failing = False
        self._thread = threading.Thread(target=self._work, name="push", daemon=True)
        self._thread.start()

    def stop(self, within_s: float) -> bool:
        """Push once more; return whether that ended in time."""
        self._stopping.set()
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._stopping.wait(self._interval_s)
            self._push()

    def _push(self) -> None:
        reason = ""
        try:
            is_sent = self._send(*self._measured())
        except Exception as error:  # noqa: BLE001 - the thread must go on
            is_sent, reason = False, f": {type(error).__name__}"
        self._counts[(EXPORTED if is_sent else FAILED,)] += 1
        if is_sent is self._is_failing:
            self._is_failing = not is_sent
            if is_sent:
                _log.info("the collector of metrics accepts them again")
            else:
                _log.warning("the collector of metrics accepts none%s", reason)


def pusher_of(
    settings: Settings,
    measured: Callable[[], Measured],
    counts: Counter[tuple[str, ...]],
) -> Pusher | None:
    """Start pushing, after the fork; return None if metrics are only scraped."""
    found = collector.of_metrics(settings)
    if found is None:
        return None
    from kyverno_mp.telemetry.push import metric_sender

    send = metric_sender(found, tracing.resource_of(settings, _ROLE))
    interval_s = float(settings.metrics_push_interval_s)
    return Pusher(measured, send, counts, interval_s)

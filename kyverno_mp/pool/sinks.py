"""Define where the pools send events, counts and gauges.

Room: pool. Takes: nothing. Gives: EventSink and Metrics, which each pool's
dependencies contain. Next: event_writer.py, metrics.py.
Source: docs/architecture.md 2.
"""

from typing import Protocol

from kyverno_mp.kube.events import EventInfo
from kyverno_mp.telemetry.families import Family


class EventSink(Protocol):
    """Queues events, e.g. kube.events.Events; any thread may call it."""

    def submit(self, info: EventInfo) -> bool:
        """Queue an event; return False when it is filtered out or dropped."""


class Metrics(Protocol):
    """Counters and gauges of the telemetry families; any thread may call it."""

    def count(self, family: Family, labels: tuple[str, ...]) -> None:
        """Add one to a counter."""

    def hold(self, family: Family, labels: tuple[str, ...], value: float) -> None:
        """Set a gauge."""

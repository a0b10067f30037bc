"""Define the dependencies of the background pool.

Room: background. Takes: nothing. Gives: BackgroundDependencies, and the Protocols of
its parts. Next: background/start.py. May touch: nothing.
Source: docs/architecture.md 2; docs/behaviour/controllers 5.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kyverno_mp.kube.events import EventInfo
from kyverno_mp.kube.rest import Client
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.queues.clock import Clock
from kyverno_mp.settings.settings import Settings
from kyverno_mp.telemetry.families import Family


class EventSink(Protocol):
    """Takes events, e.g. kube.events.Events; any thread may call it."""

    def submit(self, info: EventInfo) -> bool:
        """Queue an event; return False when it is left out or dropped."""


class Metrics(Protocol):
    """Takes counts and gauges of telemetry's families; any thread may call it."""

    def count(self, family: Family, labels: tuple[str, ...]) -> None:
        """Add one to a counter."""

    def hold(self, family: Family, labels: tuple[str, ...], value: float) -> None:
        """Set a gauge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundDependencies:
    """The pool's surroundings; every function may be called by any thread."""

    client: Client
    """Acts as the background account."""
    cluster_data: ClusterData
    """What policies may read: namespace labels, global context, API calls (by the same
    account)."""
    events: EventSink
    metrics: Metrics
    settings: Settings
    holds_lease: Callable[[], bool]
    """Asked before each write."""
    health: Callable[[Sequence[str]], None]
    """Called every few seconds with the problems in force; none = healthy."""
    clock: Clock = field(default_factory=Clock)

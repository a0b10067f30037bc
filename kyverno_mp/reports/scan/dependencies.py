"""Define the dependencies of the reports pool.

Room: reports. Takes: nothing. Gives: ReportsDependencies, and the Protocols of its
parts. Next: reports/start.py.
Source: docs/architecture.md 2; docs/behaviour/controllers 6.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from kyverno_mp.kube.discovery import Directory
from kyverno_mp.kube.events import Successes
from kyverno_mp.kube.rest import Client
from kyverno_mp.pool.sinks import EventSink, Metrics
from kyverno_mp.queues.clock import Clock
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.cel_segments import CelSegment
from kyverno_mp.snapshot.policies import PolicySegment
from kyverno_mp.telemetry.families import Family


class ReportsMetrics(Metrics, Protocol):
    """The metrics of a pool, with histograms."""

    def observe(self, family: Family, labels: tuple[str, ...], seconds: float) -> None:
        """Add an observation to a histogram."""


class Evaluators(Protocol):
    """Answers batches, e.g. pool.evaluators.Evaluators; any thread may call it."""

    def submit(self, content: bytes) -> "Future[bytes]":
        """Queue a batch. Raises: StateError when too many wait."""


class Published(Protocol):
    """The data that the leader of the pod publishes."""

    def policies(self) -> PolicySegment | None:
        """Return the newest policies, or None before the first ones are published."""

    def cel_policies(self, segment: str, /) -> CelSegment[Any] | None:
        """Return the newest policies of a kind in CEL.

        They are at least as new as the last ``policies``.
        """

    def namespace_labels(self) -> tuple[int, Callable[[], Mapping[str, bytes]]]:
        """Return the generation, and a function that reads all labels' digests."""

    def data_generations(self) -> tuple[int, ...]:
        """Return the generations of the other data that rules may read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportsDependencies:
    """The dependencies of the pool; any thread may call its functions."""

    client: Client
    """Acts as the reports account."""
    evaluators: Evaluators
    published: Published
    metrics: ReportsMetrics
    events: EventSink
    successes: Successes
    settings: Settings
    holds_lease: Callable[[], bool]
    """Called before each write."""
    health: Callable[[Sequence[str]], None]
    """Called every few seconds with the current problems; empty = healthy."""
    served: Callable[[], Directory] = lambda: Directory(())
    """Returns the resources that the leader has published, without a call."""
    clock: Clock = field(default_factory=Clock)
    receive: Callable[[bytes], int] | None = None
    """Posts a notification to the operator's receiver; None = there is none."""
    image_evaluators: Evaluators | None = None
    """The evaluators of image rules, or None if there are none."""

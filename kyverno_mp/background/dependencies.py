"""Define the dependencies of the background pool.

Room: background. Takes: nothing. Gives: BackgroundDependencies. Next:
background/start.py.
Source: docs/architecture.md 2; docs/behaviour/controllers 5.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kyverno_mp.background.results import RuleResults
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.limits import BACKGROUND_RULE_S_MAX
from kyverno_mp.policy.configuration import UPDATE_REQUEST_THRESHOLD
from kyverno_mp.pool.sinks import EventSink, Metrics
from kyverno_mp.program.engine import Clock as EngineClock
from kyverno_mp.program.engine import Engine
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.queues.clock import Clock
from kyverno_mp.settings.settings import Settings
from kyverno_mp.telemetry.families import Family


class BackgroundMetrics(Metrics, Protocol):
    """The metrics of a pool, with histograms."""

    def observe(self, family: Family, labels: tuple[str, ...], seconds: float) -> None:
        """Add an observation to a histogram."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundDependencies:
    """The dependencies of the pool; any thread may call its functions."""

    client: Client
    """Acts as the background account."""
    cluster_data: ClusterData
    """Data that policies may read: namespace labels, global context, API calls (by the
    same account)."""
    events: EventSink
    metrics: BackgroundMetrics
    settings: Settings
    holds_lease: Callable[[], bool]
    """Called before each write."""
    health: Callable[[Sequence[str]], None]
    """Called every few seconds with the current problems; empty = healthy."""
    results: RuleResults | None = None
    """Records results for reports; None if no reports are written."""
    threshold: Callable[[], int] = lambda: UPDATE_REQUEST_THRESHOLD
    """Returns updateRequestThreshold."""
    hands_over: bool = False
    """Another program holds the lease: lost triggers become UpdateRequests for it."""
    author_reason: Callable[[Resource, Key], str] = lambda _resource, _key: ""
    """Returns the right that a policy uses and its author lacks, or ""."""
    clock: Clock = field(default_factory=Clock)

    def engine(self, data: ClusterData | None = None) -> tuple[Engine, int]:
        """Return an engine, and the deadline in ns of a rule that it evaluates now.

        ``data``: instead of ``cluster_data``.
        """
        clock = EngineClock(self.clock.now, self.clock.monotonic_ns)
        engine = Engine(data or self.cluster_data, clock)
        return engine, engine.now_ns() + BACKGROUND_RULE_S_MAX * 10**9

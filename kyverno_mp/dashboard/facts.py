"""Define the facts about the pod that the pages need.

Room: dashboard. Takes: nothing. Gives: Facts, View, ProcessRow. Next: pages.py;
process/roles/dashboard_facts.py implements Facts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from kyverno_mp.dashboard.activity import Activity, Pace
from kyverno_mp.dashboard.exceptions import Published
from kyverno_mp.dashboard.history import History
from kyverno_mp.dashboard.results import Results
from kyverno_mp.leader.status import Status
from kyverno_mp.telemetry.denials import Denial


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    """One process of the pod; ``pid`` 0: not running."""

    name: str
    pid: int
    restarts: int
    crash_loop: bool
    pss_bytes: float
    cpu_s: float


class Facts(Protocol):
    """The facts that the other processes report."""

    def unready(self) -> Sequence[str]:
        """Return the reasons why the pod is not ready; empty if it is."""

    def status(self) -> Status:
        """Return the status that the leader last published."""

    def generation(self) -> int:
        """Return the generation of policies that every worker serves."""

    def activity(self) -> Activity:
        """Return the results of reviews since the start."""

    def pace(self) -> Pace | None:
        """Return the reviews of the last seconds, None before they are known."""

    def denials(self) -> Sequence[Denial]:
        """Return the last denials, the newest first."""

    def published(self) -> Published:
        """Return the policies in force."""

    def processes(self) -> Sequence[ProcessRow]:
        """Return the processes, starting with the supervisor."""


class Watch(Protocol):
    """Keeps Results up to date with the stored reports."""

    @property
    def synced(self) -> bool:
        """Whether all reports were read at least once."""

    def problems(self) -> list[str]:
        """Return why the results may be incomplete or outdated."""


@dataclass(frozen=True, slots=True)
class View:
    """The data that pages may show. ``watch`` None: there are no stored reports."""

    facts: Facts
    results: Results
    history: History
    watch: Watch | None
    now: datetime

    @property
    def problems(self) -> list[str]:
        """Why the reports shown may be incomplete."""
        if self.watch is None:
            return []
        problems = self.watch.problems()
        if not self.watch.synced and not problems:
            problems.append("the reports of the cluster are still being read")
        left_out = self.results.left_out
        if left_out:
            problems.append(
                f"{left_out:,} results are not listed: there are more than the"
                " dashboard can hold"
            )
        return problems

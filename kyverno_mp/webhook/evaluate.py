"""Judge by the snapshot in force.

Room: webhook. Takes: a question for the newest Planner. Gives: ports.Evaluate and
ports.Mutate. Next: service. May touch: nothing outside its arguments.
"""

from collections.abc import Callable

from kyverno_mp.errors import SnapshotUnusable
from kyverno_mp.program.mutation_plan import MutationPlan, MutationPlanner
from kyverno_mp.program.plan import Plan, Planner
from kyverno_mp.program.request import Request


class SnapshotEvaluate:
    """Plans by the planner that ``current`` gives at that moment.

    A plan keeps its planner's rules, so a review that began before a new snapshot came
    into force ends by the old one.
    """

    __slots__ = ("_current",)

    def __init__(self, current: Callable[[], Planner | None]) -> None:
        self._current = current

    def plan(
        self, request: Request, failure_policies: frozenset[str], policy_key: str
    ) -> Plan | None:
        """Pick the candidates. Raises: SnapshotUnusable before the first snapshot."""
        planner = self._current()
        if planner is None:
            raise SnapshotUnusable("webhook.no_snapshot", "no policies are loaded yet")
        return planner.plan(request, failure_policies, policy_key)

    def is_ready(self) -> bool:
        """Tell whether this worker has a snapshot."""
        return self._current() is not None


class SnapshotMutate:
    """Plans mutations by the planner that ``current`` gives at that moment."""

    __slots__ = ("_current",)

    def __init__(self, current: Callable[[], MutationPlanner | None]) -> None:
        self._current = current

    def plan(
        self, request: Request, failure_policies: frozenset[str], policy_key: str
    ) -> MutationPlan | None:
        """Pick the candidates. Raises: SnapshotUnusable before the first snapshot."""
        planner = self._current()
        if planner is None:
            raise SnapshotUnusable("webhook.no_snapshot", "no policies are loaded yet")
        return planner.plan(request, failure_policies, policy_key)

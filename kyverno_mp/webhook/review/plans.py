"""Create plans from the snapshot in force.

Room: webhook. Takes: a function for the newest Planner. Gives: ports.Plans, for
validation and for mutation. Next: handlers.
"""

from collections.abc import Callable
from typing import Any, Generic

from kyverno_mp.errors import SnapshotUnusable, StateError
from kyverno_mp.expr.scope import Pace
from kyverno_mp.program.plans.mutation_plan import MutationPlan
from kyverno_mp.program.plans.plan import ValidationPlan
from kyverno_mp.program.plans.planner import PlannerOf, PlanT
from kyverno_mp.program.request import Request


class _SnapshotPlans(Generic[PlanT]):
    """Plans from the current planner, which ``current`` returns.

    A plan keeps its planner's rules, so a review that begins before a new snapshot
    comes into force ends with the old one.
    """

    __slots__ = ("_current", "_knows")

    def __init__(
        self,
        current: Callable[[], PlannerOf[Any, Any, PlanT] | None],
        knows: Callable[[str], bool] = lambda _key: True,
    ) -> None:
        """``knows`` returns whether a policy key exists, or existed until now."""
        self._current = current
        self._knows = knows

    def plan(
        self,
        request: Request,
        failure_policies: frozenset[str],
        policy_key: str,
        pace: Pace | None = None,
    ) -> PlanT | None:
        """Select the candidates.

        Raises: Preempted from ``pace``; SnapshotUnusable before the first snapshot;
        StateError for a policy that another replica registered and that this worker
        does not have yet.
        """
        planner = self._current()
        if planner is not None and policy_key:
            _require_known(policy_key, self._knows)
            # The worker knows the policy now, but an older planner may not.
            planner = self._current()
        if planner is None:
            raise SnapshotUnusable("webhook.no_snapshot", "no policies are loaded yet")
        return planner.plan(request, failure_policies, policy_key, pace)

    def is_ready(self) -> bool:
        """Return whether this worker has a snapshot."""
        return self._current() is not None


class SnapshotEvaluate(_SnapshotPlans[ValidationPlan]):
    """Plans for validation."""

    __slots__ = ()


class SnapshotMutate(_SnapshotPlans[MutationPlan]):
    """Plans for mutation."""

    __slots__ = ()


def _require_known(key: str, knows: Callable[[str], bool]) -> None:
    """Raise StateError for an unknown policy, which might match the request."""
    if not knows(key):
        raise StateError(
            "webhook.policy_unknown", f"failed to fetch policy with key: key {key}"
        )

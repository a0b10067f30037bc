"""Decide which GeneratingPolicies an admission request triggers.

Room: program. Takes: the linked policies of a path, a Request. Gives: GeneratingPlan
and GeneratingPlanner, run by webhook/review/cel_generating.py.
Next: background/generating evaluates the policies.
Source: docs/behaviour/cel 12d; Kyverno pkg/webhooks/resource/gpol/handler.go at
v1.18.2 and (skipBackgroundRequests) v1.19.0.

Only constraints are evaluated, so no answer waits for an expression. Upstream records
every request for all policies of the path, and its background controller drops the ones
that do not match.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from kyverno_mp.expr.scope import Pace
from kyverno_mp.ir.admission_policy import ConstraintsIR
from kyverno_mp.ir.cel_policies import GeneratingPolicyIR
from kyverno_mp.limits import HEAVY_STEPS
from kyverno_mp.program.cel_policies.delete import any_operation
from kyverno_mp.program.generate.requester import needs_review
from kyverno_mp.program.generate.triggers import CEL_GENERATE, Triggered
from kyverno_mp.program.request import Request
from kyverno_mp.program.validating_policy.constraints import (
    MatchingCost,
    fault_or_match,
)
from kyverno_mp.program.validating_policy.planner import CelPlannerOf
from kyverno_mp.program.validating_policy.reads import expressions_of
from kyverno_mp.program.validating_policy.source import CelSource

_POLICY_STEPS: Final = 10
_DELETE: Final = "DELETE"
_UPDATE: Final = "UPDATE"
_OLD_OBJECT: Final = "oldObject"


def _followed(constraints: ConstraintsIR | None) -> ConstraintsIR | None:
    """Return the constraints that any trigger meets, for all operations.

    An exclusion keeps its operations: an object that is excluded from one operation can
    be a trigger in another.
    """
    followed = any_operation(constraints)
    if followed is None or constraints is None:
        return None
    return msgspec.structs.replace(followed, excluded=constraints.excluded)


class LinkedGeneratingTrigger:
    """Decides whether a request triggers one policy; safe to share between threads."""

    __slots__ = (
        "_constraints",
        "_followed",
        "_lists_delete",
        "_needs_review",
        "_reads_old",
        "ir",
        "matching",
        "reads_namespace",
    )

    def __init__(
        self, ir: GeneratingPolicyIR, *, full_policy: GeneratingPolicyIR | None = None
    ) -> None:
        """``full_policy``: the whole policy, if ``ir`` is only a part of it."""
        self.ir = full_policy or ir
        self._constraints = ir.constraints
        self._followed = _followed(ir.constraints) if ir.synchronizes else None
        followed = (self._followed, self._followed)
        self.matching = MatchingCost((ir.constraints, *followed))
        """Includes the cost of matching the old object, a possible former trigger."""
        rules = () if ir.constraints is None else ir.constraints.rules
        self._lists_delete = any(_DELETE in rule.operations for rule in rules)
        self._reads_old = full_policy is not None or any(
            _OLD_OBJECT in expression.text for expression in expressions_of(ir)
        )
        self._needs_review = needs_review(self.ir)
        self.reads_namespace = (
            ir.constraints is not None and ir.constraints.namespace_selector is not None
        )

    def triggered(self, request: Request) -> Triggered | None:
        """Return the pool's task, or None if there is none.

        A policy that synchronises updates its generated objects after every update of
        the trigger, even if the trigger no longer matches.
        """
        is_deletion = request.operation == _DELETE
        if is_deletion and self._lists_delete:
            return self._of(deletes=False) if self._matches(request) else None
        if is_deletion:
            return self._of(deletes=True) if self._follows(request) else None
        if self._matches(request):
            return self._of(deletes=False)
        if request.operation == _UPDATE and self._follows(request):
            return self._of(deletes=False)
        return None

    def unchecked(self, request: Request) -> Triggered:
        """Return the pool's task if the request triggers the policy.

        The pool repeats the match, and an object that never matched has no generated
        objects.
        """
        is_deletion = request.operation == _DELETE and not self._lists_delete
        return self._of(deletes=is_deletion and self._followed is not None)

    def _matches(self, request: Request) -> bool:
        if self._constraints is None:
            return False
        return fault_or_match(self._constraints, request)[0]

    def _follows(self, request: Request) -> bool:
        """Return whether the object is or was a trigger, for any operation."""
        if self._followed is None:
            return False
        if fault_or_match(self._followed, request)[0]:
            return True
        if not request.old_object:
            return False
        before = replace(request, object=request.old_object, old_object={})
        return fault_or_match(self._followed, before)[0]

    def _of(self, *, deletes: bool) -> Triggered:
        policy = self.ir.policy
        return Triggered(
            CEL_GENERATE,
            policy.key,
            (policy.name,),
            deletes=deletes,
            synchronize=self.ir.synchronizes,
            reads_old=self._reads_old,
            needs_review=self._needs_review,
        )


class GeneratingPlan:
    """The policies that one request may trigger."""

    __slots__ = (
        "_policies",
        "_request",
        "fails",
        "needs_io",
        "reads_namespace",
        "reads_registry",
    )

    def __init__(
        self, request: Request, policies: Sequence[LinkedGeneratingTrigger]
    ) -> None:
        self._request = request
        self._policies = policies
        self.needs_io = self.fails = self.reads_registry = False
        self.reads_namespace = any(policy.reads_namespace for policy in policies)

    def triggered(self, pace: Pace | None = None) -> list[Triggered]:
        """Return the triggered tasks. Raises: Preempted, as ``pace`` does."""
        request = self._request
        triggered, steps = [], 0
        for linked in self._policies:
            steps += _POLICY_STEPS + linked.matching.steps(request)
            if pace is not None and steps > HEAVY_STEPS:
                pace.make_room()
                steps = 0
            task = linked.triggered(request)
            if task is not None:
                triggered.append(task)
        return triggered

    def unchecked(self) -> list[Triggered]:
        """Return the tasks that the request may trigger; the pool repeats the match."""
        return [policy.unchecked(self._request) for policy in self._policies]


class GeneratingPlanner(CelPlannerOf[LinkedGeneratingTrigger, GeneratingPlan]):
    """Creates plans from one snapshot generation."""

    __slots__ = ()

    def __init__(
        self,
        source: CelSource[LinkedGeneratingTrigger],
        knows: Callable[[str], bool],
        background_user: str = "",
    ) -> None:
        super().__init__(source, knows, GeneratingPlan, background_user)

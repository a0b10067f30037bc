"""Mutate one admission request with MutatingPolicies, and collect its triggers.

Room: program. Takes: the linked policies of a path. Gives: MutatingPlan and
MutatingPlanner, run by webhook/review/cel_mutating.py. Next: mutate.py.
May touch: the cluster only through the ports of CEL.
Source: docs/behaviour/cel 10.1; docs/behaviour/controllers 2.6; Kyverno
pkg/webhooks/resource/mpol/handler.go, pkg/cel/policies/mpol/engine at v1.18.2 and
(skipBackgroundRequests, admission.enabled) v1.19.0.

The policies run in order, each on the object as changed by the previous one. A policy
that cannot be evaluated changes nothing and affects no other policy.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from kyverno_mp.errors import DeadlinePassed
from kyverno_mp.expr.effects import EFFECT_REGISTRY
from kyverno_mp.expr.scope import Pace
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.limits import REVIEW_MESSAGES_CHARACTERS_MAX
from kyverno_mp.program import result
from kyverno_mp.program.cel_policies.mutate import LinkedMutatingPolicy
from kyverno_mp.program.engine import Engine
from kyverno_mp.program.generate.triggers import CEL_MUTATE, Triggered
from kyverno_mp.program.mutation import answer_patch
from kyverno_mp.program.plans.planner import SLOW
from kyverno_mp.program.request import Request, copy_of
from kyverno_mp.program.result import PolicyResponse, RuleResult
from kyverno_mp.program.validating_policy.planner import CelPlannerOf
from kyverno_mp.program.validating_policy.review_run import (
    LeftOut,
    ReviewRun,
    bound,
)
from kyverno_mp.program.validating_policy.scope import Facts, ReviewShared
from kyverno_mp.program.validating_policy.source import CelSource
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.patches.json_diff import Operation

Resource = dict[str, Json]
_FAIL: Final = "Fail"


class _Reached(NamedTuple):
    """Progress of a run; always replaced as a whole, so any thread can read it."""

    number: int
    """Number of finished policies."""
    resource: Resource
    listed: list[PolicyResponse]
    """The responses so far, and those that the run has added since."""
    length: int = 0
    """Number of responses so far."""

    @property
    def responses(self) -> list[PolicyResponse]:
        """The responses so far."""
        return self.listed[: self.length]


@dataclass(slots=True)
class CelMutations:
    """The outcome of all policies for one request.

    ``unfinished``: policies with failurePolicy Fail that were not evaluated.
    """

    responses: Sequence[PolicyResponse] = ()
    patch: Sequence[Operation] = ()
    left_out: LeftOut = field(default_factory=list)
    unfinished: list[PolicyIR] = field(default_factory=list)

    def refusals(self) -> Iterator[tuple[PolicyIR, str]]:
        """Yield the errors of the policies whose failure denies the request."""
        yield from self._errors(fails=True)

    def ignored(self) -> Iterator[tuple[PolicyIR, str]]:
        """Yield the errors of the policies whose failure is ignored."""
        yield from self._errors(fails=False)

    def _errors(self, *, fails: bool) -> Iterator[tuple[PolicyIR, str]]:
        for response in self.responses:
            policy = response.policy
            if (policy.failure_policy == _FAIL) is not fails:
                continue
            for rule_result in response.results:
                if rule_result.status == result.ERROR:
                    yield policy, rule_result.message


class MutatingPlan:
    """The policies that can mutate one request, or be triggered by it."""

    __slots__ = (
        "_engine",
        "_policies",
        "_reached",
        "_request",
        "_triggering",
        "fails",
        "needs_io",
        "reads_namespace",
        "reads_registry",
        "triggers",
    )

    def __init__(
        self,
        engine: Engine,
        request: Request,
        policies: Sequence[LinkedMutatingPolicy],
    ) -> None:
        self._engine = engine
        self._request = request
        # K8S: the object of a deletion cannot be changed.
        self._policies = [
            policy
            for policy in policies
            if request.object and policy.ir.mutates_request
        ]
        self._triggering = [each for each in policies if each.ir.mutates_existing]
        self._reached: _Reached | None = None
        self.triggers = bool(self._triggering)
        """Policies that mutate existing objects may match the request."""
        self.needs_io = any(map(_is_slow, policies))
        self.fails = any(each.ir.policy.failure_policy == _FAIL for each in policies)
        self.reads_namespace = any(each.reads_namespace for each in policies)
        self.reads_registry = any(
            each.ir.effects & EFFECT_REGISTRY for each in policies
        )

    def run(self, deadline_ns: int, pace: Pace | None = None) -> CelMutations:
        """Apply the policies in order. Raises: Preempted, DeadlinePassed."""
        done = CelMutations()
        run, shared = self._opened(deadline_ns, pace, done.left_out)
        reached = self._reached = _Reached(0, run.facts.request.object, [])
        for linked in self._policies:
            reached = self._reached = _applied(linked, run, shared, reached)
        return _finished(done, run, reached)

    def run_rest(self, deadline_ns: int, pace: Pace | None = None) -> CelMutations:
        """Apply the policies that ``run`` has not reached, except slow ones.

        Called if ``run`` raised an error, was late or never started; another thread may
        still be running it. Earlier results are kept. Raises: Preempted,
        DeadlinePassed.
        """
        begun, done = self._reached, CelMutations()
        run, shared = self._opened(deadline_ns, pace, done.left_out)
        reached = begun or _Reached(0, run.facts.request.object, [])
        # The run that may still be going on adds to its own list.
        reached = reached._replace(listed=reached.responses)
        for number, linked in enumerate(self._policies[reached.number :]):
            # The policy that was being evaluated is not started again.
            if (number == 0 and begun is not None) or _is_slow(linked):
                if linked.ir.policy.failure_policy == _FAIL:
                    done.unfinished.append(linked.ir.policy)
                continue
            reached = _applied(linked, run, shared, reached)
        return _finished(done, run, reached, late=True)

    def triggered(self, deadline_ns: int, pace: Pace | None = None) -> list[Triggered]:
        """Return the triggered policies that mutate existing objects.

        A policy that cannot be evaluated is triggered, too: the pool evaluates it
        again.
        Raises: Preempted.
        """
        run, shared = self._opened(deadline_ns, pace, [])
        triggered = []
        for turn, linked in enumerate(self._triggering, 1):
            try:
                is_one = run.attempt(turn, linked, linked.triggers, run.facts, shared)
            except DeadlinePassed:
                is_one = None
            if is_one is not False:
                triggered.append(_trigger_of(linked, unchecked=is_one is None))
        return triggered

    def triggered_by_match(self) -> list[Triggered]:
        """Return the policies that the request may trigger, without evaluation."""
        return [_trigger_of(linked, unchecked=True) for linked in self._triggering]

    def _opened(
        self, deadline_ns: int, pace: Pace | None, left_out: LeftOut
    ) -> tuple[ReviewRun, ReviewShared]:
        """Open the request, with the object decoded as upstream does."""
        shared = ReviewShared(self._request)
        request = copy_of(self._request)
        request.object = shared.object or {}
        run = ReviewRun(
            self._engine,
            request,
            deadline_ns,
            pace,
            left_out,
            reads_namespace=self.reads_namespace,
        )
        return run, shared


class MutatingPlanner(CelPlannerOf[LinkedMutatingPolicy, MutatingPlan]):
    """Creates plans from one snapshot generation."""

    __slots__ = ()

    def __init__(
        self,
        engine: Engine,
        source: CelSource[LinkedMutatingPolicy],
        knows: Callable[[str], bool],
        background_user: str = "",
    ) -> None:
        super().__init__(source, knows, partial(MutatingPlan, engine), background_user)


def _applied(
    linked: LinkedMutatingPolicy,
    run: ReviewRun,
    shared: ReviewShared,
    reached: _Reached,
) -> _Reached:
    """Apply one policy; return the new progress. Raises: Preempted, DeadlinePassed."""
    number, resource = reached.number + 1, reached.resource
    mutated = run.attempt(number, linked, _mutated, linked, run.facts, shared, resource)
    if mutated is None:
        results = [run.failure(result.MUTATION, "failed to evaluate policy")]
    else:
        results, resource = mutated
    if results:
        reached.listed.append(PolicyResponse(linked.ir.policy, results))
    return _Reached(number, resource, reached.listed, len(reached.listed))


def _finished(
    done: CelMutations, run: ReviewRun, reached: _Reached, *, late: bool = False
) -> CelMutations:
    """Add the policies' results and patch. Raises: BudgetExceeded, DeadlinePassed."""
    characters_left = REVIEW_MESSAGES_CHARACTERS_MAX
    done.responses = reached.responses
    for response in done.responses:
        characters_left -= bound(response.results, characters_left)
    done.patch = answer_patch(run.context, reached.resource, late=late)
    return done


def _is_slow(linked: LinkedMutatingPolicy) -> bool:
    return bool(linked.ir.effects & SLOW)


def _trigger_of(linked: LinkedMutatingPolicy, *, unchecked: bool = False) -> Triggered:
    """Return the trigger with the old object, which the pool cannot read later."""
    key = linked.ir.policy.key
    return Triggered(CEL_MUTATE, key, (), reads_old=True, unchecked=unchecked)


def _mutated(
    linked: LinkedMutatingPolicy, facts: Facts, shared: ReviewShared, resource: Resource
) -> tuple[list[RuleResult], Resource]:
    """Return the results of a policy and its copies, and the resulting object."""
    request = facts.request
    if request.object is not resource:
        request = copy_of(request)
        request.object = resource
    results = []
    for answer in linked.evaluate(facts._replace(request=request), shared):
        if answer.result is not None:
            results.append(answer.result)
        if answer.patched is not None:
            resource = answer.patched
    return results, resource

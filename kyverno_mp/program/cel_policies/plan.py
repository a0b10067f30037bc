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
from typing import Final, NamedTuple

from kyverno_mp.errors import DeadlinePassed, Error, Preempted, without_frames
from kyverno_mp.expr.effects import EFFECT_REGISTRY
from kyverno_mp.expr.scope import Pace, Runtime
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.limits import REVIEW_MESSAGES_CHARACTERS_MAX
from kyverno_mp.program import result
from kyverno_mp.program.bodies.outcome import cut
from kyverno_mp.program.cel_policies.mutate import LinkedMutatingPolicy
from kyverno_mp.program.context.rule_context import RequestContext
from kyverno_mp.program.engine import Engine
from kyverno_mp.program.generate.triggers import CEL_MUTATE, Triggered
from kyverno_mp.program.mutation import answer_patch
from kyverno_mp.program.plans.planner import SLOW
from kyverno_mp.program.request import Request, copy_of
from kyverno_mp.program.result import PolicyResponse, RuleResult
from kyverno_mp.program.validating_policy.constraints import (
    POLICIES_BETWEEN_CLOCK_CHECKS,
)
from kyverno_mp.program.validating_policy.plan import bound, namespace_object
from kyverno_mp.program.validating_policy.planner import CelPlannerOf
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
    left_out: list[tuple[PolicyIR, Exception]] = field(default_factory=list)
    """Policies that could not be evaluated for a reason other than their expressions,
    and policies with a failed exception."""
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
            for found in response.results:
                if found.status == result.ERROR:
                    yield policy, found.message


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
        self._triggering = [one for one in policies if one.ir.mutates_existing]
        self._reached: _Reached | None = None
        self.triggers = bool(self._triggering)
        """Policies that mutate existing objects may match the request."""
        self.needs_io = any(map(_is_slow, policies))
        self.fails = any(one.ir.policy.failure_policy == _FAIL for one in policies)
        self.reads_namespace = any(one.reads_namespace for one in policies)
        self.reads_registry = any(one.ir.effects & EFFECT_REGISTRY for one in policies)

    def run(self, deadline_ns: int, pace: Pace | None = None) -> CelMutations:
        """Apply the policies in order. Raises: Preempted, DeadlinePassed."""
        context, facts, shared = self._opened(deadline_ns, pace)
        reached = self._reached = _Reached(0, facts.request.object, [])
        done = CelMutations()
        for linked in self._policies:
            reached = self._apply(linked, facts, shared, reached, done)
            self._reached = reached
        return _finished(done, context, reached)

    def run_rest(self, deadline_ns: int, pace: Pace | None = None) -> CelMutations:
        """Apply the policies that ``run`` has not reached, except slow ones.

        Called if ``run`` raised an error, was late or never started; another thread may
        still be running it. Earlier results are kept. Raises: Preempted,
        DeadlinePassed.
        """
        begun = self._reached
        context, facts, shared = self._opened(deadline_ns, pace)
        reached = begun or _Reached(0, facts.request.object, [])
        # The run that may still be going on adds to its own list.
        reached = reached._replace(listed=reached.responses)
        done = CelMutations()
        for number, linked in enumerate(self._policies[reached.number :]):
            # The policy that was being evaluated is not started again.
            if (number == 0 and begun is not None) or _is_slow(linked):
                if linked.ir.policy.failure_policy == _FAIL:
                    done.unfinished.append(linked.ir.policy)
                continue
            reached = self._apply(linked, facts, shared, reached, done)
        return _finished(done, context, reached, late=True)

    def triggered(self, deadline_ns: int, pace: Pace | None = None) -> list[Triggered]:
        """Return the triggered policies that mutate existing objects.

        A policy that cannot be evaluated is triggered, too: the pool evaluates it
        again.
        Raises: Preempted.
        """
        _, facts, shared = self._opened(deadline_ns, pace)
        found = []
        for turn, linked in enumerate(self._triggering, 1):
            policy = linked.ir.policy
            facts.runtime.begin_policy(linked, is_tenant=bool(policy.namespace))
            try:
                _charge_matching(linked, facts, turn)
                if linked.triggers(facts, shared):
                    found.append(_trigger_of(linked))
            except Preempted:
                raise
            except Exception:  # noqa: BLE001 - as above
                found.append(_trigger_of(linked, unchecked=True))
        return found

    def triggered_by_match(self) -> list[Triggered]:
        """Return the policies that the request may trigger, without evaluation."""
        return [_trigger_of(linked, unchecked=True) for linked in self._triggering]

    def _opened(
        self, deadline_ns: int, pace: Pace | None
    ) -> tuple[RequestContext, Facts, ReviewShared]:
        """Open the request, with the object decoded as upstream does."""
        shared = ReviewShared(self._request)
        request = copy_of(self._request)
        request.object = shared.object or {}
        context = self._engine.open(request, deadline_ns, pace)
        namespace = None
        if self.reads_namespace:
            namespace = namespace_object(self._engine, request, deadline_ns)
        ports = self._engine.cluster_data.cel
        facts = Facts(
            request, context.runtime, ports, namespace, is_review=True, faults=[]
        )
        return context, facts, shared

    def _apply(
        self,
        linked: LinkedMutatingPolicy,
        facts: Facts,
        shared: ReviewShared,
        reached: _Reached,
        done: CelMutations,
    ) -> _Reached:
        """Apply one policy; return the new progress.

        Raises: Preempted, DeadlinePassed.
        """
        policy = linked.ir.policy
        facts.runtime.begin_policy(linked, is_tenant=bool(policy.namespace))
        resource = reached.resource
        try:
            _charge_matching(linked, facts, reached.number + 1)
            results, resource = _mutated(linked, facts, shared, resource)
        except Preempted:
            raise
        except Exception as error:
            if isinstance(error, DeadlinePassed) and self._is_over(facts.runtime):
                raise
            done.left_out.append((policy, without_frames(error)))
            results = [_not_evaluated(error)]
        assert facts.faults is not None
        done.left_out += [(policy, fault) for fault in facts.faults]
        facts.faults.clear()
        if results:
            reached.listed.append(PolicyResponse(policy, results))
        number, length = reached.number + 1, len(reached.listed)
        return _Reached(number, resource, reached.listed, length)

    def _is_over(self, runtime: Runtime) -> bool:
        end_ns = runtime.review_deadline_ns
        return not end_ns or self._engine.now_ns() >= end_ns


class MutatingPlanner(CelPlannerOf[LinkedMutatingPolicy]):
    """Creates plans from one snapshot generation."""

    __slots__ = ("_background_user", "_engine")

    def __init__(
        self,
        engine: Engine,
        source: CelSource[LinkedMutatingPolicy],
        knows: Callable[[str], bool],
        background_user: str = "",
    ) -> None:
        """``background_user``: policies skip its requests unless they opt in."""
        super().__init__(source, knows)
        self._engine = engine
        self._background_user = background_user

    def plan(
        self,
        request: Request,
        names: frozenset[str],
        *,
        is_namespaced: bool,
        pace: Pace | None = None,
    ) -> MutatingPlan | None:
        """Select the policies of a path; return None if none applies.

        ``names``: the policies in the path; empty: all. Raises: Preempted, as ``pace``
        does.
        """
        is_ours = bool(request.username) and request.username == self._background_user
        policies = [
            one
            for one in self.of_path(request, names, pace, is_namespaced=is_namespaced)
            if not (is_ours and one.ir.skips_background)
        ]
        return MutatingPlan(self._engine, request, policies) if policies else None


def _finished(
    done: CelMutations,
    context: RequestContext,
    reached: _Reached,
    *,
    late: bool = False,
) -> CelMutations:
    """Add the policies' results and patch. Raises: BudgetExceeded, DeadlinePassed."""
    left = REVIEW_MESSAGES_CHARACTERS_MAX
    done.responses = reached.responses
    for response in done.responses:
        left -= bound(response.results, left)
    done.patch = answer_patch(context, reached.resource, late=late)
    return done


def _charge_matching(linked: LinkedMutatingPolicy, facts: Facts, turn: int) -> None:
    """Charge for the constraints, and check the clock now and then.

    Raises: BudgetExceeded, DeadlinePassed, Preempted.
    """
    runtime = facts.runtime
    if linked.matching:
        runtime.charge(linked.matching.steps(facts.request))
    if not turn % POLICIES_BETWEEN_CLOCK_CHECKS:
        runtime.check_clock()


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


def _not_evaluated(error: Exception) -> RuleResult:
    """Return the error of a policy that could not be evaluated."""
    message = "internal error, see the log"
    if isinstance(error, Error):
        message = f"{error.message} ({error.code})"
    return RuleResult(
        "evaluation",
        result.MUTATION,
        result.ERROR,
        cut(f"failed to evaluate policy: {message}"),
    )

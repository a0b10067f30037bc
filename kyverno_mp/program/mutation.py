"""Apply mutate rules to a request, one after another, and describe the change.

Room: program. Takes: Request, linked mutate rules of policies in order. Gives:
PolicyResponses with the patched object; one JSON patch with all changes.
Next: webhook/review/service, cli/apply/evaluate.
May touch: the cluster data only through program/ports.py.
Source: docs/behaviour/engine 7.7, 8.3; docs/behaviour/controllers 2.6.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from kyverno_mp.errors import BudgetExceeded, Preempted, without_frames
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.ir.rules import CompiledPolicy, PolicyIR
from kyverno_mp.limits import (
    PATCH_ANSWER_BYTES_MAX,
    POLICY_STEPS_MAX,
    STEPS_BETWEEN_CLOCK_CHECKS,
)
from kyverno_mp.program import result
from kyverno_mp.program.context.rule_context import RequestContext, RuleContext
from kyverno_mp.program.mutate.row import Frame
from kyverno_mp.program.mutate.rule import LinkedMutation
from kyverno_mp.program.request import Request, copy_of, unread_labels
from kyverno_mp.program.result import PolicyResponse, RuleResult, not_evaluated
from kyverno_mp.program.rule_gate import matches_at_own_cost
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.patches.json_diff import Operation, diff
from kyverno_mp.values.patches.json_equal import whole_numbers

PolicyMutations: TypeAlias = tuple[PolicyIR, Sequence[LinkedMutation]]
Resource: TypeAlias = dict[str, Json]
Reached: TypeAlias = tuple[int, Resource, int]
"""The index of the running policy, the object before it, and the number of responses
before it. The tuple is always replaced as a whole, so any thread can read it."""


_Change: TypeAlias = tuple[int, Resource, int, Resource]
"""The progress, and the object after the policy."""


@dataclass(slots=True)
class Mutations:
    """The outcome of all mutating policies for one request.

    ``refusal``: the message of the policy that blocks the request, otherwise "".
    """

    responses: list[PolicyResponse]
    patch: list[Operation]
    refusal: str = ""
    left_out: list[tuple[PolicyIR, Exception]] = field(default_factory=list)
    """Policies that did not finish; the patch contains none of their changes."""
    reached: Reached | None = None
    verified: list[PolicyResponse] = field(default_factory=list)
    """The responses of verifyImages rules, which run after all mutations."""


def link_mutations(compiled: CompiledPolicy) -> list[LinkedMutation]:
    """Link all mutate rules of a policy at once (CLI, tests)."""
    return [
        LinkedMutation(compiled.policy, rule)
        for rule in compiled.rules
        if rule.rule_type == "mutate"
    ]


def is_standard(rules: Sequence[LinkedMutation]) -> bool:
    """Return whether any rule changes the request's own object."""
    return any(not rule.is_existing for rule in rules)


@dataclass(slots=True)
class MutationState:
    """The current object between rules and policies.

    ``request``: a copy of the request, whose ``object`` is the current object.
    ``frame``: root variables for rules without a scope; None if the CLI sets values, or
    if the variable ``request.object`` differs from the object. ``is_first``: no rule
    has run yet.
    """

    request: Request
    resource: Resource
    frame: Frame | None
    is_first: bool = True


def begin(context: RequestContext) -> MutationState:
    """Return the initial state, with the request's object."""
    # PERF: all rules of all policies share one copy of the request.
    return MutationState(
        copy_of(context.request), context.request.object, _frame(context)
    )


def _frame(context: RequestContext) -> Frame | None:
    request, base = context.request, context.base
    request_value = base.get("request")
    if request.variables or request.rule_variables or request.operation == "DELETE":
        return None
    if (
        type(request_value) is not dict
        or request_value.get("object") is not request.object
    ):
        return None
    return base.copy()


def mutate_policy(
    policy: PolicyIR,
    rules: Sequence[LinkedMutation],
    context: RequestContext,
    state: MutationState,
    *,
    existing: bool = False,
) -> PolicyResponse:
    """Run the rules of one policy, each on the result of the previous one.

    ``existing``: also run rules with targets, which have no results at admission.
    Raises: DependencyError (deadline).
    """
    results: list[RuleResult] = []
    request, runtime = state.request, context.runtime
    resource = began = state.resource
    for rule in rules:
        if rule.is_existing and not existing:
            continue
        request.object = resource
        try:
            if not matches_at_own_cost(rule.matches, policy, request, runtime):
                continue
        except BudgetExceeded as error:
            results.append(not_evaluated(rule.ir, error))
            continue
        if runtime.policy is policy:
            runtime.begin_rule()
        else:
            runtime.begin_policy(policy, is_tenant=bool(policy.namespace))
        plain = None
        if state.frame is not None:
            plain = rule.run_plain(state.frame, resource, runtime)
        if plain is None:
            if rule.has_exceptions:
                request.object = began
            scope = _scope(rule, context, state)
            rule_results, changed = rule.run(request, scope, resource)
        else:
            rule_results, changed = [plain[0]], plain[1]
        state.is_first = False
        results += rule_results
        if changed is not resource:
            # KYVERNO: a changed object is decoded again, which turns its whole numbers
            # into integers.
            resource = changed if request.ints_are_numbers else whole_numbers(changed)
            state.resource = resource
        if policy.apply_rules == "One" and any(
            r.status in (result.PASS, result.FAIL) for r in rule_results
        ):
            break
    return PolicyResponse(policy, results, patched_object=resource)


def mutate_request(
    policies: Sequence[PolicyMutations],
    context: RequestContext,
    done: Mutations | None = None,
) -> Mutations:
    """Apply policies in order at admission; stop at the first policy that blocks.

    If a rule fails, the changes of its policy are dropped, and the next policy gets the
    object as it was before. Upstream passes on an empty object (docs/behaviour/engine
    7.2), so its next policy silently does nothing; we do not copy that.

    ``done`` is filled step by step, so the progress survives an exception; a partly
    filled ``done`` is continued. If a policy with failurePolicy Ignore raises, its
    changes are dropped, unless time has run out; exceptions of other policies
    propagate.
    """
    if done is None:
        done = Mutations([], [])
    state = begin(context)
    if done.reached is not None:
        state.resource = done.reached[1]
    changes: list[_Change] = []
    first: int | None = 0
    while first is not None:
        for number in range(first, len(policies)):
            before = state.resource
            done.reached = number, before, len(done.responses)
            if not _apply(policies[number], context, state, done):
                return done
            if state.resource is not before:
                changes.append((*done.reached, state.resource))
        first = _answer(policies, context, state, done, changes)
    done.reached = len(policies), state.resource, len(done.responses)
    return done


def _apply(
    policy_and_rules: PolicyMutations,
    context: RequestContext,
    state: MutationState,
    done: Mutations,
) -> bool:
    """Apply one policy; return whether the next policy can start."""
    policy, rules = policy_and_rules
    fails = policy.failure_policy == "Fail"
    request = context.request
    is_known = request.namespace_known and request.labels_known
    if not is_known and _lacks_namespace(request, rules):
        if fails:
            reason = f'namespace "{request.namespace}" not found'
            if not request.labels_known:
                reason = unread_labels(request.namespace)
            done.refusal = f"mutation policy {policy.name} error: {reason}"
        return not fails
    before = state.resource
    if request.observer is not None:
        request.observer(policy)
    try:
        _check_clock(context.runtime)
        response = mutate_policy(policy, rules, context, state)
    except Exception as error:
        if fails or _is_late(context) or isinstance(error, Preempted):
            raise
        done.left_out.append((policy, without_frames(error)))
        state.resource = before
        return True
    if response.results:
        done.responses.append(response)
    if response.errored():
        if fails:
            done.refusal = _refusal(response)
            return False
        state.resource = before
    return True


def _answer(
    policies: Sequence[PolicyMutations],
    context: RequestContext,
    state: MutationState,
    done: Mutations,
    changes: list[_Change],
) -> int | None:
    """Compute the patch; return the index of a policy to restart with, or None.

    If the response is too large, the first policy that exceeds the limit has failed:
    its changes and all later changes are dropped, and the later policies run again.
    """
    problem: BudgetExceeded | None = None
    for change in [None, *changes]:
        resource = state.resource if change is None else change[3]
        try:
            patch = answer_patch(context, resource)
        except BudgetExceeded as error:
            problem = without_frames(error)
            if change is not None:
                break
        else:
            if change is None:
                done.patch = patch
                return None
    assert problem is not None
    if not changes:
        # The result of an earlier run is too large, so it is dropped completely.
        state.resource = context.request.object
        done.responses.clear()
        return len(policies)
    number, state.resource, count, _ = culprit = change or changes[-1]
    del changes[changes.index(culprit) :]
    del done.responses[count:]
    policy = policies[number][0]
    done.left_out.append((policy, problem))
    if policy.failure_policy == "Fail":
        done.refusal = f"mutation policy {policy.name} error: {problem.message}"
        return None
    return number + 1


def _check_clock(runtime: Runtime) -> None:
    """Raise DeadlinePassed or Preempted; to be called only between policies."""
    try:
        runtime.check_clock()
    except BudgetExceeded:
        # The last namespaced policy exceeded its time; do not blame the following
        # policies.
        runtime.begin_policy(None, is_tenant=False)
        runtime.check_clock()


class _Answer:
    """Charges for the diff: the review's steps and the response's bytes."""

    __slots__ = ("_check_below", "_left", "_runtime", "_steps")

    def __init__(self, runtime: Runtime | None) -> None:
        self._runtime = runtime
        self._left = PATCH_ANSWER_BYTES_MAX
        # The steps are not charged to a policy: the last policy may have used up its
        # budget.
        self._steps = POLICY_STEPS_MAX
        self._check_below = POLICY_STEPS_MAX - STEPS_BETWEEN_CLOCK_CHECKS

    def charge(self, steps: int, /) -> None:
        """Charge steps. Raises: BudgetExceeded, DeadlinePassed."""
        self._steps -= steps
        if self._steps < self._check_below:
            if self._steps < 0:
                raise BudgetExceeded("mutation.answer", "the patch takes too long")
            self._check_below = max(self._steps - STEPS_BETWEEN_CLOCK_CHECKS, 0)
            if self._runtime is not None:
                _check_clock(self._runtime)

    def charge_bytes(self, count: int, /) -> None:
        """Charge bytes of the response. Raises: BudgetExceeded."""
        self._left -= count
        if self._left < 0:
            message = f"the patch would be larger than {PATCH_ANSWER_BYTES_MAX} bytes"
            raise BudgetExceeded("mutation.answer", message)


def answer_patch(
    context: RequestContext, resource: Resource, *, late: bool = False
) -> list[Operation]:
    """Return the patch to the final object. ``late``: do not check the clock.

    Raises: BudgetExceeded if the result is too large for any API server.
    """
    before = context.request.object
    if resource is before:
        return []
    return diff(before, resource, _Answer(None if late else context.runtime))


def _is_late(context: RequestContext) -> bool:
    runtime = context.runtime
    return 0 < runtime.review_deadline_ns < runtime.monotonic_ns()


def _lacks_namespace(request: Request, rules: Sequence[LinkedMutation]) -> bool:
    """Return whether rules need the labels of an unknown namespace.

    KYVERNO: if so, the whole policy fails, whether or not its rules match.
    """
    return request.kind != "Namespace" and any(
        rule.reads_namespace_labels for rule in rules
    )


def _refusal(response: PolicyResponse) -> str:
    name = response.policy.name
    rules = " ".join(
        f"{rule_result.rule}: {rule_result.message}"
        for rule_result in response.results
        if rule_result.status in (result.FAIL, result.ERROR)
    )
    return (
        f"mutation policy {name} error: failed to apply policy {name} rules [{rules}]"
    )


def _scope(
    rule: LinkedMutation, context: RequestContext, state: MutationState
) -> RuleContext:
    """Create one rule's scope, in which ``request.object`` is the current object."""
    context.runtime.ints_are_numbers = state.is_first and state.request.ints_are_numbers
    scope = context.rule_scope(rule.ir.name, policy_namespace=rule.policy.namespace)
    resource = state.resource
    if resource and resource is not context.request.object:
        scope.set_object(resource)
    return scope

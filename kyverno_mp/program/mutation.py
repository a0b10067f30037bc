"""Apply mutate rules to a request, one after another, and describe the change.

Room: program. Takes: Request, linked mutate rules of policies in order. Gives:
PolicyResponses with the patched object; one JSON patch for them all.
Next: webhook/review/service, cli/apply/evaluate.
May touch: the cluster data only through program/ports.py.
Source: docs/behaviour/engine 7.7, 8.3; docs/behaviour/controllers 2.6.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from kyverno_mp.errors import BudgetExceeded, Preempted
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.ir.rules import CompiledPolicy, PolicyIR
from kyverno_mp.limits import (
    PATCH_ANSWER_BYTES_MAX,
    POLICY_STEPS_MAX,
    STEPS_BETWEEN_LOOKS,
)
from kyverno_mp.program import result
from kyverno_mp.program.context.rule_context import RequestContext, RuleContext
from kyverno_mp.program.mutate.rule import LinkedMutation
from kyverno_mp.program.mutate.strategic import Working
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse
from kyverno_mp.values.json_diff import Operation, diff
from kyverno_mp.values.json_equal import whole_numbers

MutatingPolicy: TypeAlias = tuple[PolicyIR, Sequence[LinkedMutation]]
Reached: TypeAlias = tuple[int, Working, int]
"""The policy that runs (its index), the object before it, and the number of responses
before it: replaced as a whole, so any thread may read it."""


_Change: TypeAlias = tuple[int, Working, int, Working]
"""The progress, and the object after it."""


@dataclass(slots=True)
class Mutations:
    """The outcome of all mutating policies for one request.

    ``refusal``: the message of the policy that blocks it, "" otherwise.
    """

    responses: list[PolicyResponse]
    patch: list[Operation]
    refusal: str = ""
    left_out: list[tuple[PolicyIR, Exception]] = field(default_factory=list)
    """Policies that did not finish; the patch contains nothing from them."""
    reached: Reached | None = None


def link_mutations(compiled: CompiledPolicy) -> list[LinkedMutation]:
    """Link all mutate rules of a policy at once (CLI, tests)."""
    return [
        LinkedMutation(compiled.policy, rule)
        for rule in compiled.rules
        if rule.rule_type == "mutate"
    ]


def is_standard(rules: Sequence[LinkedMutation]) -> bool:
    """Return whether a rule changes the object of the request itself."""
    return any(not rule.is_existing for rule in rules)


@dataclass(slots=True)
class Course:
    """An object between rules and policies.

    ``request``: a copy of the request, whose ``object`` is always the current one;
    ``is_first``: no rule ran before.
    """

    request: Request
    working: Working
    is_first: bool = True


def begin(request: Request) -> Course:
    """Start with the object of the request."""
    # PERF: one copy of the request serves all rules of all policies.
    return Course(replace(request), Working(request.object))


def mutate_policy(
    policy: PolicyIR,
    rules: Sequence[LinkedMutation],
    context: RequestContext,
    course: Course,
    *,
    existing: bool = False,
) -> PolicyResponse:
    """Run the rules of one policy, each on the result of the previous one.

    ``existing``: also run the rules with targets, which at admission return nothing.
    Raises: DependencyError (deadline).
    """
    response = PolicyResponse(policy)
    request = course.request
    began = course.working.resource
    for rule in rules:
        request.object = course.working.resource
        if (rule.is_existing and not existing) or not rule.matches(request):
            continue
        plain = rule.run_plain(course.working, context.runtime)
        if plain is None:
            if rule.has_exceptions:
                request.object = began
            scope = _scope(rule, context, course)
            found, left = rule.run(request, scope, course.working)
        else:
            found, left = [plain[0]], plain[1]
        course.is_first = False
        response.results.extend(found)
        is_changed = left.resource is not course.working.resource
        if is_changed and not request.ints_are_numbers:
            # KYVERNO: a changed object is decoded again, and whole numbers in it are
            # integers from then on.
            left = Working(whole_numbers(left.resource))
        course.working = left
        if policy.apply_rules == "One" and any(
            r.status in (result.PASS, result.FAIL) for r in found
        ):
            break
    response.patched_object = course.working.resource
    return response


def mutate_request(
    policies: Sequence[MutatingPolicy],
    context: RequestContext,
    done: Mutations | None = None,
) -> Mutations:
    """Apply policies in order at admission; stop at the first that blocks.

    The changes of a policy in which a rule fails are dropped, and the next policy gets
    the object as it was before; Kyverno would pass on an empty object
    (docs/behaviour/engine 7.2), so that the next policy silently does nothing: we do
    not copy that.

    ``done``: filled step by step, so that the progress is known when this raises; a
    partly filled one is continued. A policy with failurePolicy Ignore that raises is
    dropped like one with a failed rule, if there is time; exceptions of other
    policies propagate.
    """
    if done is None:
        done = Mutations([], [])
    course = begin(context.request)
    if done.reached is not None:
        course.working = done.reached[1]
    changes: list[_Change] = []
    first: int | None = 0
    while first is not None:
        for number in range(first, len(policies)):
            before = course.working
            done.reached = number, before, len(done.responses)
            if not _apply(policies[number], context, course, done):
                return done
            if course.working is not before:
                changes.append((*done.reached, course.working))
        first = _answer(policies, context, course, done, changes)
    done.reached = len(policies), course.working, len(done.responses)
    return done


def _apply(
    policy_and_rules: MutatingPolicy,
    context: RequestContext,
    course: Course,
    done: Mutations,
) -> bool:
    """Apply one policy; return whether the next one may start."""
    policy, rules = policy_and_rules
    fails = policy.failure_policy == "Fail"
    if _lacks_namespace(context.request, rules):
        if fails:
            name = context.request.namespace
            reason = f'namespace "{name}" not found'
            done.refusal = f"mutation policy {policy.name} error: {reason}"
        return not fails
    before = course.working
    try:
        context.runtime.look_at_clock()
        response = mutate_policy(policy, rules, context, course)
    except Exception as error:
        if fails or _is_late(context) or isinstance(error, Preempted):
            raise
        done.left_out.append((policy, error))
        course.working = before
        return True
    if response.results:
        done.responses.append(response)
    if response.errored():
        if fails:
            done.refusal = _refusal(response)
            return False
        course.working = before
    return True


def _answer(
    policies: Sequence[MutatingPolicy],
    context: RequestContext,
    course: Course,
    done: Mutations,
    changes: list[_Change],
) -> int | None:
    """Compute the change by all policies; return a policy to restart with, or None.

    If the response would be too large, the first policy that makes it so has failed:
    the changes by it and its successors are dropped, and the successors run again.
    """
    problem: BudgetExceeded | None = None
    for change in [None, *changes]:
        working = course.working if change is None else change[3]
        try:
            patch = answer_patch(context, working)
        except BudgetExceeded as error:
            problem = error
            if change is not None:
                break
        else:
            if change is None:
                done.patch = patch
                return None
    assert problem is not None
    if not changes:
        # The result of an earlier run is too large: none of it counts.
        course.working = Working(context.request.object)
        done.responses.clear()
        return len(policies)
    number, course.working, told, _ = culprit = change or changes[-1]
    del changes[changes.index(culprit) :]
    del done.responses[told:]
    policy = policies[number][0]
    done.left_out.append((policy, problem))
    if policy.failure_policy == "Fail":
        done.refusal = f"mutation policy {policy.name} error: {problem.message}"
        return None
    return number + 1


class _Answer:
    """Charges the diff: steps of the review, bytes of the response."""

    __slots__ = ("_left", "_look_below", "_runtime", "_steps")

    def __init__(self, runtime: Runtime | None) -> None:
        self._runtime = runtime
        self._left = PATCH_ANSWER_BYTES_MAX
        # The steps are charged to no policy: the last one may have spent all of its
        # own.
        self._steps = POLICY_STEPS_MAX
        self._look_below = POLICY_STEPS_MAX - STEPS_BETWEEN_LOOKS

    def charge(self, steps: int, /) -> None:
        """Spend steps. Raises: BudgetExceeded, DeadlinePassed."""
        self._steps -= steps
        if self._steps < self._look_below:
            if self._steps < 0:
                raise BudgetExceeded("mutation.answer", "the patch takes too long")
            self._look_below = max(self._steps - STEPS_BETWEEN_LOOKS, 0)
            if self._runtime is not None:
                self._runtime.look_at_clock()

    def charge_bytes(self, count: int, /) -> None:
        """Spend bytes of the answer. Raises: BudgetExceeded."""
        self._left -= count
        if self._left < 0:
            text = f"the patch would be larger than {PATCH_ANSWER_BYTES_MAX} bytes"
            raise BudgetExceeded("mutation.answer", text)


def answer_patch(
    context: RequestContext, working: Working, *, late: bool = False
) -> list[Operation]:
    """Return the patch to the final object. ``late``: do not check the clock.

    Raises: BudgetExceeded when no API server could accept the result.
    """
    before = context.request.object
    if working.resource is before:
        return []
    return diff(before, working.resource, _Answer(None if late else context.runtime))


def _is_late(context: RequestContext) -> bool:
    runtime = context.runtime
    return 0 < runtime.review_deadline_ns < runtime.monotonic_ns()


def _lacks_namespace(request: Request, rules: Sequence[LinkedMutation]) -> bool:
    """Return whether rules need labels of a namespace that is not known.

    KYVERNO: then the whole policy fails, whether or not its rules match.
    """
    return (
        not request.namespace_known
        and request.kind != "Namespace"
        and any(rule.reads_namespace_labels for rule in rules)
    )


def _refusal(response: PolicyResponse) -> str:
    name = response.policy.name
    rules = " ".join(
        f"{found.rule}: {found.message}"
        for found in response.results
        if found.status in (result.FAIL, result.ERROR)
    )
    return (
        f"mutation policy {name} error: failed to apply policy {name} rules [{rules}]"
    )


def _scope(
    rule: LinkedMutation, context: RequestContext, course: Course
) -> RuleContext:
    """Create one rule's scope, in which ``request.object`` is the current object."""
    runtime = context.runtime
    if runtime.policy is not rule.policy:
        runtime.begin_policy(rule.policy, is_tenant=bool(rule.policy.namespace))
    else:
        runtime.begin_rule()
    runtime.ints_are_numbers = course.is_first and course.request.ints_are_numbers
    scope = context.rule_scope(rule.ir.name, policy_namespace=rule.policy.namespace)
    resource = course.working.resource
    if resource and resource is not context.request.object:
        scope.set_object(resource)
    return scope

"""Apply the verifyImages rules of a policy to one object.

Room: program. Takes: RequestContext, linked rules, the ImageState of the object. Gives:
a PolicyResponse; the state has the object with digests and the annotation.
Next: cli/apply/evaluate, program/plans/mutation_plan.
May touch: registries through program/ports.py.
Source: docs/behaviour/images 2.1, 2.3; docs/behaviour/engine 0.4, 8.3.
"""

from collections.abc import Sequence
from typing import NoReturn, TypeAlias

from kyverno_mp.errors import (
    BudgetExceeded,
    DependencyError,
    Preempted,
    without_frames,
)
from kyverno_mp.ir.rules import CompiledPolicy, PolicyIR
from kyverno_mp.program import result
from kyverno_mp.program.action import ENFORCE, response_action
from kyverno_mp.program.context.rule_context import RequestContext
from kyverno_mp.program.images.rule import ImageState, LinkedImageRule
from kyverno_mp.program.request import copy_of
from kyverno_mp.program.result import PolicyResponse, not_evaluated
from kyverno_mp.program.rule_gate import matches_at_own_cost

ImagePolicy: TypeAlias = tuple[PolicyIR, Sequence[LinkedImageRule]]


class UnreadImages:
    """The images of a review in which no more registries are read."""

    def __init__(self, error: DependencyError) -> None:
        self._error = error

    def digest(self, *_arguments: object) -> NoReturn:
        """Raise DependencyError instead of reading a registry."""
        # A new error object, because each raise extends the traceback.
        raise type(self._error)(self._error.code, self._error.message)

    verify = digest
    statements = digest

    def at_once(self, *_parts: object) -> None:
        """Do nothing: no query is sent ahead."""


def link_image_rules(compiled: CompiledPolicy) -> list[LinkedImageRule]:
    """Link all verifyImages rules of a policy that this version evaluates."""
    return [
        LinkedImageRule(compiled.policy, rule)
        for rule in compiled.rules
        if rule.verify_images is not None and not rule.unsupported
    ]


def verify_policy(
    policy: PolicyIR,
    rules: Sequence[LinkedImageRule],
    context: RequestContext,
    state: ImageState,
) -> PolicyResponse:
    """Run the rules of one policy in order, each on the previous rule's object.

    All rules verify the images that the object had before the first rule.

    Raises: DependencyError (deadline).
    """
    response = PolicyResponse(policy)
    if context.request.operation == "DELETE":
        # A deletion does not run any images.
        return response
    request, runtime = copy_of(context.request), context.runtime
    response.action = response_action(
        policy, policy.rule_actions, request.namespace, request.namespace_labels
    )
    if response.action != ENFORCE:
        state.record.audited.update(rule.key for rule in rules)
    state.given = state.resource
    for rule in rules:
        request.object = state.resource
        try:
            if not matches_at_own_cost(rule.matches, policy, request, runtime):
                continue
            if runtime.policy is policy:
                runtime.begin_rule()
            else:
                runtime.begin_policy(policy, is_tenant=bool(policy.namespace))
            scope = context.rule_scope(rule.ir.name, policy_namespace=policy.namespace)
            if state.resource is not context.request.object:
                scope.set_object(state.resource)
            results = rule.run(request, scope, state)
        except BudgetExceeded as error:
            results = [not_evaluated(rule.ir, error)]
        response.results += results
        if policy.apply_rules == "One" and any(
            rule_result.status in (result.PASS, result.FAIL) for rule_result in results
        ):
            break
    response.patched_object = state.resource
    return response


def leave_out(
    policies: Sequence[ImagePolicy], context: RequestContext, state: ImageState
) -> None:
    """Record that policies do not run.

    Raises: InputError if these images cannot be determined.
    """
    request, runtime = context.request, context.runtime
    if request.operation == "DELETE":
        return
    state.given = state.resource
    for policy, rules in policies:
        runtime.begin_policy(None, is_tenant=False)
        for rule in rules:
            if matches_at_own_cost(rule.matches, policy, request, runtime):
                rule.leave_out(request, context.rule_scope(rule.ir.name), state)


def verify_request(
    policies: Sequence[ImagePolicy],
    context: RequestContext,
    state: ImageState,
    left_out: list[tuple[PolicyIR, Exception]],
) -> list[PolicyResponse]:
    """Apply the policies of one admission request in order; return the responses.

    If a policy with failurePolicy Ignore raises, its changes are dropped and it is
    added to ``left_out``. Raises: any other policy's error, DeadlinePassed, Preempted.
    """
    responses: list[PolicyResponse] = []
    runtime = context.runtime
    for policy, rules in policies:
        resource, before = state.resource, state.record.copy()
        try:
            # Do not charge the previous policy's time to this policy.
            runtime.begin_policy(None, is_tenant=False)
            runtime.check_clock()
            response = verify_policy(policy, rules, context, state)
        except Exception as error:
            late = 0 < runtime.review_deadline_ns < runtime.monotonic_ns()
            if policy.failure_policy == "Fail" or late or isinstance(error, Preempted):
                raise
            left_out.append((policy, without_frames(error)))
            state.resource = resource
            state.record.restore(before)
            # SAFETY: an annotation sent by the user must not remain.
            state.annotate()
            continue
        if response.results:
            responses.append(response)
    return responses

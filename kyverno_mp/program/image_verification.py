"""Apply the verifyImages rules of a policy to one object.

Room: program. Takes: RequestContext, linked rules, the ImageState of the object. Gives:
a PolicyResponse; the state has the object with digests and the annotation.
Next: cli/apply/evaluate. May touch: registries through program/ports.py.
Source: docs/behaviour/images 2.1, 2.3; docs/behaviour/engine 0.4, 8.3.
"""

from collections.abc import Sequence

from kyverno_mp.errors import BudgetExceeded
from kyverno_mp.ir.rules import CompiledPolicy, PolicyIR
from kyverno_mp.program import result
from kyverno_mp.program.action import response_action
from kyverno_mp.program.context.rule_context import RequestContext
from kyverno_mp.program.images.rule import ImageState, LinkedImageRule
from kyverno_mp.program.request import copy_of
from kyverno_mp.program.result import PolicyResponse, not_evaluated
from kyverno_mp.program.rule_gate import matches_at_own_cost


def link_image_rules(compiled: CompiledPolicy) -> list[LinkedImageRule]:
    """Link all verifyImages rules of a policy that this version evaluates."""
    return [
        LinkedImageRule(compiled.policy, rule)
        for rule in compiled.rules
        if rule.verify_images is not None
    ]


def verify_policy(
    policy: PolicyIR,
    rules: Sequence[LinkedImageRule],
    context: RequestContext,
    state: ImageState,
) -> PolicyResponse:
    """Run the rules of one policy; each changes the object that the previous one left.

    All of them verify the images of the object as it was before the first rule.

    Raises: DependencyError (deadline).
    """
    response = PolicyResponse(policy)
    if context.request.operation == "DELETE":
        # What is deleted has no images to run.
        return response
    request, runtime = copy_of(context.request), context.runtime
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
            found = rule.run(request, scope, state)
        except BudgetExceeded as error:
            found = [not_evaluated(rule.ir, error)]
        response.results += found
        if policy.apply_rules == "One" and any(
            one.status in (result.PASS, result.FAIL) for one in found
        ):
            break
    response.action = response_action(
        policy, policy.rule_actions, request.namespace, request.namespace_labels
    )
    response.patched_object = state.resource
    return response

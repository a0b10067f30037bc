"""Evaluate a policy's generate rules on a trigger, and build their objects.

Room: program. Takes: Request, linked generate rules of a policy. Gives: PolicyResponse,
Generated objects by rule. Next: cli/apply/evaluate, the background pool.
May touch: the cluster data only through program/ports.py.
Source: docs/behaviour/engine 0.4, 8.3; docs/behaviour/controllers 5.4.
"""

from collections.abc import Callable, Sequence

from kyverno_mp.errors import InputError
from kyverno_mp.ir.rules import CompiledPolicy, PolicyIR
from kyverno_mp.program import result
from kyverno_mp.program.context.rule_context import RequestContext, RuleContext
from kyverno_mp.program.generate.pattern import Generated
from kyverno_mp.program.generate.rule import LinkedGeneration
from kyverno_mp.program.result import PolicyResponse

Keep = Callable[[Generated], bool]
"""Receives each generated object in order; returns whether the object is new."""


def link_generations(compiled: CompiledPolicy) -> list[LinkedGeneration]:
    """Link all generate rules of a policy at once (CLI, background pool)."""
    return [
        LinkedGeneration(compiled.policy, rule)
        for rule in compiled.rules
        if rule.rule_type == "generate"
    ]


def evaluate_generations(
    policy: PolicyIR, rules: Sequence[LinkedGeneration], context: RequestContext
) -> PolicyResponse:
    """Return which rules apply, without building objects. Raises: DependencyError."""
    response = PolicyResponse(policy)
    for rule in rules:
        rule_result = rule.evaluate(context.request, _scope(rule, context))
        if rule_result is None:
            continue
        response.results.append(rule_result)
        if policy.apply_rules == "One" and rule_result.status != result.SKIP:
            break
    return response


def generate(
    rules: Sequence[LinkedGeneration],
    response: PolicyResponse,
    context: RequestContext,
    keep: Keep,
) -> str:
    """Build the objects of a response's rules; return the error that stopped the loop.

    The new objects are added to the results' ``generated``; after an error it stays
    empty in all results. Statuses do not change.
    """
    by_name = {rule.ir.name: rule for rule in rules}
    built: list[tuple[int, tuple[Generated, ...]]] = []
    for position, rule_result in enumerate(response.results):
        # KYVERNO: offline, skipped or failed rules generate, too; the preconditions
        # stop the skipped ones (docs/behaviour/cli 8).
        rule = by_name[rule_result.rule]
        try:
            objects = rule.generate(context.request, _scope(rule, context))
        except InputError as error:
            return error.message
        built.append((position, tuple(each for each in objects if keep(each))))
    for position, new in built:
        response.results[position].generated = tuple(each.resource for each in new)
    return ""


def _scope(rule: LinkedGeneration, context: RequestContext) -> RuleContext:
    context.runtime.begin_policy(rule.policy, is_tenant=bool(rule.policy.namespace))
    return context.rule_scope(rule.ir.name, policy_namespace=rule.policy.namespace)

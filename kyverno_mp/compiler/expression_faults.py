"""Find the expressions of a policy that do not compile, each with its location.

Room: compiler. Takes: decoded policies. Gives: Problems. Next: webhook/policy_review.py
and cli/sources/policies.py (match conditions, which reject a policy), lint and the
webhook's warnings (all other errors: as upstream, the rule reports them at run time).
Source: docs/behaviour/engine 6.4, 6.7, 10.1.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from kyverno_mp.errors import ExpressionInvalid
from kyverno_mp.expr.cel.nodes import Expression
from kyverno_mp.ir.cel import CelValidationIR, NamedExpressionIR
from kyverno_mp.policy.cel_kinds.admission_policy import AdmissionPolicy
from kyverno_mp.policy.checks.rules.lists import check_lists
from kyverno_mp.policy.documents.cluster_policy import AnyPolicy, Rule
from kyverno_mp.policy.problems import Problem
from kyverno_mp.values.jsonvalue import Json

_CODE: Final = "policy.expression"
_PLACE: Final = re.compile(
    r"(?:compilation failed: )?ERROR: <input>:(\d+):(\d+): (.*)"
)  # Our own error text.


def condition_errors(policy: AnyPolicy) -> list[str]:
    """Return why match conditions do not compile, with cel-go's messages."""
    errors = [condition.expression.error for condition in _conditions(policy)]
    return [error for error in errors if error]


def condition_faults(policy: AnyPolicy) -> list[Problem]:
    """Return the errors in ``webhookConfiguration.matchConditions``."""
    conditions = _conditions(policy)
    path = "spec.webhookConfiguration.matchConditions"
    errors = condition_errors(policy)
    upstream = f"match conditions compilation errors: [{' '.join(errors)}]"
    return list(_of_named(conditions, path, upstream=upstream))


def _conditions(policy: AnyPolicy) -> tuple[NamedExpressionIR, ...]:
    hooks = policy.spec.webhook_configuration
    if hooks is None or not hooks.match_conditions:
        return ()
    # PERF: imported late, like the languages below, for a fast start of the command
    # line.
    from kyverno_mp.compiler.rules.cel import build_match_conditions

    return build_match_conditions(hooks.match_conditions)


def expression_faults(policy: AnyPolicy) -> Iterator[Problem]:
    """Yield the errors in the CEL, foreach lists and assertion trees of the rules."""
    for index, rule in enumerate(policy.spec.rules):
        rule_path = f"spec.rules[{index}]"
        yield from _cel_faults(rule, rule_path)
        yield from check_lists(rule, index)
        tree = rule.validate.assertion if rule.validate is not None else None
        if tree is not None:
            yield from _tree_faults(tree, f"{rule_path}.validate.assert", rule.name)


def admission_faults(policy: AdmissionPolicy) -> Iterator[Problem]:
    """Yield the errors in a policy of the API server's own kinds."""
    from kyverno_mp.compiler.admission_policy import compile_admission_policy

    compiled = compile_admission_policy(policy, ())
    yield from _of_named(compiled.variables, "spec.variables")
    yield from _of_named(compiled.conditions, "spec.matchConditions")
    yield from _of_validations(compiled.validations, "spec.validations")
    for index, mutation in enumerate(compiled.mutations):
        body = "jsonPatch" if mutation.is_json_patch else "applyConfiguration"
        path = f"spec.mutations[{index}].{body}.expression"
        yield from _fault(mutation.expression, path)


def _cel_faults(rule: Rule, rule_path: str) -> Iterator[Problem]:
    cel = rule.validate.cel if rule.validate is not None else None
    if cel is None and not rule.cel_preconditions:
        return
    from kyverno_mp.compiler.rules.cel import build_cel, build_cel_preconditions

    if cel is not None:
        compiled = build_cel(cel, "")
        path = f"{rule_path}.validate.cel"
        yield from _of_named(compiled.variables, f"{path}.variables", rule.name)
        yield from _of_validations(
            compiled.validations, f"{path}.expressions", rule.name
        )
    if rule.cel_preconditions:
        conditions = build_cel_preconditions(rule.cel_preconditions, cel)
        yield from _of_named(conditions, f"{rule_path}.celPreconditions", rule.name)


def _of_named(
    conditions: Sequence[NamedExpressionIR],
    path: str,
    rule: str = "",
    upstream: str = "",
) -> Iterator[Problem]:
    for index, condition in enumerate(conditions):
        yield from _fault(
            condition.expression, f"{path}[{index}].expression", rule, upstream
        )


def _of_validations(
    validations: Sequence[CelValidationIR], path: str, rule: str = ""
) -> Iterator[Problem]:
    for index, validation in enumerate(validations):
        yield from _fault(validation.expression, f"{path}[{index}].expression", rule)
        if validation.message_expression is not None:
            message = validation.message_expression
            yield from _fault(message, f"{path}[{index}].messageExpression", rule)


def _fault(
    expression: Expression, path: str, rule: str = "", upstream: str = ""
) -> Iterator[Problem]:
    if expression.error:
        problem = Problem(_CODE, path, rule, expression.error, upstream)
        yield located_fault(problem)


def located_fault(problem: Problem) -> Problem:
    """Return the problem with the column from its reason, and the reason without it."""
    located = _PLACE.match(problem.reason)
    if located is None:
        return problem
    line, column, reason = int(located[1]), int(located[2]), located[3]
    if line > 1:
        reason, column = f"line {line}, column {column}: {reason}", 0
    return problem._replace(reason=reason, column=column)


def _tree_faults(tree: Json, path: str, rule: str) -> Iterator[Problem]:
    """Yield the errors in the keys and strings of an assertion tree."""
    if type(tree) is dict:
        for key, item in tree.items():
            subpath = f"{path}.{key}"
            yield from _query_fault(str(key), subpath, rule)
            yield from _tree_faults(item, subpath, rule)
    elif type(tree) is list:
        for index, item in enumerate(tree):
            yield from _tree_faults(item, f"{path}[{index}]", rule)
    elif type(tree) is str:
        yield from _query_fault(tree, path, rule)


def _query_fault(source: str, path: str, rule: str) -> Iterator[Problem]:
    from kyverno_mp.expr.assertion.parse import parse_expression
    from kyverno_mp.expr.jmespath.parse import parse

    expression = parse_expression(source)
    if expression is None or not expression.computed:
        return
    try:
        parse(expression.statement, community=True)
    except ExpressionInvalid as error:
        yield Problem(_CODE, path, rule, f"{expression.statement}: {error.message}")

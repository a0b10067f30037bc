"""Check a ValidatingPolicy on creation, as Kyverno's policy webhook does.

Room: compiler. Takes: decoded documents. Gives: Problems with upstream's messages.
Next: cli/lint. May touch: nothing outside its arguments.
Source: docs/behaviour/cel 4; Kyverno pkg/cel/policies/vpol/validate.go.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from kyverno_mp.compiler.cel_kinds.validating_policy import expression_problems
from kyverno_mp.compiler.expression_faults import located_fault
from kyverno_mp.errors import ExpressionInvalid
from kyverno_mp.expr.cel.nodes import Ident
from kyverno_mp.expr.cel.syntax.parse import parse
from kyverno_mp.policy.cel_kinds.admission_policy import MatchResources
from kyverno_mp.policy.cel_kinds.validating_policy import JSON_MODE, AnyValidatingPolicy
from kyverno_mp.policy.problems import Problem

_REQUIRED: Final = (
    "Required value: a matchConstraints with at least one resource rule is required"
)
_NO_HTTP: Final = (
    "Forbidden: http.* is not allowed in namespaced policies; set"
    " --allowHTTPInNamespacedPolicies to enable"
)

_NOT_COMPILED: Final = (
    "<nil>: Internal error: validating policy compiler 1.0 error: failed to compile"
    " policy"
)
_PART: Final = re.compile(r"spec\.(?:validations\[\d+\]|\w+)")


def expression_faults_of(document: AnyValidatingPolicy) -> Iterator[Problem]:
    """Yield the problems of expressions that do not compile, each with its column."""
    for problem in expression_problems(document):
        yield located_fault(problem)


def review_problems(document: AnyValidatingPolicy) -> Iterator[Problem]:
    """Yield the remaining reasons to reject the policy."""
    yield from common_problems(
        document.spec.match_constraints, document.metadata.namespace, _texts(document)
    )


def common_problems(
    constraints: MatchResources | None, namespace: str, texts: Iterable[str]
) -> Iterator[Problem]:
    """Yield the reasons that apply to all policy kinds; ``texts``: the expressions."""
    if constraints is None or not constraints.resource_rules:
        path = "spec.matchConstraints"
        upstream = f"{path}: {_REQUIRED}"
        yield Problem("policy.required", path, "", _REQUIRED, upstream)
    yield from http_problems(namespace, texts)


def http_problems(namespace: str, texts: Iterable[str]) -> Iterator[Problem]:
    """Yield a problem if the expressions of a namespaced policy use HTTP calls."""
    if namespace and any(map(_names_http, texts)):
        upstream = f"spec: {_NO_HTTP}"
        yield Problem("policy.http", "spec", "", _NO_HTTP, upstream)


def refusals(document: AnyValidatingPolicy) -> list[str]:
    """Return upstream's errors on creation of the policy; none if it is accepted.

    KYVERNO: compilation stops after the first part of the spec with a faulty
    expression; except in evaluation mode JSON, a general message precedes its errors.
    """
    found = of_first_part(expression_problems(document))
    if found and document.mode != JSON_MODE:
        found.insert(0, _NOT_COMPILED)
    return [
        *found,
        *(review_problem.upstream for review_problem in review_problems(document)),
    ]


def of_first_part(problems: Iterable[Problem]) -> list[str]:
    """Return upstream's messages for the first faulty part of the spec."""
    found: list[str] = []
    first = ""
    for problem in problems:
        part = _PART.match(problem.path)
        name = problem.path if part is None else part[0]
        first = first or name
        if name == first:
            found.append(problem.upstream)
    return found


def _texts(document: AnyValidatingPolicy) -> Iterator[str]:
    spec = document.spec
    yield from (
        variable.expression for variable in (*spec.variables, *spec.match_conditions)
    )
    for validation in spec.validations:
        yield from (validation.expression, validation.message_expression)
    yield from (
        audit_annotation.value_expression for audit_annotation in spec.audit_annotations
    )


def _names_http(text: str) -> bool:
    """Return whether the expression uses ``http``. KYVERNO: local variables count."""
    if "http" not in text:
        return False
    try:
        waiting: list[Any] = [parse(text)]
    except ExpressionInvalid:
        return False
    while waiting:
        node = waiting.pop()
        if type(node) is Ident and node.name == "http":
            return True
        if isinstance(node, msgspec.Struct):
            waiting.extend(getattr(node, name) for name in node.__struct_fields__)
        elif isinstance(node, tuple):
            waiting.extend(node)
    return False

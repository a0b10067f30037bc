"""Check a CEL policy of any kind as upstream's webhooks do.

Room: compiler. Takes: decoded documents. Gives: Problems with upstream's messages, and
``refusals``: all reasons to reject a policy. Next: cli/lint, webhook/policy_review.py.
Source: docs/behaviour/cel 4; Kyverno
pkg/cel/policies/{vpol,mpol,gpol,dpol}/validate.go,
pkg/image/verification/evaluator/validate.go; docs/behaviour/v1.19 5 (schedule).
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from kyverno_mp.compiler.cel_kinds.index import encode_cel_policy
from kyverno_mp.compiler.cel_kinds.kinds import row_of
from kyverno_mp.compiler.cel_kinds.template import placeholders
from kyverno_mp.compiler.expression_faults import located_fault
from kyverno_mp.compiler.linked_size import why_too_large
from kyverno_mp.errors import ExpressionInvalid
from kyverno_mp.expr.cel.nodes import Ident
from kyverno_mp.expr.cel.syntax.parse import parse
from kyverno_mp.expr.effects import NO_GLOBAL_CONTEXT
from kyverno_mp.limits import SCHEDULE_CHARACTERS_MAX
from kyverno_mp.policy.cel_kinds.served import AnyCelDocument, evaluation_mode_of
from kyverno_mp.policy.cel_kinds.validating_policy import JSON_MODE
from kyverno_mp.policy.checks.cleanup import is_schedule, schedule_too_long
from kyverno_mp.policy.checks.shared_entries import expression_reads, reads_closed
from kyverno_mp.policy.gradual import rollout_problems
from kyverno_mp.policy.ports import Opens, closed
from kyverno_mp.policy.problems import Problem
from kyverno_mp.values.go.goquote import quote

_REQUIRED: Final = (
    "Required value: a matchConstraints with at least one resource rule is required"
)
_NO_HTTP: Final = (
    "Forbidden: http.* is not allowed in namespaced policies; set"
    " --allowHTTPInNamespacedPolicies to enable"
)
_NOT_COMPILED: Final = "<nil>: Internal error: {} error: failed to compile policy"
_PART: Final = re.compile(r"spec\.(?:(?:validations|mutations)\[\d+\]|\w+)")
_EXPRESSIONS: Final = (
    "variables",
    "match_conditions",
    "conditions",
    "target_match_conditions",
    "images",
    "match_image_references",
)
"""Fields whose entries have an ``expression``."""


def refusals(document: AnyCelDocument) -> list[str]:
    """Return upstream's errors on creation of the policy; none if it is accepted.

    KYVERNO: compilation stops after the first part of the spec with a faulty
    expression.
    """
    refused = _of_first_part(_expression_problems(document))
    if refused:
        refused = [*_not_compiled(document), *refused]
    return [*refused, *(problem.upstream for problem in review(document))]


def _not_compiled(document: AnyCelDocument) -> list[str]:
    """Return upstream's general message, which precedes the errors of some kinds."""
    compiler = row_of(document.kind).compiler
    if not compiler or evaluation_mode_of(document) == JSON_MODE:
        return []
    return [_NOT_COMPILED.format(compiler)]


def _of_first_part(problems: Iterable[Problem]) -> list[str]:
    """Return upstream's messages for the first faulty part of the spec."""
    messages: list[str] = []
    first = ""
    for problem in problems:
        part = _PART.match(problem.path)
        name = problem.path if part is None else part[0]
        first = first or name
        if name == first:
            messages.append(problem.upstream)
    return messages


def faults(document: AnyCelDocument) -> Iterator[Problem]:
    """Yield the problems of expressions that do not compile, each with its column."""
    yield from map(located_fault, _expression_problems(document))


def _expression_problems(document: AnyCelDocument) -> list[Problem]:
    """Return the problems of all expressions in the policy, without its copies."""
    return row_of(document.kind).problems(document)


def review(document: AnyCelDocument) -> Iterator[Problem]:
    """Yield the remaining reasons to reject the policy."""
    spec = document.spec
    constraints = spec.match_constraints
    has_rules = constraints is not None and constraints.resource_rules
    row = row_of(document.kind)
    if not has_rules and row.needs_constraints:
        path = "spec.matchConstraints"
        upstream = f"{path}: {_REQUIRED}"
        yield Problem("policy.required", path, "", _REQUIRED, upstream)
    if document.metadata.namespace and any(map(_names_http, _texts(spec))):
        yield Problem("policy.http", "spec", "", _NO_HTTP, f"spec: {_NO_HTTP}")
    if not row.kind.judges_payloads:
        yield from _mode_problems(document)
    schedule = getattr(spec, "schedule", None)
    if schedule is not None:
        yield from _schedule_problems(schedule)
    can_deny = hasattr(spec, "validation_actions")
    yield from rollout_problems(document.metadata.annotations, can_deny=can_deny)


def entry_problems(
    document: AnyCelDocument, opens: Opens = closed
) -> Iterator[Problem]:
    """Yield a problem if a namespaced policy reads entries not opened to it."""
    namespace = document.metadata.namespace
    if not namespace:
        return
    is_closed = reads_closed(document.spec, namespace, opens)
    if not is_closed:
        is_closed = any(
            expression_reads(expression, namespace, opens)
            for generation in getattr(document.spec, "generate", ())
            if generation.template is not None
            for expression in placeholders(generation.template)
        )
    if is_closed:
        reason = f"Forbidden: {NO_GLOBAL_CONTEXT}"
        yield Problem("policy.global", "spec", "", reason, f"spec: {reason}")


def too_large(
    document: AnyCelDocument,
) -> list[str]:
    """Return why a namespaced policy takes too much memory when it is linked.

    None for a cluster-wide policy. Raises: PolicyInvalid.
    """
    namespace, row = document.metadata.namespace, row_of(document.kind)
    if not namespace or not row.is_linked:
        return []
    encoded = encode_cel_policy(row.compile(document, ()))
    reason = why_too_large(encoded, namespace)
    return [reason] if reason else []


def _mode_problems(document: AnyCelDocument) -> Iterator[Problem]:
    """Yield a problem for an evaluation mode without effect: upstream ignores it."""
    mode = evaluation_mode_of(document)
    if mode not in ("", "Kubernetes"):
        path = "spec.evaluation.mode"
        name = row_of(document.kind).kind.name
        reason = f"a {name} is evaluated in mode Kubernetes only"
        upstream = f"{path}: Invalid value: {quote(mode)}: {reason}"
        yield Problem("policy.mode", path, "", reason, upstream)


def _schedule_problems(schedule: str) -> Iterator[Problem]:
    """KYVERNO: 1.18 accepts an invalid schedule, and never runs the policy."""
    if len(schedule) > SCHEDULE_CHARACTERS_MAX:
        yield schedule_too_long()
    elif not is_schedule(schedule):
        reason = "schedule spec in the deletingPolicy is not in proper cron format"
        path = "spec.schedule"
        upstream = f"{path}: Invalid value: {quote(schedule)}: {reason}"
        yield Problem("policy.schedule", path, "", reason, upstream)


def _texts(spec: Any) -> Iterator[str]:
    """Yield the expressions of a policy of any kind.

    KYVERNO: upstream does not check those of attestors and of targets.
    """
    for name in _EXPRESSIONS:
        for entry in getattr(spec, name, ()):
            yield entry.expression
    for validation in getattr(spec, "validations", ()):
        yield from (validation.expression, validation.message_expression)
    for annotation in getattr(spec, "audit_annotations", ()):
        yield annotation.value_expression
    for mutation in getattr(spec, "mutations", ()):
        for body in (mutation.apply_configuration, mutation.json_patch):
            if body is not None:
                yield body.expression
    for generation in getattr(spec, "generate", ()):
        yield generation.expression
        if generation.template is not None:
            yield from placeholders(generation.template)


def _names_http(source: str) -> bool:
    """Return whether the expression uses ``http``. KYVERNO: local variables count."""
    if "http" not in source:
        return False
    try:
        waiting: list[Any] = [parse(source)]
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

"""Check a CEL policy of any kind as upstream's webhooks do.

Room: compiler. Takes: decoded documents. Gives: Problems with upstream's messages.
Next: cli/lint, webhook/policy_review.py. May touch: nothing outside its arguments.
Source: docs/behaviour/cel 4; Kyverno pkg/cel/policies/{mpol,gpol,dpol}/validate.go;
docs/behaviour/v1.19 5 (schedule).
"""

from collections.abc import Iterator
from typing import Final

from kyverno_mp.compiler.cel_kinds.image_validating_policy import expression_problems
from kyverno_mp.compiler.cel_kinds.mutating_policy import build_mutating
from kyverno_mp.compiler.cel_kinds.policies import build_deleting, build_generating
from kyverno_mp.compiler.cel_kinds.template import placeholders
from kyverno_mp.compiler.cel_kinds.validating_review import (
    common_problems,
    expression_faults_of,
    http_problems,
    of_first_part,
    review_problems,
)
from kyverno_mp.compiler.expression_faults import located_fault
from kyverno_mp.expr.effects import NO_GLOBAL_CONTEXT
from kyverno_mp.limits import SCHEDULE_CHARACTERS_MAX
from kyverno_mp.policy.cel_kinds.image_validating_policy import ImageValidatingPolicy
from kyverno_mp.policy.cel_kinds.policies import (
    AnyCelPolicy,
    DeletingPolicy,
    GeneratingPolicy,
    MutatingPolicy,
)
from kyverno_mp.policy.cel_kinds.validating_policy import (
    AnyValidatingPolicy,
    NamespacedValidatingPolicy,
    ValidatingPolicy,
)
from kyverno_mp.policy.checks.cleanup import is_schedule, schedule_too_long
from kyverno_mp.policy.checks.shared_entries import expression_reads, reads_closed
from kyverno_mp.policy.ports import Opens, closed
from kyverno_mp.policy.problems import Problem
from kyverno_mp.values.go.goquote import quote

_NOT_COMPILED: Final = (
    "<nil>: Internal error: {} policy compiler 2.0 error: failed to compile policy"
)


def faults(
    document: AnyValidatingPolicy | AnyCelPolicy | ImageValidatingPolicy,
) -> Iterator[Problem]:
    """Yield the problems of expressions that do not compile, each with its column."""
    if isinstance(document, ImageValidatingPolicy):
        yield from map(located_fault, expression_problems(document))
        return
    if isinstance(document, ValidatingPolicy | NamespacedValidatingPolicy):
        yield from expression_faults_of(document)
        return
    if isinstance(document, MutatingPolicy):
        builder = build_mutating(document)
    elif isinstance(document, GeneratingPolicy):
        builder = build_generating(document)
    else:
        builder = build_deleting(document)
    for problem in builder.problems:
        yield located_fault(problem)


def review(
    document: AnyValidatingPolicy | AnyCelPolicy | ImageValidatingPolicy,
) -> Iterator[Problem]:
    """Yield the remaining reasons to reject the policy."""
    if isinstance(document, ImageValidatingPolicy):
        texts = _texts_of_images(document)
        yield from http_problems(document.metadata.namespace, texts)
        return
    if isinstance(document, ValidatingPolicy | NamespacedValidatingPolicy):
        yield from review_problems(document)
        return
    spec = document.spec
    namespace = document.metadata.namespace
    yield from common_problems(spec.match_constraints, namespace, _texts(document))
    if isinstance(document, MutatingPolicy):
        yield from _mode_problems(document)
    if not isinstance(document, DeletingPolicy):
        return
    if len(document.spec.schedule) > SCHEDULE_CHARACTERS_MAX:
        yield schedule_too_long()
    elif not is_schedule(document.spec.schedule):
        # KYVERNO: 1.19 rejects an invalid schedule; 1.18 accepts it and never runs the
        # policy.
        reason = "schedule spec in the deletingPolicy is not in proper cron format"
        path = "spec.schedule"
        given = quote(document.spec.schedule)
        upstream = f"{path}: Invalid value: {given}: {reason}"
        yield Problem("policy.schedule", path, "", reason, upstream)


def entry_problems(
    document: AnyValidatingPolicy | AnyCelPolicy | ImageValidatingPolicy,
    opens: Opens = closed,
) -> Iterator[Problem]:
    """Yield a problem if a namespaced policy reads entries not opened to it."""
    namespace = document.metadata.namespace
    if not namespace:
        return
    is_closed = reads_closed(document.spec, namespace, opens)
    if isinstance(document, GeneratingPolicy) and not is_closed:
        is_closed = any(
            expression_reads(text, namespace, opens)
            for one in document.spec.generate
            if one.template is not None
            for text in placeholders(one.template)
        )
    if is_closed:
        reason = f"Forbidden: {NO_GLOBAL_CONTEXT}"
        yield Problem("policy.global", "spec", "", reason, f"spec: {reason}")


def _mode_problems(document: MutatingPolicy) -> Iterator[Problem]:
    """Yield a problem for an evaluation mode without effect: upstream ignores it."""
    evaluation = document.spec.evaluation
    mode = "" if evaluation is None else evaluation.mode
    if mode not in ("", "Kubernetes"):
        path = "spec.evaluation.mode"
        reason = "a MutatingPolicy is evaluated in mode Kubernetes only"
        upstream = f"{path}: Invalid value: {quote(mode)}: {reason}"
        yield Problem("policy.mode", path, "", reason, upstream)


def _texts_of_images(document: ImageValidatingPolicy) -> Iterator[str]:
    """Yield the expressions. KYVERNO: upstream does not check those of attestors."""
    spec = document.spec
    for variable in (*spec.variables, *spec.match_conditions, *spec.images):
        yield variable.expression
    for given in spec.validations:
        yield from (given.expression, given.message_expression)
    yield from (
        audit_annotation.value_expression for audit_annotation in spec.audit_annotations
    )
    yield from (reference.expression for reference in spec.match_image_references)


def refusals(document: GeneratingPolicy | DeletingPolicy) -> list[str]:
    """Return upstream's errors on creation of the policy; none if it is accepted.

    KYVERNO: compilation stops after the first part of the spec with a faulty
    expression; a general message precedes its errors.
    """
    is_generating = isinstance(document, GeneratingPolicy)
    builder = (
        build_generating(document)
        if isinstance(document, GeneratingPolicy)
        else build_deleting(document)
    )
    found = of_first_part(builder.problems)
    if found:
        word = "generating" if is_generating else "deleting"
        found.insert(0, _NOT_COMPILED.format(word))
    return [*found, *(one.upstream for one in review(document))]


def _texts(document: AnyCelPolicy) -> Iterator[str]:
    yield from (variable.expression for variable in document.spec.variables)
    if isinstance(document, DeletingPolicy):
        yield from (one.expression for one in document.spec.conditions)
        return
    yield from (
        match_condition.expression for match_condition in document.spec.match_conditions
    )
    if isinstance(document, GeneratingPolicy):
        for one in document.spec.generate:
            yield one.expression
            yield from () if one.template is None else placeholders(one.template)
        yield from (one.value_expression for one in document.spec.audit_annotations)
        return
    yield from (
        condition.expression for condition in document.spec.target_match_conditions
    )
    yield from (
        audit_annotation.value_expression
        for audit_annotation in document.spec.audit_annotations
    )
    for mutation in document.spec.mutations:
        for body in (mutation.apply_configuration, mutation.json_patch):
            if body is not None:
                yield body.expression

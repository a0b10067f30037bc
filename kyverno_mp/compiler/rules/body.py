"""Compile the body of a validate rule.

Room: compiler. Takes: the ``validate`` block of a decoded rule. Gives: ValidateIR.
Next: compiler/build.py. Patterns, assertion trees and ``deny.conditions`` are free-form
in the CRD, so their JSON is passed unchanged to the parsers in expr.
Source: docs/behaviour/engine 5, 6.
"""

from collections.abc import Iterable

from kyverno_mp.compiler.rules.conditions import build_conditions
from kyverno_mp.compiler.rules.context import build_entries
from kyverno_mp.expr.assertion.nodes import Assertion
from kyverno_mp.expr.conditions.nodes import Conditions
from kyverno_mp.expr.conditions.parse import parse_conditions
from kyverno_mp.expr.pattern.parse import parse_pattern
from kyverno_mp.expr.template.document import parse_document, parse_documents
from kyverno_mp.expr.template.nodes import Document
from kyverno_mp.ir.cel import CelIR
from kyverno_mp.ir.rules import (
    ForEachIR,
    ManifestsIR,
    PatternIR,
    PodSecurityExcludeIR,
    PodSecurityIR,
    ValidateIR,
)
from kyverno_mp.policy.fields.image_verification import Deny
from kyverno_mp.policy.fields.validation import (
    CEL,
    ForEachValidation,
    Manifests,
    PodSecurity,
    PodSecurityStandard,
    Validation,
)
from kyverno_mp.values.jsonvalue import Json


def build_validate(body: Validation) -> ValidateIR:
    """Compile the block; raises ExpressionInvalid if an expression does not parse."""
    message, tree = body.message, body.assertion
    return ValidateIR(
        message=parse_document(message) if message else None,
        raw_message=message,
        pattern=_pattern(body.pattern),
        any_pattern=_patterns(body.any_pattern),
        deny=_deny(body.deny),
        foreach=_foreach(body.foreach),
        pod_security=_pod_security(body.pod_security),
        assertion=_assertion(tree) if tree is not None else None,
        # Signatures are required even if the old object already violated the rule.
        allow_existing_violations=(
            body.allow_existing_violations and body.manifests is None
        ),
        # A rule without any expression passes.
        cel=None if body.cel is None else _cel(body.cel, message),
        manifests=_manifests(body.manifests),
    )


def _manifests(manifests: Manifests | None) -> ManifestsIR | None:
    if manifests is None or not manifests.attestors:
        return None
    return ManifestsIR(manifests.raw())


def _assertion(tree: Json) -> Assertion:
    # PERF: imported late for a fast start of the CLI, which rarely needs these
    # languages.
    from kyverno_mp.expr.assertion.parse import parse_assertion

    return parse_assertion(tree)


def _cel(body: CEL, message: str) -> CelIR:
    from kyverno_mp.compiler.rules.cel import build_cel

    return build_cel(body, message)


def _pattern(raw: Json) -> PatternIR | None:
    return None if raw is None else _pattern_of(parse_document(raw), any_pattern=False)


def _pattern_of(document: Document, *, any_pattern: bool) -> PatternIR:
    if document.is_constant:
        static = parse_pattern(document.constant, any_pattern=any_pattern)
        return PatternIR(static=static)
    return PatternIR(document=document)


def _patterns(raw: Json) -> tuple[PatternIR, ...] | None:
    if not isinstance(raw, list):
        return None
    documents = parse_documents(raw)
    return tuple(_pattern_of(document, any_pattern=True) for document in documents)


def _deny(deny: Deny | None) -> Conditions | None:
    """KYVERNO: ``deny: {}`` without conditions always denies (behaviour/engine 4.1)."""
    if deny is None:
        return None
    return parse_conditions({} if deny.conditions is None else deny.conditions)


def _foreach(entries: Iterable[ForEachValidation] | None) -> tuple[ForEachIR, ...]:
    return tuple(
        ForEachIR(
            list_query=entry.list,
            element_scope=entry.element_scope,
            context=build_entries(entry.context),
            preconditions=build_conditions(entry.preconditions),
            pattern=_pattern(entry.pattern),
            any_pattern=_patterns(entry.any_pattern),
            deny=_deny(entry.deny),
            foreach=_foreach(entry.foreach),
        )
        for entry in entries or ()
    )


def build_controls(
    entries: Iterable[PodSecurityStandard],
) -> tuple[PodSecurityExcludeIR, ...]:
    """Compile ``podSecurity`` entries of a rule's exclude or of a PolicyException."""
    return tuple(
        PodSecurityExcludeIR(
            control_name=entry.control_name,
            images=entry.images,
            restricted_field=entry.restricted_field,
            values=entry.values,
        )
        for entry in entries
    )


def _pod_security(pod_security: PodSecurity | None) -> PodSecurityIR | None:
    # KYVERNO: an empty podSecurity counts as absent (docs/behaviour/engine 0.4).
    if pod_security is None or pod_security == PodSecurity():
        return None
    return PodSecurityIR(
        level=pod_security.level or "",
        version=pod_security.version or "",
        exclude=build_controls(pod_security.exclude),
    )

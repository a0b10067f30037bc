"""Compile the body of a validate rule.

Room: compiler. Takes: the ``validate`` mapping of a decoded rule. Gives: ValidateIR.
Next: compiler/build.py. May touch: nothing outside its arguments.
Source: docs/behaviour/engine 5, 6.
"""

from kyverno_mp.compiler.cel import build_cel
from kyverno_mp.compiler.context import build_entries
from kyverno_mp.expr.assertion.parse import parse_assertion
from kyverno_mp.expr.conditions.nodes import Conditions
from kyverno_mp.expr.conditions.parse import parse_conditions
from kyverno_mp.expr.pattern.parse import parse_pattern
from kyverno_mp.expr.template.document import parse_document, parse_documents
from kyverno_mp.expr.template.nodes import Document
from kyverno_mp.ir.rules import (
    ForEachIR,
    PatternIR,
    PodSecurityExcludeIR,
    PodSecurityIR,
    ValidateIR,
)
from kyverno_mp.values.jsonvalue import Json


def build_validate(raw: dict[str, Json]) -> ValidateIR:
    """Compile the mapping; raises ExpressionInvalid if an expression does not parse."""
    message = raw.get("message") or ""
    any_pattern = raw.get("anyPattern")
    deny = raw.get("deny")
    assertion = raw.get("assert")
    cel = raw.get("cel")
    return ValidateIR(
        message=parse_document(message) if message else None,
        raw_message=message,
        pattern=_pattern(raw.get("pattern")),
        any_pattern=_patterns(any_pattern),
        deny=_deny(deny),
        foreach=tuple(_foreach(entry) for entry in raw.get("foreach") or ()),
        pod_security=_pod_security(raw.get("podSecurity")),
        assertion=parse_assertion(assertion) if assertion is not None else None,
        allow_existing_violations=raw.get("allowExistingViolations", True) is not False,
        # A rule without any expression passes.
        cel=None if cel is None else build_cel(cel, message),
    )


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


def _deny(raw: Json) -> Conditions | None:
    """KYVERNO: ``deny: {}`` without conditions always denies (behaviour/engine 4.1)."""
    if not isinstance(raw, dict):
        return None
    conditions = raw.get("conditions")
    return parse_conditions({} if conditions is None else conditions)


def _foreach(raw: dict[str, Json]) -> ForEachIR:
    preconditions = raw.get("preconditions")
    return ForEachIR(
        list_query=raw.get("list") or "",
        element_scope=raw.get("elementScope"),
        context=build_entries(raw.get("context")),
        preconditions=(
            parse_conditions(preconditions, any_all_only=True)
            if preconditions is not None
            else None
        ),
        pattern=_pattern(raw.get("pattern")),
        any_pattern=_patterns(raw.get("anyPattern")),
        deny=_deny(raw.get("deny")),
        foreach=tuple(_foreach(entry) for entry in raw.get("foreach") or ()),
    )


def build_controls(raw: Json) -> tuple[PodSecurityExcludeIR, ...]:
    """Compile ``podSecurity`` entries of a rule's exclude or of a PolicyException."""
    return tuple(
        PodSecurityExcludeIR(
            control_name=entry.get("controlName", ""),
            images=tuple(entry.get("images") or ()),
            restricted_field=entry.get("restrictedField") or "",
            values=tuple(entry.get("values") or ()),
        )
        for entry in raw or ()
    )


def _pod_security(raw: Json) -> PodSecurityIR | None:
    # KYVERNO: an empty podSecurity counts as absent (docs/behaviour/engine 0.4).
    if not raw:
        return None
    return PodSecurityIR(
        level=raw.get("level") or "",
        version=raw.get("version") or "",
        exclude=build_controls(raw.get("exclude")),
    )

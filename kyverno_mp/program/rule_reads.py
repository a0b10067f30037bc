"""Compute which fields of the new object a rule reads.

Room: program. Takes: RuleIR. Gives: Reads of ``request.object``, or None for a rule
that may depend on anything else. Next: program/recall/verdicts.py.
Source: docs/behaviour/engine 6.1-6.3; checked by tests/fuzz/test_recall_fuzz.py.

The result is valid for a rule that matched a CREATE without an old object: its code and
the location of its failure depend only on the operation and on the marked fields. A
rule with any construct that is unknown here is not cacheable.
"""

from collections.abc import Iterable
from typing import Final

from kyverno_mp.expr.conditions.nodes import Conditions
from kyverno_mp.expr.jmespath.reads import follow
from kyverno_mp.expr.pattern.reads import mark_pattern
from kyverno_mp.expr.reads import Found, Reads, ReadsUnknown, both
from kyverno_mp.expr.template.document import parse_lookup
from kyverno_mp.expr.template.nodes import (
    Constant,
    Document,
    Entries,
    Items,
    Lookup,
    Template,
    Whole,
)
from kyverno_mp.ir.cel import CelIR, NamedExpressionIR
from kyverno_mp.ir.rules import ForEachIR, PatternIR, RuleIR, ValidateIR

_KNOWN: Final = frozenset({"object", "operation"})
"""The parts of the request that a rule can read; every cache key includes the
operation."""
_KIND: Final = frozenset({"apiVersion", "kind"})
_LOADED: Final = "images"
"""A query that mentions this name reads the images of all containers."""


def rule_reads(rule: RuleIR) -> Reads | None:
    """Return the fields of the new object that a validate rule reads."""
    if rule.unsupported or rule.context or rule.exceptions or rule.verify_images:
        return None
    root = Reads()
    request = root.field("request")
    if rule.validate is not None and rule.validate.manifests is not None:
        return None
    target = request.field("object")
    scope = Found((root,))
    try:
        if rule.preconditions is not None:
            _conditions(rule.preconditions, scope)
        _body(rule.validate or ValidateIR(), scope, target)
        if rule.validate is not None and rule.validate.cel is not None:
            _cel(rule.validate.cel, rule.cel_preconditions, target)
    except (ReadsUnknown, RecursionError):
        # Loops and documents can be nested as deeply as a policy.
        return None
    if not (_is_plain(root, {"request"}) and _is_plain(request, _KNOWN)):
        return None
    return None if target.is_too_large() else target


def _is_plain(reads: Reads, names: Iterable[str]) -> bool:
    return not (reads.whole or reads.names) and reads.fields.keys() <= set(names)


def _body(validate: ValidateIR, scope: Found, target: Reads) -> None:
    """Mark the fields that the body reads, selected as in program/rule.py."""
    if validate.assertion or validate.pod_security:
        raise ReadsUnknown("body")
    if validate.cel is not None:
        return
    if validate.deny is not None:
        _conditions(validate.deny, scope)
    elif validate.pattern is not None:
        _patterns((validate.pattern,), (target,))
    elif validate.any_pattern is not None:
        _patterns(validate.any_pattern, (target,))
    else:
        for entry in validate.foreach:
            _loop(entry, scope, target, depth=0)


def _cel(cel: CelIR, preconditions: Iterable[NamedExpressionIR], target: Reads) -> None:
    """Mark the fields that the expressions read; ``object`` has the request's kind."""
    if cel.params is not None:
        raise ReadsUnknown("params")
    # PERF: imported late for a fast start of the command line: it loads CEL's
    # functions.
    from kyverno_mp.program.context.cel_reads import mark_expressions

    expressions = [precondition.expression for precondition in preconditions]
    expressions += [validation.expression for validation in cel.validations]
    object_reads = Reads()
    mark_expressions(expressions, cel.variables, object_reads)
    if (
        object_reads.whole
        or object_reads.names
        or not object_reads.fields.keys().isdisjoint(_KIND)
    ):
        raise ReadsUnknown("kind")
    target.add(object_reads)


def _patterns(patterns: Iterable[PatternIR], places: Iterable[Reads]) -> None:
    for pattern in patterns:
        if pattern.static is None:
            raise ReadsUnknown("pattern with variables")
        for reads in places:
            mark_pattern(pattern.static.root, reads)


def _loop(entry: ForEachIR, scope: Found, target: Reads, *, depth: int) -> None:
    if entry.context:
        raise ReadsUnknown("context")
    list_origin = _asked(parse_lookup(entry.list_query), scope)
    # A value that is not a list becomes the only element; a list can also be built from
    # items.
    element = both(Found(list_origin.places), list_origin.elements())
    index_origin = Found()
    inner = Found(
        scope.places,
        bound={
            **scope.bound,
            "element": element,
            f"element{depth}": element,
            "elementIndex": index_origin,
            f"elementIndex{depth}": index_origin,
        },
    )
    if entry.preconditions is not None:
        _conditions(entry.preconditions, inner)
    if entry.deny is not None:
        _conditions(entry.deny, inner)
    # For an element that is not a map, the pattern applies to the whole object.
    targets = (*element.places, target)
    if entry.pattern is not None:
        _patterns((entry.pattern,), targets)
    _patterns(entry.any_pattern or (), targets)
    for below in entry.foreach:
        _loop(below, inner, target, depth=depth + 1)


def _conditions(conditions: Conditions, scope: Found) -> None:
    for condition in (*(conditions.any or ()), *conditions.all):
        for document in (condition.key, condition.value):
            _document(document, scope)


def _document(document: Document, scope: Found) -> None:
    if not document.is_constant:
        assert document.template is not None
        _template(document.template, scope)


def _template(template: Template, scope: Found) -> None:
    match template:
        case Constant():
            return
        case Whole(variable):
            _asked(variable.lookup, scope).read_whole()
        case Items(items):
            for item in items:
                _template(item, scope)
        case Entries(entries):
            for entry in entries:
                if entry.key_template is not None:
                    raise ReadsUnknown("key")
                _template(entry.value, scope)
        case _:
            # Text around a value can turn it into a variable (recall/verdicts.py
            # searches for variables only within one value).
            raise ReadsUnknown(type(template).__name__)


def _asked(lookup: Lookup, scope: Found) -> Found:
    if lookup.node is None or _LOADED in lookup.text:
        raise ReadsUnknown(lookup.text)
    return follow(lookup.node, scope)

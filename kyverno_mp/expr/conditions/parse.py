"""Parse the condition blocks of policies and exceptions.

Room: expr. Takes: JSON. Gives: Conditions; parse_side for compiler/rules/conditions,
which compiles blocks whose fields the CRD declares. Next: expr/conditions/link.
Source: docs/behaviour/engine 4.1, 0.2.
"""

from kyverno_mp.errors import PolicyInvalid
from kyverno_mp.expr.conditions.nodes import Condition, Conditions
from kyverno_mp.expr.template.document import parse_document
from kyverno_mp.expr.template.nodes import Document
from kyverno_mp.values.jsonvalue import Json


def parse_conditions(
    raw: Json, *, any_all_only: bool = False, of_exception: bool = False
) -> Conditions:
    """Parse a list of conditions, or ``{any: [...], all: [...]}``.

    ``any_all_only``: a plain list is rejected (foreach preconditions, exceptions).
    ``of_exception``: the conditions of an exception, which differ in the order of
    evaluation and for ``any: []``.

    Raises: PolicyInvalid for another shape, ExpressionInvalid if it is nested too
    deeply.
    """
    if raw is None:
        return Conditions(of_exception=of_exception)
    if type(raw) is list and not (any_all_only or of_exception):
        return Conditions(all=_parse_list(raw, "conditions"), legacy=True)
    if type(raw) is not dict:
        raise _invalid("conditions must be a map with 'any' or 'all'")
    any_of, all_of = raw.get("any"), raw.get("all")
    return Conditions(
        any=None if any_of is None else _parse_list(any_of, "any"),
        all=() if all_of is None else _parse_list(all_of, "all"),
        of_exception=of_exception,
    )


def _parse_list(raw: Json, name: str) -> tuple[Condition, ...]:
    if type(raw) is not list:
        raise _invalid(f"'{name}' must be a list of conditions")
    return tuple(_parse_condition(item) for item in raw)


def _parse_condition(raw: Json) -> Condition:
    if type(raw) is not dict:
        raise _invalid("a condition must be a map with key, operator and value")
    return Condition(
        key=parse_side(raw.get("key")),
        operator=_parse_name(raw, "operator"),
        value=parse_side(raw.get("value")),
        message=_parse_name(raw, "message"),
    )


def parse_side(raw: Json) -> Document:
    """Parse the key or the value of a condition."""
    # KYVERNO: a number that is the whole key or value is decoded again as float64;
    # numbers inside lists and maps stay int64 (docs/behaviour/engine 0.2).
    return parse_document(float(raw) if type(raw) is int else raw)


def _parse_name(raw: dict[str, Json], name: str) -> str:
    value = raw.get(name)
    if value is None:
        return ""
    if type(value) is not str:
        raise _invalid(f"'{name}' of a condition must be a string")
    return value


def _invalid(message: str) -> PolicyInvalid:
    return PolicyInvalid("conditions.shape", message)

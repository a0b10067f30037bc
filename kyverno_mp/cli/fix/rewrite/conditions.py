"""Rewrite conditions on queries as a CEL expression.

Room: cli. Takes: ``any`` and ``all`` with conditions, the names of queries. Gives: an
expression that is true if the conditions are met. Next: rules.py.
Source: docs/behaviour/engine 4; docs/behaviour/engine 3 (a query of a missing field is
an error, as in CEL).
"""

import re
from collections.abc import Callable, Sequence
from typing import Final

from kyverno_mp.cli.fix.rewrite.in_lists import PATTERN, in_stream
from kyverno_mp.cli.fix.rewrite.jmespath import elements, value_of
from kyverno_mp.cli.fix.rewrite.query_values import (
    Code,
    Constant,
    Default,
    Names,
    Stream,
    Value,
    present,
)
from kyverno_mp.cli.fix.rewrite.texts import (
    NotRewritten,
    all_of,
    any_of,
    items,
    like,
    literal,
)
from kyverno_mp.cli.fix.rewrite.typed import Typed
from kyverno_mp.expr.conditions.equality import equals
from kyverno_mp.expr.conditions.membership import MODES, is_member
from kyverno_mp.values.go.duration import parse_duration
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.quantity import parse_quantity
from kyverno_mp.values.wildcard import contains_wildcard

_ORDER: Final = {
    "GreaterThan": ">",
    "GreaterThanOrEquals": ">=",
    "LessThan": "<",
    "LessThanOrEquals": "<=",
}
_EMPTY: Final = {"Equals": "==", "NotEquals": ">"}
"""The sign between the size of a list and zero if the list is compared with []."""
_QUOTED_TIME: Final = re.compile(
    r"'\{\{\s*+(target\.metadata\.creationTimestamp)\s*+\}\}'"
)
"""A time as a variable in a variable, which needs no quotes in a query."""
Test = Callable[[str, str, bool], str]
"""Makes a test of (expression, kind, whether it is a name without wildcards)."""


def conditions_of(raw: Json, names: Names) -> str:
    """Return an expression that tests conditions. Raises: NotRewritten."""
    if type(raw) is not dict or not raw or set(raw) - {"any", "all"}:
        raise NotRewritten("conditions without any or all")
    clauses = []
    for mode, conditions in raw.items():
        if not conditions:
            raise NotRewritten(f"conditions with an empty {mode}")
        tests = [_test(condition, names) for condition in conditions]
        clauses.append(any_of(tests) if mode == "any" else all_of(tests))
    return all_of(clauses)


def side(raw: Json, names: Names) -> Value:
    """Return one side of a condition. Raises: NotRewritten."""
    if type(raw) is str and "{{" in raw:
        text = _QUOTED_TIME.sub(r"\1", raw.strip())
        query = text[2:-2]
        is_whole = text.startswith("{{") and text.endswith("}}")
        if not is_whole or "}" in query or "{{" in query:
            raise NotRewritten(f"the text {raw} of a condition")
        return value_of(query.strip(), names)
    if has_variables(raw):
        raise NotRewritten("variables in a list of a condition")
    return Constant(raw)


def has_variables(raw: Json) -> bool:
    """Return whether a value contains variables or references."""
    if type(raw) is str:
        return "{{" in raw or "$(" in raw
    if type(raw) is dict:
        return any(has_variables(part) for pair in raw.items() for part in pair)
    return type(raw) is list and any(map(has_variables, raw))


def _test(condition: Json, names: Names) -> str:
    operator = condition.get("operator")
    key = side(condition.get("key"), names)
    value = side(condition.get("value"), names)
    if isinstance(value, Constant):
        if isinstance(key, Constant):
            raise NotRewritten("a condition of constants")
        return _tested(key, operator, value.value)
    if isinstance(key, Constant) and operator in MODES:
        return _members(key.value, operator, value)
    if (
        operator in ("Equals", "NotEquals")
        and isinstance(key, Typed)
        and isinstance(value, Typed)
        and key.is_name
        and value.is_name
    ):
        sign = "==" if operator == "Equals" else "!="
        return f"{key.plain} {sign} {value.plain}"
    if operator in MODES and isinstance(value, Stream):
        return in_stream(key, operator, value)
    raise NotRewritten(f"{operator} with a value that is not constant")


def _tested(key: Value, operator: str, value: Json) -> str:
    match key:
        case Code(plain, kind, is_name):
            return _scalar_test(operator, value)(plain, kind, is_name)
        case Typed() if key.kind == "list":
            return _listed(elements(key), operator, value, lenient=False)
        case Typed() if key.kind in ("string", "numeric", "boolean"):
            return _scalar_test(operator, value)(key.plain, key.kind, key.is_name)
        case Stream():
            return _listed(key, operator, value, lenient=True)
        case Default(inner, constant):
            return _defaulted(inner, constant, operator, value)
    raise NotRewritten(f"{operator} of a value of unknown type")


def _scalar_test(operator: str, value: Json) -> Test:
    """Return the test of a scalar key."""
    if operator in _ORDER:
        return _ordered(_ORDER[operator], value)
    if operator in MODES:
        inner = _is_in(
            value if type(value) is list else [value], is_list=type(value) is list
        )
        if type(value) not in (list, str):
            raise NotRewritten(f"{operator} {value}")
        return _negated(inner) if MODES[operator].negated else inner
    if operator in ("Equals", "NotEquals"):
        inner = _equal(value)
        return _negated(inner) if operator == "NotEquals" else inner
    raise NotRewritten(f"operator {operator}")


def _ordered(sign: str, value: Json) -> Test:
    def test(plain: str, kind: str, _is_name: bool) -> str:  # noqa: FBT001 - a Test
        if kind == "numeric" and (type(value) is int or _is_count(value)):
            return f"{plain} {sign} {value}"
        if (
            kind == "duration"
            and type(value) is str
            and parse_duration(value) is not None
        ):
            return f"{plain} {sign} duration({literal(value)})"
        of = kind or "value of unknown type"
        raise NotRewritten(f"the order of a {of} and {value}")

    return test


def _is_count(value: Json) -> bool:
    """Return whether a text is a number that has no other meaning."""
    return type(value) is str and bool(re.fullmatch(r"[1-9][0-9]{0,8}", value))


def _negated(inner: Test) -> Test:
    def test(plain: str, kind: str, is_name: bool) -> str:  # noqa: FBT001 - a Test
        text = inner(plain, kind, is_name)
        if re.fullmatch(r"[\w.]+", text):
            return f"!{text}"
        if re.fullmatch(r"![\w.]+", text):
            return text[1:]
        if re.fullmatch(r"[\w.?()']+ == (?:'[^'\\]*'|\d+)", text):
            return text.replace(" == ", " != ")
        return f"!({text})"

    return test


def _equal(value: Json) -> Test:
    def test(plain: str, kind: str, _is_name: bool) -> str:  # noqa: FBT001 - a Test
        if kind == "boolean" and type(value) is bool:
            return plain if value else _not(plain)
        if kind == "numeric" and type(value) is int:
            return f"{plain} == {value}"
        if kind == "string" and type(value) is str:
            _refuse_amounts(value)
            return like(plain, value)
        raise NotRewritten(f"{kind or 'a value of unknown type'} Equals {value}")

    return test


def _not(plain: str) -> str:
    return (
        f"!{plain}" if re.fullmatch(r"[\w.]+(?:\([^()]*\))?", plain) else f"!({plain})"
    )


def _refuse_amounts(value: str) -> None:
    if value and (
        parse_duration(value) is not None or parse_quantity(value) is not None
    ):
        raise NotRewritten(f"the amount {value} of a condition")


def _is_in(values: Sequence[Json], *, is_list: bool) -> Test:
    def test(plain: str, kind: str, is_name: bool) -> str:  # noqa: FBT001 - a Test
        if kind == "boolean" and all(type(one) is bool for one in values):
            if len(values) == 1:
                return plain if values[0] else _not(plain)
            raise NotRewritten("a list of true and false")
        if kind == "numeric" and all(type(one) is int for one in values):
            return f"{plain} in [{', '.join(map(str, values))}]"
        if kind != "string" or not all(type(one) is str for one in values):
            raise NotRewritten(f"a {kind or 'value of unknown type'} in {values}")
        if not is_list:
            _refuse_read_otherwise(values[0])
        plainly = [one for one in values if not contains_wildcard(one)]
        clauses = [like(plain, one) for one in values if contains_wildcard(one)]
        if plainly:
            clauses.insert(0, _among(plain, plainly))
        if is_list and not is_name:
            # KYVERNO: these operators also take wildcards from the object's own value.
            reverse = f"v.matches({PATTERN.format(key=plain)})"
            clauses.append(
                f"{plain}.matches('[*?]') && {items(values)}.exists(v, {reverse})"
            )
        return any_of(clauses)

    return test


def _among(plain: str, values: Sequence[str]) -> str:
    if len(values) == 1:
        return f"{plain} == {literal(values[0])}"
    return f"{plain} in {items(values)}"


def _refuse_read_otherwise(value: str) -> None:
    """Refuse texts that membership operators read as a range or as JSON."""
    if not value or value[0] in "[{\"'0123456789-tfn" or re.search(r"\d-", value):
        raise NotRewritten(f"the value {value} of a condition")


def _listed(key: Stream, operator: str, value: Json, *, lenient: bool) -> str:
    """Return the test of a list of keys."""
    element = key.value
    if operator in _ORDER:
        test = _scalar_test(operator, value)(element.plain, element.kind, False)
        return key.quantified("exists", test, lenient=lenient)
    if operator not in MODES:
        raise NotRewritten(f"{operator} of a list")
    values = value if type(value) is list else [value]
    is_scalar = type(value) in (bool, int)
    if is_scalar and operator in ("AllIn", "AllNotIn"):
        raise NotRewritten(f"{operator} of a list and a {type(value).__name__}")
    if type(value) is str:
        _refuse_read_otherwise(value)
    inner = _is_in(values, is_list=True)
    if MODES[operator].negated:
        inner = _negated(inner)
    test = inner(element.plain, element.kind, element.is_name)
    if operator.startswith("Any"):
        return key.quantified("exists", test, lenient=lenient)
    every = key.quantified("all", test, lenient=lenient)
    outermost = key.loops[0].items
    if lenient and outermost.maybe and len(key.loops) == 1:
        # Without the list, the key is null, which no operator accepts.
        return all_of((present(outermost), every))
    return every


def _defaulted(inner: Value, constant: Json, operator: str, value: Json) -> str:
    """Return the test of a value with a default."""
    fallback = _verdict(constant, operator, value)
    if isinstance(inner, Typed) and inner.kind == "numeric":
        if type(constant) is not int:
            raise NotRewritten("a number with a default that is no number")
        return _scalar_test(operator, value)(
            inner.default(str(constant)), "numeric", False
        )
    if isinstance(inner, Typed) and inner.kind == "boolean":
        if constant is not False:
            raise NotRewritten("a condition with the default true")
        return _scalar_test(operator, value)(inner.default("false"), "boolean", False)
    if isinstance(inner, Typed) and inner.kind == "string":
        plain = inner.default("''")
        test = _scalar_test(operator, value)(plain, "string", inner.is_name)
        if _verdict("", operator, value) is fallback:
            return test
        if fallback:
            return any_of((f"{plain} == ''", test))
        return all_of((f"{plain} != ''", test))
    stream = inner if isinstance(inner, Stream) else None
    if isinstance(inner, Typed) and inner.kind == "list":
        stream = elements(inner)
    if stream is not None and operator in _EMPTY and constant == value == []:
        return _empty(stream, operator)
    if stream is None or operator not in MODES:
        raise NotRewritten(f"{operator} of a value of unknown type with a default")
    test = _lenient(stream, operator, value)
    if fallback is operator.startswith("All"):
        return test
    every = stream.quantified("all", "false", lenient=True)
    return any_of((every, test)) if fallback else all_of((f"!({every})", test))


def _empty(stream: Stream, operator: str) -> str:
    """Return the test whether a list, by default an empty one, is empty."""
    (loop, *others), value = stream.loops, stream.value
    if others or loop.filters or value.plain != loop.name:
        raise NotRewritten(f"{operator} of a projection")
    return f"size({loop.items.default('[]')}) {_EMPTY[operator]} 0"


def _lenient(stream: Stream, operator: str, value: Json) -> str:
    """Return the test of a list that has no elements if it is missing."""
    if operator.startswith("Any"):
        return _listed(stream, operator, value, lenient=True)
    inner = _is_in(value if type(value) is list else [value], is_list=True)
    if MODES[operator].negated:
        inner = _negated(inner)
    element = stream.value
    test = inner(element.plain, element.kind, element.is_name)
    return stream.quantified("all", test, lenient=True)


def _verdict(key: Json, operator: str, value: Json) -> bool:
    if operator in MODES:
        return is_member(MODES[operator], key, value)
    if operator in ("Equals", "NotEquals"):
        return equals(key, value) is (operator == "Equals")
    return False


def _members(key: Json, operator: str, value: Value) -> str:
    """Return the test whether constants are in the object's list."""
    keys = key if type(key) is list else [key]
    if isinstance(value, Typed) and value.kind == "list":
        stream, lenient = elements(value), False
    elif isinstance(value, Stream):
        stream, lenient = value, True
    elif isinstance(value, Default) and value.constant == []:
        return _members_of_default(keys, operator, value.value)
    elif isinstance(value, Typed) and value.is_name and value.kind == "string":
        test = _among(value.plain, keys)
        return f"!({test})" if "Not" in operator else test
    else:
        raise NotRewritten(f"{operator} with a value that is not constant")
    if not all(type(one) is str for one in keys):
        raise NotRewritten(f"{operator} of values that are no texts")
    whole = _membership(keys, operator, stream, lenient=lenient)
    if "Not" not in operator:
        return whole
    outermost = stream.loops[0].items
    negated = f"!({whole})"
    if lenient and outermost.maybe:
        return all_of((present(outermost), negated))
    return negated


def _membership(
    keys: Sequence[Json], operator: str, stream: Stream, *, lenient: bool
) -> str:
    """Return the test whether all, or for AnyIn and AllNotIn any, keys are elements."""
    element = stream.value
    groups = [keys] if operator in ("AnyIn", "AllNotIn") else [[one] for one in keys]
    tests = []
    for group in groups:
        test = _is_in(group, is_list=True)(element.plain, element.kind, element.is_name)
        tests.append(stream.quantified("exists", test, lenient=lenient))
    return all_of(tests)


def _members_of_default(keys: Sequence[Json], operator: str, inner: Value) -> str:
    """Return the test whether constants are in a list that can be missing."""
    if isinstance(inner, Typed) and inner.kind == "list":
        inner = elements(inner)
    if not isinstance(inner, Stream) or not all(type(one) is str for one in keys):
        raise NotRewritten(f"{operator} with a value that is not constant")
    whole = _membership(keys, operator, inner, lenient=True)
    return f"!({whole})" if "Not" in operator else whole

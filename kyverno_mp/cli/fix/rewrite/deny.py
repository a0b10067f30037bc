"""Rewrite deny conditions or preconditions as a CEL expression.

Room: cli. Takes: ``any`` and ``all`` with conditions. Gives: an expression that is true
if the conditions are met. Next: policy.py.
Source: docs/behaviour/engine 4.

Only comparisons with constant strings are rewritten, and only of the operation or of a
field with a default: without a default, a missing field is an error upstream.
"""

import re
from collections.abc import Iterable
from typing import Final

from kyverno_mp.cli.fix.rewrite.texts import (
    NotRewritten,
    all_of,
    any_of,
    items,
    literal,
)
from kyverno_mp.values.go.duration import parse_duration
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.quantity import parse_quantity
from kyverno_mp.values.wildcard import contains_wildcard

_KEY: Final = re.compile(
    r"\{\{\s*request\.object\.((?:[A-Za-z]\w*+)(?:\.[A-Za-z]\w*+)*+)\s*"
    r"\|\|\s*(?:'([^'{}\\]*)'|\"([^\"{}\\]*)\")\s*\}\}"
)
_OPERATION: Final = re.compile(
    r"\{\{\s*request\.operation\s*(?:\|\|\s*(?:'[A-Z]*'|\"[A-Z]*\")\s*)?\}\}"
)
_TESTS: Final = {
    "Equals": "x in {values}",
    "NotEquals": "!(x in {values})",
    "AnyIn": "{list}.exists(y, {is_in})",
    "AllIn": "{list}.all(y, {is_in})",
    "AnyNotIn": "type(x) != map && {list}.exists(y, !({is_in}))",
    "AllNotIn": "type(x) != map && {list}.all(y, !({is_in}))",
}
_LIST: Final = "(type(x) == list ? x : [x])"
_PATTERN: Final = (
    r"r'(?s)^\Q' + y.replace(r'\E', r'\E\\E\Q')"
    r".replace('*', r'\E.*\Q').replace('?', r'\E.\Q') + r'\E$'"
)
# KYVERNO: these operators also take wildcards from the object's own value.
_IS_IN: Final = (
    "y in {values} || (type(y) == string && y.matches('[*?]')"
    " && {values}.exists(v, v.matches(" + _PATTERN + ")))"
)
_EMPTY: Final = "y == '' || y == null || y == false || y == [] || y == {}"
"""Values for which ``||`` in JMESPath yields its right side."""


def conditions_expression(raw: Json, root: str) -> str:
    """Return an expression that tests conditions on ``root``. Raises: NotRewritten."""
    if type(raw) is not dict or not raw or set(raw) - {"any", "all"}:
        raise NotRewritten("conditions without any or all")
    clauses = []
    for mode, conditions in raw.items():
        if not conditions:
            raise NotRewritten(f"conditions with an empty {mode}")
        tests = [_test(condition, root) for condition in conditions]
        clauses.append(any_of(tests) if mode == "any" else all_of(tests))
    return all_of(clauses)


def _test(condition: Json, root: str) -> str:
    """Return an expression that tests one condition."""
    key, operator = condition.get("key"), condition.get("operator")
    if operator not in _TESTS:
        raise NotRewritten(f"operator {operator}")
    values = items(_constants(condition.get("value"), operator))
    if type(key) is str and _OPERATION.fullmatch(key):
        negated = "!" if "Not" in operator else ""
        return f"{negated}(request.operation in {values})"
    found = _KEY.fullmatch(key) if type(key) is str else None
    if found is None:
        raise NotRewritten(f"key {key} of a condition")
    default = found.group(2) if found.group(2) is not None else found.group(3)
    path, _, last = found.group(1).rpartition(".")
    place = _place(root, [*filter(None, path.split(".")), last], default)
    if parse_duration(default) is not None or _is_amount(default):
        raise NotRewritten(f"key {key} of a condition")
    test = _TESTS[operator].format(
        values=values, list=_LIST, is_in=_IS_IN.format(values=values)
    )
    return f"cel.bind(x, {place}, {test})"


def _place(root: str, keys: list[str], default: str) -> str:
    """Return an expression for the field, with the default as in JMESPath."""
    first, *others = keys
    chain = f"{root}.?{first}"
    for number, key in enumerate(others):
        # A list has no fields in JMESPath; in CEL, reading one is an error.
        is_map = number == 0 and first == "metadata"
        chain += (
            f".?{key}"
            if is_map
            else f".optFlatMap(z, type(z) == list ? optional.none() : z.?{key})"
        )
    given = f"{chain}.orValue('')"
    return f"cel.bind(y, {given}, ({_EMPTY}) ? {literal(default)} : y)"


def _constants(value: Json, operator: str) -> Iterable[str]:
    values = value if type(value) is list and "In" in operator else [value]
    for one in values:
        is_text = type(one) is str and "{{" not in one
        if not is_text or contains_wildcard(one) or _is_compared_otherwise(one):
            raise NotRewritten(f"value {one} of a condition")
    return values


def _is_compared_otherwise(text: str) -> bool:
    """Return whether the operators do not compare the value as a plain string."""
    return (
        not text
        or parse_duration(text) is not None
        or _is_amount(text)
        or text[0] in "[{\"'"
        or bool(re.search(r"\d-", text))
    )


def _is_amount(text: str) -> bool:
    return parse_quantity(text) is not None

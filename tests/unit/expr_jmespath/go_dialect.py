"""The ``jmespath`` library, adapted to Kyverno's fork where it differs.

An oracle for our parser and closures: the library parses and evaluates, and each method
here replaces one of the library's. A row of ``DIFFERENCES`` names the method and gives
the reason. test_standard.py checks both sides against the rows: the library must return
``standard``, and our code ``dialect``. All rows are facts of docs/behaviour/engine 3.5
and 9.1.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jmespath
from jmespath.functions import Functions, signature
from jmespath.visitor import Options, TreeInterpreter, _Expression

MISSING = "a missing key"
FAILED = "an error"


_takes: Callable[..., Callable[[Callable[..., Any]], Callable[..., Any]]] = signature


@dataclass(frozen=True)
class Difference:
    """A difference of the fork, shown by an expression on a document."""

    reason: str
    overrides: str
    expression: str
    document: Any
    standard: Any
    dialect: Any


class NotFound(Exception):
    """Raised when a map lacks the key."""


class _Lenient:
    """Visits a node for a parent that treats a missing key as null."""

    def __init__(self, interpreter: "GoInterpreter") -> None:
        self.visit = interpreter.lenient


class GoFunctions(Functions):  # type: ignore[misc] # the library is untyped
    @_takes({"types": ["array-number"]})
    def _func_avg(self, numbers: list[float]) -> float:
        return sum(numbers) / len(numbers) if numbers else math.nan

    @_takes({"types": ["array", "string"]}, {"types": []})
    def _func_contains(self, searched: Any, wanted: Any) -> bool:
        if isinstance(searched, str):
            return isinstance(wanted, str) and wanted in searched
        for item in searched:
            if type(item) is type(wanted) and isinstance(item, list | dict):
                raise TypeError("comparing uncomparable type")
            if equal(item, wanted):
                return True
        return False

    @_takes({"types": []})
    def _func_to_string(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        text = json.dumps(
            _whole(value),
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=False,
            allow_nan=False,
        )
        return text.translate({ord(c): f"\\u{ord(c):04x}" for c in "<>&"})

    @_takes({"types": []})
    def _func_to_number(self, value: Any) -> float | None:
        if isinstance(value, str):
            decimal = r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?"
            return float(value) if re.fullmatch(decimal, value, re.ASCII) else None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return value if is_number else None

    @_takes({"types": ["object"], "variadic": True})
    def _func_merge(self, *maps: Any) -> dict[str, Any]:
        if not all(isinstance(one, dict) for one in maps):
            raise TypeError("interface conversion")
        return {key: value for one in maps for key, value in one.items()}

    @_takes({"types": ["array"]}, {"types": ["expref"]})
    def _func_sort_by(self, items: list[Any], by: Any) -> Any:
        return items if len(items) < 2 else super()._func_sort_by(items, by)

    @_takes({"types": ["array"]}, {"types": ["expref"]})
    def _func_min_by(self, items: list[Any], by: Any) -> Any:
        return items[0] if len(items) == 1 else super()._func_min_by(items, by)

    @_takes({"types": ["array"]}, {"types": ["expref"]})
    def _func_max_by(self, items: list[Any], by: Any) -> Any:
        return items[0] if len(items) == 1 else super()._func_max_by(items, by)


class GoInterpreter(TreeInterpreter):  # type: ignore[misc] # the library is untyped
    def __init__(self) -> None:
        super().__init__(Options(custom_functions=GoFunctions()))

    def lenient(self, node: Any, value: Any) -> Any:
        try:
            return self.visit(node, value)
        except NotFound:
            return None

    def swallowed(self, node: Any, value: Any) -> Any:
        try:
            return self.visit(node, value)
        except ERRORS:
            return None

    def each(self, node: Any, items: Any) -> list[Any]:
        found = [self.lenient(node, item) for item in items]
        return [item for item in found if item is not None]

    def visit_field(self, node: Any, value: Any) -> Any:
        if isinstance(value, dict) and node["value"] not in value:
            raise NotFound(node["value"])
        return super().visit_field(node, value)

    def visit_comparator(self, node: Any, value: Any) -> Any:
        left, right = (self.lenient(child, value) for child in node["children"])
        if node["value"] in self._EQUALITY_OPS:
            return equal(left, right) is (node["value"] == "eq")
        if isinstance(left, str) or isinstance(right, str):
            return None
        literals = [{"type": "literal", "value": side} for side in (left, right)]
        return super().visit_comparator({**node, "children": literals}, None)

    def visit_expref(self, node: Any, _value: Any) -> Any:
        return _Expression(node["children"][0], _Lenient(self))

    def visit_function_expression(self, node: Any, value: Any) -> Any:
        arguments = [self.lenient(child, value) for child in node["children"]]
        return self._functions.call_function(node["value"], arguments)

    def visit_filter_projection(self, node: Any, value: Any) -> Any:
        source, body, condition = node["children"]
        items = self.swallowed(source, value)
        if not isinstance(items, list):
            return None
        collected = []
        for item in items:
            if self._is_true(self.lenient(condition, item)):
                collected += self.each(body, [item])
        return collected

    def visit_flatten(self, node: Any, value: Any) -> Any:
        literal = {
            "type": "literal",
            "value": self.swallowed(node["children"][0], value),
        }
        return super().visit_flatten({**node, "children": [literal]}, None)

    def visit_multi_select_dict(self, node: Any, value: Any) -> Any:
        if value is None:
            return None
        return {
            child["value"]: self.lenient(child["children"][0], value)
            for child in node["children"]
        }

    def visit_multi_select_list(self, node: Any, value: Any) -> Any:
        if value is None:
            return None
        return [self.lenient(child, value) for child in node["children"]]

    def visit_or_expression(self, node: Any, value: Any) -> Any:
        left, right = node["children"]
        matched = self.lenient(left, value)
        return self.lenient(right, value) if self._is_false(matched) else matched

    def visit_and_expression(self, node: Any, value: Any) -> Any:
        left, right = node["children"]
        matched = self.lenient(left, value)
        return matched if self._is_false(matched) else self.visit(right, value)

    def visit_not_expression(self, node: Any, value: Any) -> Any:
        return self._is_false(self.lenient(node["children"][0], value))

    def visit_pipe(self, node: Any, value: Any) -> Any:
        for child in node["children"]:
            value = self.lenient(child, value)
        return value

    def visit_projection(self, node: Any, value: Any) -> Any:
        items = self.lenient(node["children"][0], value)
        if not isinstance(items, list):
            return None
        return self.each(node["children"][1], items)

    def visit_value_projection(self, node: Any, value: Any) -> Any:
        found = self.swallowed(node["children"][0], value)
        if not isinstance(found, dict):
            return None
        nulls = [None] * len(found)
        return self.each(node["children"][1], [*nulls, *found.values()])


ERRORS = (
    NotFound,
    jmespath.exceptions.JMESPathError,
    TypeError,
    ValueError,
    AttributeError,
)
"""Errors of the library; the last three are Python errors that it does not catch."""


def equal(left: Any, right: Any) -> bool:
    """Return whether two JSON values are equal; 1 equals 1.0 but never true."""
    return bool(_tagged(left) == _tagged(right))


def _tagged(value: Any) -> Any:
    if isinstance(value, list):
        return [_tagged(item) for item in value]
    if isinstance(value, dict):
        return {key: _tagged(item) for key, item in value.items()}
    if isinstance(value, float) and math.isnan(value):
        return "not a number"
    return (type(value) is bool, value)


def _whole(value: Any) -> Any:
    """Turn floats without a fraction into ints, as Go prints them."""
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _outcome(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except NotFound:
        return MISSING
    except ERRORS:
        return FAILED


def standard(expression: str, document: Any) -> Any:
    """Evaluate with the unchanged library."""
    return _outcome(lambda: jmespath.search(expression, document))


def dialect(expression: str, document: Any) -> Any:
    """Evaluate with the library and the fork's differences."""
    parsed = jmespath.compile(expression).parsed
    return _outcome(lambda: GoInterpreter().visit(parsed, document))


def overrides() -> Iterator[str]:
    """Return the names of the replaced methods."""
    for owner in (GoFunctions, GoInterpreter):
        for name in vars(owner):
            if name.startswith(("visit_", "_func_")):
                yield name.removeprefix("visit_").removeprefix("_func_")


_SWALLOWS = "a missing key is an error, which this parent takes for null"
_ANY_ERROR = "any error of the left side counts as null"
_ONE = "of a single element the key is not looked at"

DIFFERENCES = (
    Difference("a missing key is an error", "field", "a.m", {"a": {}}, None, MISSING),
    Difference(
        "it passes through calls that are never made",
        "field",
        "m.length(@)",
        {},
        FAILED,
        MISSING,
    ),
    Difference(
        "an empty list is no object, in no place",
        "merge",
        "merge({k: @}, @)",
        [],
        {"k": []},
        FAILED,
    ),
    Difference(
        "texts have no order",
        "comparator",
        "'a' < 'b'",
        None,
        True,
        None,
    ),
    Difference(
        "numbers and booleans differ at any depth",
        "comparator",
        "[`1`] == [`true`]",
        {},
        True,
        False,
    ),
    Difference(_ANY_ERROR, "filter_projection", "abs('x')[?a]", {}, FAILED, None),
    Difference(_ANY_ERROR, "flatten", "abs('x')[]", {}, FAILED, None),
    Difference(_ANY_ERROR, "value_projection", "abs('x').*", {}, FAILED, None),
    Difference(
        "the values come after as many nulls",
        "value_projection",
        "*.not_null(@, 'x')",
        {"a": 1},
        [1],
        ["x", 1],
    ),
    Difference("the mean of nothing is NaN", "avg", "avg(@)", [], None, math.nan),
    Difference(
        "containers cannot be compared with each other",
        "contains",
        "contains(@, `[]`)",
        [[]],
        True,
        FAILED,
    ),
    Difference(
        "a text contains only texts",
        "contains",
        "contains('1', `1`)",
        {},
        FAILED,
        False,
    ),
    Difference(
        "numbers are no booleans",
        "contains",
        "contains(@, `true`)",
        [1],
        True,
        False,
    ),
    Difference(
        "JSON as Go writes it: keys sorted, no fraction, HTML escaped",
        "to_string",
        "to_string(@)",
        {"b": 1.0, "a": "<"},
        '{"b":1.0,"a":"<"}',
        '{"a":"\\u003c","b":1}',
    ),
    Difference(
        "numbers as Go reads them", "to_number", "to_number(' 1_0 ')", {}, 10, None
    ),
    Difference(_ONE, "sort_by", "sort_by(@, &a)", [{"a": []}], FAILED, [{"a": []}]),
    Difference(_ONE, "min_by", "min_by(@, &a)", [{"a": []}], FAILED, {"a": []}),
    Difference(_ONE, "max_by", "max_by(@, &a)", [{"a": []}], FAILED, {"a": []}),
)

SWALLOWED = {
    "comparator": "m == `null`",
    "expref": "map(&m, [@])",
    "function_expression": "not_null(m)",
    "filter_projection": "[@][?m]",
    "flatten": "m[]",
    "multi_select_dict": "{a: m}",
    "multi_select_list": "[m]",
    "or_expression": "m || n",
    "and_expression": "m && n",
    "not_expression": "!m",
    "pipe": "m | n",
    "projection": "[@][*].m",
    "value_projection": "m.*",
}
"""Cases in which a missing key is null in the standard and an error in the fork."""

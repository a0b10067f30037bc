"""Implement the functions that exist only in assertion trees.

Room: expr.assertion. Takes: Runtime and checked arguments. Gives: rows for calls.
Next: calls.
Source: github.com/jmespath-community/go-jmespath, functions.go; kyverno-json
pkg/engine/template/functions (at, concat, json_parse, wildcard).
"""

import math
from typing import Final

from kyverno_mp.expr.jmespath.functions.encoding import parse_json_text
from kyverno_mp.expr.jmespath.functions.entry import (
    ANY,
    ARRAY,
    NUMBER,
    REFERENCE,
    STRING,
    FunctionEntry,
    Kinds,
)
from kyverno_mp.expr.jmespath.functions.text import trim
from kyverno_mp.expr.jmespath.interim import GoInt, Reference, fail
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.values.effort import search_steps, width_of
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.wildcard import matches

_ARRAYS: Final[Kinds] = ("array[array]",)
_PAIR: Final = 2
_LIST_BYTES: Final = 64


def _integer(function: str, argument: str, value: float, *, positive: bool) -> int:
    if math.isfinite(value) and value.is_integer() and not (positive and value < 0):
        return int(value)
    kind = "an integer"
    if positive:
        kind = "a an integer value greater than or equal to zero"
    raise fail(
        f"invalid value, the function '{function}' expects its '{argument}' "
        f"argument to be {kind}."
    )


def _find(
    runtime: Runtime, function: str, places: tuple[Json, ...], *, last: bool
) -> Json:
    for string in places[:2]:
        runtime.charge_made(2 * len(string), string)
    runtime.charge(4 * search_steps(places[1], places[0]))
    # Go counts bytes, so the search uses UTF-8.
    subject, part = (string.encode() for string in places[:2])
    if not subject or not part:
        return None
    start, end = 0, len(subject)
    if len(places) > 2:  # noqa: PLR2004 - subject, part, start
        start = max(0, _integer(function, "start", places[2], positive=False))
    if len(places) > 3:  # noqa: PLR2004 - subject, part, start, end
        end = min(_integer(function, "end", places[3], positive=False), end)
    if start > end:
        raise fail(f"slice bounds out of range [{start}:{end}]")
    window = subject[start:end]
    offset = window.rfind(part) if last else window.find(part)
    return None if offset < 0 else float(start + offset)


def _find_first(runtime: Runtime, *places: Json) -> Json:
    return _find(runtime, "find_first", places, last=False)


def _find_last(runtime: Runtime, *places: Json) -> Json:
    return _find(runtime, "find_last", places, last=True)


def _pad(runtime: Runtime, function: str, arguments: tuple[Json, ...]) -> str:
    """Return the padding of a string; as in Go, widths are in bytes."""
    string, width, char = (*arguments, " ")[:3]
    count = _integer(function, "width", width, positive=True)
    runtime.charge_made(4 * len(string), string)
    runtime.charge_read(char)
    if len(char.encode()) > 1:
        raise fail(
            f"invalid value, the function '{function}' expects its 'pad' argument to "
            "be a string of length 1"
        )
    missing = max(0, count - len(string.encode()))
    runtime.charge_made(2 * missing, string)
    return str(char * missing)


def _pad_left(runtime: Runtime, *arguments: Json) -> Json:
    return _pad(runtime, "pad_left", arguments) + arguments[0]


def _pad_right(runtime: Runtime, *arguments: Json) -> Json:
    return arguments[0] + _pad(runtime, "pad_right", arguments)


def _trim_left(runtime: Runtime, string: str, cutset: str = "") -> Json:
    if cutset:
        return trim(runtime, string, cutset, left=True, right=False)
    runtime.charge_made(len(string), string)
    return string.lstrip()


def _trim_right(runtime: Runtime, string: str, cutset: str = "") -> Json:
    if cutset:
        return trim(runtime, string, cutset, left=False, right=True)
    runtime.charge_made(len(string), string)
    return string.rstrip()


def _lower(runtime: Runtime, string: str) -> Json:
    runtime.charge_made(3 * len(string), string)
    runtime.charge(0 if string.isascii() else len(string) // 8)
    return string.lower()


def _upper(runtime: Runtime, string: str) -> Json:
    runtime.charge_made(3 * len(string), string)
    runtime.charge(0 if string.isascii() else len(string) // 8)
    return string.upper()


def _from_items(runtime: Runtime, pairs: list[Json]) -> Json:
    runtime.charge_entries(len(pairs))
    if not all(type(pair) is list for pair in pairs):
        raise fail("invalid type, first argument must be an array of arrays")
    if not all(len(pair) == _PAIR and type(pair[0]) is str for pair in pairs):
        raise fail(
            "invalid value, each array must contain two elements, a pair of string "
            "and value"
        )
    return dict(pairs)


def _group_by(runtime: Runtime, items: list[Json], key: Reference) -> Json:
    if not items:
        return None
    runtime.charge_entries(2 * len(items))
    groups: dict[str, Json] = {}
    for item in items:
        name = key.closure(runtime, item)
        if type(name) is not str:
            raise fail("invalid type, the expression must evaluate to a string")
        groups.setdefault(name, []).append(item)
    return groups


def _zip(runtime: Runtime, *lists: list[Json]) -> Json:
    runtime.charge_items(2 * sum(map(len, lists)))
    runtime.charge_bytes(min(map(len, lists), default=0) * _LIST_BYTES)
    return [list(row) for row in zip(*lists, strict=False)]


def _at(_runtime: Runtime, items: list[Json], index: Json) -> Json:
    if type(items) is not list:
        raise fail("invalid type, first argument must be an array")
    # KYVERNO: only a Go int, as bound by ``~i.``, is a valid index here, not a literal.
    if type(index) is not GoInt:
        raise fail("invalid type, second argument must be an int")
    if not 0 <= index < len(items):
        raise fail(
            f"runtime error: index out of range [{index}] with length {len(items)}"
        )
    return items[index]


def _concat(runtime: Runtime, left: str, right: str) -> Json:
    runtime.charge_made(len(left) + len(right), max(left, right, key=width_of))
    return left + right


def _wildcard(runtime: Runtime, pattern: str, name: str) -> Json:
    return matches(pattern, name, runtime.charge)


FUNCTIONS: Final[tuple[tuple[FunctionEntry, int], ...]] = (
    (FunctionEntry("find_first", (STRING, STRING, NUMBER, NUMBER), _find_first), 2),
    (FunctionEntry("find_last", (STRING, STRING, NUMBER, NUMBER), _find_last), 2),
    (FunctionEntry("from_items", (_ARRAYS,), _from_items), 0),
    (FunctionEntry("group_by", (ARRAY, REFERENCE), _group_by), 0),
    (FunctionEntry("lower", (STRING,), _lower), 0),
    (FunctionEntry("upper", (STRING,), _upper), 0),
    (FunctionEntry("pad_left", (STRING, NUMBER, STRING), _pad_left), 1),
    (FunctionEntry("pad_right", (STRING, NUMBER, STRING), _pad_right), 1),
    (FunctionEntry("trim_left", (STRING, STRING), _trim_left), 1),
    (FunctionEntry("trim_right", (STRING, STRING), _trim_right), 1),
    (FunctionEntry("zip", (ARRAY, ARRAY), _zip, variadic=True), 0),
    (FunctionEntry("at", (ARRAY, ANY), _at), 0),
    (FunctionEntry("concat", (STRING, STRING), _concat), 0),
    (FunctionEntry("json_parse", (STRING,), parse_json_text), 0),
    (FunctionEntry("wildcard", (STRING, STRING), _wildcard), 0),
)
"""The functions, each with the number of its optional last arguments."""

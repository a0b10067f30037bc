"""Offer the functions of kyverno-json: community edition, its own, and Kyverno's.

Room: expr. Takes: Runtime and checked arguments. Gives: COMMUNITY. Next: community.py.
May touch: nothing outside its arguments.
Source: spec/engine.md 6.7; JMESPath community functions. Kyverno's replace the others.
"""

from collections.abc import Mapping
from typing import Final

from kyverno_mp.expr.jmespath.functions.calls import KYVERNO
from kyverno_mp.expr.jmespath.functions.encoding import parse_json_text
from kyverno_mp.expr.jmespath.functions.entry import (
    ANY,
    ARRAY,
    NUMBER,
    REFERENCE,
    STRING,
    FunctionEntry,
    expect_list,
)
from kyverno_mp.expr.jmespath.functions.text import lower, upper
from kyverno_mp.expr.jmespath.interim import GoInt, Reference, fail
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.wildcard import matches

_SPACES: Final = None
"""No cut set: all white space."""


def _at(runtime: Runtime, values: Json, index: Json) -> Json:
    items = expect_list(runtime, values)
    if type(index) is not GoInt:
        raise fail("invalid type, second argument must be an int")
    if not 0 <= index < len(items):
        raise fail(
            f"runtime error: index out of range [{int(index)}] with length {len(items)}"
        )
    return items[index]


def _concat(runtime: Runtime, left: str, right: str) -> Json:
    runtime.charge_bytes(len(left) + len(right))
    return left + right


def _wildcard(runtime: Runtime, pattern: str, name: str) -> Json:
    runtime.charge(1 + len(pattern) * len(name) // 4096)
    return matches(pattern, name)


def _whole(function: str, argument: str, value: float) -> int:
    if value != int(value):
        raise fail(
            f"invalid value, the function '{function}' expects its '{argument}' "
            "argument to be an integer."
        )
    return int(value)


def _find_first(
    _runtime: Runtime,
    text: str,
    wanted: str,
    start: float = 0,
    end: float | None = None,
) -> Json:
    if not text or not wanted:
        return None
    low, high = _bounds("find_first", text, start, end)
    found = text.find(wanted, low, high)
    return None if found < 0 else float(found)


def _find_last(
    _runtime: Runtime,
    text: str,
    wanted: str,
    start: float = 0,
    end: float | None = None,
) -> Json:
    if not text or not wanted:
        return None
    low, high = _bounds("find_last", text, start, end)
    found = text.rfind(wanted, low, high)
    return None if found < 0 else float(found)


def _bounds(
    function: str, text: str, start: float, end: float | None
) -> tuple[int, int]:
    low = _whole(function, "start", start)
    high = len(text) if end is None else _whole(function, "end", end)
    return max(low, 0), min(high, len(text))


def _from_items(runtime: Runtime, values: Json) -> Json:
    items = expect_list(runtime, values)
    runtime.charge(len(items))
    built: dict[str, Json] = {}
    for item in items:
        if type(item) is not list or len(item) != 2 or type(item[0]) is not str:  # noqa: PLR2004 - a pair
            raise fail("invalid value, each array must contain two elements - a pair")
        built[item[0]] = item[1]
    return built


def _group_by(runtime: Runtime, values: Json, reference: Reference) -> Json:
    items = expect_list(runtime, values)
    runtime.charge(len(items))
    groups: dict[str, list[Json]] = {}
    for item in items:
        key = reference.closure(runtime, item)
        if key is None:
            continue
        if type(key) is not str:
            raise fail("invalid type, the expression must evaluate to a string")
        groups.setdefault(key, []).append(item)
    return groups or None


def _lower(_runtime: Runtime, text: str) -> Json:
    return lower(text)


def _upper(_runtime: Runtime, text: str) -> Json:
    return upper(text)


def _pad_left(runtime: Runtime, text: str, width: float, pad: str = " ") -> Json:
    return _padding(runtime, "pad_left", text, width, pad) + text


def _pad_right(runtime: Runtime, text: str, width: float, pad: str = " ") -> Json:
    return text + _padding(runtime, "pad_right", text, width, pad)


def _padding(runtime: Runtime, function: str, text: str, width: float, pad: str) -> str:
    size = _whole(function, "width", width)
    if size < 0:
        raise fail(
            f"invalid value, the function '{function}' expects its 'width' argument "
            "to be a an integer value greater than or equal to zero."
        )
    if len(pad) != 1:
        raise fail(
            f"invalid value, the function '{function}' expects its 'pad' argument to "
            "be a string of length 1"
        )
    runtime.charge_bytes(max(size, len(text)))
    return pad * (size - len(text))


def _trim_left(_runtime: Runtime, text: str, characters: str = "") -> Json:
    return text.lstrip(characters or _SPACES)


def _trim_right(_runtime: Runtime, text: str, characters: str = "") -> Json:
    return text.rstrip(characters or _SPACES)


def _zip(runtime: Runtime, *values: Json) -> Json:
    lists = [expect_list(runtime, value) for value in values]
    count = min(map(len, lists))
    runtime.charge(count * len(lists))
    return [list(items) for items in zip(*(one[:count] for one in lists), strict=True)]


_RANGE: Final = (STRING, STRING, NUMBER, NUMBER)
_OWN: Final = (
    FunctionEntry("find_first", _RANGE, _find_first, optional=2),
    FunctionEntry("find_last", _RANGE, _find_last, optional=2),
    FunctionEntry("from_items", (ARRAY,), _from_items),
    FunctionEntry("group_by", (ARRAY, REFERENCE), _group_by),
    FunctionEntry("lower", (STRING,), _lower),
    FunctionEntry("upper", (STRING,), _upper),
    FunctionEntry("pad_left", (STRING, NUMBER, STRING), _pad_left, optional=1),
    FunctionEntry("pad_right", (STRING, NUMBER, STRING), _pad_right, optional=1),
    FunctionEntry("trim_left", (STRING, STRING), _trim_left, optional=1),
    FunctionEntry("trim_right", (STRING, STRING), _trim_right, optional=1),
    FunctionEntry("zip", (ARRAY,), _zip, variadic=True),
    FunctionEntry("at", (ARRAY, ANY), _at),
    FunctionEntry("concat", (STRING, STRING), _concat),
    FunctionEntry("json_parse", (STRING,), parse_json_text),
    FunctionEntry("wildcard", (STRING, STRING), _wildcard),
)
COMMUNITY: Final[Mapping[str, FunctionEntry]] = {
    **{entry.name: entry for entry in _OWN},
    **KYVERNO,
}

"""Implement functions that search, sort and map lists.

Room: expr. Takes: Runtime and checked arguments. Gives: function rows. Next: calls.py.
May touch: nothing outside its arguments; lists are never changed in place.
Source: docs/behaviour/engine 9.1.
"""

from collections.abc import Callable
from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.jmespath.functions.entry import (
    ANY,
    ARRAY,
    NUMBERS,
    REFERENCE,
    STRING,
    STRINGS,
    FunctionEntry,
    expect_list,
    same_scalar,
)
from kyverno_mp.expr.jmespath.functions.sorting import (
    charge_comparisons,
    charge_sorting,
)
from kyverno_mp.expr.jmespath.interim import Closure, Reference, as_number, fail
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.values.effort import (
    CHARACTERS_PER_STEP,
    TEXT_LIGHT_MAX,
    search_steps,
    width_of,
)
from kyverno_mp.values.go.gotext import replaced_bytes
from kyverno_mp.values.jsonvalue import Json


def _contains(runtime: Runtime, searched: Json, sought: Json) -> Json:
    if type(searched) is str:
        if type(sought) is not str:
            return False
        runtime.charge(search_steps(sought, searched))
        return sought in searched
    items = expect_list(runtime, searched)
    runtime.charge(len(items))
    if type(sought) is str:
        if len(sought) > TEXT_LIGHT_MAX:
            # Comparing with an item may read this many characters.
            _charge_texts(runtime, [i for i in items if type(i) is str], len(sought))
        return sought in items
    return any(same_scalar(runtime, item, sought) for item in items)


def _join(runtime: Runtime, separator: str, strings: list[str]) -> Json:
    if strings:
        runtime.charge(len(strings))
        size = sum(map(len, strings)) + len(separator) * (len(strings) - 1)
        widest = max(width_of(separator), *map(width_of, strings))
        runtime.charge(size // CHARACTERS_PER_STEP)
        runtime.charge_bytes(size * widest)
    return separator.join(strings)


def _length(_runtime: Runtime, value: Json) -> Json:
    return float(len(value))


def _map(runtime: Runtime, reference: Reference, values: Json) -> Json:
    items = expect_list(runtime, values)
    runtime.charge_items(len(items))
    closure = reference.closure
    return [closure(runtime, item) for item in items]


def _max(runtime: Runtime, values: list[Json]) -> Json:
    charge_comparisons(runtime, values, 1)
    return max(values) if values else None


def _min(runtime: Runtime, values: list[Json]) -> Json:
    charge_comparisons(runtime, values, 1)
    return min(values) if values else None


def _max_by(runtime: Runtime, values: Json, reference: Reference) -> Json:
    return _best_by(runtime, values, reference.closure, max)


def _min_by(runtime: Runtime, values: Json, reference: Reference) -> Json:
    return _best_by(runtime, values, reference.closure, min)


def _best_by(
    runtime: Runtime, values: Json, closure: Closure, choose: Callable[..., Json]
) -> Json:
    items = expect_list(runtime, values)
    if len(items) <= 1:
        return items[0] if items else None
    runtime.charge_items(4 * len(items))
    keys = [_key(runtime, closure(runtime, items[0]))]
    kind = _key_kind(keys[0])
    for item in items[1:]:
        key = _key(runtime, closure(runtime, item))
        if type(key) is not kind:
            word = "string" if kind is str else "number"
            raise fail(f"invalid type, must be {word}")
        keys.append(key)
    charge_comparisons(runtime, keys, 1)
    return items[choose(range(len(items)), key=keys.__getitem__)]


def _key(runtime: Runtime, value: Json) -> Json:
    number = as_number(runtime, value)
    return value if number is None else number


def _key_kind(key: Json) -> type:
    if type(key) not in (float, str):
        raise fail("invalid type, must be number of string")
    return type(key)


def _reverse(runtime: Runtime, value: Json) -> Json:
    if type(value) is str:
        runtime.charge_made(len(value), value)
        # GO: functions that process a string by runes replace bytes that are not UTF-8.
        return replaced_bytes(value[::-1]) if runtime.keeps_bytes else value[::-1]
    items = expect_list(runtime, value)
    runtime.charge_items(len(items))
    return items[::-1]


def _sort(runtime: Runtime, values: list[Json]) -> Json:
    runtime.charge_items(len(values))
    charge_sorting(runtime, values)
    return sorted(values)


def _sort_by(runtime: Runtime, values: Json, reference: Reference) -> Json:
    """Sort a copy.

    Upstream sorts its argument in place; here the request is shared, so this side
    effect is not reproduced.
    """
    items = expect_list(runtime, values)
    if len(items) <= 1:
        return items
    runtime.charge_items(5 * len(items))
    closure = reference.closure
    keys = [_key(runtime, closure(runtime, items[0]))]
    kind = _key_kind(keys[0])
    for item in items[1:]:
        # KYVERNO: 9.1 - upstream hides the error of a later element.
        try:
            key = _key(runtime, closure(runtime, item))
        except ExpressionFailed:
            key = None
        if type(key) is not kind:
            raise fail("error in sort_by comparison")
        keys.append(key)
    charge_sorting(runtime, keys)
    return [items[index] for index in sorted(range(len(items)), key=keys.__getitem__)]


def _charge_texts(runtime: Runtime, strings: list[str], most: int) -> None:
    """Charge for reading each string, up to ``most`` characters."""
    length = sum(min(len(string), most) for string in strings)
    runtime.charge(length // CHARACTERS_PER_STEP)


def _to_array(_runtime: Runtime, value: Json) -> Json:
    return value if type(value) is list else [value]


def _not_null(_runtime: Runtime, *values: Json) -> Json:
    return next((value for value in values if value is not None), None)


STANDARD: Final = (
    FunctionEntry("contains", (("array", "string"), ANY), _contains),
    FunctionEntry("join", (STRING, STRINGS), _join),
    FunctionEntry("length", (("string", "array", "object"),), _length),
    FunctionEntry("map", (REFERENCE, ARRAY), _map),
    FunctionEntry("max", ((*NUMBERS, *STRINGS),), _max),
    FunctionEntry("max_by", (ARRAY, REFERENCE), _max_by),
    FunctionEntry("min", ((*NUMBERS, *STRINGS),), _min),
    FunctionEntry("min_by", (ARRAY, REFERENCE), _min_by),
    FunctionEntry("not_null", (ANY,), _not_null, variadic=True),
    FunctionEntry("reverse", (("array", "string"),), _reverse),
    FunctionEntry("sort", ((*STRINGS, *NUMBERS),), _sort),
    FunctionEntry("sort_by", (ARRAY, REFERENCE), _sort_by),
    FunctionEntry("to_array", (ANY,), _to_array),
)
FUNCTIONS: Final[tuple[FunctionEntry, ...]] = ()

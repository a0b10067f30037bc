"""Implement functions that query and build objects, and type functions.

Room: expr. Takes: Runtime and checked arguments. Gives: function rows. Next: calls.py.
Source: docs/behaviour/engine 9.1, 9.2.
"""

import math
from typing import Any, Final

from kyverno_mp.expr.jmespath.functions.entry import (
    ANY,
    ARRAY,
    BOOL,
    OBJECT,
    STRING,
    TEXTUAL,
    FunctionEntry,
    conversion_panic,
    function_error,
)
from kyverno_mp.expr.jmespath.functions.sorting import charge_sorting
from kyverno_mp.expr.jmespath.interim import GoInt, GoSlice, as_number, equal, fail
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.values.go.gotext import float32_plain, float_g
from kyverno_mp.values.jsonvalue import Json

_SMALL_MAP_BYTES: Final = 184
_NUMBER_STEPS: Final = 8
_NUMBER_BYTES: Final = 24
_INT64_END: Final = 9.223372036854775807e18


def text_of(runtime: Runtime, value: Json) -> str | None:
    """Return the text of a scalar for functions with ``string|number`` arguments.

    KYVERNO: 9.2 - numbers are printed as 32-bit floats without an exponent.
    """
    kind = type(value)
    if kind is str:
        return str(value)
    if kind is bool:
        return "true" if value else "false"
    runtime.charge(_NUMBER_STEPS)
    if kind is GoInt:
        return str(int(value))
    number = as_number(runtime, value)
    return None if number is None else float32_plain(number)


def _keys(runtime: Runtime, value: dict[str, Json]) -> Json:
    runtime.charge_items(len(value))
    return list(value)


def _values(runtime: Runtime, value: dict[str, Json]) -> Json:
    runtime.charge_items(len(value))
    return list(value.values())


def _merge(runtime: Runtime, *values: Any) -> Json:
    merged: dict[str, Json] = {}
    for value in values:
        if type(value) is not dict:
            raise conversion_panic(runtime, value, "map[string]interface {}")
        runtime.charge_entries(len(value))
        merged.update(value)
    return merged


def _type(runtime: Runtime, value: Json) -> Json:
    name = _TYPES.get(type(value))
    if name is not None:
        return name
    if type(value) is int and runtime.ints_are_numbers:
        return "number"
    raise fail("unknown type")


_TYPES: Final = {
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
    bool: "boolean",
}


def _items(runtime: Runtime, value: Json, key_name: str, value_name: str) -> Json:
    runtime.charge_read(key_name, value_name)
    if type(value) is dict:
        _charge_items(runtime, len(value))
        charge_sorting(runtime, list(value))
        return GoSlice({key_name: key, value_name: value[key]} for key in sorted(value))
    if type(value) is list:
        _charge_items(runtime, len(value))
        return GoSlice(
            {key_name: float(index), value_name: item}
            for index, item in enumerate(value)
        )
    raise function_error("items", "argument #1 is not of type Object or Array")


def _charge_items(runtime: Runtime, count: int) -> None:
    """Charge a list of maps, each with two entries and a number."""
    runtime.charge_items(2 * count)
    runtime.charge_bytes(count * (_SMALL_MAP_BYTES + _NUMBER_BYTES))


def _label_match(runtime: Runtime, selector: Json, labels: Json) -> Json:
    runtime.charge(2 * len(selector))
    return all(
        key in labels and equal(runtime, labels[key], value)
        for key, value in selector.items()
    )


def _lookup(runtime: Runtime, value: Json, key: Json) -> Json:
    if type(value) is dict:
        if type(key) is not str:
            raise function_error("lookup", "argument #2 is not of type String")
        return value.get(key)
    if type(value) is list:
        number = as_number(runtime, key)
        if number is None:
            raise function_error("lookup", "argument #2 is not of type Number")
        index = _index(number)
        return value[index] if 0 <= index < len(value) else None
    raise function_error("lookup", "argument #1 is not of type Object or Array")


def _index(number: float) -> int:
    if not math.isfinite(number) or not number.is_integer():
        message = f"expected an integer number but got: {float_g(number)}"
    elif abs(number) >= _INT64_END:
        message = f"number is outside the range of integer numbers: {float_g(number)}"
    else:
        return int(number)
    raise function_error("lookup", f"argument #2: {message}")


def _object_from_lists(runtime: Runtime, keys: Json, values: Json) -> Json:
    for index, argument in enumerate((keys, values)):
        if type(argument) is not list:
            raise function_error(
                "object_from_lists", f"argument #{index + 1} is not of type Array"
            )
    runtime.charge_entries(2 * len(keys))
    built: dict[str, Json] = {}
    for index, key in enumerate(keys):
        name = text_of(runtime, key)
        if name is None:
            raise function_error(
                "object_from_lists", "argument #1 is not of type StringArray"
            )
        built[name] = values[index] if index < len(values) else None
    return built


STANDARD: Final = (
    FunctionEntry("keys", (OBJECT,), _keys),
    FunctionEntry("merge", (OBJECT,), _merge, variadic=True),
    FunctionEntry("type", (ANY,), _type),
    FunctionEntry("values", (OBJECT,), _values),
)
FUNCTIONS: Final = (
    FunctionEntry(
        "label_match",
        (OBJECT, OBJECT),
        _label_match,
        BOOL,
        "object arguments must be enclosed in backticks; ex. "
        "`{{request.object.spec.template.metadata.labels}}`",
    ),
    FunctionEntry(
        "lookup",
        (("object", "array"), TEXTUAL),
        _lookup,
        ANY,
        "returns the value corresponding to the given key/index in the given "
        "object/array",
    ),
    FunctionEntry(
        "items",
        (("object", "array"), STRING, STRING),
        _items,
        ARRAY,
        "converts a map or array to an array of objects where each key:value is an "
        "item in the array",
    ),
    FunctionEntry(
        "object_from_lists",
        (ARRAY, ARRAY),
        _object_from_lists,
        OBJECT,
        "converts a pair of lists containing keys and values to an object",
    ),
)

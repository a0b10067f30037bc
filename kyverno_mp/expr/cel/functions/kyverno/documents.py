"""Implement functions for JSON and YAML text.

Room: expr. Takes: Meter and values. Gives: OVERLOADS, JSON, YAML (the values of the
variables ``json`` and ``yaml``), json_data, protobuf_data. Next: expr/cel/catalogue.py.
Source: kyverno/sdk cel/libs/json, cel/libs/yaml; docs/behaviour/cel 12.
"""

from base64 import b64encode
from collections.abc import Callable
from math import isfinite, isnan
from typing import Final

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed
from kyverno_mp.expr.cel.functions.times import (
    duration_seconds_text,
    timestamp_text,
)
from kyverno_mp.expr.cel.library import member
from kyverno_mp.expr.cel.values import (
    CelFailed,
    Duration,
    Meter,
    Optional,
    Timestamp,
    TypeValue,
    Uint,
    Value,
    type_name,
)
from kyverno_mp.limits import CEL_VALUE_DEPTH_MAX, DECODED_CHARACTERS_MAX
from kyverno_mp.values.effort import width_of
from kyverno_mp.values.go.gojson import JsonInvalid, decode_json, decoded_bytes
from kyverno_mp.values.go.gotext import json_text
from kyverno_mp.values.kubernetes.quantity import Quantity

_COST: Final = 60
_YAML_COST: Final = 2_000
_YAML_NODE_COST: Final = 80
_UNITS_PER_STEP: Final = 10
_PIECE_COST: Final = 8
_ITEM_COST: Final = 10
_EXACT_MAX: Final = 2**53 - 1
_SCALARS: Final = frozenset({type(None), bool, int, float, str})


class JsonTexts:
    """The value of the variable ``json``."""

    __slots__ = ()
    type_name = "json.Json"


class YamlTexts:
    """The value of the variable ``yaml``."""

    __slots__ = ()
    type_name = "yaml.Yaml"


JSON: Final = JsonTexts()
YAML: Final = YamlTexts()


def _charges(meter: Meter, units: int) -> Callable[[int], None]:
    return lambda steps: meter.charge(units * steps)


def no_text(value: Value) -> CelFailed:
    """Return the error for a value that is not a string, worded for its type."""
    kind = value.__class__
    if kind is int or kind is Uint:
        named = type_name(value)
        return CelFailed(f"unsupported type conversion from '{named}' to string")
    if kind is Optional:
        return CelFailed("optional.none() dereference")
    named = _NO_TEXT.get(kind) or f"'{type_name(value)}'"
    return CelFailed(f"type conversion error from {named} to 'string'")


_NO_TEXT: Final[dict[type, str]] = {
    bool: "bool",
    float: "Double",
    bytes: "Bytes",
    list: "list",
    dict: "map",
    Duration: "'Duration'",
    Timestamp: "'Timestamp'",
}


def _text_of(value: Value) -> str:
    if value.__class__ is not str:
        raise no_text(value)
    string: str = value
    if len(string) > DECODED_CHARACTERS_MAX:
        raise BudgetExceeded("cel.decoded", "text is too long to be decoded")
    return string


def unmarshal(meter: Meter, _json: JsonTexts, value: Value) -> Value:
    """Decode JSON; every number is a double."""
    json_text = _text_of(value)
    meter.charge(len(json_text))
    meter.hold(decoded_bytes(json_text))
    try:
        return decode_json(json_text, _charges(meter, _UNITS_PER_STEP))
    except JsonInvalid as error:
        raise CelFailed(str(error)) from error


def _marshal(meter: Meter, _json: JsonTexts, value: Value) -> str:
    """Print a value with sorted keys and escaped HTML."""
    return printed(meter, json_data(meter, _plain(value)))


def _plain(value: Value) -> Value:
    """Return the Go value of a value whose type JSON does not have.

    KYVERNO: at the top level, null is a protobuf enum in upstream and prints as 0.
    Inside an object it prints as null.
    """
    kind = value.__class__
    if value is None:
        return 0
    if kind is Optional:
        # An empty optional is a real null, not the protobuf enum.
        return _plain(value.value) if value.present else None
    if kind is Duration:
        return value.ns
    if kind is Timestamp:
        return timestamp_text(value)
    if kind is bytes:
        return b64encode(value).decode()
    if kind is TypeValue:
        return value.name
    if kind is Quantity:
        return value.text()
    return value


def printed(meter: Meter, value: Value) -> str:
    """Return JSON data as text. Raises: CelFailed."""
    try:
        return json_text(
            value, charge=meter.charge_bytes, visit=_charges(meter, _PIECE_COST)
        )
    except ExpressionFailed as error:
        raise CelFailed(error.message) from error


def _native(meter: Meter, value: Value, depth: int) -> Value:
    """Return the value as JSON data; ``depth``: the remaining nesting depth."""
    kind = value.__class__
    if kind in _SCALARS:
        return value
    if kind is Optional:
        # An empty optional is null at the top level; inside a container it is an error.
        if not value.present and depth < CEL_VALUE_DEPTH_MAX:
            raise CelFailed("optional.none() dereference")
        return _native(meter, value.value, depth) if value.present else None
    if kind in _PRINTED:
        return _PRINTED[kind](meter, value)
    if not depth:
        raise CelFailed(f"nested deeper than {CEL_VALUE_DEPTH_MAX} levels")
    if kind is list:
        meter.charge(_ITEM_COST * len(value))
        meter.charge_bytes(80 + 40 * len(value))
        return [_native(meter, item, depth - 1) for item in value]
    if kind is not dict:
        raise CelFailed(f"json: unsupported type: {type_name(value)}")
    meter.charge(2 * _ITEM_COST * len(value))
    meter.charge_bytes(80 + 140 * len(value))
    for key in value:
        if key.__class__ is not str:
            raise no_text(key)
    return {key: _native(meter, item, depth - 1) for key, item in value.items()}


def _base64(meter: Meter, value: bytes) -> str:
    meter.charge_bytes(2 * len(value))
    return b64encode(value).decode()


_PRINTED: Final[dict[type, Callable[[Meter, Value], Value]]] = {
    Uint: lambda _m, value: int(value),
    Duration: lambda _m, value: value.ns,
    Timestamp: lambda _m, value: timestamp_text(value),
    bytes: _base64,
}
"""Go's JSON form of other types: a duration in nanoseconds, bytes in base64."""


def json_data(meter: Meter, value: Value) -> Value:
    """Return the value as JSON data, for a request body. Raises: CelFailed."""
    return _native(meter, value, CEL_VALUE_DEPTH_MAX)


def protobuf_data(
    meter: Meter, value: Value, depth: int = CEL_VALUE_DEPTH_MAX
) -> Value:
    """Return the value as protobuf's Value has it, for a part of an object.

    As ``json_data``, but durations are texts, as are integers beyond a double and
    numbers that are not finite. Raises: CelFailed.
    """
    kind = value.__class__
    if kind is Optional:
        if not value.present:
            raise CelFailed("optional.none() dereference")
        return protobuf_data(meter, value.value, depth)
    if kind is Duration:
        return duration_seconds_text(value)
    if (kind is int or kind is Uint) and abs(value) > _EXACT_MAX:
        return str(int(value))
    if kind is float and not isfinite(value):
        return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if not depth or (kind is not list and kind is not dict):
        return _native(meter, value, depth)
    meter.charge(2 * _ITEM_COST * len(value))
    meter.charge_bytes(80 + 140 * len(value))
    if kind is list:
        return [protobuf_data(meter, item, depth - 1) for item in value]
    for key in value:
        if key.__class__ is not str:
            raise no_text(key)
    return {key: protobuf_data(meter, item, depth - 1) for key, item in value.items()}


def _parse_yaml(meter: Meter, _yaml: YamlTexts, document: str) -> Value:
    """Decode the first document; every number is a double."""
    document = _text_of(document)
    # PERF: libyaml is loaded on first use, to keep the start of the CLI short.
    from kyverno_mp.expr.jmespath.yaml_text import (
        YAML_NODE_BYTES,
        decode_yaml,
        yaml_nodes,
    )

    nodes = yaml_nodes(document)
    meter.charge(_YAML_NODE_COST * nodes + len(document))
    meter.hold(YAML_NODE_BYTES * nodes + 4 * len(document) * width_of(document))
    try:
        return decode_yaml(document, _charges(meter, _UNITS_PER_STEP))
    except ExpressionFailed as error:
        head = "error converting YAML to JSON: "
        raise CelFailed(f"{head}{error.message}") from error


OVERLOADS: Final = (
    member("unmarshal(Json, dyn) -> dyn", unmarshal, cost=_COST),
    member("marshal(Json, dyn) -> string", _marshal, cost=_COST),
    member("parse(Yaml, string) -> dyn", _parse_yaml, cost=_YAML_COST),
)

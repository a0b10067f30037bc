"""Implement patches in CEL: ``Object{..}``, ``JSONPatch{..}``.

Room: expr. Takes: the names of types, values of their fields. Gives: the types for an
Environment and link_expression; ``configuration`` and ``operations``, which convert a
result to JSON. Next: compiler/admission_policy.py, program/context/cel_scope.py,
program/admission_policy/mutate.py.
Source: docs/behaviour/cel 10.1; k8s apiserver/pkg/cel/mutation.
"""

import base64
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.cel.catalogue import base_library
from kyverno_mp.expr.cel.functions.encoders import ESCAPE_KEY
from kyverno_mp.expr.cel.functions.times import duration_seconds_text, timestamp_text
from kyverno_mp.expr.cel.library import Library
from kyverno_mp.expr.cel.linking.expressions import Constructor
from kyverno_mp.expr.cel.types import DYN, STRING, Type, list_of, object_type
from kyverno_mp.expr.cel.values import (
    Duration,
    Optional,
    Record,
    Timestamp,
    Uint,
    Value,
    type_name,
)
from kyverno_mp.limits import CEL_VALUE_DEPTH_MAX
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.spending import ENTRY_BYTES, FREE, POINTER_BYTES, Spender

_OBJECT: Final = "Object"
_JSON_PATCH: Final = "JSONPatch"
CONFIGURATION: Final = object_type(_OBJECT)
"""The type of an apply configuration."""
OPERATIONS: Final = list_of(object_type(_JSON_PATCH))
"""The type of a JSON patch."""
_OPERATION_FIELDS: Final = {
    "op": STRING,
    "path": STRING,
    "from": STRING,
    "value": DYN,
}
_EXACT_MAX: Final = 2**53 - 1
_ITEM_STEPS: Final = 2
_ITEM_BYTES: Final = 80
_SCALARS: Final = (type(None), bool, int, float, str)
_NEEDS_VALUE: Final = ("add", "replace")
_UNPRINTABLE: Final = (
    "JSONPath valueExpression evaluated to a type that could not marshal to JSON: "
)
_TIMES: Final[Mapping[type, Callable[..., str]]] = {
    Duration: duration_seconds_text,
    Timestamp: timestamp_text,
}


class _AnyField(Mapping[str, Type]):
    """The fields of an Object: every name is valid and has type dyn."""

    def __getitem__(self, _name: str) -> Type:
        return DYN

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class _Types(Mapping[str, Mapping[str, Type]]):
    """``JSONPatch``, ``Object`` and every ``Object.<path>``."""

    def __getitem__(self, name: str) -> Mapping[str, Type]:
        if name == _JSON_PATCH:
            return _OPERATION_FIELDS
        if _is_object(name):
            return _ANY_FIELD
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter((_JSON_PATCH, _OBJECT))

    def __len__(self) -> int:
        return 2


class _Constructors(Mapping[str, Constructor]):
    def __getitem__(self, name: str) -> Constructor:
        return partial(Built, name)

    def __iter__(self) -> Iterator[str]:
        return iter((_JSON_PATCH, _OBJECT))

    def __len__(self) -> int:
        return 2


def _is_object(name: str) -> bool:
    return name == _OBJECT or name.startswith(f"{_OBJECT}.")


class Built(Record):
    """A value of one of these types, with the fields that are set."""

    __slots__ = ("fields", "type_name")

    def __init__(self, name: str, fields: dict[str, Value]) -> None:
        self.type_name = name
        self.fields = fields

    def field(self, name: str) -> Value:
        """Return the field's value. Raises: CelFailed if it is not set."""
        return self.fields[name] if name in self.fields else super().field(name)

    def has(self, name: str) -> bool:
        """Return whether the field is set."""
        return name in self.fields


_ANY_FIELD: Final = _AnyField()
TYPES: Final = _Types()
"""The types, for Environment.constructors."""
CONSTRUCTORS: Final = _Constructors()
"""The constructors, for link_expression."""


@cache
def patch_library() -> Library:
    """Return the API server's functions and the functions for patches."""
    return base_library().extended([ESCAPE_KEY])


def configuration(value: Value, spend: Spender = FREE) -> dict[str, Json]:
    """Return an apply configuration as JSON. Raises: ExpressionFailed."""
    assert value.__class__ is Built
    _check_names(value, _OBJECT, spend)
    document: dict[str, Json] = _native(value, CEL_VALUE_DEPTH_MAX, spend)
    return document


def operations(values: Value, spend: Spender = FREE) -> list[dict[str, Json]]:
    """Return a JSON patch as JSON. Raises: ExpressionFailed."""
    return [_operation(built.fields, spend) for built in values]


def _operation(fields: dict[str, Value], spend: Spender) -> dict[str, Json]:
    operation: dict[str, Json] = {
        "op": fields.get("op", ""),
        "path": fields.get("path", ""),
    }
    if fields.get("from"):
        operation["from"] = fields["from"]
    if "value" in fields:
        value = fields["value"]
        if value.__class__ is Built:
            _check_names(value, value.type_name, spend)
        native = _native(value, CEL_VALUE_DEPTH_MAX, spend, in_patch=True)
        operation["value"] = _of_protobuf(native)
    elif operation["op"] in _NEEDS_VALUE:
        # KYVERNO: without a value, null is written.
        operation["value"] = None
    return operation


def _of_protobuf(value: Json) -> Json:
    """Return the value with large integers as strings, as in a protobuf Value."""
    kind = type(value)
    if kind is float and not math.isfinite(value):
        printed = "NaN" if math.isnan(value) else f"{value:+}".replace("inf", "Inf")
        raise _failed(
            f"{_UNPRINTABLE}json: error calling MarshalJSON for type *structpb.Value:"
            f" proto: google.protobuf.Value.number_value: invalid {printed} value"
        )
    if kind is int and abs(value) > _EXACT_MAX:
        return str(value)
    if kind is dict:
        return {key: _of_protobuf(item) for key, item in value.items()}
    if kind is list:
        return [_of_protobuf(item) for item in value]
    return value


def _check_names(value: Value, path: str, spend: Spender) -> None:
    """Reject types whose names differ from their paths; lists add nothing to a path."""
    waiting = [(value, path)]
    while waiting:
        member, path = waiting.pop()
        if member.__class__ is list:
            spend.charge(_ITEM_STEPS * len(member))
            spend.charge_bytes(_ITEM_BYTES * len(member))
            waiting.extend((item, path) for item in member)
        elif member.__class__ is Built:
            if member.type_name != path:
                raise _failed(
                    f'type mismatch: unexpected type name "{member.type_name}",'
                    f' expected "{path}", which matches field name path from root'
                    " Object type"
                )
            spend.charge(_ITEM_STEPS * len(member.fields) + 1)
            spend.charge_bytes((_ITEM_BYTES + len(path)) * len(member.fields))
            waiting.extend(
                (item, f"{path}.{key}") for key, item in member.fields.items()
            )


def _native(
    value: Value, depth: int, spend: Spender, *, in_patch: bool = False
) -> Json:
    """Return the value as JSON; ``depth``: the remaining nesting depth.

    ``in_patch``: for a JSON patch, which takes more types.
    """
    if not depth:
        raise _failed(f"the patch is nested deeper than {CEL_VALUE_DEPTH_MAX} levels")
    kind = value.__class__
    if kind in _SCALARS:
        return value
    if kind is Built:
        fields = value.fields.items()
        spend.charge(_ITEM_STEPS * len(fields) + 1)
        spend.charge_bytes(ENTRY_BYTES * len(fields))
        return {
            key: _native(item, depth - 1, spend, in_patch=in_patch)
            for key, item in fields
        }
    if kind is dict:
        spend.charge(_ITEM_STEPS * len(value) + 1)
        spend.charge_bytes(ENTRY_BYTES * len(value))
        for key in value:
            if key.__class__ is not str:
                message = f'map key "{key}" is of type {type_name(key)}, not string'
                raise _failed(message)
        return {
            key: _native(item, depth - 1, spend, in_patch=in_patch)
            for key, item in value.items()
        }
    if kind is list:
        spend.charge(_ITEM_STEPS * len(value) + 1)
        spend.charge_bytes(_ITEM_BYTES + POINTER_BYTES * len(value))
        return [_native(item, depth - 1, spend, in_patch=in_patch) for item in value]
    if kind is Uint:
        return int(value)
    if kind is bytes:
        spend.charge(len(value) >> 6)
        spend.charge_bytes(2 * len(value))
        return base64.b64encode(value).decode()
    if in_patch and (kind in _TIMES or kind is Optional):
        return _of_patch(value, depth, spend)
    raise _failed(f"a value of type {type_name(value)} cannot be part of a patch")


def _of_patch(value: Value, depth: int, spend: Spender) -> Json:
    """Return a value as JSON that only a JSON patch takes: a time or an optional."""
    if value.__class__ is not Optional:
        return _TIMES[value.__class__](value)
    if not value.present:
        raise _failed(f"{_UNPRINTABLE}optional.none() dereference")
    return _native(value.value, depth - 1, spend, in_patch=True)


def _failed(message: str) -> ExpressionFailed:
    return ExpressionFailed("cel.patch", message)

"""Define messages: values with typed fields, such as the requests of authorization.

Room: expr. Takes: tables of fields. Gives: Message, MessageType, Schema, Verdict. Next:
message_json.py; the tables are in envoy.py and http.py.
Source: cel-go common/types/{object,provider}.go and ext/native.go; the protobuf
language guide (proto3: field presence, oneof).

A field that is not set reads as its zero value, and ``has`` is false for it. A Message
is never changed in place.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from kyverno_mp.errors import BudgetExceeded
from kyverno_mp.expr.cel.functions.kyverno.documents import protobuf_data
from kyverno_mp.expr.cel.operators import equal
from kyverno_mp.expr.cel.types import Type, object_type, parse_type
from kyverno_mp.expr.cel.values import (
    ENTRY_BYTES,
    LIST_BYTES,
    POINTER_BYTES,
    CelFailed,
    Meter,
    Record,
    Timestamp,
    Uint,
    Value,
    over_budget,
    type_name,
)
from kyverno_mp.limits import CEL_VALUE_DEPTH_MAX

_SHAPE: Final = re.compile(r"(?:(list|map)\()?((?:enum\([^)]*\))|[\w.]+)\)?")
_WALK_COST: Final = 20
_ITEM_COST: Final = 8
_UINT32_MAX: Final = (1 << 32) - 1
_CLASSES: Final[dict[str, type]] = {
    "string": str,
    "bytes": bytes,
    "bool": bool,
    "double": float,
    "timestamp": Timestamp,
}
_ZEROS: Final[dict[str, Value]] = {
    "string": "",
    "bytes": b"",
    "bool": False,
    "int": 0,
    "int32": 0,
    "enum": 0,
    "uint32": Uint(0),
    "double": 0.0,
    "timestamp": Timestamp(0),
    "dyn": None,
    "data": None,
    "strings": [],
}
_SHOWN: Final = {"int32": "int", "enum": "int", "uint32": "uint", "data": "dyn"} | {
    "strings": "list(string)"
}


class Field(NamedTuple):
    """A field of a message.

    ``container``: "", list or map, whose keys are strings. ``item``: the type of the
    value or of each item: a key of _ZEROS, or the name of a message. ``values``: the
    names of an enum's numbers, from 0.
    """

    container: str
    item: str
    values: tuple[str, ...] = ()

    @property
    def is_message(self) -> bool:
        """Return whether the value, or each item, is a message."""
        return self.item not in _ZEROS

    @property
    def type(self) -> Type:
        """The type in CEL."""
        item_name = _SHOWN.get(self.item, self.item)
        item = object_type(item_name) if self.is_message else parse_type(item_name)
        if self.container == "map":
            return Type("map", (parse_type("string"), item))
        return Type("list", (item,)) if self.container else item


_STRING: Final = Field("", "string")


class MessageType:
    """A type of messages: its name, its fields, and groups that exclude each other."""

    __slots__ = ("derived", "fields", "name", "one_of", "schema")

    def __init__(
        self,
        schema: "Schema",
        name: str,
        fields: Mapping[str, Field],
        one_of: frozenset[str],
    ) -> None:
        self.schema = schema
        self.name = name
        self.fields = fields
        self.one_of = one_of
        """The fields of which at most one is set: setting it clears the others."""
        self.derived: dict[str, Callable[[Message], Value]] = {}
        """Fields that are computed from the others, at their first use."""

    def construct(self, values: Mapping[str, Value]) -> "Message":
        """Return a message. Raises: CelFailed if a value has the wrong type."""
        set_values: dict[str, Value] = {}
        for name, value in values.items():
            field = self.fields.get(name)
            if field is None:
                raise CelFailed(f"no such field: {name}")
            if value is None and (field.container or field.is_message):
                continue
            try:
                checked = _checked(field, value)
            except CelFailed as error:
                target = f"{self.name}.{name} value type"
                message = f"field type conversion error for {target}: {error.message}"
                raise CelFailed(message) from error
            if name in self.one_of:
                set_values = {
                    key: set_values[key] for key in set_values if key not in self.one_of
                }
            if _is_set(field, checked):
                set_values[name] = checked
        return Message(self, set_values)


class Message(Record):
    """A message of a type; only the fields that are set are stored."""

    __slots__ = ("_derived", "kind", "values")

    def __init__(self, kind: MessageType, values: dict[str, Value]) -> None:
        """``values``: checked, and without zero values; see MessageType.construct."""
        self.kind = kind
        self.values = values
        self._derived: dict[str, Value] = {}

    @property
    def type_name(self) -> str:  # type: ignore[override]  # differs between messages
        """The name of the type in CEL."""
        return self.kind.name

    def field(self, name: str) -> Value:
        """Return a field's value, or its zero value. Raises: CelFailed."""
        value = self.values.get(name)
        if value is not None:
            return value
        field = self.kind.fields.get(name)
        if field is None:
            raise CelFailed(f"no such field: {name}")
        if name in self.kind.derived:
            if name not in self._derived:
                self._derived[name] = self.kind.derived[name](self)
            return self._derived[name]
        if field.container:
            return [] if field.container == "list" else {}
        if field.is_message:
            return Message(self.kind.schema[field.item], {})
        return _ZEROS[field.item]

    def has(self, name: str) -> bool:
        """Return whether a field is set. Raises: CelFailed if it does not exist."""
        if name in self.values or name in self.kind.derived:
            return True
        if name not in self.kind.fields:
            raise CelFailed(f"no such field: {name}")
        return False

    def changed(self, meter: Meter, **values: Value) -> "Message":
        """Return a copy with other values. Raises: CelFailed."""
        meter.charge_bytes(LIST_BYTES + ENTRY_BYTES * (len(self.values) + len(values)))
        return self.kind.construct({**self.values, **values})

    def appended(self, meter: Meter, name: str, item: Value) -> "Message":
        """Return a copy with one more item in a list. Raises: CelFailed."""
        items = self.field(name)
        meter.charge(_ITEM_COST * len(items))
        meter.charge_bytes(LIST_BYTES + POINTER_BYTES * (len(items) + 1))
        return self.changed(meter, **{name: [*items, item]})

    def equals(self, meter: Meter, operand: Value, depth: int) -> bool:
        """Return whether two messages have the same type and equal fields."""
        if operand.__class__ is not Message or operand.kind.name != self.kind.name:
            return False
        meter.charge(_WALK_COST + _ITEM_COST * len(self.values))
        if depth > CEL_VALUE_DEPTH_MAX:
            raise over_budget()
        return self.values.keys() == operand.values.keys() and all(
            equal(meter, value, operand.values[name], depth + 1)
            for name, value in self.values.items()
        )


class Schema(dict[str, MessageType]):
    """Types of messages by name."""

    def __init__(
        self,
        tables: Mapping[str, Mapping[str, str]],
        one_of: Mapping[str, frozenset[str]] | None = None,
    ) -> None:
        """``tables``: the type of each field of each message; ``one_of``: by message.

        A type is ``string``, ``list(string)``, ``map(string)`` (from strings),
        ``enum(A,B)``, or the name of a message. ``data`` is JSON data.
        """
        super().__init__()
        for name, table in tables.items():
            fields = {key: _field(notation) for key, notation in table.items()}
            self[name] = MessageType(
                self, name, fields, (one_of or {}).get(name, frozenset())
            )

    def records(self) -> dict[str, dict[str, Type]]:
        """Return the types of the fields, for Environment."""
        return {
            name: {key: field.type for key, field in kind.fields.items()}
            for name, kind in self.items()
        }

    def constructors(self) -> dict[str, Callable[[dict[str, Value]], Value]]:
        """Return the constructors, for link_expression."""
        return {name: kind.construct for name, kind in self.items()}


def _field(notation: str) -> Field:
    matched = _SHAPE.fullmatch(notation)
    assert matched is not None, notation
    container, item = matched[1] or "", matched[2]
    if item.startswith("enum("):
        return Field(
            container, "enum", tuple(item[5:-1].split(",")) if item[5:-1] else ()
        )
    return Field(container, item)


def _is_set(field: Field, value: Value) -> bool:
    if field.container:
        return bool(value)
    if field.is_message or field.item == "timestamp":
        return True
    return value is not None and bool(value != _ZEROS[field.item])


def _checked(field: Field, value: Value) -> Value:
    if not field.container:
        return _checked_item(field, value)
    if field.container == "list":
        if value.__class__ is not list:
            raise _mismatch("list", value)
        return [_checked_item(field, item) for item in value]
    if value.__class__ is not dict:
        raise _mismatch("map", value)
    for key in value:
        if key.__class__ is not str:
            raise _mismatch("string", key)
    return {key: _checked_item(field, item) for key, item in value.items()}


def _checked_item(field: Field, value: Value) -> Value:
    item = field.item
    if item in _CLASSES:
        if value.__class__ is not _CLASSES[item]:
            raise _mismatch(item, value)
    elif item in ("int", "int32", "uint32", "enum"):
        _check_range(item, value)
    elif item == "strings":
        if value.__class__ is not list:
            raise _mismatch("list", value)
        return [_checked_item(_STRING, item) for item in value]
    elif item == "data":
        try:
            return protobuf_data(Meter(), value)
        except BudgetExceeded as error:
            raise CelFailed(error.message) from error
    elif item != "dyn" and (value.__class__ is not Message or value.kind.name != item):
        raise _mismatch(item, value)
    return value


def _check_range(item: str, value: Value) -> None:
    if value.__class__ is not (Uint if item == "uint32" else int):
        raise _mismatch(_SHOWN.get(item, item), value)
    if item == "uint32":
        if value > _UINT32_MAX:
            raise CelFailed("unsigned integer overflow")
        return
    bits = 63 if item == "int" else 31
    if not -(1 << bits) <= value < 1 << bits:
        raise CelFailed("integer overflow")


def _mismatch(expected: str, value: Value) -> CelFailed:
    return CelFailed(f"type conversion error from '{type_name(value)}' to '{expected}'")


class Verdict(NamedTuple):
    """Whether the proxy lets the request through, and the command line's message."""

    is_allowed: bool
    message: str

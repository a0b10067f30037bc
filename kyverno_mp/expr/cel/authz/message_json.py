"""Read messages from JSON: proto3's JSON form, and Go's encoding/json.

Room: expr. Takes: a MessageType and decoded JSON. Gives: Message, or MessageInvalid;
``message_data``, a message as JSON data. Next: http.py.
Source: the protobuf documentation (ProtoJSON format); Go's encoding/json (case of
names, base64).
"""

import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from math import isfinite
from typing import Final, NamedTuple

from kyverno_mp.expr.cel.authz.messages import Field, Message, MessageType
from kyverno_mp.expr.cel.functions.times import parse_timestamp, timestamp_text
from kyverno_mp.expr.cel.values import CelFailed, Timestamp, Uint, Value
from kyverno_mp.limits import CEL_VALUE_DEPTH_MAX
from kyverno_mp.values.go.goquote import quote
from kyverno_mp.values.go.gotext import replaced_bytes
from kyverno_mp.values.jsonvalue import Json

_STRING: Final = Field("", "string")
_UNDERSCORE: Final = re.compile(r"_([a-z0-9])")
_NO_BASE64: Final = re.compile(r"[^A-Za-z0-9+/]")
_INTEGER: Final = re.compile(r"-?[0-9]{1,20}")
_KINDS: Final = {
    type(None): "null",
    bool: "bool",
    int: "number",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
_GO_KINDS: Final = {
    "bytes": "[]uint8",
    "int": "int64",
    "double": "float64",
}


class MessageInvalid(ValueError):
    """JSON data does not fit a message type."""


class _Dialect(NamedTuple):
    """What differs between the two JSON forms."""

    names: Callable[[MessageType], dict[str, str]]
    """The names of fields in JSON -> in the message."""
    key: Callable[[str], str]
    """The form of a name in which names are compared."""
    is_strict: bool
    """Whether an unknown name is an error, and numbers may be texts."""
    within: Callable[[str, MessageType, str], str]
    """Return the path of a field in errors, from that of its message."""
    is_exact: bool = False
    """Whether a name in another case is an error, instead of the field's name."""


def json_name(name: str) -> str:
    """Return a field's name in proto3 JSON."""
    return _UNDERSCORE.sub(lambda match: match[1].upper(), name)


def from_proto(kind: MessageType, data: Json) -> Message:
    """Return a message from proto3 JSON. Raises: MessageInvalid."""
    return _message(kind, data, _PROTO, CEL_VALUE_DEPTH_MAX, "")


def from_go(kind: MessageType, data: Json) -> Message:
    """Return a message like Go's encoding/json. Raises: MessageInvalid."""
    return _message(kind, data, _GO, CEL_VALUE_DEPTH_MAX, "")


def from_go_exactly(kind: MessageType, data: Json, path: str) -> Message:
    """As ``from_go``, of a struct with JSON names; ``path``: of ``data``, in errors.

    SAFETY: names that only Go takes for a field's name are rejected, because another
    reader of the same text would read another value.
    """
    return _message(kind, data, _GO_EXACT, CEL_VALUE_DEPTH_MAX, path)


def go_kind(data: Json) -> str:
    """Return Go's word for the type of JSON data."""
    return _KINDS[type(data)]


def go_name(name: str) -> str:
    """Return the JSON name of a field that is named like a field of a Go struct."""
    return name.lower() if name.isupper() else f"{name[0].lower()}{name[1:]}"


def _go_path(path: str, kind: MessageType, name: str, *, capital: bool = True) -> str:
    """Return ``Type.Field.Field``: the last type, and the fields from the first one."""
    above = path.partition(".")[2]
    fields = f"{above}." if above else ""
    name = f"{name[0].upper()}{name[1:]}" if capital else name
    return f"{kind.name.rpartition('.')[2]}.{fields}{name}"


_PROTO: Final = _Dialect(
    lambda kind: {n: n for n in kind.fields} | {json_name(n): n for n in kind.fields},
    lambda name: name,
    is_strict=True,
    within=lambda path, _kind, name: f"{path}.{name}" if path else name,
)
_GO: Final = _Dialect(
    lambda kind: {name.lower(): name for name in kind.fields},
    str.lower,
    is_strict=False,
    within=_go_path,
)
_GO_EXACT: Final = _GO._replace(
    is_exact=True,
    within=lambda path, kind, name: _go_path(path, kind, go_name(name), capital=False),
)


def _message(
    kind: MessageType, data: Json, dialect: _Dialect, depth: int, path: str
) -> Message:
    if type(data) is not dict:
        raise _unexpected(dialect, data, kind.name, path)
    if not depth:
        raise MessageInvalid("nested too deeply")
    names = dialect.names(kind)
    values: dict[str, Value] = {}
    for key, item in data.items():
        name = names.get(dialect.key(key))
        if name is None:
            if dialect.is_strict:
                raise MessageInvalid(f"proto: unknown field {quote(key)}")
            continue
        if dialect.is_exact and key != go_name(name):
            spelling = f"{quote(key)} instead of {quote(go_name(name))}"
            raise MessageInvalid(f"the name of a field in another case: {spelling}")
        if dialect.is_strict and name in values:
            raise MessageInvalid(f"proto: duplicate field {quote(key)}")
        if item is None:
            continue
        field = kind.fields[name]
        within = dialect.within(path, kind, name)
        values[name] = _value(kind, field, item, dialect, depth - 1, within)
    set_twice = kind.one_of & values.keys()
    if len(set_twice) > 1:
        raise MessageInvalid(f"proto: more than one of {sorted(set_twice)} is set")
    try:
        return kind.construct(values)
    except CelFailed as error:
        raise MessageInvalid(error.message) from error


def _value(
    kind: MessageType,
    field: Field,
    data: Json,
    dialect: _Dialect,
    depth: int,
    path: str,
) -> Value:
    if not field.container:
        return _item(kind, field, data, dialect, depth, path)
    if type(data) is not (list if field.container == "list" else dict):
        raise _unexpected(dialect, data, field.container, path)
    if type(data) is list:
        return [_item(kind, field, item, dialect, depth, path) for item in data]
    assert type(data) is dict
    return {
        _utf8(key): _item(kind, field, item, dialect, depth, path)
        for key, item in data.items()
    }


def _item(
    kind: MessageType,
    field: Field,
    data: Json,
    dialect: _Dialect,
    depth: int,
    path: str,
) -> Value:
    if field.is_message:
        return _message(kind.schema[field.item], data, dialect, depth, path)
    if field.item in ("dyn", "data"):
        return data
    if field.item == "strings":
        if data is not None and type(data) is not list:
            raise _unexpected(dialect, data, "[]string", path)
        return [
            _item(kind, _STRING, string, dialect, depth, path) for string in data or ()
        ]
    if data is None and not dialect.is_strict:
        data = _GO_ZERO.get(field.item)
    scalar = _scalar(field, data, is_text_number=dialect.is_strict)
    if scalar is None:
        raise _unexpected(dialect, data, field.item, path)
    return scalar


_GO_ZERO: Final[dict[str, Json]] = {"string": "", "bytes": "", "int": 0}


def _scalar(field: Field, data: Json, *, is_text_number: bool) -> Value | None:
    """Return the value of a field that is not a message; None if it does not fit."""
    item = field.item
    if item == "string":
        return _utf8(data) if type(data) is str else None
    if item == "bool":
        return data if type(data) is bool else None
    if item == "bytes" and type(data) is str:
        return _bytes(data, is_url=is_text_number)
    if item in ("bytes", "timestamp") and type(data) is not str:
        return None
    if item == "timestamp":
        return _timestamp(str(data))
    if item == "enum" and type(data) is str:
        return field.values.index(data) if data in field.values else None
    number = _number(data, is_text_number=is_text_number)
    if number is None or item == "double":
        return number
    if not float(number).is_integer():
        return None
    return Uint(number) if item == "uint32" and number >= 0 else int(number)


def _number(data: Json, *, is_text_number: bool) -> int | float | None:
    if is_text_number and type(data) is str and _INTEGER.fullmatch(data):
        return int(data)
    if type(data) is int or (type(data) is float and isfinite(data)):
        return data
    return None


def _utf8(string: str) -> str:
    """Return a text with U+FFFD for each half of a pair of surrogates, like Go."""
    return string if string.isascii() else replaced_bytes(string)


def _bytes(encoded: str, *, is_url: bool) -> bytes | None:
    """Decode base64; ``is_url``: with either alphabet, padded or not."""
    if is_url:
        encoded = encoded.rstrip("=").translate({ord("-"): "+", ord("_"): "/"})
        encoded += "=" * (-len(encoded) % 4)
    try:
        return b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return None


def _timestamp(value: str) -> Timestamp | None:
    try:
        return parse_timestamp(value)
    except CelFailed:
        return None


def _unexpected(
    dialect: _Dialect, data: Json, expected: str, path: str
) -> MessageInvalid:
    if dialect.is_strict:
        target = f" for field {path}" if path else ""
        return MessageInvalid(
            f"proto: unexpected {go_kind(data)}{target}, expected {expected}"
        )
    if type(data) is str and expected == "bytes":
        at = _NO_BASE64.search(data)
        position = at.start() if at else len(data)
        return MessageInvalid(f"illegal base64 data at input byte {position}")
    target = f"Go struct field {path}" if path else "Go value"
    go_type = _GO_KINDS.get(expected, expected)
    return MessageInvalid(
        f"json: cannot unmarshal {go_kind(data)} into {target} of type {go_type}"
    )


def message_data(message: Message) -> dict[str, Json]:
    """Return the fields that are set, in proto3 JSON with the names as in CEL."""
    return {name: _data(value) for name, value in message.values.items()}


def _data(value: Value) -> Json:
    if value.__class__ is Message:
        return message_data(value)
    if value.__class__ is list:
        return [_data(item) for item in value]
    if value.__class__ is dict:
        return {key: _data(item) for key, item in value.items()}
    if value.__class__ is bytes:
        return b64encode(value).decode()
    if value.__class__ is Timestamp:
        return timestamp_text(value)
    plain: Json = int(value) if value.__class__ is Uint else value
    return plain

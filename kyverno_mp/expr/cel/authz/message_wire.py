"""Read and write Envoy's messages in protobuf's wire format.

Room: expr. Takes: bytes, or a Message. Gives: ``request_from_wire``,
``response_to_wire``, WireInvalid. Next: webhook/authz/grpc_server.py; the types are in
envoy.py.
Source: the protobuf documentation (encoding; proto3's rules for unknown fields, last
values and merged messages); Envoy's envoy/service/auth/v3/*.proto.

PERF: a request is read straight into a Message, in one pass. Fields that are not in
the tables are skipped, as by every reader of protobuf.
"""

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any, Final, NamedTuple

from kyverno_mp.expr.cel.authz import envoy
from kyverno_mp.expr.cel.authz.messages import Field, Message, MessageType
from kyverno_mp.expr.cel.values import Timestamp, Uint, Value
from kyverno_mp.limits import CEL_VALUE_DEPTH_MAX
from kyverno_mp.values.jsonvalue import Json

_AUTH: Final = "envoy.service.auth.v3"
_VARINT, _I64, _LENGTH, _I32 = 0, 1, 2, 5
_VARINT_BITS_MAX: Final = 63
_MORE: Final = 128
"""The bit of a byte that announces another one of the same number."""
_KEY_TAG, _VALUE_TAG = 0x0A, 0x12
_U64: Final = (1 << 64) - 1
_TAG_MIN, _TAG_MAX = 1 << 3, (1 << 32) - 1
"""Numbers of fields are 1 to 2**29 - 1."""
_ENTRY_HEAD: Final = 2
_DOUBLE: Final = Struct("<d")
_NS: Final = 1_000_000_000
_SECONDS_MIN: Final = -62_135_596_800
_SECONDS_MAX: Final = 253_402_300_799
"""From the first second of the year 1 to the last one of 9999."""


class WireInvalid(ValueError):
    """Bytes are no message of their type, or a message cannot be written."""


def request_from_wire(data: bytes) -> Message:
    """Return a CheckRequest. Raises: WireInvalid."""
    return _message(envoy.SCHEMA[envoy.REQUEST], data, CEL_VALUE_DEPTH_MAX)


def response_to_wire(message: Message) -> bytes:
    """Return a CheckResponse in wire format. Raises: WireInvalid."""
    return _encoded(message)


# Reading


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and the position behind it. Raises: WireInvalid."""
    shift = number = 0
    while True:
        if at >= len(data) or shift > _VARINT_BITS_MAX:
            raise WireInvalid("truncated number")
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < _MORE:
            return number & _U64, at
        shift += 7


def _parts(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Yield number, wire type and value of each field. Raises: WireInvalid."""
    for tag, value in _tagged(data):
        yield tag >> 3, tag & 7, value


def _tagged(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the tag, ``number << 3 | wire type``, and value of each field.

    Raises: WireInvalid.
    """
    at, end = 0, len(data)
    while at < end:
        # PERF: most tags and sizes are one byte, and a call costs more than this.
        tag = data[at]
        if tag < _MORE:
            at += 1
        else:
            tag, at = _varint(data, at)
        if not _TAG_MIN <= tag <= _TAG_MAX:
            raise WireInvalid("invalid number of a field")
        wire = tag & 7
        if wire == _LENGTH:
            if at < end and data[at] < _MORE:
                size = data[at]
                at += 1
            else:
                size, at = _varint(data, at)
            value: Any = data[at : at + size]
            at += size
        elif wire == _VARINT:
            value, at = _varint(data, at)
        elif wire in (_I64, _I32):
            size = 8 if wire == _I64 else 4
            value = data[at : at + size]
            at += size
        else:
            raise WireInvalid("invalid wire type")  # groups, which proto3 lacks
        if at > end:
            raise WireInvalid("truncated field")
        yield tag, value


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise WireInvalid("a text is not UTF-8") from None


def _signed(bits: int) -> Callable[[int], int]:
    half, mask = 1 << (bits - 1), (1 << bits) - 1
    return lambda number: ((number & mask) ^ half) - half


_SCALARS: Final[dict[str, tuple[int, Callable[[Any], Value]]]] = {
    "string": (_LENGTH, _text),
    "bytes": (_LENGTH, bytes),
    "bool": (_VARINT, bool),
    "int": (_VARINT, _signed(64)),
    "int32": (_VARINT, _signed(32)),
    "enum": (_VARINT, _signed(32)),
    "uint32": (_VARINT, lambda number: Uint(number & 0xFFFFFFFF)),
}


def _message(kind: MessageType, data: bytes, depth: int) -> Message:
    """Read a message; parts of one field that appear twice are merged."""
    if not depth:
        raise WireInvalid("nested too deeply")
    by_tag = _BY_TAG[kind.name]
    values: dict[str, Value] = {}
    merged: dict[str, bytes] = {}
    for tag, value in _tagged(data):
        known = by_tag.get(tag)
        if known is None:
            continue
        name, field, read, siblings = known
        for sibling in siblings:
            values.pop(sibling, None)
            merged.pop(sibling, None)
        if field.container == "map":
            key, item = _entry(name, field, value, depth - 1)
            entries = values.get(name)
            if entries is None:
                entries = values[name] = {}
            entries[key] = item
        elif field.container:
            items = values.setdefault(name, [])
            items.append(_item(kind, field, value, depth - 1))
        elif read is None:
            # The parts of a message, one after another, are the merged message.
            merged[name] = merged[name] + value if name in merged else value
        elif (scalar := read(value)) or siblings:
            values[name] = scalar
        else:
            values.pop(name, None)  # a zero value is as if it was not there
    for name, content in merged.items():
        values[name] = _item(kind, kind.fields[name], content, depth - 1)
    return Message(kind, values)


def _item(kind: MessageType, field: Field, data: Any, depth: int) -> Value:
    if field.is_message:
        return _message(kind.schema[field.item], data, depth)
    if field.item == "timestamp":
        return _timestamp(data)
    if field.item == "data":
        return _any(data)
    return _SCALARS[field.item][1](data)


def _entry(name: str, field: Field, data: bytes, depth: int) -> tuple[str, Value]:
    """Read an entry of a map, whose missing parts are empty."""
    # PERF: a key and a text of less than 128 bytes each in ASCII, as most headers are.
    size = len(data)
    middle = 2 + data[1] if size > _ENTRY_HEAD and data[0] == _KEY_TAG else 0
    if (
        0 < middle < size - 1
        and field.item == "string"
        and data[middle] == _VALUE_TAG
        and middle + 2 + data[middle + 1] == size
        and data.isascii()
    ):
        text = data.decode()
        return text[2:middle], text[middle + 2 :]
    key, content = "", b""
    for number, wire, value in _parts(data):
        if wire == _LENGTH and number == 1:
            key = _text(value)
        elif wire == _LENGTH and number == 2:  # noqa: PLR2004 - the number of the value
            content = value
    if field.item == "string":
        return key, _text(content)
    if name == "typed_filter_metadata":
        return key, _any(content)
    return key, _struct(content, depth)


def _struct(data: bytes, depth: int) -> dict[str, Json]:
    """Read a google.protobuf.Struct."""
    if depth <= 0:
        raise WireInvalid("nested too deeply")
    members: dict[str, Json] = {}
    for number, wire, value in _parts(data):
        if (number, wire) == (1, _LENGTH):
            key, item = "", b""
            for part, kind, content in _parts(value):
                if (part, kind) == (1, _LENGTH):
                    key = _text(content)
                elif (part, kind) == (2, _LENGTH):
                    item = content
            members[key] = _json(item, depth - 1)
    return members


def _json(data: bytes, depth: int) -> Json:
    """Read a google.protobuf.Value; its last part counts."""
    if depth <= 0:
        raise WireInvalid("nested too deeply")
    result: Json = None
    for number, wire, value in _parts(data):
        if (number, wire) == (1, _VARINT):
            result = None
        elif (number, wire) == (2, _I64):
            result = _DOUBLE.unpack(value)[0]
        elif (number, wire) == (3, _LENGTH):
            result = _text(value)
        elif (number, wire) == (4, _VARINT):
            result = bool(value)
        elif (number, wire) == (5, _LENGTH):
            result = _struct(value, depth - 1)
        elif (number, wire) == (6, _LENGTH):
            result = [
                _json(item, depth - 1)
                for part, kind, item in _parts(value)
                if (part, kind) == (1, _LENGTH)
            ]
    return result


def _timestamp(data: bytes) -> Timestamp:
    seconds = nanos = 0
    for number, wire, value in _parts(data):
        if (number, wire) == (1, _VARINT):
            seconds = _signed(64)(value)
        elif (number, wire) == (2, _VARINT):
            nanos = _signed(32)(value)
    if not (_SECONDS_MIN <= seconds <= _SECONDS_MAX and 0 <= nanos < _NS):
        raise WireInvalid("a time is out of range")
    return Timestamp(seconds * _NS + nanos)


def _any(data: bytes) -> Json:
    """Read a google.protobuf.Any: its type; no expression can read its content."""
    kind = ""
    for number, wire, value in _parts(data):
        if (number, wire) == (1, _LENGTH):
            kind = _text(value)
    return {"@type": kind}


# Writing


def _number(number: int) -> bytes:
    number &= _U64
    if number < _MORE:
        return bytes((number,))
    out = bytearray()
    while number >= _MORE:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _part(number: int, content: bytes) -> bytes:
    return b"".join((_number(number << 3 | _LENGTH), _number(len(content)), content))


def _encoded(message: Message) -> bytes:
    values = message.values
    return b"".join(
        _field(message.kind.name, number, name, field, values[name])
        for number, (name, field) in _BY_NUMBER[message.kind.name].items()
        if name in values
    )


def _field(owner: str, number: int, name: str, field: Field, value: Value) -> bytes:
    if (owner, name) in _STRUCTS:
        return _part(number, _encoded_struct(value))
    if name == "append":
        # A BoolValue, in whose place CEL has a bool.
        return _part(number, _number(1 << 3) + b"\x01" if value else b"")
    if field.container == "map":
        raise WireInvalid(f"{name} is not written")
    if field.container == "list":
        return b"".join(_part(number, _content(field, item)) for item in value)
    if value.__class__ is int or value.__class__ is bool:
        return _number(number << 3) + _number(int(value))
    return _part(number, _content(field, value))


def _content(field: Field, value: Value) -> bytes:
    if value.__class__ is Message:
        return _encoded(value)
    if value.__class__ is str:
        return _utf8(value)
    if value.__class__ is bytes:
        return bytes(value)
    raise WireInvalid(f"a {field.item} is not written")


def _utf8(string: str) -> bytes:
    return string.encode("utf-8", "replace")


def _encoded_struct(value: dict[str, Json]) -> bytes:
    return b"".join(
        _part(1, _part(1, _utf8(key)) + _part(2, _encoded_value(item)))
        for key, item in value.items()
    )


def _encoded_value(value: Json) -> bytes:
    if value is None:
        return b"\x08\x00"
    if value is True or value is False:
        return b"\x20" + _number(value)
    if type(value) is str:
        return _part(3, _utf8(value))
    if type(value) is list:
        items = b"".join(_part(1, _encoded_value(item)) for item in value)
        return _part(6, items)
    if type(value) is dict:
        return _part(5, _encoded_struct(value))
    return b"\x11" + _DOUBLE.pack(value)


_STRUCTS: Final = frozenset(
    {
        (envoy.RESPONSE, "dynamic_metadata"),
        (f"{_AUTH}.OkHttpResponse", "dynamic_metadata"),
    }
)
"""Fields that are a google.protobuf.Struct, in whose place CEL has a map."""


def _by_number(name: str, numbers: str) -> dict[int, tuple[str, Field]]:
    fields = envoy.SCHEMA[name].fields
    pairs = (pair.split("=") for pair in numbers.split())
    table = {int(number): (key, fields[key]) for key, number in pairs}
    assert len(table) == len(fields), name
    return table


_BY_NUMBER: Final = {
    name: _by_number(name, numbers) for name, numbers in envoy.NUMBERS.items()
}


class _Known(NamedTuple):
    """A field as it is read; with another wire type it is an unknown field."""

    name: str
    field: Field
    read: Callable[[Any], Value] | None
    """Of a scalar type."""
    siblings: frozenset[str]
    """The other fields of a group of which one is set."""


def _by_tag(kind: MessageType) -> dict[int, _Known]:
    table = {}
    for number, (name, field) in _BY_NUMBER[kind.name].items():
        wire, read = _SCALARS.get(field.item, (_LENGTH, None))
        siblings = kind.one_of - {name} if name in kind.one_of else frozenset()
        table[number << 3 | wire] = _Known(name, field, read, siblings)
    return table


_BY_TAG: Final = {name: _by_tag(envoy.SCHEMA[name]) for name in _BY_NUMBER}

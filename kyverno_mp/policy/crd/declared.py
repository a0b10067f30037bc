"""Derive structural schemas from the typed documents of this room.

Room: policy. Takes: a class derived from Fields, and the differences of a version.
Gives: the schema. Next: the tables of kinds in this folder.
May touch: nothing outside its arguments.
Source: the records' declarations: names, types, enums in the order they are written
in, bounds, required fields, defaults; policy/crd/extras.py has what they cannot say.
"""

import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec import inspect

from kyverno_mp.policy.crd import extras
from kyverno_mp.policy.crd.notation import (
    BOOLEAN,
    FREE,
    FREE_OBJECT,
    INTEGER,
    Schema,
    choice,
)
from kyverno_mp.values.jsonvalue import Json


@dataclass(frozen=True, slots=True)
class Variant:
    """The differences between a version and the records: fields by their JSON names."""

    removed: Mapping[type, frozenset[str]] = field(default_factory=dict)
    stated: Mapping[tuple[type, str], type] = field(default_factory=dict)
    """Free-form fields that this version adds to a record."""


AS_DECLARED: Final = Variant()


def derive(record: type[msgspec.Struct], variant: Variant = AS_DECLARED) -> Schema:
    """Return the schema of a record."""
    return _record(record, variant)


def _record(record: type, variant: Variant) -> Schema:
    declared = inspect.type_info(record)
    assert isinstance(declared, inspect.StructType)
    removed = variant.removed.get(record, frozenset())
    fields = [one for one in declared.fields if one.encode_name not in removed]
    schema: dict[str, Json] = {
        "type": "object",
        "properties": {one.encode_name: _field(record, one, variant) for one in fields},
    }
    required = sorted(one.encode_name for one in fields if one.required)
    if required:
        schema["required"] = required
    return {**schema, **extras.RECORDS.get(record, {})}


def _field(record: type, one: inspect.Field, variant: Variant) -> Schema:
    name = one.encode_name
    if name in extras.FREE_FIELDS.get(record, frozenset()):
        return FREE
    stated = variant.stated.get((record, name))
    if stated is not None:
        return _record(stated, variant)
    derived = _in_written_order(record, one.name, _schema(one.type, variant))
    schema = {**derived, **extras.FIELDS.get((record, name), {})}
    is_stored = name not in extras.NOT_STORED.get(record, frozenset())
    # An empty text, a false, a zero is Go's zero value: extras names those defaults.
    if is_stored and type(one.default) in (str, bool, int) and one.default:
        schema["default"] = one.default
    return schema


def _schema(declared: inspect.Type, variant: Variant) -> Schema:
    match declared:
        case inspect.StructType(cls=cls):
            return _record(cls, variant)
        case inspect.UnionType(types=types):
            given = [one for one in types if not isinstance(one, inspect.NoneType)]
            return _schema(given[0], variant)
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            return {"type": "array", "items": _schema(item, variant)}
        case inspect.DictType(value_type=item):
            values = _schema(item, variant)
            if values == FREE:
                return FREE_OBJECT
            return {"type": "object", "additionalProperties": values}
        case inspect.StrType(max_length=length):
            bound = {} if length is None else {"maxLength": length}
            return {"type": "string", **bound}
        case inspect.IntType(ge=least):
            return {**INTEGER, **({} if least is None else {"minimum": least})}
        case inspect.LiteralType(values=values):
            return choice(*(str(value) for value in values))
        case inspect.BoolType():
            return BOOLEAN
        case _:
            return FREE


def _in_written_order(record: type, name: str, schema: Schema) -> Schema:
    """Undo the sorting of msgspec: the API server's messages keep this order."""
    if "enum" in schema:
        for values in _literals(typing.get_type_hints(record)[name]):
            return {**schema, "enum": list(values)}
    if "enum" in schema.get("items", ()):
        return {**schema, "items": _in_written_order(record, name, schema["items"])}
    return schema


def _literals(hint: object) -> Iterator[tuple[str, ...]]:
    if typing.get_origin(hint) is typing.Literal:
        yield typing.get_args(hint)
        return
    for argument in typing.get_args(hint):
        yield from _literals(argument)

"""Derive structural schemas from the typed documents of this room.

Room: policy. Takes: a class derived from Fields, and the differences of a version.
Gives: the schema. Next: the tables of kinds in this folder.
Source: the records' declarations (names, types, enums in declared order, bounds,
required fields, defaults); policy/crd/extras.py adds other details.
"""

import typing
from collections.abc import Iterator, Mapping
from functools import cache
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


class Variant(msgspec.Struct, frozen=True, eq=False):
    """The differences between a version and the records, as fields by JSON name.

    Variants are compared by identity, because they are keys of cached schemas.
    """

    removed: Mapping[type, frozenset[str]] = {}
    stated: Mapping[tuple[type, str], type] = {}
    """Free-form fields that have a declared type in this version."""


AS_DECLARED: Final = Variant()


@cache
def derive(record: type[msgspec.Struct], variant: Variant = AS_DECLARED) -> Schema:
    """Return the schema of a record; its parts are shared and must not be changed."""
    return _derivation(variant).of(record)


@cache
def _derivation(variant: Variant) -> "_Derivation":
    return _Derivation(variant)


def _inspected(record: type) -> inspect.StructType:
    declared = inspect.type_info(record)
    assert isinstance(declared, inspect.StructType)
    return declared


class _Derivation:
    """The schemas of the records of one variant.

    PERF: start of ``kyverno-mp apply``: a record appears in many places of one schema.
    Deriving it once, from one inspection of all records, takes a tenth of the time.
    """

    def __init__(self, variant: Variant) -> None:
        self._variant = variant
        self._made: dict[type, Schema] = {}

    def of(self, record: type[msgspec.Struct]) -> Schema:
        """Return the schema of a record, which may be part of an earlier one."""
        return self._made.get(record) or self.record(_inspected(record))

    def record(self, declared: inspect.StructType) -> Schema:
        """Return the schema of a record."""
        schema = self._made.get(declared.cls)
        if schema is None:
            schema = self._made[declared.cls] = self._derive(declared)
        return schema

    def _derive(self, declared: inspect.StructType) -> Schema:
        record = declared.cls
        removed = self._variant.removed.get(record, frozenset())
        fields = [
            field for field in declared.fields if field.encode_name not in removed
        ]
        schema: dict[str, Json] = {
            "type": "object",
            "properties": {
                field.encode_name: self._field(record, field) for field in fields
            },
        }
        required = sorted(field.encode_name for field in fields if field.required)
        if required:
            schema["required"] = required
        return {**schema, **extras.RECORDS.get(record, {})}

    def _field(self, record: type, field: inspect.Field) -> Schema:
        name = field.encode_name
        if name in extras.FREE_FIELDS.get(record, frozenset()):
            return FREE
        stated = self._variant.stated.get((record, name))
        if stated is not None:
            return self.record(_inspected(stated))
        derived = _in_written_order(record, field.name, self._schema(field.type))
        schema = {**derived, **extras.FIELDS.get((record, name), {})}
        is_stored = name not in extras.NOT_STORED.get(record, frozenset())
        # Defaults that are Go's zero values ("", false, 0) are in extras.
        if is_stored and type(field.default) in (str, bool, int) and field.default:
            schema["default"] = field.default
        return schema

    def _schema(self, declared: inspect.Type) -> Schema:
        match declared:
            case inspect.StructType():
                return self.record(declared)
            case inspect.UnionType(types=types):
                present_types = [
                    present_type
                    for present_type in types
                    if not isinstance(present_type, inspect.NoneType)
                ]
                return self._schema(present_types[0])
            case (
                inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item)
            ):
                return {"type": "array", "items": self._schema(item)}
            case inspect.DictType(value_type=item):
                values = self._schema(item)
                if values == FREE:
                    return FREE_OBJECT
                return {"type": "object", "additionalProperties": values}
            case _:
                return _scalar(declared)


def _scalar(declared: inspect.Type) -> Schema:
    match declared:
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
    """Return an enum's values in declared order, as the API server reports them."""
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

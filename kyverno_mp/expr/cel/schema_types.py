"""Derive the CEL types of a kind from its OpenAPI schema.

Room: expr. Takes: Schemas of values/kubernetes/openapi.py. Gives: SchemaRecords: the
type of a kind, and the fields of its record types, built lazily for the checker. Next:
compiler/type_check.py.
Source: apiserver pkg/cel/common/schemas.go, pkg/cel/types.go (names of types),
pkg/cel/escaping.go, pkg/cel/openapi/resolver/refs.go.

Expanding all references of a schema could create any size, because each reference can
occur many times. So they are followed on demand, and an expression pays only for the
fields that it names.
"""

import re
from typing import Final, NamedTuple

from kyverno_mp.expr.cel import types
from kyverno_mp.expr.cel.syntax.parse import RESERVED_WORDS
from kyverno_mp.expr.cel.types import Type, list_of, map_of, object_type
from kyverno_mp.limits import SCHEMA_NESTING_MAX
from kyverno_mp.values.kubernetes.openapi import COMPONENTS, Schema, Schemas

_INT_OR_STRING: Final = "int-or-string"
_SIMPLE: Final = {
    "boolean": types.BOOL,
    "integer": types.INT,
    "number": types.DOUBLE,
    "string": types.STRING,
}
_FORMATS: Final = {
    "byte": types.BYTES,
    "date": types.TIMESTAMP,
    "date-time": types.TIMESTAMP,
    "duration": types.DURATION,
}
_RESERVED: Final = frozenset({"true", "false", "null", *RESERVED_WORDS})
_PLAIN: Final = re.compile(r"[A-Za-z_./-][A-Za-z0-9_./-]*\Z")  # Names of properties.
_ESCAPED: Final = re.compile(r"__|[-./]")
_ESCAPE: Final = {
    "__": "__underscores__",
    ".": "__dot__",
    "-": "__dash__",
    "/": "__slash__",
}
_SEQUENCE: Final = re.compile(r"__([^_]+)__")
_MEANT: Final = {"underscores": "__", "dot": ".", "dash": "-", "slash": "/"}
_EMPTY: Final = Schema(type="object")
_TEXT: Final = Schema(type="string")
_OWN: Final = {
    "kind": _TEXT,
    "apiVersion": _TEXT,
    "metadata": Schema(
        type="object", properties={"name": _TEXT, "generateName": _TEXT}
    ),
}
"""The fields of every resource, independent of its schema."""


class _Place(NamedTuple):
    """A schema, and the references followed on the path to it."""

    schemas: Schemas
    schema: Schema
    followed: frozenset[str] = frozenset()


class SchemaFields:
    """The fields of one record type."""

    __slots__ = ("_known", "_name", "_owner", "_place")

    def __init__(self, owner: "SchemaRecords", name: str, location: _Place) -> None:
        self._owner = owner
        self._name = name
        self._place = location
        self._known: dict[str, Type | None] = {}

    def get(self, field: str, /) -> Type | None:
        """Return the type of a field by its CEL name; None if it does not exist."""
        if field not in self._known:
            self._known[field] = self._found(field)
        return self._known[field]

    def _found(self, field: str) -> Type | None:
        properties = self._place.schema.properties
        escaped, name = field, _unescaped(field)
        if field in properties and (escape(field) == field or field in _RESERVED):
            # A property name that looks escaped is a valid name; a keyword needs no
            # escaping.
            escaped, name = escape(field), field
        elif name not in properties or escape(name) != field:
            return None
        location = self._place._replace(schema=properties[name])
        return self._owner.type_of(location, f"{self._name}.{escaped}")


class SchemaRecords:
    """The record types of kinds, by name; built on demand."""

    __slots__ = ("_records", "_roots")

    def __init__(self) -> None:
        self._records: dict[str, SchemaFields] = {}
        self._roots = 0

    def get(self, name: str, /) -> SchemaFields | None:
        """Return the fields of a record type; None if the type is unknown."""
        return self._records.get(name)

    def declare(self, schemas: Schemas, name: str, kind: str) -> Type | None:
        """Return the type of a kind; ``name``: the name of its schema.

        KYVERNO: upstream appends the current nanoseconds to the kind's name to make the
        type name unique; here it is a sequence number.
        """
        self._roots += 1
        location = _followed(_Place(schemas, schemas[name], frozenset({name})))
        return self.type_of(location, f"{kind}{self._roots}", is_resource=True)

    def type_of(
        self, location: _Place, name: str, *, is_resource: bool = False, level: int = 0
    ) -> Type | None:
        """Return the type of a schema's values; None if CEL has no such type."""
        if level > SCHEMA_NESTING_MAX:
            return types.DYN
        location = _followed(location) if level or not is_resource else location
        schema = location.schema
        if schema.format == _INT_OR_STRING or schema.int_or_string:
            return types.DYN
        kind = schema.first_type
        if kind == "array":
            if not isinstance(schema.items, Schema):
                return None
            item = self._below(location, schema.items, f"{name}.@idx", level)
            return None if item is None else list_of(item)
        if kind == "object":
            if isinstance(schema.additional, Schema):
                item = self._below(location, schema.additional, f"{name}.@elem", level)
                return None if item is None else map_of(types.STRING, item)
            if is_resource or schema.embedded:
                location = location._replace(schema=_resource(location))
            self._records[name] = SchemaFields(self, name, location)
            return object_type(name)
        if kind == "string":
            return _FORMATS.get(schema.format, types.STRING)
        return _SIMPLE.get(kind)

    def _below(
        self, location: _Place, schema: Schema, name: str, level: int
    ) -> Type | None:
        return self.type_of(location._replace(schema=schema), name, level=level + 1)


def escape(name: str) -> str:
    """Return the CEL name of a property; "" if it has none."""
    if name in _RESERVED:
        return f"__{name}__"
    if not _PLAIN.match(name):
        return ""
    return _ESCAPED.sub(lambda match: _ESCAPE[match[0]], name)


def _unescaped(field: str) -> str:
    """Return the property that a field name may denote; the caller verifies it."""

    def meant(match: re.Match[str]) -> str:
        word = match[1]
        return word if word in _RESERVED else _MEANT.get(word, match[0])

    return _SEQUENCE.sub(meant, field) if "__" in field else field


def _followed(location: _Place) -> _Place:
    """Follow the schema's reference; a cyclic reference becomes an empty object.

    A missing schema has no type, so it causes no errors.
    """
    target = location.schema.target
    if not target:
        return location
    if target in location.followed:
        return location._replace(schema=_EMPTY)
    schema = location.schemas.get(target.removeprefix(COMPONENTS))
    if schema is None:
        return location._replace(schema=Schema(format=_INT_OR_STRING))
    return location._replace(schema=schema, followed=location.followed | {target})


def _resource(location: _Place) -> Schema:
    """Return the schema, completed with the fields that every resource has."""
    declared = location.schema.properties
    if all(name in declared for name in _OWN):
        required = {
            name: _followed(location._replace(schema=declared[name])).schema
            for name in _OWN
        }
        inner = required["metadata"].properties
        strings = [required["kind"], required["apiVersion"]]
        strings += [
            _followed(location._replace(schema=inner[name])).schema
            for name in ("name", "generateName")
            if name in inner
        ]
        if (
            required["metadata"].first_type == "object"
            and len(strings) == len(_OWN) + 1
            and all(schema.first_type == "string" for schema in strings)
        ):
            return location.schema
    return Schema(type="object", properties={**declared, **_OWN})

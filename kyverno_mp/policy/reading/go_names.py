"""Read the names of JSON as Go's encoding/json does: without regard to case.

Room: policy. Takes: JSON data, and the type that it is to be. Gives: the data with the
names of the type. Next: policy/configuration.py.
Source: Go encoding/json: a name is that of a field exactly or after folding; of several
names of one field, the last one in the text counts.
"""

from functools import cache
from typing import Any

from msgspec import inspect

from kyverno_mp.values.go.gotext import folded
from kyverno_mp.values.jsonvalue import Json


def with_names_of(value: Json, kind: Any) -> Json:
    """Return the data with the names that the type ``kind`` declares."""
    return _named(value, _described(kind))


@cache
def _described(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


@cache
def _fields(kind: type) -> dict[str, tuple[str, inspect.Type]]:
    described = _described(kind)
    assert isinstance(described, inspect.StructType)
    return {
        folded(field.encode_name): (field.encode_name, field.type)
        for field in described.fields
    }


def _named(value: Json, kind: inspect.Type) -> Json:
    if isinstance(kind, inspect.UnionType):
        # Each union here is of one type and null.
        (kind,) = (
            present_type
            for present_type in kind.types
            if not isinstance(present_type, inspect.NoneType)
        )
    if isinstance(kind, inspect.StructType) and type(value) is dict:
        fields = _fields(kind.cls)
        renamed: dict[str, Json] = {}
        for name, item in value.items():
            if folded(name) in fields:
                declared, below = fields[folded(name)]
                renamed[declared] = _named(item, below)
        return renamed
    if isinstance(kind, inspect.DictType) and type(value) is dict:
        return {name: _named(item, kind.value_type) for name, item in value.items()}
    if isinstance(kind, inspect.VarTupleType) and type(value) is list:
        return [_named(item, kind.item_type) for item in value]
    return value

"""Decode a document into the fields of a Go struct, like Go's decoders.

Room: cli. Takes: a raw document, a Struct. Gives: the fields by their declared names,
or the first error with Go's message. Next: cli/testing/files, strict.
Source: docs/behaviour/cli 14, 15 (strict decoding); recorded results of encoding/json
and sigs.k8s.io/yaml.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from kyverno_mp.policy.reading.yaml_scalar import key_text
from kyverno_mp.values.go.gotext import folded
from kyverno_mp.values.jsonvalue import Json

TEXT: Final = "string"
BOOL: Final = "bool"
FREE: Final = "interface {}"

_TYPES: Final[Mapping[str, type]] = {TEXT: str, BOOL: bool}
_WORDS: Final[Mapping[type, str]] = {
    str: "string",
    bool: "bool",
    int: "number",
    float: "number",
    list: "array",
    dict: "object",
}


class Many(NamedTuple):
    """A slice; ``name`` is its type's name, if it has one."""

    item: "Shape"
    name: str = ""


class Named(NamedTuple):
    """A map with string keys."""

    item: "Shape"


class Struct(NamedTuple):
    """Fields by name; ``inlined``: structs whose fields are included."""

    name: str
    fields: "Mapping[str, Shape]"
    inlined: "tuple[Struct, ...]" = ()

    def find(self, key: str) -> "tuple[str, Shape, str] | None":
        """Return name, shape and holder of a field; an exact match takes precedence.

        The holder is the inlined struct's name, "" for this struct's own fields.
        """
        fields = self.known()
        if key in fields:
            return key, *fields[key]
        low = folded(key)
        return next(
            ((n, *declared) for n, declared in fields.items() if folded(n) == low), None
        )

    def known(self) -> "dict[str, tuple[Shape, str]]":
        """Return all fields, each with its holder."""
        fields = {name: (shape, "") for name, shape in self.fields.items()}
        for part in self.inlined:
            fields |= {name: (shape, part.name) for name, shape in part.fields.items()}
        return fields


Shape = str | Many | Named | Struct


class Misfit(Exception):
    """The document does not conform; ``text`` is Go's message."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.text = message


class _FieldPath(NamedTuple):
    """The decoder's position: Go reports the innermost struct and the full path."""

    struct: str
    fields: tuple[str, ...] = ()
    is_coerced: bool = True
    """Whether numbers and booleans are converted to strings where one is expected."""


class _Decoder:
    def __init__(self) -> None:
        self.errors: list[str] = []


def decode(raw: Json, struct: Struct) -> dict[str, Json]:
    """Return the given fields by their declared names. Raises: Misfit."""
    decoder = _Decoder()
    fields = _struct(raw, struct, _FieldPath(""), decoder)
    if decoder.errors:
        raise Misfit(f"json: {decoder.errors[0]}")
    assert isinstance(fields, dict)
    return fields


def _value(
    value: Json, shape: Shape, field_path: _FieldPath, decoder: _Decoder
) -> Json:
    if isinstance(shape, Struct):
        return _struct(value, shape, field_path, decoder)
    if isinstance(shape, Many):
        return _many(value, shape, field_path, decoder)
    if isinstance(shape, Named):
        return _named(value, shape, field_path, decoder)
    if shape == FREE:
        return value
    if value is None:
        return _TYPES[shape]()
    if shape == TEXT and field_path.is_coerced and type(value) in (bool, int, float):
        return key_text(value)
    if type(value) is not _TYPES[shape]:
        return _misfit(value, shape, field_path, decoder)
    return value


def _struct(
    value: Json, shape: Struct, field_path: _FieldPath, decoder: _Decoder
) -> Json:
    if value is None:
        return {}
    if type(value) is not dict:
        return _misfit(value, shape, field_path, decoder)
    fields: dict[str, Json] = {}
    # The document passes through JSON with sorted keys, so the last key wins.
    for key in sorted(value):
        field = shape.find(key)
        if field is None:
            decoder.errors.append(f'unknown field "{key}"')
            continue
        name, inner, holder = field
        if value[key] is None:
            continue
        steps = (holder, name) if holder else (name,)
        # GO: the type of an inlined field is looked up in the wrong struct.
        coerced = field_path.is_coerced and not holder
        below = _FieldPath(
            shape.name.rpartition(".")[2], (*field_path.fields, *steps), coerced
        )
        fields[name] = _value(value[key], inner, below, decoder)
    return fields


def _many(value: Json, shape: Many, field_path: _FieldPath, decoder: _Decoder) -> Json:
    if value is None:
        return []
    if type(value) is not list:
        return _misfit(value, shape, field_path, decoder)
    return [_value(item, shape.item, field_path, decoder) for item in value]


def _named(
    value: Json, shape: Named, field_path: _FieldPath, decoder: _Decoder
) -> Json:
    if value is None:
        return {}
    if type(value) is not dict:
        return _misfit(value, shape, field_path, decoder)
    return {
        key: _value(value[key], shape.item, field_path, decoder)
        for key in sorted(value)
    }


def _misfit(
    value: Json, shape: Shape, field_path: _FieldPath, decoder: _Decoder
) -> Json:
    target = "Go value"
    if field_path.fields:
        target = f"Go struct field {field_path.struct}.{'.'.join(field_path.fields)}"
    got = _WORDS[type(value)]
    decoder.errors.append(f"cannot unmarshal {got} into {target} of type {_go(shape)}")
    return None


def _go(shape: Shape) -> str:
    if isinstance(shape, Struct):
        return shape.name if "." in shape.name else f"v1alpha1.{shape.name}"
    if isinstance(shape, Many):
        return shape.name or f"[]{_go(shape.item)}"
    if isinstance(shape, Named):
        return f"map[string]{_go(shape.item)}"
    return shape

"""Walk raw JSON along a declared record and collect every structural problem.

Room: policy. Takes: a class derived from Fields, raw JSON. Gives: Shape, whose ``walk``
returns the data without nulls and lists the problems. Next: policy/reading/decode.py,
which uses this only if fast decoding has failed.
Source: the CRD schema rules of Kubernetes (type, required, enum, minimum, maxLength,
unknown fields), derived from the records' declarations, so that a new kind needs no
code here.
"""

from collections.abc import Callable, Mapping
from functools import cache

import msgspec
from msgspec import inspect

from kyverno_mp.policy.problems import Problem
from kyverno_mp.values.jsonvalue import Json

Removed = Mapping[type, frozenset[str]]
"""Record -> fields (JSON names) that are missing in one version of a kind."""

TYPE_NAMES: dict[type, str] = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}


class Walk:
    """The state of one walk: found problems, and fields that the version lacks."""

    __slots__ = ("problems", "removed", "rule_of")

    def __init__(self, rule_of: Callable[[str], str], removed: Removed) -> None:
        self.rule_of = rule_of
        self.removed = removed
        self.problems: list[Problem] = []

    def add(
        self, code: str, path: str, reason: str, names: tuple[str, ...] = ()
    ) -> None:
        """Record one problem; ``names``: the fields beside an unknown one."""
        rule = self.rule_of(path)
        self.problems.append(Problem(code, path, rule, reason, known=names))


class Shape:
    """Any JSON value; the base of all shapes."""

    def walk(self, value: Json, path: str, walk: Walk) -> Json:
        """Return the cleaned value, None if unusable; add problems to ``walk``."""
        del path, walk
        return value


class _Scalar(Shape):
    def __init__(self, kind: type) -> None:
        self.kind = kind

    def walk(self, value: Json, path: str, walk: Walk) -> Json:
        if type(value) is not self.kind:
            return _wrong_type(value, TYPE_NAMES[self.kind], path, walk)
        return value


class _Text(Shape):
    def __init__(self, max_length: int | None) -> None:
        self.max_length = max_length

    def walk(self, value: Json, path: str, walk: Walk) -> Json:
        if type(value) is not str:
            return _wrong_type(value, "string", path, walk)
        if self.max_length is not None and len(value) > self.max_length:
            reason = f"Too long: may not be more than {self.max_length} bytes"
            walk.add("policy.too_long", path, reason)
            return None
        return value


class _Integer(Shape):
    def __init__(self, minimum: int | None) -> None:
        self.minimum = minimum

    def walk(self, value: Json, path: str, walk: Walk) -> Json:
        if type(value) is not int:
            return _wrong_type(value, "integer", path, walk)
        if self.minimum is not None and value < self.minimum:
            reason = f"must be greater than or equal to {self.minimum}, got {value}"
            walk.add("policy.out_of_range", path, reason)
            return None
        return value


class _Enum(Shape):
    def __init__(self, values: tuple[str, ...]) -> None:
        self.values = values

    def walk(self, value: Json, path: str, walk: Walk) -> Json:
        if type(value) is not str:
            return _wrong_type(value, "string", path, walk)
        if value not in self.values:
            allowed = ", ".join(f'"{name}"' for name in self.values)
            reason = f'Unsupported value: "{value}": supported values: {allowed}'
            walk.add("policy.unsupported_value", path, reason)
            return None
        return value


class _List(Shape):
    def __init__(self, item: Shape) -> None:
        self.item = item

    def walk(self, value: Json, path: str, walk: Walk) -> Json:
        if type(value) is not list:
            return _wrong_type(value, "array", path, walk)
        item = self.item
        walked = [
            item.walk(entry, f"{path}[{index}]", walk)
            for index, entry in enumerate(value)
        ]
        return [entry for entry in walked if entry is not None]


class _Map(Shape):
    def __init__(self, item: Shape) -> None:
        self.item = item

    def walk(self, value: Json, path: str, walk: Walk) -> Json:
        if type(value) is not dict:
            return _wrong_type(value, "object", path, walk)
        item = self.item
        # K8S: nulls are dropped unless the schema allows them.
        walked = {
            key: item.walk(entry, _child(path, key), walk)
            for key, entry in value.items()
            if entry is not None
        }
        return {key: entry for key, entry in walked.items() if entry is not None}


class _Record(Shape):
    """A declared record; its fields are set later, so that records can be recursive."""

    def __init__(self, record: type) -> None:
        self.record = record
        self.fields: dict[str, Shape] = {}
        self.required: tuple[str, ...] = ()

    def fill(
        self, declared: tuple[inspect.Field, ...], records: dict[type, "_Record"]
    ) -> None:
        self.fields = {
            field.encode_name: _shape(field.type, records) for field in declared
        }
        self.required = tuple(field.encode_name for field in declared if field.required)

    def walk(self, value: Json, path: str, walk: Walk) -> Json:
        if type(value) is not dict:
            return _wrong_type(value, "object", path, walk)
        removed = walk.removed.get(self.record, frozenset())
        cleaned: dict[str, Json] = {}
        for key, entry in value.items():
            shape = self.fields.get(key)
            if shape is None or key in removed:
                field_path, reason = _child(path, key), f'unknown field "{key}"'
                walk.add("policy.unknown_field", field_path, reason, tuple(self.fields))
            elif entry is not None:
                walked = shape.walk(entry, _child(path, key), walk)
                if walked is not None:
                    cleaned[key] = walked
        for key in self.required:
            if value.get(key) is None:
                walk.add("policy.required", _child(path, key), "Required value")
        return cleaned


def _child(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _wrong_type(value: Json, expected: str, path: str, walk: Walk) -> Json:
    got = TYPE_NAMES.get(type(value), type(value).__name__)
    article = "an" if expected[0] in "aio" else "a"
    walk.add("policy.wrong_type", path, f"must be {article} {expected}, got {got}")
    _unknown_below(value, path, walk)
    return None


def _unknown_below(value: Json, path: str, walk: Walk) -> None:
    """Report the fields of a misplaced object. K8S: all of them are unknown."""
    if type(value) is dict:
        for key in value:
            field_path = _child(path, key)
            walk.add("policy.unknown_field", field_path, f'unknown field "{key}"')
    elif type(value) is list:
        for index, entry in enumerate(value):
            _unknown_below(entry, f"{path}[{index}]", walk)


_FREE = Shape()


def _shape(declared: inspect.Type, records: dict[type, _Record]) -> Shape:
    match declared:
        case inspect.StructType(cls=cls):
            return _record(cls, records)
        case inspect.UnionType(types=types):
            present_types = [
                present_type
                for present_type in types
                if not isinstance(present_type, inspect.NoneType)
            ]
            return _shape(present_types[0], records)
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            return _List(_shape(item, records))
        case inspect.DictType(value_type=item):
            return _Map(_shape(item, records))
        case inspect.StrType(max_length=max_length):
            return _Text(max_length)
        case inspect.IntType(ge=minimum):
            return _Integer(minimum)
        case inspect.LiteralType(values=values):
            return _Enum(tuple(str(value) for value in values))
        case inspect.BoolType():
            return _Scalar(bool)
        case _:
            return _FREE


@cache
def shape_of(record: type[msgspec.Struct]) -> Shape:
    """Return the cached shape of a declared record."""
    return _record(record, {})


def _record(record: type, records: dict[type, _Record]) -> Shape:
    shape = records.get(record)
    if shape is None:
        shape = records[record] = _Record(record)
        declared = inspect.type_info(record)
        assert isinstance(declared, inspect.StructType)
        shape.fill(declared.fields, records)
    return shape

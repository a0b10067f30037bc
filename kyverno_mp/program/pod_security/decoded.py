"""Decode a Pod or a Pod controller as Go's encoding/json decodes it into its struct.

Room: program.pod_security. Takes: a resource that no API server has decoded, as JSON.
Gives: the resource without unknown fields, or the decoder's error. Next:
program/bodies/pod_security. May touch: go_fields.txt, read once.
Source: docs/behaviour/engine 6.5; Kyverno validate_pss.go (getSpec); Go's
encoding/json; Kubernetes core/v1, apps/v1, batch/v1 and meta/v1 types as of 1.35.

``go_fields.txt`` has the fields of Pods and Pod controllers, also of ``status``,
because Go decodes the whole object. One struct per entry: its name, then each type with
its fields. ``[]X``: a list, ``map[string]X``: a map, ``~X``: a string type named X in
Go, ``X@Y``: X within the embedded struct Y.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.program.pod_security.pod import TEMPLATE_KINDS, failed
from kyverno_mp.values.go.gotext import float_json, folded, json_text
from kyverno_mp.values.go.gotime_parse import RFC3339, parse_time
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.quantity import parse_quantity, quantity_error

_LIMITS: Final = {"int32": 1 << 31, "int64": 1 << 63}
_JSON_KINDS: Final = {str: "string", bool: "bool", list: "array", dict: "object"}
_MAP: Final = "map[string]"
_Test: TypeAlias = Callable[[Json], bool]


class _Field(NamedTuple):
    go_type: str
    place: tuple[str, ...]
    """The field's name in error paths, which includes the embedded struct."""


class _Struct(NamedTuple):
    name: str
    fields: dict[str, _Field]
    folded: dict[str, str]
    """Folded names: Go accepts ``hostnetwork`` for ``hostNetwork``."""


@cache
def _structs() -> dict[str, _Struct]:
    structs = {}
    table = Path(__file__).with_name("go_fields.txt").read_text("utf-8")
    for line in table.replace("\n  ", " ").splitlines():
        name, _, listed = line.partition(": ")
        fields = {}
        for group in listed.split("; "):
            holder, *names = group.split()
            go_type, _, embedded = holder.partition("@")
            for each in names:
                path = (embedded, each) if embedded else (each,)
                fields[each] = _Field(go_type, path)
        structs[name] = _Struct(name, fields, {folded(each): each for each in fields})
    return structs


def as_decoded(resource: dict[str, Json], kind: str) -> dict[str, Json]:
    """Return the resource as Go decodes it; usually the same object.

    Raises: ExpressionFailed (``podsecurity.resource``) if decoding fails.
    """
    root = "Deployment" if kind in TEMPLATE_KINDS else kind
    if root not in ("Deployment", "CronJob", "Pod") or _test(root)(resource):
        return resource
    decoder = _Decoder()
    decoded = decoder.struct(_structs()[root], resource)
    if decoder.problem is not None:
        raise failed(decoder.problem)
    return {**decoded, "kind": resource.get("kind")}


@cache
def _test(go_type: str) -> _Test:
    """Return a test for values that need no further check; it never accepts null."""
    if go_type == "string" or go_type[0] == "~":
        return lambda value: type(value) is str
    if go_type == "bool":
        return lambda value: type(value) is bool
    if go_type in _LIMITS:
        limit = _LIMITS[go_type]
        return lambda value: _is_whole(value, limit)
    if go_type.startswith("[]"):
        test = _test(go_type[2:])
        return lambda value: (
            type(value) is list and all(item is None or test(item) for item in value)
        )
    if go_type.startswith(_MAP) or go_type == "ResourceList":
        inner = _test(_inner(go_type))
        return lambda value: (
            type(value) is dict
            and all(item is None or inner(item) for item in value.values())
        )
    if go_type == "Quantity":
        return _is_quantity
    if go_type == "IntOrString":
        return lambda value: type(value) is str or _is_whole(value, 1 << 31)
    if go_type == "Time":
        return _is_time
    if go_type == "FieldsV1":
        return lambda _value: True
    return _struct_test(_structs()[go_type])


def _struct_test(struct: _Struct) -> _Test:
    tests = {name: _test(field.go_type) for name, field in struct.fields.items()}
    names = struct.folded
    # An unknown field of a volume would be counted as a source.
    is_open = struct.name != "Volume"

    def test(value: Json) -> bool:
        if type(value) is not dict:
            return False
        for key, item in value.items():
            member_test = tests.get(key)
            if member_test is None:
                if not is_open or folded(key) in names:
                    return False
            elif item is not None and not member_test(item):
                return False
        return True

    return test


def _inner(go_type: str) -> str:
    return "Quantity" if go_type == "ResourceList" else go_type.removeprefix(_MAP)


def _is_whole(value: Json, limit: int) -> bool:
    if type(value) is float:
        return value.is_integer() and -limit <= value < limit and abs(value) < 1e15  # noqa: PLR2004 - more digits are looked at as text
    return type(value) is int and -limit <= value < limit


def _is_quantity(value: Json) -> bool:
    if type(value) is not str:
        return type(value) is int or _is_whole(value, 1 << 63)
    return parse_quantity(value.strip()) is not None


def _is_time(value: Json) -> bool:
    if type(value) is not str:
        return False
    try:
        parse_time(RFC3339, value)
    except ExpressionFailed:
        return False
    return True


class _Decoder:
    """One run of the decoder: the current field, and the first type error.

    A type error is reported at the end; an error in a type's own decoder stops the run.
    """

    def __init__(self) -> None:
        # SAFETY: only a string is kept, see errors.without_frames.
        self.problem: str | None = None
        self._struct = ""
        self._path: tuple[str, ...] = ()

    def struct(self, struct: _Struct, value: dict[str, Json]) -> dict[str, Json]:
        """Return the members that the struct has, under the struct's names."""
        above, path = self._struct, self._path
        members: dict[str, Json] = {}
        # Go marshals maps in key order.
        for key in sorted(value):
            name = key if key in struct.fields else struct.folded.get(folded(key))
            if name is None or value[key] is None:
                continue
            field = struct.fields[name]
            self._struct, self._path = struct.name, (*path, *field.place)
            members[name] = self._read(field.go_type, value[key])
        self._struct, self._path = above, path
        return members

    def _read(self, go_type: str, value: Json) -> Json:
        if value is None:
            return None
        special = _SPECIAL.get(go_type)
        if special is not None:
            special(self, value)
            return value
        if go_type.startswith("[]"):
            return self._list(go_type, value)
        if go_type.startswith(_MAP) or go_type == "ResourceList":
            return self._map(go_type, value)
        struct = _structs().get(go_type)
        if struct is not None and type(value) is dict:
            return self.struct(struct, value)
        if struct is None and _test(go_type)(value):
            return value
        self._differs(value, go_type)
        return None

    def _list(self, go_type: str, value: Json) -> Json:
        if type(value) is list:
            return [self._read(go_type[2:], item) for item in value]
        self._differs(value, go_type)
        return None

    def _map(self, go_type: str, value: Json) -> Json:
        if type(value) is dict:
            inner = _inner(go_type)
            return {key: self._read(inner, value[key]) for key in sorted(value)}
        self._differs(value, go_type)
        return None

    def _differs(self, value: Json, go_type: str) -> None:
        if self.problem is None:
            self.problem = self._mismatch(value, go_type)

    def _mismatch(self, value: Json, go_type: str) -> str:
        kind = _JSON_KINDS.get(type(value), "number")
        if kind == "number" and go_type in _LIMITS:
            kind = f"number {float_json(value) if type(value) is float else value}"
        return (
            f"json: cannot unmarshal {kind} into Go struct field {self._struct}."
            f"{'.'.join(self._path)} of type {_printed(go_type)}"
        )

    def quantity(self, value: Json) -> None:
        """Read a resource.Quantity: a string or any other value."""
        printed = value if type(value) is str else json_text(value)
        if parse_quantity(printed.strip()) is None:
            raise failed(quantity_error(printed.strip()))

    def int_or_string(self, value: Json) -> None:
        """Read an intstr.IntOrString (a string or a whole number)."""
        if not _test("IntOrString")(value):
            raise failed(self._mismatch(value, "int32"))

    def time(self, value: Json) -> None:
        """Read a metav1.Time."""
        if type(value) is not str:
            raise failed(self._mismatch(value, "string"))
        try:
            parse_time(RFC3339, value)
        except ExpressionFailed as error:
            raise failed(error.message) from error

    def anything(self, value: Json) -> None:
        """Read a value that Go keeps unchanged."""


_SPECIAL: Final[dict[str, Callable[[_Decoder, Json], None]]] = {
    "Quantity": _Decoder.quantity,
    "IntOrString": _Decoder.int_or_string,
    "Time": _Decoder.time,
    "FieldsV1": _Decoder.anything,
}


def _printed(go_type: str) -> str:
    if go_type.startswith("[]"):
        return f"[]{_printed(go_type[2:])}"
    if go_type in ("string", "bool", *_LIMITS) or go_type.startswith(_MAP):
        return go_type
    name = go_type.removeprefix("~")
    return name if "." in name else f"v1.{name}"

"""Merge an apply configuration with an object, by the types of its kind.

Room: values. Takes: an object, a patch, Schemas. Gives: the merged object. Next:
program/cel_policies/mutate.py. May touch: nothing outside its arguments;
unchanged parts are shared.
Source: structured-merge-diff v6 typed/{validate,merge}.go; k8s apiserver,
admission/plugin/policy/mutating/patch/smd.go; docs/behaviour/cel 10.1.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.values.go.gotext import go_type, json_string, sprint
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.patches.json_equal import whole_numbers
from kyverno_mp.values.spending import (
    ENTRY_BYTES,
    FREE,
    POINTER_BYTES,
    Spender,
)
from kyverno_mp.values.typed.schema import Atom, ListType, MapType, Schemas

_STEPS: Final = 4
_ABSENT: Final = object()
_Key = tuple[tuple[str, str], ...]
"""Pairs of name and printed value; for an element of a set, the name is empty."""


class Merger:
    """Merges objects by the types of one kind."""

    __slots__ = ("_schemas", "_spend", "_type")

    def __init__(self, schemas: Schemas, notation: str, spend: Spender = FREE) -> None:
        self._schemas = schemas
        self._type = notation
        self._spend = spend

    def merge(
        self,
        resource: dict[str, Json],
        patch: dict[str, Json],
        *,
        replaces_atomics: bool = False,
    ) -> Json:
        """Return the merged object; ``replaces_atomics``: atomic values can change.

        Raises: ExpressionFailed with upstream's message.
        """
        self._check(patch, "patch", is_live=False)
        atomics = [] if replaces_atomics else list(self._atomics(self._type, patch, ""))
        if atomics:
            raise _failed(
                "invalid ApplyConfiguration: may not mutate atomic arrays, maps or"
                f" structs: {', '.join(atomics)}"
            )
        self._check(resource, "original", is_live=True)
        return self._merged(self._type, resource, patch)

    def _check(self, value: Json, noun: str, *, is_live: bool) -> None:
        problems = list(self._problems(self._type, value, "", is_live=is_live))
        if problems:
            message = problems[0]
            if len(problems) > 1:
                message = "\n".join(
                    ["errors:", *(f"  {problem}" for problem in problems)]
                )
            raise _failed(f"failed to convert {noun} object to typed object: {message}")

    def _problems(
        self, notation: str, value: Json, path: str, *, is_live: bool
    ) -> Iterator[str]:
        """Yield upstream's errors for values that do not match their types."""
        self._spend.charge(_STEPS)
        atom = _deduced(self._schemas.atom(notation), value)
        if atom.map is not None:
            yield from self._map_problems(atom.map, value, path, is_live=is_live)
        elif atom.scalar:
            problem = _scalar_problem(atom.scalar, value, is_live=is_live)
            if problem:
                yield _at(path, problem)
        elif atom.list is not None:
            yield from self._list_problems(atom.list, value, path, is_live=is_live)

    def _map_problems(
        self, typed: MapType, value: Json, path: str, *, is_live: bool
    ) -> Iterator[str]:
        if value is None and is_live:
            return
        if type(value) is not dict:
            yield _at(path, f"expected map, got {_shown(value)}")
            return
        for key, item in sorted(value.items()):
            notation = typed.fields.get(key) or typed.items
            if not notation:
                yield _at(f"{path}.{key}", "field not declared in schema")
                return
            yield from self._problems(notation, item, f"{path}.{key}", is_live=is_live)

    def _list_problems(
        self, typed: ListType, value: Json, path: str, *, is_live: bool
    ) -> Iterator[str]:
        if value is None and is_live:
            return
        if type(value) is not list:
            yield _at(path, f"expected list, got {_shown(value)}")
            return
        keys: set[_Key] = set()
        for index, item in enumerate(value):
            step = f"[{index}]"
            if not typed.is_atomic:
                key, problem = _key_of(typed, item)
                if problem:
                    yield _at(path, f"element {index}: {problem}")
                    return
                step = _key_text(key)
                if key in keys and not is_live:
                    yield _at(path, f"duplicate entries for key {step}")
                keys.add(key)
            yield from self._problems(
                typed.items, item, f"{path}{step}", is_live=is_live
            )

    def _atomics(self, notation: str, value: Json, path: str) -> Iterator[str]:
        """Yield the paths of atomic lists, maps and structs."""
        atom = self._schemas.atom(notation)
        if type(value) is dict and atom.map is not None:
            if atom.map.is_atomic:
                yield path
            for key, item in value.items():
                if key in atom.map.fields:
                    yield from self._atomics(
                        atom.map.fields[key], item, f"{path}.{key}"
                    )
        elif type(value) is list and atom.list is not None:
            if atom.list.is_atomic:
                yield path
            for index, item in enumerate(value):
                yield from self._atomics(atom.list.items, item, f"{path}[{index}]")

    def _merged(self, notation: str, left: Json, right: Json) -> Json:
        """Return the merged value; ``_ABSENT`` means that a side has no value."""
        self._spend.charge(_STEPS)
        if right is _ABSENT:
            return left
        atom = self._schemas.atom(notation)
        if type(right) is dict and atom.map is not None and not atom.map.is_atomic:
            if type(left) is dict and (left or right):
                return self._merged_map(atom.map, left, right)
        elif (
            type(right) is list
            and atom.list is not None
            and not atom.list.is_atomic
            and ((type(left) is list and left) or right)
        ):
            before = left if type(left) is list else []
            return self._merged_list(atom.list, before, right)
        elif right is None and type(left) in (dict, list) and left:
            # K8S: null counts as an empty list or map, which adds nothing.
            if atom.map is not None and type(left) is dict and not atom.map.is_atomic:
                return left
            if atom.list is not None and type(left) is list and not atom.list.is_atomic:
                return left
        return right

    def _merged_map(
        self, typed: MapType, left: dict[str, Json], right: dict[str, Json]
    ) -> Json:
        self._spend.charge_bytes(ENTRY_BYTES * (len(left) + len(right)))
        merged = dict(left)
        for key, item in right.items():
            notation = typed.fields.get(key) or typed.items
            merged[key] = self._merged(notation, left.get(key, _ABSENT), item)
        return merged

    def _merged_list(
        self, typed: ListType, left: list[Json], right: list[Json]
    ) -> Json:
        """Merge two lists by the keys of their elements.

        The elements of the right list keep their order. Elements that are only in the
        left list keep their order, too.
        """
        self._spend.charge_bytes(POINTER_BYTES * 4 * (len(left) + len(right)))
        left_keys = [_key_of(typed, item)[0] for item in left]
        right_keys = [_key_of(typed, item)[0] for item in right]
        of_left: dict[_Key, Json] = {}
        for key, item in zip(left_keys, left, strict=True):
            # K8S: if several elements have the same key, none of them is merged.
            of_left[key] = None if key in of_left else item
        of_right = dict(zip(right_keys, right, strict=True))
        merged: list[Json] = []
        for position, is_left in _order(left_keys, right_keys):
            if is_left:
                merged.append(left[position])
                continue
            key = right_keys[position]
            before = of_left.get(key, _ABSENT)
            merged.append(self._merged(typed.items, before, of_right[key]))
        return merged


def _order(left: Sequence[_Key], right: Sequence[_Key]) -> Iterator[tuple[int, bool]]:
    """Yield (position, whether in the left list) in the order of the result."""
    in_left, in_right = set(left), set(right)
    shared = [key for key in right if key in in_left]
    waited = 0
    merged: set[_Key] = set()
    at, to = 0, 0
    while at < len(left) or to < len(right):
        upcoming = shared[waited] if waited < len(shared) else _ABSENT
        if at < len(left) and to < len(right):
            key = left[at]
            if key == right[to]:
                merged.add(key)
                yield to, False
                at, to, waited = at + 1, to + 1, waited + 1
                continue
            if key in in_right and upcoming is not _ABSENT and upcoming != key:
                at += 1
                continue
        if at < len(left):
            key = left[at]
            if key not in in_right:
                yield at, True
                at += 1
                continue
            if key in merged:
                at += 1
        if to < len(right):
            key = right[to]
            merged.add(key)
            yield to, False
            to += 1
            if upcoming is not _ABSENT and upcoming == key:
                waited += 1


def _deduced(atom: Atom, value: Json) -> Atom:
    """Return the part of the type that matches the value; all of it if no part does."""
    kind = type(value)
    if kind in (int, float, str, bool):
        return Atom(atom.scalar) if atom.scalar else atom
    if kind is list:
        return Atom(list=atom.list) if atom.list is not None else atom
    if kind is dict:
        return Atom(map=atom.map) if atom.map is not None else atom
    return atom


def _scalar_problem(scalar: str, value: Json, *, is_live: bool) -> str:
    kind = type(value)
    if value is None and is_live:
        return ""
    if scalar == "numeric" and kind not in (int, float):
        actual = "structpb.NullValue" if value is None else go_type(value)
        return f"expected numeric (int or float), got {actual}"
    if scalar == "string" and kind is not str:
        return f"expected string, got &value.valueUnstructured{{Value:{_sharp(value)}}}"
    if scalar == "boolean" and kind is not bool:
        return f"expected boolean, got {_shown(value)}"
    if scalar == "untyped" and (kind in (list, dict) or value is None):
        return f"expected any scalar, got {_shown(value)}"
    return ""


def _shown(value: Json) -> str:
    # KYVERNO: CEL's null is a protobuf enum, which is not nil in Go.
    if value is None:
        return "&{NULL_VALUE}"
    return f"&{{{sprint(value)}}}"


def _sharp(value: Json) -> str:
    """Return a value in the format of Go's ``%#v``."""
    if value is None:
        return "0"
    if type(value) is str:
        return json_string(value, escape_html=False)
    if type(value) is list:
        return f"[]interface {{}}{{{', '.join(map(_sharp, value))}}}"
    if type(value) is dict:
        pairs = (
            f"{json_string(key, escape_html=False)}:{_sharp(item)}"
            for key, item in sorted(value.items())
        )
        return f"map[string]interface {{}}{{{', '.join(pairs)}}}"
    return "interface {}(nil)" if value is None else sprint(value)


def _key_of(typed: ListType, item: Json) -> tuple[_Key, str]:
    """Return the key of an element of an associative list, and "" or the error."""
    if not typed.keys:
        return _set_key(item)
    if item is None:
        return (), "associative list with keys may not have a null element"
    if type(item) is not dict:
        return (), "associative list with keys may not have non-map elements"
    parts = []
    for key in sorted(typed.keys):
        value = item.get(key.name, key.default)
        if key.name in item or key.default is not None:
            parts.append((key.name, _shown_key(value)))
    if not parts:
        names = " ".join(f'"{key.name}"' for key in typed.keys)
        return (), (
            f"associative list with keys has an element that omits all key fields"
            f" [{names}] (and doesn't have default values for any key fields)"
        )
    return tuple(parts), ""


def _set_key(item: Json) -> tuple[_Key, str]:
    if type(item) is dict:
        return (), "associative list without keys has an element that's a map type"
    if type(item) is list:
        return (), "not supported: associative list with lists as elements"
    if item is None:
        return (
            (),
            "associative list without keys has an element that's an explicit null",
        )
    return (("", _shown_key(item)),), ""


def _shown_key(value: Json) -> str:
    """Return a key in upstream's format; equal strings are equal keys."""
    return _sharp(whole_numbers(value))


def _key_text(key: _Key) -> str:
    return f"[{','.join(f'{name}={value}' for name, value in key)}]"


def _at(path: str, problem: str) -> str:
    return f"{path}: {problem}" if path else problem


def _failed(message: str) -> ExpressionFailed:
    return ExpressionFailed("cel.patch", message)

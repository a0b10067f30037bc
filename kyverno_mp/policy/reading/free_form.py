"""Read the blocks that a CRD leaves free-form with the names that Go finds in them.

Room: policy. Takes: a raw ClusterPolicy or Policy. Gives: the same document with the
declared names in its free-form blocks, the names that nothing reads, and Problems for
values that Go's types do not accept. Next: policy/reading/decode.py; the CLI, where a
misfit invalidates the whole path.
Source: docs/behaviour/controllers 1.2 (free-form blocks); docs/behaviour/cli 4;
encoding/json (names of fields).

An API server checks and prunes declared fields only. What is below a free-form field
reaches Kyverno as written, and its decoder for these blocks ignores the case of names.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final, NamedTuple, TypeAlias

from msgspec import inspect

from kyverno_mp.policy.documents.cluster_policy import Rule
from kyverno_mp.policy.fields.conditions import AnyAllConditions, Condition
from kyverno_mp.policy.fields.image_verification import Attestor, AttestorSet, Deny
from kyverno_mp.policy.fields.mutation import (
    ForEachGeneration,
    ForEachMutation,
    TargetResourceSpec,
)
from kyverno_mp.policy.fields.validation import ForEachValidation
from kyverno_mp.policy.problems import Problem, rule_name
from kyverno_mp.values.go.gotext import folded
from kyverno_mp.values.jsonvalue import Json

GO_MISFIT: Final = "policy.go_type"
IGNORED_NAME: Final = "policy.ignored_name"

_INNER: Final = ("validate", "mutate", "verifyImages", "foreach", "targets")
"""Fields of a rule, or of its parts, that may contain conditions."""
_TEXTS: Final = ("operator", "message")


class _Record(NamedTuple):
    type: type


class _Many(NamedTuple):
    item: "_Shape"


class _Conditions(NamedTuple):
    """Any and all, or the deprecated list."""


class _Folded(NamedTuple):
    """A field that encoding/json decodes, with everything below it."""

    shape: "_Shape"


class _Open(NamedTuple):
    """A record with exact names whose other names are stored and never read."""

    type: type


class _Plain(NamedTuple):
    """Data, or a map, whose names are the author's own."""

    is_scalar: bool = False


_Shape: TypeAlias = _Record | _Many | _Conditions | _Folded | _Open | _Plain

_CONDITIONS: Final = _Folded(_Conditions())
_PRECONDITIONS: Final = _Open(AnyAllConditions)
_FREE_FORM: Final[Mapping[tuple[type, str], _Shape]] = {
    (Rule, "preconditions"): _CONDITIONS,
    (Deny, "conditions"): _CONDITIONS,
    (TargetResourceSpec, "preconditions"): _CONDITIONS,
    (ForEachValidation, "preconditions"): _PRECONDITIONS,
    (ForEachMutation, "preconditions"): _PRECONDITIONS,
    (ForEachGeneration, "preconditions"): _PRECONDITIONS,
    (ForEachValidation, "foreach"): _Folded(_Many(_Record(ForEachValidation))),
    (ForEachMutation, "foreach"): _Folded(_Many(_Record(ForEachMutation))),
    (Attestor, "attestor"): _Folded(_Record(AttestorSet)),
}
"""The free-form fields that are no data, and how Kyverno decodes each."""


class Read(NamedTuple):
    """A document as Go reads it, and a Problem for each name that it ignores."""

    raw: dict[str, Json]
    ignored: tuple[Problem, ...] = ()


def as_go_reads(raw: dict[str, Json]) -> Read:
    """Return the document with declared names in its free-form blocks.

    The document itself is returned if its names are the declared ones already.
    """
    spec = raw.get("spec")
    rules = spec.get("rules") if type(spec) is dict else None
    if type(spec) is not dict or type(rules) is not list:
        return Read(raw)
    reader = _Reader()
    read = [
        reader.exact(rule, Rule, f"spec.rules[{index}]")
        for index, rule in enumerate(rules)
    ]
    ignored = tuple(
        Problem(IGNORED_NAME, path, rule_name(raw, path), _ignored_text(path))
        for path in reader.ignored
    )
    if all(new is old for new, old in zip(read, rules, strict=True)):
        return Read(raw, ignored)
    return Read({**raw, "spec": {**spec, "rules": read}}, ignored)


def ignored_names(raw: dict[str, Json], file: str) -> list[str]:
    """Return a line for each name of a policy that nothing reads."""
    name = raw["metadata"]["name"]
    return [f"{file}: policy {name}: {each}" for each in as_go_reads(raw).ignored]


def _ignored_text(path: str) -> str:
    return f'unknown field "{path.rpartition(".")[2]}": it is never read'


class _Reader:
    """One walk through a document; ``ignored``: the paths of names nothing reads."""

    def __init__(self) -> None:
        self.ignored: list[str] = []

    def exact(self, value: Json, record: type, path: str) -> Json:
        """Read the free-form fields of a record whose own names are exact.

        The decoder reports its unknown names.
        """
        if type(value) is not dict:
            return value
        changed = {}
        for name, shape in _leading(record).items():
            old = value.get(name)
            if old is not None:
                new = self._field(old, shape, f"{path}.{name}")
                if new is not old:
                    changed[name] = new
        return {**value, **changed} if changed else value

    def _field(self, value: Json, shape: _Shape, path: str) -> Json:
        match shape:
            case _Folded(inner):
                return self._folded(value, inner, path)
            case _Open(record):
                return self._open(value, record, path)
            case _Record(record):
                return self.exact(value, record, path)
            case _Many(item):
                if type(value) is not list:
                    return value
                read = [
                    self._field(each, item, f"{path}[{index}]")
                    for index, each in enumerate(value)
                ]
                same = all(new is old for new, old in zip(read, value, strict=True))
                return value if same else read
            case _:
                return value

    def _open(self, value: Json, record: type, path: str) -> Json:
        if type(value) is not dict:
            return value
        fields_of = _fields(record)
        unknown = [name for name in value if name not in fields_of]
        if not unknown:
            return value
        self.ignored += [f"{path}.{name}" for name in unknown]
        return {name: each for name, each in value.items() if name in fields_of}

    def _folded(
        self, value: Json, shape: _Shape, path: str, before: Json = None
    ) -> Json:
        """Read a value like encoding/json, into what an earlier name has left."""
        match shape:
            case _Conditions():
                if before is None and _is_exact(value):
                    return value  # PERF: as nearly every policy is written
                listed = type(value) is list
                record = _Record(Condition if listed else AnyAllConditions)
                inner: _Shape = _Many(record) if listed else record
                return self._folded(value, inner, path, before)
            case _Folded(inner):
                return self._folded(value, inner, path, before)
            case _Record(record) | _Open(record):
                return self._record(value, record, path, before)
            case _Many(item) if type(value) is list:
                items = before if type(before) is list else []
                return [
                    self._folded(
                        each,
                        item,
                        f"{path}[{index}]",
                        items[index] if index < len(items) else None,
                    )
                    for index, each in enumerate(value)
                ]
            case _Plain(is_scalar=True) if value is None:
                return before
            case _:
                return value

    def _record(self, value: Json, record: type, path: str, before: Json) -> Json:
        """GO: the names in their order in the text, which is sorted; the last wins.

        A null in a list leaves an element as it is.
        """
        if type(value) is not dict:
            return value
        fields, low = _fields(record), _folded_names(record)
        read = dict(before) if type(before) is dict else {}
        for key in sorted(value):
            name = key if key in fields else low.get(folded(key))
            field_path = f"{path}.{key}"
            if name is None:
                self.ignored.append(field_path)
            else:
                read[name] = self._folded(
                    value[key], fields[name], field_path, read.get(name)
                )
        return value if read == value else read


def _is_exact(conditions: Json) -> bool:
    """Return whether conditions are any and all with the declared names only."""
    names = _fields(Condition).keys()
    return (
        type(conditions) is dict
        and conditions.keys() <= _fields(AnyAllConditions).keys()
        and all(
            type(listed) is list
            and all(type(each) is dict and each.keys() <= names for each in listed)
            for listed in conditions.values()
        )
    )


@cache
def _fields(record: type) -> Mapping[str, _Shape]:
    """Return the fields of a declared record by their JSON names."""
    declared = inspect.type_info(record)
    assert isinstance(declared, inspect.StructType)
    return {
        field.encode_name: _FREE_FORM.get((record, field.encode_name))
        or _shape(field.type)
        for field in declared.fields
    }


@cache
def _folded_names(record: type) -> Mapping[str, str]:
    return {folded(name): name for name in _fields(record)}


@cache
def _leading(record: type) -> Mapping[str, _Shape]:
    """Return the fields that are free-form, or that lead to such a field."""
    return {name: shape for name, shape in _fields(record).items() if _leads(shape)}


def _leads(shape: _Shape) -> bool:
    match shape:
        case _Folded() | _Open():
            return True
        case _Many(item):
            return _leads(item)
        case _Record(record):
            return bool(_leading(record))
        case _:
            return False


def _shape(declared: inspect.Type) -> _Shape:
    match declared:
        case inspect.StructType(cls=cls):
            return _Record(cls)
        case inspect.UnionType(types=types):
            rest = [
                present_type
                for present_type in types
                if not isinstance(present_type, inspect.NoneType)
            ]
            return _shape(rest[0])
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            return _Many(_shape(item))
        case inspect.AnyType() | inspect.DictType():
            return _Plain()
        case _:
            return _Plain(is_scalar=True)


def go_misfits(raw: dict[str, Json]) -> Iterator[Problem]:
    """Yield problems for conditions that are neither a list nor any and all."""
    spec = as_go_reads(raw).raw.get("spec")
    rules = spec.get("rules") if type(spec) is dict else None
    for index, rule in enumerate(rules if type(rules) is list else ()):
        path = f"spec.rules[{index}]"
        for misfit_path in _misfits(rule, path):
            message = "must be a list of conditions, or any and all"
            yield Problem(GO_MISFIT, misfit_path, rule_name(raw, path), message)


def _misfits(part: Json, path: str) -> Iterator[str]:
    if type(part) is list:
        for index, item in enumerate(part):
            yield from _misfits(item, f"{path}[{index}]")
    if type(part) is not dict:
        return
    deny = part.get("deny")
    conditions = {"preconditions": part.get("preconditions")}
    if type(deny) is dict:
        conditions["deny.conditions"] = deny.get("conditions")
    yield from (
        f"{path}.{name}" for name, value in conditions.items() if not _fits(value)
    )
    for name in _INNER:
        yield from _misfits(part.get(name), f"{path}.{name}")


def _fits(conditions: Json) -> bool:
    if type(conditions) is dict:
        return all(_is_list(conditions.get(name)) for name in ("any", "all"))
    return _is_list(conditions)


def _is_list(conditions: Json) -> bool:
    if conditions is None:
        return True
    return type(conditions) is list and all(map(_is_condition, conditions))


def _is_condition(value: Json) -> bool:
    if value is None:
        return True
    values = (value.get(name) for name in _TEXTS) if type(value) is dict else (1,)
    return all(value_part is None or type(value_part) is str for value_part in values)

"""Convert JSON to the types of records, safely in several threads.

Room: values. Takes: a type and JSON. Gives: RecordType, which converts to this type;
field_decoders, which decode its fields one by one; RecordSearch, which finds records in
a record.

msgspec 0.22 builds what it knows about a type at the first use, and publishes it before
it is complete: if two threads use a type for the first time at once, the process ends
with a segmentation fault. A module therefore creates its records and decoders when it
is imported, where only one thread runs; tests/unit/test_tidy_records.py checks this.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from operator import attrgetter
from typing import (
    Any,
    Final,
    Generic,
    TypeAlias,
    TypeVar,
    get_args,
    get_type_hints,
)

import msgspec

_T_co = TypeVar("_T_co", covariant=True)
UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What a decoder of msgspec raises for bytes from outside; texts are checked by Python,
whose error is none of msgspec's."""

FieldDecoders: TypeAlias = Mapping[str, msgspec.msgpack.Decoder[Any]]


def field_decoders(record: type[msgspec.Struct]) -> FieldDecoders:
    """Return a decoder for each field; call it at the top level of a module."""
    return {
        field.name: msgspec.msgpack.Decoder(field.type)
        for field in msgspec.structs.fields(record)
    }


class RecordType(Generic[_T_co]):
    """A type that is ready for all threads; create it at the top level of a module."""

    __slots__ = ("_type",)

    def __init__(self, record_type: type[_T_co]) -> None:
        """Build what msgspec knows about the type and all types of its fields."""
        self._type = record_type
        msgspec.json.Decoder(record_type)

    @property
    def type(self) -> type[_T_co]:
        """The type itself."""
        return self._type

    def convert(self, raw: Any) -> _T_co:
        """Return ``raw`` as an instance. Raises: msgspec.ValidationError."""
        return msgspec.convert(raw, self._type)


_SCALARS: Final[frozenset[type]] = frozenset({str, bytes, int, float, bool, type(None)})


class RecordSearch:
    """Searches records for those of some types, only where they can be.

    PERF: which fields can contain such a record follows from the declared types, once
    for each type; most of a compiled policy cannot, and is not visited. A field that is
    declared as ``Any`` contains JSON, hence no record.
    """

    def __init__(self, *wanted: type[msgspec.Struct]) -> None:
        """``wanted``: the types to find; create it at the top level of a module."""
        self._wanted = frozenset(wanted)
        self._parts: dict[type, Callable[[Any], Iterable[Any]]] = {
            tuple: iter,
            list: iter,
            dict: dict.values,
        }
        self._skipped: set[type] = set(_SCALARS)

    def all_in(self, record: Any) -> Iterator[Any]:
        """Yield a record, and what is in it at any depth that may lead to one.

        Cost: linear in the fields and items of what may lead to one.
        """
        parts_of, skipped = self._parts, self._skipped
        waiting = [record]
        while waiting:
            value = waiting.pop()
            yield value
            kind = type(value)
            parts = parts_of.get(kind)
            if parts is None:
                parts = parts_of[kind] = self._parts_of(kind)
            waiting += [
                part for part in parts(value) if part and type(part) not in skipped
            ]

    def parts(self, value: Any) -> list[Any]:
        """Return what a record or container contains directly that may lead to one.

        Cost: linear in the fields and items; nothing below is visited.
        """
        kind = type(value)
        parts = self._parts.get(kind)
        if parts is None:
            parts = self._parts[kind] = self._parts_of(kind)
        skipped = self._skipped
        return [part for part in parts(value) if part and type(part) not in skipped]

    def _parts_of(self, kind: type) -> Callable[[Any], Iterable[Any]]:
        if not issubclass(kind, msgspec.Struct):
            return _nothing
        names = [
            name
            for name, declared in _declared(kind).items()
            if not self._wanted.isdisjoint(_reached(declared))
        ]
        if not names:
            if kind not in self._wanted:
                self._skipped.add(kind)
            return _nothing
        getter = attrgetter(*names)
        return getter if len(names) > 1 else lambda value: (getter(value),)


@cache
def _declared(record: type[msgspec.Struct]) -> Mapping[str, Any]:
    hints = get_type_hints(record)
    return {name: hints[name] for name in record.__struct_fields__}


def _reached(declared: Any) -> set[type]:
    """Return the types of all records that a value of a declared type can contain."""
    reached: set[type] = set()
    waiting = [declared]
    while waiting:
        kind = waiting.pop()
        waiting += get_args(kind)
        if not isinstance(kind, type) or kind in reached:
            continue
        if issubclass(kind, msgspec.Struct):
            reached.add(kind)
            waiting += _declared(kind).values()
    return reached


def _nothing(_value: Any) -> Iterable[Any]:
    return ()

"""Convert JSON to the types of records, safely in several threads.

Room: values. Takes: a type and JSON. Gives: RecordType, which converts to this type;
field_decoders, which decode its fields one by one; nested, which lists what is in it.
May touch: nothing outside its arguments.

msgspec 0.22 builds what it knows about a type at the first use, and publishes it before
it is complete: if two threads use a type for the first time at once, the process ends
with a segmentation fault. A module therefore creates its records and decoders when it
is imported, where only one thread runs; tests/unit/test_tidy_records.py checks this.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from operator import attrgetter
from typing import Any, Final, Generic, TypeAlias, TypeVar

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


_SCALARS: Final = frozenset({str, bytes, int, float, bool, type(None)})


@cache
def _parts_of(kind: Any) -> Callable[[Any], Iterable[Any]]:
    """Return a function that lists what a value of a type contains."""
    if issubclass(kind, tuple | list):
        return iter
    if issubclass(kind, dict):
        return dict.values
    if not issubclass(kind, msgspec.Struct) or not kind.__struct_fields__:
        return _nothing
    getter = attrgetter(*kind.__struct_fields__)
    if len(kind.__struct_fields__) > 1:
        return getter
    return lambda value: (getter(value),)


def _nothing(_value: Any) -> Iterable[Any]:
    return ()


def nested(value: object) -> list[Any]:
    """Return the records and containers in a record, a list or a dict.

    PERF: texts, numbers and nulls, which are most of a policy, are left out; a policy
    is searched for several things while it is compiled.
    """
    kind: Any = type(value)
    parts = _parts_of(kind)(value)
    return [part for part in parts if type(part) not in _SCALARS]

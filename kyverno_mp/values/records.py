"""Convert JSON to the types of records, safely in several threads.

Room: values. Takes: a type and JSON. Gives: RecordType, which converts to this type;
field_decoders, which decode its fields one by one.
May touch: nothing outside its arguments.

msgspec 0.22 builds what it knows about a type at the first use, and publishes it before
it is complete: if two threads use a type for the first time at once, the process ends
with a segmentation fault. A module therefore creates its records and decoders when it
is imported, where only one thread runs; tests/unit/test_tidy_records.py checks this.
"""

from collections.abc import Mapping
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

    def __init__(self, of: type[_T_co]) -> None:
        """Build what msgspec knows about the type and all types of its fields."""
        self._type = of
        msgspec.json.Decoder(of)

    @property
    def type(self) -> type[_T_co]:
        """The type itself."""
        return self._type

    def convert(self, raw: Any) -> _T_co:
        """Return ``raw`` as an instance. Raises: msgspec.ValidationError."""
        return msgspec.convert(raw, self._type)

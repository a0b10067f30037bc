"""Convert JSON to the types of records, safely in several threads.

Room: values. Takes: a type and JSON. gives: RecordType, which converts to this type.
May touch: nothing outside its arguments.

msgspec 0.22 builds what it knows about a type at the first use, and publishes it before
it is complete: if two threads use a type for the first time at once, the process ends
with a segmentation fault. A module therefore creates its records and decoders when it
is imported, where only one thread runs; tests/unit/test_tidy_records.py checks this.
"""

from typing import Any, Final, Generic, TypeVar

import msgspec

_T_co = TypeVar("_T_co", covariant=True)
UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What a decoder of msgspec raises for bytes from outside; texts are checked by Python,
whose error is none of msgspec's."""


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

"""Define the names and types that an expression may use.

Room: expr. Takes: nothing. Gives: Environment, TYPE_NAMES. Next: check.py;
compiler/rules/cel declares the variables of policies.
Source: cel-go checker/env.go; docs/behaviour/cel 4, 11.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from kyverno_mp.expr.cel import types
from kyverno_mp.expr.cel.catalogue import base_library
from kyverno_mp.expr.cel.library import Library
from kyverno_mp.expr.cel.types import Allowance, Type

TYPE_NAMES: Final[Mapping[str, Type]] = {
    "bool": types.BOOL,
    "bytes": types.BYTES,
    "double": types.DOUBLE,
    "int": types.INT,
    "string": types.STRING,
    "uint": types.UINT,
    "null_type": types.NULL,
    "dyn": types.DYN,
    "list": types.list_of(types.DYN),
    "map": types.map_of(types.DYN, types.DYN),
    "type": types.type_of(types.DYN),
    "optional_type": types.optional_of(types.DYN),
    "google.protobuf.Timestamp": types.TIMESTAMP,
    "google.protobuf.Duration": types.DURATION,
}


class RecordFields(Protocol):
    """The fields of one record type, by name."""

    def get(self, field: str, /) -> Type | None:
        """Return the type of a field; None if the field does not exist."""


class Records(Protocol):
    """The record types that variables may have, by name."""

    def get(self, name: str, /) -> RecordFields | None:
        """Return the fields of a record type; None if the type is unknown."""


@dataclass(slots=True)
class Environment:
    """The names that an expression may use.

    ``records``: the fields of the variables' record types. ``constructors``: types that
    ``Name{..}`` can construct, with their fields. ``allowance``: shared by all checks
    with this environment; if it is None, each check has a separate allowance.
    """

    variables: dict[str, Type]
    records: Records = field(default_factory=dict[str, dict[str, Type]])
    constructors: Mapping[str, Mapping[str, Type]] = field(default_factory=dict)
    library: Library = field(default_factory=base_library)
    allowance: Allowance | None = None

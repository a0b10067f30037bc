"""Name the values of CEL that JSON does not have, and the errors of evaluation.

Room: expr. Takes: nothing. Gives: Uint, Timestamp, Duration, Optional, TypeValue,
CelFailed, Meter, type_name. Next: every module of expr/cel.
CEL's int, double, string, bytes, list, map and null are Python's int, float, str,
bytes, list, dict and None; values are never changed in place.
May touch: nothing outside its arguments. Source: the CEL language definition.
"""

from typing import Any, Final, TypeAlias

from kyverno_mp.errors import BudgetExceeded
from kyverno_mp.limits import EXPRESSION_BYTES_MAX

Value: TypeAlias = Any
"""A CEL value: JSON data, or one of the classes below or of functions/."""

INT_MAX: Final = (1 << 63) - 1
INT_MIN: Final = -(1 << 63)
UINT_MAX: Final = (1 << 64) - 1
PER_CALL_COST_MAX: Final = 1_000_000
"""The API server's PerCallLimit: cost units of one expression (spec/cel.md 12e)."""
POINTER_BYTES: Final = 8


class CelFailed(Exception):
    """An expression failed; ``||`` and ``&&`` may absorb it. Never leaves expr/cel."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Uint(int):
    """CEL's unsigned integer; compares equal to an int of the same value."""

    __slots__ = ()


class Timestamp:
    """Nanoseconds since the Unix epoch, in UTC."""

    __slots__ = ("ns",)

    def __init__(self, ns: int) -> None:
        self.ns = ns

    def __eq__(self, other: object) -> bool:
        return type(other) is Timestamp and other.ns == self.ns

    def __lt__(self, other: "Timestamp") -> bool:
        return self.ns < other.ns

    def __hash__(self) -> int:
        return hash(self.ns)


class Duration:
    """A span in nanoseconds."""

    __slots__ = ("ns",)

    def __init__(self, ns: int) -> None:
        self.ns = ns

    def __eq__(self, other: object) -> bool:
        return type(other) is Duration and other.ns == self.ns

    def __lt__(self, other: "Duration") -> bool:
        return self.ns < other.ns

    def __hash__(self) -> int:
        return hash(self.ns)


class Optional:
    """``optional.of(value)``; ``NO_VALUE`` is the one without."""

    __slots__ = ("present", "value")

    def __init__(self, value: Value, *, present: bool = True) -> None:
        self.value = value
        self.present = present


NO_VALUE: Final = Optional(None, present=False)


class TypeValue:
    """A type as a value, e.g. what ``type(1)`` gives."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return type(other) is TypeValue and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


class Record:
    """Base of values whose fields are read by name: ``variables``, a policy's types.

    ``field`` returns the value or raises CelFailed; ``has`` tells whether it is set.
    """

    __slots__ = ()
    type_name = "object"

    def field(self, name: str) -> Value:
        """Return a field's value; CelFailed when there is none."""
        raise CelFailed(f"no such key: {name}")

    def has(self, _name: str) -> bool:
        """Tell whether a field is set."""
        return False


class Meter:
    """What one evaluation may still spend: cost units, and bytes it may build."""

    __slots__ = ("bytes_left", "left")

    def __init__(
        self, cost: int = PER_CALL_COST_MAX, bytes_max: int = EXPRESSION_BYTES_MAX
    ) -> None:
        self.left = cost
        self.bytes_left = bytes_max

    def charge(self, cost: int) -> None:
        """Spend cost units. Raises: BudgetExceeded, which nothing absorbs."""
        self.left -= cost
        if self.left < 0:
            raise over_budget()

    def charge_text(self, size: int) -> None:
        """Spend what walking ``size`` characters costs: a tenth of a unit each."""
        self.left -= (size + 9) // 10
        if self.left < 0:
            raise over_budget()

    def charge_bytes(self, count: int) -> None:
        """Spend bytes before building a value of that size."""
        self.bytes_left -= count
        self.left -= (count + 9) // 10
        if self.left < 0 or self.bytes_left < 0:
            raise over_budget()


def over_budget() -> BudgetExceeded:
    """Make the error of a spent budget, with the API server's text."""
    return BudgetExceeded("cel.cost", "operation cancelled: actual cost limit exceeded")


_NAMES: Final[dict[type, str]] = {
    type(None): "null_type",
    bool: "bool",
    int: "int",
    Uint: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    list: "list",
    dict: "map",
    Timestamp: "google.protobuf.Timestamp",
    Duration: "google.protobuf.Duration",
    Optional: "optional_type",
    TypeValue: "type",
}


def type_name(value: Value) -> str:
    """Return the name that ``type(value)`` has, e.g. ``map``."""
    name = _NAMES.get(value.__class__)
    return name if name is not None else str(value.type_name)

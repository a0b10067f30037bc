"""Define the CEL values that JSON does not have, and the evaluation errors.

Room: expr. Takes: nothing. Gives: Uint, Timestamp, Duration, Optional, TypeValue,
CelFailed, Meter, type_name. Next: every module of expr/cel.
CEL's int, double, string, bytes, list, map and null are Python's int, float, str,
bytes, list, dict and None; values are never changed in place.
Source: the CEL language definition.
"""

from typing import Any, Final, Protocol, TypeAlias

from kyverno_mp.errors import BudgetExceeded
from kyverno_mp.limits import EXPRESSION_BYTES_MAX, STEPS_BETWEEN_CLOCK_CHECKS
from kyverno_mp.values.go.goquote import quote
from kyverno_mp.values.kubernetes.quantity import Quantity

Value: TypeAlias = Any
"""A CEL value: JSON data, or one of the classes below or of functions/."""

INT_MAX: Final = (1 << 63) - 1
INT_MIN: Final = -(1 << 63)
UINT_MAX: Final = (1 << 64) - 1
PER_CALL_COST_MAX: Final = 1_000_000
"""The API server's PerCallLimit: cost units of one expression (behaviour/cel 12e)."""
UNITS_PER_STEP: Final = 10
"""With this ratio RuntimeCELCostBudget (docs/behaviour/cel 12e) equals the rule's step
budget."""
UNITS_BETWEEN_CLOCK_CHECKS: Final = UNITS_PER_STEP * STEPS_BETWEEN_CLOCK_CHECKS
POINTER_BYTES: Final = 8
WIDE_BYTES: Final = 4
"""The maximum size of a character in a non-ASCII text."""
_SHOWN_MAX: Final = 256
FAILURE_COST: Final = 30
"""The cost of an absorbed error: raising it takes longer than most calls."""
LIST_BYTES: Final = 64
"""The memory of an empty list, or the overhead of any small object."""
ENTRY_BYTES: Final = 100
"""The memory of one dict entry."""


class CelFailed(Exception):
    """An expression failed; ``||`` and ``&&`` may absorb it. Not raised to callers."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Uint(int):
    """CEL's unsigned integer; compares equal to an int of the same value."""

    __slots__ = ()


class Timestamp:
    """Nanoseconds since the Unix epoch.

    ``offset_s``: the zone offset in its text form; everything else is in UTC.
    """

    __slots__ = ("ns", "offset_s")

    def __init__(self, ns: int, offset_s: int = 0) -> None:
        self.ns = ns
        self.offset_s = offset_s

    def __eq__(self, other: object) -> bool:
        return type(other) is Timestamp and other.ns == self.ns

    def __lt__(self, timestamp: "Timestamp") -> bool:
        return self.ns < timestamp.ns

    def __hash__(self) -> int:
        return hash(self.ns)


class Duration:
    """A time span in nanoseconds."""

    __slots__ = ("ns",)

    def __init__(self, ns: int) -> None:
        self.ns = ns

    def __eq__(self, other: object) -> bool:
        return type(other) is Duration and other.ns == self.ns

    def __lt__(self, duration: "Duration") -> bool:
        return self.ns < duration.ns

    def __hash__(self) -> int:
        return hash(self.ns)


class Optional:
    """``optional.of(value)``; ``NO_VALUE`` is the empty optional."""

    __slots__ = ("present", "value")

    def __init__(self, value: Value, *, present: bool = True) -> None:
        self.value = value
        self.present = present


NO_VALUE: Final = Optional(None, present=False)


class TypeValue:
    """A type as a value, e.g. the result of ``type(1)``."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return type(other) is TypeValue and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


class Record:
    """Base class of values whose fields are read by name, such as ``variables``.

    ``field`` returns the value or raises CelFailed; ``has`` returns whether it is set.
    """

    __slots__ = ()
    type_name = "object"

    def field(self, name: str) -> Value:
        """Return a field's value. Raises: CelFailed if the field does not exist."""
        raise CelFailed(f"no such key: {name}")

    def has(self, _name: str) -> bool:
        """Return whether a field is set."""
        return False

    def equals(self, _meter: "Meter", value: Value, _depth: int) -> bool:
        """Return whether the value equals another one; most records have no content."""
        return self is value


class RuleBudget(Protocol):
    """The remaining budget of the rule, shared by its Meters: expr/scope.Runtime."""

    bytes_left: int
    steps_left: int

    def charge(self, steps: int, /) -> None:
        """Charge steps and check the clock. Raises: BudgetExceeded, DeadlinePassed."""

    def charge_bytes(self, count: int, /) -> None:
        """Spend bytes. Raises: BudgetExceeded."""


class _OwnBudget:
    """The byte budget of a Meter outside a rule, for constants and tests."""

    __slots__ = ("bytes_left", "steps_left")

    def __init__(self) -> None:
        self.bytes_left = EXPRESSION_BYTES_MAX
        self.steps_left = 0

    def charge(self, steps: int, /) -> None:
        """Charge nothing, because the Meter itself limits the steps."""

    def charge_bytes(self, count: int, /) -> None:
        """Spend bytes. Raises: BudgetExceeded."""
        self.bytes_left -= count
        if self.bytes_left < 0:
            raise over_budget()


class Meter:
    """The remaining budget of one evaluation: cost units, and bytes that it can build.

    A unit is a cost unit of cel-go and stands for at most 50 ns; the rule is charged
    one step per UNITS_PER_STEP. Code may decrease ``left`` directly, but must call
    ``check`` when it falls below ``check_below``. ``budget``: steps are charged to it
    at intervals, when it checks the clock, and bytes immediately.
    """

    __slots__ = ("_paid", "budget", "check_below", "left", "regexes")

    def __init__(
        self, cost: int = PER_CALL_COST_MAX, budget: RuleBudget | None = None
    ) -> None:
        self.left = cost
        self._paid = cost
        self.check_below = (
            0 if budget is None else max(cost - UNITS_BETWEEN_CLOCK_CHECKS, 0)
        )
        self.budget: RuleBudget = _OwnBudget() if budget is None else budget
        self.regexes: set[str] | None = None
        """The regular expressions that have been charged to it."""

    def check(self) -> None:
        """Charge spent units to the budget. Raises: BudgetExceeded, DeadlinePassed."""
        units_left = self.left
        if units_left < 0:
            raise over_budget()
        paid, self._paid = self._paid, units_left
        if paid > units_left:
            self.check_below = max(units_left - UNITS_BETWEEN_CLOCK_CHECKS, 0)
            self.budget.charge((paid - units_left) // UNITS_PER_STEP)
            self.budget.charge_bytes(0)

    def settle(self) -> int:
        """Return the steps that are not charged yet, at the end of the evaluation."""
        return (self._paid - self.left) // UNITS_PER_STEP

    def charge(self, cost: int) -> None:
        """Charge cost units. Raises: BudgetExceeded, which nothing absorbs."""
        self.left -= cost
        if self.left < self.check_below:
            self.check()

    def charge_text(self, size: int) -> None:
        """Charge for walking ``size`` characters: a tenth of a unit each."""
        self.left -= (size + 9) // 10
        if self.left < self.check_below:
            self.check()

    def charge_bytes(self, count: int) -> None:
        """Charge the bytes and the time for a value of this size before it is built."""
        self.left -= (count + 9) // 10
        if self.left < self.check_below:
            self.check()
        self.budget.charge_bytes(count)

    def hold(self, count: int) -> None:
        """Charge only the bytes of a value, because its time is already charged."""
        self.budget.charge_bytes(count)


def text_bytes(count: int, *strings: str) -> int:
    """Return the memory of ``count`` characters, as wide as the widest string."""
    narrow = all(map(str.isascii, strings))
    return LIST_BYTES + (count if narrow else WIDE_BYTES * count)


def shown(string: str) -> str:
    """Return the beginning of a string in quotes, for an error message."""
    return quote(string[: _SHOWN_MAX if string.isascii() else _SHOWN_MAX // 8])


def over_budget() -> BudgetExceeded:
    """Return the error for an exhausted budget, with the API server's text."""
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
    Quantity: "kubernetes.Quantity",
}


def type_name(value: Value) -> str:
    """Return the name of ``type(value)``, e.g. ``map``."""
    name = _NAMES.get(value.__class__)
    return name if name is not None else str(value.type_name)

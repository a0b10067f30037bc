"""Define the values that exist only inside a running query, and the tests on values.

Room: expr. Takes: Json and Runtime. Gives: Missing, GoInt, GoSlice, Reference; the
rules for truth, equality, numbers and results. Next: link.py and functions/.
Source: docs/behaviour/engine 0.2, 3.5, 9.1.
"""

from collections.abc import Callable
from typing import TypeAlias

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.values.effort import TEXT_LIGHT_MAX
from kyverno_mp.values.jsonvalue import Json

Closure: TypeAlias = Callable[[Runtime, Json], Json]
"""A linked node: ``closure(runtime, current)``; may return Missing, GoInt, ..."""


class UnknownKey(ExpressionFailed):
    """A path reached a map without the key, and no operator absorbed the error."""

    def __init__(self, key: str) -> None:
        super().__init__("expr.unknown_key", f'Unknown key "{key}" in path')
        self.key = key


class Missing:
    """Represents Go's NotFoundError inside a running query; never part of a result."""

    __slots__ = ("key",)

    def __init__(self, key: str) -> None:
        self.key = key


class GoInt(int):
    """A Go ``int``: neither the float64 nor the int64 of JSON data."""

    __slots__ = ()


class GoSlice(list[Json]):
    """A Go slice other than ``[]interface{}``, as returned by ``items``.

    KYVERNO: 9.2 - projections accept it, but functions that assert a list reject it.
    """

    __slots__ = ()


class Reference:
    """``&expression`` as an argument of a function."""

    __slots__ = ("closure",)

    def __init__(self, closure: Closure) -> None:
        self.closure = closure


def fail(message: str) -> ExpressionFailed:
    """Return the error of a function or operator, with the Go program's text."""
    return ExpressionFailed("expr.failed", message)


def is_false(value: Json) -> bool:
    """Return whether a value is false: false, null, "", [] and {}, but not 0."""
    if value:
        return False
    kind = type(value)
    return kind is not float and kind is not int and kind is not GoInt


def equal(runtime: Runtime, left: Json, right: Json) -> bool:
    """Compare deeply and by type, like reflect.DeepEqual.

    An int equals a float only if the runtime treats ints as float64.
    """
    kind, right_kind = type(left), type(right)
    if kind is not right_kind:
        if runtime.ints_are_numbers:
            both = (kind is int and right_kind is float) or (
                kind is float and right_kind is int
            )
            return both and bool(left == right)
        return False
    if kind is list or kind is GoSlice:
        if len(left) != len(right):
            return False
        runtime.charge(len(left))
        return all(equal(runtime, a, b) for a, b in zip(left, right, strict=True))
    if kind is str:
        if len(left) > TEXT_LIGHT_MAX and len(left) == len(right):
            runtime.charge_read(left)
        return bool(left == right)
    if kind is dict:
        runtime.charge(len(left))
        if left.keys() != right.keys():
            return False
        return all(equal(runtime, value, right[key]) for key, value in left.items())
    if kind is Reference:
        return False
    return bool(left == right)


def as_number(runtime: Runtime, value: Json) -> float | None:
    """Return the float of a value that is a float64 in Go, otherwise None."""
    kind = type(value)
    if kind is float:
        return float(value)
    if kind is int and runtime.ints_are_numbers:
        return float(value)
    return None


def leave(runtime: Runtime, value: Json) -> Json:
    """Convert the values that exist only in queries to JSON data."""
    kind = type(value)
    if kind is GoInt:
        return int(value)
    if kind is list or kind is GoSlice:
        runtime.charge_items(len(value))
        return [leave(runtime, item) for item in value]
    if kind is dict:
        runtime.charge_entries(len(value))
        return {key: leave(runtime, item) for key, item in value.items()}
    if kind is Reference:
        return {}
    return value


def _spend(runtime: Runtime, steps: int) -> None:
    """Charge without checking the clock.

    PERF: this halves the time for the walk over a Pod's containers (6.9 us before).
    """
    runtime.steps_left -= steps
    if runtime.steps_left < 0:
        runtime.charge(0)


def floats(runtime: Runtime, value: Json) -> Json:
    """Convert ints to floats; return the value itself if it contains no ints.

    PERF: the walk copies nothing until the first int, because most results are strings.
    """
    kind = type(value)
    if kind is int:
        return float(value)
    if kind is list:
        _spend(runtime, len(value))
        for index, item in enumerate(value):
            if type(item) is not str:
                new = floats(runtime, item)
                if new is not item:
                    runtime.charge_items(2 * len(value))
                    rest = [
                        floats(runtime, later_item) for later_item in value[index + 1 :]
                    ]
                    return [*value[:index], new, *rest]
    elif kind is dict:
        _spend(runtime, len(value))
        changed: dict[str, Json] | None = None
        for key, item in value.items():
            if type(item) is not str:
                new = floats(runtime, item)
                if new is not item:
                    if changed is None:
                        runtime.charge_entries(len(value))
                        changed = dict(value)
                    changed[key] = new
        return value if changed is None else changed
    return value

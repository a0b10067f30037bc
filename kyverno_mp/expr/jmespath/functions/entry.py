"""Define the records of functions: names, argument types, return types, notes.

Room: expr. Takes: rows of the modules in this package. Gives: FunctionEntry and the
checks of arguments. Next: calls.py.
Source: docs/behaviour/engine 9.1 (types and error messages).
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from kyverno_mp.expr.effects import EFFECT_PURE
from kyverno_mp.expr.jmespath.interim import GoSlice, Reference, as_number, fail, floats
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.values.effort import CHARACTERS_PER_STEP, TEXT_LIGHT_MAX
from kyverno_mp.values.go.gotext import GoValue, go_type, sprint
from kyverno_mp.values.jsonvalue import Json

Handler: TypeAlias = Callable[..., Json]
"""Called with the runtime and the arguments; numbers are floats if the row says so."""
Kinds: TypeAlias = tuple[str, ...]

STRING: Final[Kinds] = ("string",)
NUMBER: Final[Kinds] = ("number",)
ARRAY: Final[Kinds] = ("array",)
OBJECT: Final[Kinds] = ("object",)
ANY: Final[Kinds] = ("any",)
BOOL: Final[Kinds] = ("bool",)
TEXTUAL: Final[Kinds] = ("string", "number")
NUMBERS: Final[Kinds] = ("array[number]",)
STRINGS: Final[Kinds] = ("array[string]",)
REFERENCE: Final[Kinds] = ("expref",)


class FunctionEntry(NamedTuple):
    """One function; without ``arguments`` any arguments are accepted."""

    name: str
    arguments: tuple[Kinds, ...]
    handler: Handler
    returns: Kinds = ANY
    note: str = ""
    variadic: bool = False
    optional: int = 0
    """The number of optional last arguments."""
    effects: int = EFFECT_PURE
    """The function's external effects; a function that may block first calls
    Runtime.before_waiting."""


_FAST: Final[dict[str, frozenset[type]]] = {
    "string": frozenset({str}),
    "number": frozenset({float}),
    "array": frozenset({list, GoSlice}),
    "object": frozenset({dict}),
    "expref": frozenset({Reference}),
}


def weigh(runtime: Runtime, value: Json) -> None:
    """Charge one pass over an argument, so that no function reads it without a charge.

    The functions charge any further work and their results.
    """
    kind = type(value)
    if kind is str or kind is list or kind is dict or kind is GoSlice:
        size = len(value)
        if size > TEXT_LIGHT_MAX:
            runtime.charge(size // CHARACTERS_PER_STEP)


def fast_types(kinds: Kinds) -> frozenset[type]:
    """Return the Python types that need no further check."""
    return frozenset[type]().union(*(_FAST.get(kind, ()) for kind in kinds))


def check_argument(
    runtime: Runtime, value: Json, entry: FunctionEntry, index: int
) -> Json:
    """Return an argument whose type is not in ``fast_types``, or reject it.

    Ints become floats if the runtime treats them as float64.
    """
    kinds = entry.arguments[index]
    for kind in kinds:
        if kind == "number":
            number = as_number(runtime, value)
            if number is not None:
                return number
        elif kind == "array[number]" and type(value) is list:
            runtime.charge_items(len(value))
            numbers = [as_number(runtime, item) for item in value]
            if None not in numbers:
                return numbers
        elif kind == "array[string]" and type(value) is list:
            runtime.charge(len(value))
            if all(type(item) is str for item in value):
                return value
    quoted = ", ".join(f'"{kind}"' for kind in kinds)
    raise function_error(
        entry.name,
        f"argument #{index + 1}: Invalid type for: {show(runtime, value)}, "
        f"expected: []jmespath.JpType{{{quoted}}}",
    )


def show(runtime: Runtime, value: Json) -> str:
    """Print a value like ``%v`` for an error message, within the budget."""
    if runtime.ints_are_numbers:
        value = floats(runtime, value)
    return sprint(value, runtime.charge_printed)


def function_prefix(name: str) -> str:
    """Return what precedes an error in the arguments of a function."""
    return f"JMESPath function '{name}': "


def function_error(name: str, reason: str) -> Exception:
    """Return the error ``JMESPath function '<name>': <text>``."""
    return fail(function_prefix(name) + reason)


def type_name(runtime: Runtime, value: Json) -> str:
    """Return the Go type of a value inside a query."""
    kind = type(value)
    if kind is GoSlice:
        return "[]map[string]interface {}"
    if kind is Reference:
        return "jmespath.expRef"
    if value is None:
        return "nil"
    if isinstance(value, GoValue):
        return value.go_name
    if kind is int:
        return "float64" if runtime.ints_are_numbers else "int64"
    return "int" if isinstance(value, int) and kind is not bool else go_type(value)


def expect_list(runtime: Runtime, value: Any) -> list[Json]:
    """Reject a value for which Go's assertion to ``[]interface{}`` panics."""
    if type(value) is list:
        return value
    raise conversion_panic(runtime, value, "[]interface {}")


def conversion_panic(runtime: Runtime, value: Json, expected: str) -> Exception:
    """Return the Go panic of a failed type assertion as an error.

    KYVERNO: 9.1 - upstream panics here; in both cases the rule fails with an error.
    """
    actual = type_name(runtime, value)
    return fail(f"interface conversion: interface {{}} is {actual}, not {expected}")


def same_scalar(runtime: Runtime, left: Json, right: Json) -> bool:
    """Compare like Go's ``==`` on interfaces, which panics if both are containers."""
    kind, right_kind = type(left), type(right)
    if kind is right_kind:
        if kind in (list, dict, GoSlice):
            name = type_name(runtime, left)
            raise fail(f"runtime error: comparing uncomparable type {name}")
        if kind is str and len(left) > TEXT_LIGHT_MAX:
            runtime.charge(len(left) // CHARACTERS_PER_STEP)
        return bool(left == right)
    if runtime.ints_are_numbers and {kind, right_kind} == {int, float}:
        return bool(left == right)
    return False

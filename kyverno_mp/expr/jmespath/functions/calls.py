"""Link function calls: find the function, check the number and types of arguments.

Room: expr. Takes: a name and linked arguments. Gives: a closure. Next:
expr/jmespath/link.py.
Source: docs/behaviour/engine 9.1, 9.2; docs/behaviour/cli 16 (jp function).
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from kyverno_mp.expr.jmespath.functions import (
    arithmetic,
    certificates,
    encoding,
    lists,
    network,
    numbers,
    objects,
    randomness,
    regexes,
    text,
    times,
)
from kyverno_mp.expr.jmespath.functions.entry import (
    FunctionEntry,
    Handler,
    check_argument,
    fast_types,
    function_prefix,
    weigh,
)
from kyverno_mp.expr.jmespath.interim import Closure, fail
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.values.jsonvalue import Json

STANDARD: Final[Mapping[str, FunctionEntry]] = {
    entry.name: entry
    for module in (lists, numbers, objects, text)
    for entry in module.STANDARD
}
_OWN: Final = tuple(
    entry
    for module in (
        arithmetic,
        certificates,
        encoding,
        lists,
        network,
        numbers,
        objects,
        randomness,
        regexes,
        text,
        times,
    )
    for entry in module.FUNCTIONS
)
KYVERNO: Final[Mapping[str, FunctionEntry]] = {
    **STANDARD,
    **{entry.name: entry for entry in _OWN},
}
"""The functions of Kyverno's dialect; Kyverno's functions replace standard ones."""


class Described(NamedTuple):
    """The output of ``jp function`` for one function."""

    name: str
    signature: str
    note: str


def catalogue() -> list[Described]:
    """List Kyverno's own functions, sorted by signature."""
    rows = [Described(entry.name, _signature(entry), entry.note) for entry in _OWN]
    return sorted(rows, key=lambda row: row.signature)


def _signature(entry: FunctionEntry) -> str:
    arguments = ", ".join("|".join(kinds) for kinds in entry.arguments)
    return f"{entry.name}({arguments}) {'|'.join(entry.returns)}"


def call_fault(table: Mapping[str, FunctionEntry], name: str | None, count: int) -> str:
    """Return the error of a call of ``name`` with ``count`` arguments; "" if valid."""
    if name is None:
        return "invalid node value type"
    entry = table.get(name)
    if entry is None:
        return f"unknown function: {name}"
    if entry.variadic:
        return "Invalid arity." if count < len(entry.arguments) else ""
    if not entry.arguments or (entry.optional and _fits(entry, count)):
        return ""
    return "incorrect number of args" if count != len(entry.arguments) else ""


def link_call(
    table: Mapping[str, FunctionEntry],
    name: str | None,
    arguments: tuple[Closure, ...],
) -> Closure:
    """Compile a call to a closure; wrong names and argument counts fail at run time.

    Even then the arguments run first, because their errors come first in Go.
    """
    fault = call_fault(table, name, len(arguments))
    if fault or name is None:
        is_known = name is not None and name in table
        message = f"{function_prefix(name)}{fault}" if is_known and name else fault
        return _failing(message, arguments)
    entry = table[name]
    if not entry.arguments:
        return _unchecked(entry.handler, ())
    if entry.variadic:
        return _unchecked(entry.handler, arguments)
    if entry.optional:
        return _many(entry, arguments)
    if len(arguments) == 1:
        return _one(entry, arguments[0])
    if len(arguments) == 2:  # noqa: PLR2004 - the common case, without a loop
        return _two(entry, arguments[0], arguments[1])
    return _many(entry, arguments)


def _fits(entry: FunctionEntry, count: int) -> bool:
    most = len(entry.arguments)
    return most - entry.optional <= count <= most


def _failing(message: str, arguments: tuple[Closure, ...]) -> Closure:
    def call(runtime: Runtime, current: Json) -> Json:
        for argument in arguments:
            argument(runtime, current)
        raise fail(message)

    return call


def _unchecked(handler: Handler, arguments: tuple[Closure, ...]) -> Closure:
    def call(runtime: Runtime, current: Json) -> Json:
        runtime.charge()
        values = [a(runtime, current) for a in arguments]
        for value in values:
            weigh(runtime, value)
        return handler(runtime, *values)

    return call


def _one(entry: FunctionEntry, argument: Closure) -> Closure:
    handler, (kinds,) = entry.handler, entry.arguments
    if kinds == ("any",):

        def call_any(runtime: Runtime, current: Json) -> Json:
            runtime.charge()
            value = argument(runtime, current)
            weigh(runtime, value)
            return handler(runtime, value)

        return call_any
    fast = fast_types(kinds)

    def call(runtime: Runtime, current: Json) -> Json:
        runtime.charge()
        value = argument(runtime, current)
        if type(value) not in fast:
            value = check_argument(runtime, value, entry, 0)
        weigh(runtime, value)
        return handler(runtime, value)

    return call


def _two(entry: FunctionEntry, first: Closure, second: Closure) -> Closure:
    handler = entry.handler
    kinds, other_kinds = entry.arguments
    fast, other_fast = fast_types(kinds), fast_types(other_kinds)
    any_kind, other_any = kinds == ("any",), other_kinds == ("any",)

    def call(runtime: Runtime, current: Json) -> Json:
        runtime.charge()
        value = first(runtime, current)
        operand = second(runtime, current)
        if not any_kind and type(value) not in fast:
            value = check_argument(runtime, value, entry, 0)
        if not other_any and type(operand) not in other_fast:
            operand = check_argument(runtime, operand, entry, 1)
        weigh(runtime, value)
        weigh(runtime, operand)
        return handler(runtime, value, operand)

    return call


def _many(entry: FunctionEntry, arguments: tuple[Closure, ...]) -> Closure:
    handler = entry.handler
    checks = tuple((fast_types(kinds), kinds) for kinds in entry.arguments)

    def call(runtime: Runtime, current: Json) -> Json:
        runtime.charge()
        values = [argument(runtime, current) for argument in arguments]
        for index, value in enumerate(values):
            fast, kinds = checks[index]
            if kinds != ("any",) and type(value) not in fast:
                values[index] = check_argument(runtime, value, entry, index)
            weigh(runtime, values[index])
        return handler(runtime, *values)

    return call

"""Link function calls of assertion trees, with their checks and error messages.

Room: expr.assertion. Takes: a name and linked arguments. Gives: a closure.
Next: dialect.
Source: github.com/jmespath-community/go-jmespath, interpreter/functions.go;
kyverno-json pkg/engine/template (GetFunctions): the standard functions, its own, and
Kyverno's.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from kyverno_mp.expr.assertion.functions import FUNCTIONS
from kyverno_mp.expr.assertion.gotypes import GoStrings, NilMap
from kyverno_mp.expr.jmespath.functions.calls import KYVERNO, STANDARD
from kyverno_mp.expr.jmespath.functions.entry import (
    FunctionEntry,
    Handler,
    Kinds,
    weigh,
)
from kyverno_mp.expr.jmespath.interim import Closure, GoSlice, Reference, fail
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.values.go.gotext import sprint
from kyverno_mp.values.jsonvalue import Json

_NOT_THERE: Final = frozenset(
    {"image_normalize", "is_external_url", "md5", "sha1", "sha256"}
)
"""Kyverno's functions that are missing from kyverno-json's copy."""


_TELL_NIL: Final = frozenset({"not_null", "to_array", "to_string"})
"""Functions that distinguish a missing object from an empty one."""


class _Row(NamedTuple):
    name: str
    arguments: tuple[Kinds, ...]
    handler: Handler
    required: int
    variadic: bool


def _row(entry: FunctionEntry, optional: int = 0) -> _Row:
    count = len(entry.arguments)
    return _Row(
        entry.name, entry.arguments, entry.handler, count - optional, entry.variadic
    )


_TABLE: Final[Mapping[str, _Row]] = {
    **{name: _row(entry) for name, entry in STANDARD.items()},
    **{entry.name: _row(entry, optional) for entry, optional in FUNCTIONS},
    **{
        name: _row(entry)
        for name, entry in KYVERNO.items()
        if name not in STANDARD and name not in _NOT_THERE
    },
    "sum": _row(KYVERNO["sum"]),
}


def link_call(name: str, arguments: tuple[Closure, ...]) -> Closure:
    """Compile a call to a closure; wrong names and argument counts fail at run time.

    Even then the arguments run first, because their errors come first in Go.
    """
    row = _TABLE.get(name)
    problem = f"unknown function: {name}"
    if row is not None:
        problem = _count_problem(row, len(arguments))
    if row is None or problem:
        return _failing(problem, arguments)
    handler = row.handler
    kinds = _kinds_of(row, len(arguments))

    def call(runtime: Runtime, current: Json) -> Json:
        runtime.charge()
        values = [argument(runtime, current) for argument in arguments]
        if NilMap in map(type, values) and name not in _TELL_NIL:
            values = [{} if type(value) is NilMap else value for value in values]
        for value in values:
            weigh(runtime, value)
        for value, accepted in zip(values, kinds, strict=False):
            _check(runtime, value, accepted)
        return handler(runtime, *values)

    return call


def _failing(problem: str, arguments: tuple[Closure, ...]) -> Closure:
    def call(runtime: Runtime, current: Json) -> Json:
        for argument in arguments:
            argument(runtime, current)
        raise fail(problem)

    return call


def _kinds_of(row: _Row, count: int) -> tuple[Kinds, ...]:
    if not row.variadic:
        return row.arguments
    return row.arguments + row.arguments[-1:] * (count - len(row.arguments))


def _count_problem(row: _Row, count: int) -> str:
    if not row.arguments:
        return ""
    if count < row.required:
        more, only = ("or more ", "only ") if row.variadic else ("", "")
        supplied = f"{only}{count} " if count else "none "
        plural = "s" if row.required > 1 else ""
        return (
            f"invalid arity, the function '{row.name}' expects {row.required} "
            f"argument{plural} {more}but {supplied}were supplied"
        )
    if not row.variadic and count > len(row.arguments):
        return (
            f"invalid arity, the function '{row.name}' expects at most "
            f"{len(row.arguments)} arguments but {count} were supplied"
        )
    return ""


def _check(runtime: Runtime, value: Json, kinds: Kinds) -> None:
    if not any(_is(runtime, value, kind) for kind in kinds):
        accepted = ", ".join(f'"{kind}"' for kind in kinds)
        raise fail(
            f"invalid type for: {sprint(value, runtime.charge_printed)}, "
            f"expected: []functions.JpType{{{accepted}}}"
        )


def _is(runtime: Runtime, value: Json, kind: str) -> bool:
    if kind in _TYPES:
        return type(value) in _TYPES[kind]
    if kind == "any":
        return True
    if type(value) is not list:
        return False
    if kind == "array[array]":
        return True
    runtime.charge(len(value))
    item_type = float if kind == "array[number]" else str
    return all(type(item) is item_type for item in value)


_TYPES: Final[Mapping[str, frozenset[type]]] = {
    "string": frozenset({str}),
    "number": frozenset({float}),
    "array": frozenset({list, GoSlice, GoStrings}),
    "object": frozenset({dict}),
    "expref": frozenset({Reference}),
}

"""Create cel-go's errors for arguments that a function or operator does not support.

Room: expr. Takes: a name and the values. Gives: CelFailed. Next: dispatch, operators.
Source: cel-go 0.27: common/decls (MaybeNoSuchOverload), interpreter/interpretable.go,
common/stdlib; each message equals the real program's.
"""

from typing import Final

from kyverno_mp.expr.cel.values import (
    CelFailed,
    Duration,
    Optional,
    Timestamp,
    Uint,
    Value,
    type_name,
)

_BARE: Final = frozenset({"in", "contains", "startsWith", "endsWith", "matches"})
"""Functions that check their arguments themselves; their errors contain no names."""
_NUMBERS: Final = frozenset({int, Uint, float})
_ADDED: Final = _NUMBERS | {str, bytes, list, Timestamp, Duration}
_SEARCHES: Final = frozenset({"find", "findAll"})
_RECEIVERS: Final = frozenset({str, Timestamp, Duration})
"""Receivers that reject a call themselves; their errors contain no names."""
_LEFT_SIDES: Final[dict[str, frozenset[type]]] = {
    "+": _ADDED,
    "-": _NUMBERS | {Timestamp, Duration},
    "*": _NUMBERS,
    "/": _NUMBERS,
    "%": frozenset({int, Uint}),
    "-_": frozenset({int, float, bool}),
}
"""Operator -> the types allowed on its left side."""
_GO_NAMES: Final[dict[type, str]] = {
    type(None): "types.Null",
    bool: "types.Bool",
    int: "types.Int",
    Uint: "types.Uint",
    float: "types.Double",
    str: "types.String",
    bytes: "types.Bytes",
    Timestamp: "types.Timestamp",
    Duration: "types.Duration",
    Optional: "*types.Optional",
    list: "*types.baseList",
    dict: "*types.baseMap",
}
_GO_DATA: Final[dict[type, str]] = {
    type(None): "<nil>",
    list: "[]interface {}",
    dict: "map[string]interface {}",
}


def no_overload(function: str, *args: Value) -> CelFailed:
    """Return the error for arguments that match no overload."""
    if function in _SEARCHES:
        if args[0].__class__ is not str or args[1].__class__ is str:
            return CelFailed("no such overload")
    elif function in _BARE:
        return CelFailed("no such overload")
    if not function[0].isalpha():
        return _no_operator(function, args[0])
    if function in ("sort", "size"):
        named = "" if args[0].__class__ in _RECEIVERS else f": {function}"
        return CelFailed(f"no such overload{named}")
    if function == "flatten":
        kind = type_name(args[0])
        printed = "map(dyn, dyn)" if kind == "map" else kind
        return CelFailed(f"no such overload: {printed}.flatten()")
    printed = ", ".join(type_name(arg) for arg in args)
    return CelFailed(f"no such overload: {function}({printed})")


def _no_operator(operator: str, value: Value) -> CelFailed:
    possible = _LEFT_SIDES.get(operator)
    kind = value.__class__
    if possible is None or kind in possible or kind in _RECEIVERS:
        return CelFailed("no such overload")
    printed = operator if operator.endswith("_") else f"_{operator}_"
    return CelFailed(f"no such overload: {printed}")


def no_order(sign: str) -> CelFailed:
    """Return the error for a left side without an order, e.g. a list before ``<``."""
    return CelFailed(f"no such overload: _{sign}_")


def no_key(value: Value, *, is_constant: bool = False) -> CelFailed:
    """Return the error for a value that is not allowed as a key or an index.

    ``is_constant``: the message names cel-go's type for a literal, Go's type for JSON
    data.
    """
    names = _GO_NAMES if is_constant else {**_GO_NAMES, **_GO_DATA}
    name = names.get(value.__class__) or f"types.{value.__class__.__name__}"
    return CelFailed(f"invalid qualifier type: {name}")


def not_iterable(value: Value, *, two: bool) -> CelFailed:
    """Return the error for a comprehension over a value; ``two``: has two variables."""
    name = _GO_NAMES.get(value.__class__) or f"*types.{value.__class__.__name__}"
    if two:
        return CelFailed(f"unsupported comprehension range type: {name}")
    return CelFailed(f"got '{name}', expected iterable type")

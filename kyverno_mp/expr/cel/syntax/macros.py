"""Recognise macros among calls, and convert them to nodes that bind names.

Room: expr. Takes: a parsed Call. Gives: the same Call, or the equivalent Select or
Macro.
Next: parse.py.
Source: the CEL language definition, macros; cel-go's two-variable comprehensions,
bindings, optionals and lists extensions (docs/behaviour/cel 11).
"""

from typing import Final

from kyverno_mp.expr.cel.nodes import (
    Call,
    Const,
    Ident,
    ListLit,
    Macro,
    MapLit,
    Node,
    Select,
    StructLit,
)
from kyverno_mp.expr.cel.syntax.lex import syntax_error

# (macro, number of arguments) -> (kind, number of names).
_MEMBER: Final = {
    ("all", 2): ("all", 1),
    ("exists", 2): ("exists", 1),
    ("exists_one", 2): ("existsOne", 1),
    ("map", 2): ("map", 1),
    ("map", 3): ("map", 1),
    ("filter", 2): ("filter", 1),
    ("all", 3): ("all", 2),
    ("exists", 3): ("exists", 2),
    ("existsOne", 3): ("existsOne", 2),
    ("exists_one", 3): ("existsOne", 2),
    ("transformList", 3): ("transformList", 2),
    ("transformList", 4): ("transformList", 2),
    ("transformMap", 3): ("transformMap", 2),
    ("transformMap", 4): ("transformMap", 2),
    ("transformMapEntry", 3): ("transformMapEntry", 2),
    ("transformMapEntry", 4): ("transformMapEntry", 2),
    ("optMap", 2): ("optMap", 1),
    ("optFlatMap", 2): ("optFlatMap", 1),
    ("sortBy", 2): ("sortBy", 1),
}
_BIND_ARGS: Final = 3
_NOT_SORTED: Final = (
    "sortBy can only be applied to a list, identifier, comprehension, call or select"
    " expression"
)
_EXTREMES: Final = {"least": "math.@min", "greatest": "math.@max"}
_PAIR: Final = 2


def expand_call(call: Call, source: str, *, has_math: bool) -> Node:
    """Return the call or its expansion. Raises: ExpressionInvalid for a wrong use.

    ``has_math``: whether the environment has the math extension.
    """
    target = call.target
    if target is None:
        return _has(call, source) if call.function == "has" else call
    if has_math and call.function in _EXTREMES and _is_named(target, "math"):
        return _extreme(call, source)
    macro = _MEMBER.get((call.function, len(call.args)))
    if macro is not None:
        kind, count = macro
        if kind == "sortBy" and isinstance(target, Const | MapLit | StructLit):
            raise syntax_error(_NOT_SORTED, source, target.at)
        names = _names(call, count, source)
        return Macro(kind, target, names, call.args[count:], call.at)
    if (
        call.function == "bind"
        and _is_named(target, "cel")
        and len(call.args) == _BIND_ARGS
    ):
        return Macro(
            "bind", call.args[1], _names(call, 1, source), call.args[2:], call.at
        )
    return call


def _is_named(node: Node, name: str) -> bool:
    return type(node) is Ident and node.name == name


def _extreme(call: Call, source: str) -> Node:
    """Expand ``math.least`` and ``math.greatest``; over two arguments become a list."""
    args, name = call.args, f"math.{call.function}()"
    if not args:
        assert type(call.target) is Ident
        problem = f"{name} requires at least one argument"
        raise syntax_error(problem, source, call.target.at)
    if len(args) == 1:
        (only,) = args
        items = only.items if type(only) is ListLit else (only,)
        if not items or not all(map(_may_be_number, items)):
            raise syntax_error(f"{name} invalid single argument value", source, only.at)
    else:
        for arg in args:
            if not _may_be_number(arg):
                problem = f"{name} simple literal arguments must be numeric"
                raise syntax_error(problem, source, arg.at)
    if len(args) > _PAIR:
        args = (ListLit(args, (), call.at),)
    return Call(_EXTREMES[call.function], None, args, call.at)


def _may_be_number(node: Node) -> bool:
    if type(node) is Const:
        return node.kind in ("int", "uint", "double")
    return not isinstance(node, ListLit | MapLit | StructLit)


def _has(call: Call, source: str) -> Node:
    if len(call.args) != 1:
        return call
    (operand,) = call.args
    if type(operand) is not Select or operand.test:
        raise syntax_error("invalid argument to has() macro", source, operand.at)
    if operand.optional:
        raise syntax_error("unsupported optional field selection", source, call.at)
    return Select(operand.operand, operand.field, test=True, at=call.at)


def _names(call: Call, count: int, source: str) -> tuple[str, ...]:
    names = []
    for arg in call.args[:count]:
        if type(arg) is not Ident:
            is_old = call.function in ("map", "filter")
            message = "is not an identifier" if is_old else "must be a simple name"
            raise syntax_error(f"argument {message}", source, arg.at)
        names.append(arg.name)
    if len(set(names)) < len(names):
        raise syntax_error("duplicate variable name", source, call.at)
    return tuple(names)

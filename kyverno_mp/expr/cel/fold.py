"""Find the constants of an expression that fail before it runs.

Room: expr. Takes: a checked Node. Gives: cel-go's text of the first failure, "" for
none. Next: compiler/rules/cel.py.
Source: cel-go interpreter/decorators.go (decOptimize, decRegexOptimizer): building a
program folds lists, maps and conversions of constants and compiles constant regular
expressions, even in unreachable branches. If one of them fails, the program cannot be
built.
"""

from collections.abc import Mapping
from typing import Final

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed
from kyverno_mp.expr.cel.linking.program import link_expression
from kyverno_mp.expr.cel.nodes import (
    Call,
    Const,
    Expression,
    ListLit,
    MapLit,
    Node,
)
from kyverno_mp.expr.cel.operators import check_key
from kyverno_mp.expr.cel.refusals import no_key
from kyverno_mp.expr.cel.syntax.literals import check_regex
from kyverno_mp.expr.cel.syntax.parse import children
from kyverno_mp.expr.cel.values import CelFailed, Meter
from kyverno_mp.expr.compile_budget import spend

_CONVERSIONS: Final = frozenset(
    {
        *("bool", "bytes", "double", "duration", "dyn", "int"),
        *("string", "timestamp", "type", "uint"),
    }
)


_INDEXES: Final = frozenset({"_[_]", "_[?_]"})
_SEARCHES: Final = frozenset({"find", "findAll", "matches"})
_KEYS: Final = frozenset({"bool", "int", "string", "uint"})


def constant_failure(root: Node) -> str:
    """Return the text of the first constant that fails, or ""."""
    # Post-order without recursion: macros and chains of operators may be deep.
    nodes: list[Node] = []
    stack = [root]
    while stack:
        node = stack.pop()
        nodes.append(node)
        stack.extend(children(node))
    constants: dict[int, int] = {}
    for node in reversed(nodes):
        failure = ""
        if _is_constant(node, constants):
            constants[id(node)] = 1 + sum(constants[id(c)] for c in children(node))
            if isinstance(node, Call):
                # Each conversion evaluates its whole subtree again.
                spend(constants[id(node)])
                failure = _failure(node)
        elif isinstance(node, Call) and node.function in _SEARCHES:
            failure = _regex_failure(node, constants)
        elif isinstance(node, Call) and node.function in _INDEXES:
            failure = _key_failure(node.args[1], constants)
        if failure:
            return failure
    return ""


def _is_constant(node: Node, constants: Mapping[int, int]) -> bool:
    """Return whether the node is constant, by the constants found below it."""
    if isinstance(node, Const):
        return True
    if isinstance(node, Call):
        return _is_folded(node, constants)
    if isinstance(node, ListLit):
        return not node.optional and all(id(item) in constants for item in node.items)
    return isinstance(node, MapLit) and all(
        (isinstance(key, Call) or (isinstance(key, Const) and key.kind in _KEYS))
        and id(key) in constants
        and id(value) in constants
        and not optional
        for key, value, optional in node.entries
    )


def _regex_failure(call: Call, constants: Mapping[int, int]) -> str:
    operands = call.args if call.target is None else (call.target, *call.args)
    if len(operands) < 2 or id(operands[1]) not in constants:  # noqa: PLR2004 - text, pattern
        return ""
    try:
        pattern = link_expression(Expression("", operands[1]), ()).evaluate((), Meter())
    except (ExpressionFailed, BudgetExceeded):
        return ""
    if not isinstance(pattern, str):
        return ""
    try:
        check_regex(pattern)
    except CelFailed as error:
        return error.message
    return ""


def _key_failure(key: Node, constants: Mapping[int, int]) -> str:
    if id(key) not in constants:
        return ""
    try:
        value = link_expression(Expression("", key), ()).evaluate((), Meter())
        check_key(value)
    except (ExpressionFailed, BudgetExceeded):
        return ""
    except CelFailed:
        return no_key(value, is_constant=True).message
    return ""


def _is_folded(call: Call, constants: Mapping[int, int]) -> bool:
    if call.target is not None or len(call.args) != 1:
        return False
    return call.function in _CONVERSIONS and id(call.args[0]) in constants


def _failure(call: Call) -> str:
    try:
        link_expression(Expression("", call), ()).evaluate((), Meter())
    except ExpressionFailed as error:
        return error.message
    except BudgetExceeded:
        # Such a long constant fails at run time, too.
        return ""
    return ""

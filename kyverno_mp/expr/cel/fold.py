"""Find the conversions of constants that fail before an expression runs.

Room: expr. Takes: a checked Node. Gives: cel-go's text of the first failure, "" for
none. Next: compiler/cel.py. May touch: nothing outside its arguments.
Source: cel-go interpreter/decorators.go (decOptimize, maybeOptimizeConstUnary): a
program folds conversions of constants when it is built, also in branches that no
evaluation would reach, and cannot be built if one fails.
"""

from typing import Final

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed
from kyverno_mp.expr.cel.nodes import Call, Const, Expression, Node
from kyverno_mp.expr.cel.parse import children
from kyverno_mp.expr.cel.program import link_expression
from kyverno_mp.expr.cel.values import Meter

_CONVERSIONS: Final = frozenset(
    {
        *("bool", "bytes", "double", "duration", "dyn", "int"),
        *("string", "timestamp", "type", "uint"),
    }
)


def constant_failure(root: Node) -> str:
    """Return the text of the first conversion of a constant that fails, or ""."""
    # Post-order without recursion: macros and chains of operators may be deep.
    found: list[Node] = []
    stack = [root]
    while stack:
        node = stack.pop()
        found.append(node)
        stack.extend(children(node))
    constants: set[int] = set()
    for node in reversed(found):
        if isinstance(node, Const):
            constants.add(id(node))
        elif isinstance(node, Call) and _is_folded(node, constants):
            constants.add(id(node))
            text = _failure(node)
            if text:
                return text
    return ""


def _is_folded(call: Call, constants: set[int]) -> bool:
    if call.target is not None or len(call.args) != 1:
        return False
    return call.function in _CONVERSIONS and id(call.args[0]) in constants


def _failure(call: Call) -> str:
    try:
        link_expression(Expression("", call), ()).evaluate((), Meter())
    except ExpressionFailed as error:
        return error.message
    except BudgetExceeded:
        # A constant this long fails at run time, too.
        return ""
    return ""

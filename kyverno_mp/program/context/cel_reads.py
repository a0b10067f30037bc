"""Compute which fields of the new object a set of CEL expressions reads.

Room: program. Takes: compiled expressions and variables. Gives: marks on Reads. Next:
program/rule_reads.py, program/validating_policy/group.py.
Source: expr/cel/reads.py.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from kyverno_mp.expr.cel.nodes import Expression
from kyverno_mp.expr.cel.reads import follow_cel
from kyverno_mp.expr.reads import Found, Reads, ReadsUnknown
from kyverno_mp.ir.cel import NamedExpressionIR
from kyverno_mp.limits import READS_TEXT_CHARACTERS_MAX

_OBJECT: Final = "object"


def mark_expressions(
    expressions: Iterable[Expression],
    variables: Sequence[NamedExpressionIR],
    target: Reads,
) -> None:
    """Mark the fields of the object that the expressions read. Raises: ReadsUnknown."""
    followed = _Variables(variables, target)
    try:
        for expression in expressions:
            followed.follow(expression).read_whole()
    except RecursionError:
        # A chain of variables, each of which can be deeply nested itself.
        raise ReadsUnknown("deep expressions") from None


class _Variables:
    """Follows each variable at its first use; for equal names, the last one applies."""

    def __init__(self, variables: Sequence[NamedExpressionIR], target: Reads) -> None:
        self._given = {variable.name: variable.expression for variable in variables}
        self._found: dict[str, Found | None] = {}
        self._names = {_OBJECT: Found((target,))}
        self._characters_left = READS_TEXT_CHARACTERS_MAX

    def follow(self, expression: Expression) -> Found:
        if expression.node is None:
            raise ReadsUnknown(expression.error)
        self._characters_left -= len(expression.text)
        if self._characters_left < 0:
            raise ReadsUnknown("long expressions")
        return follow_cel(expression.node, self._names, self._variable)

    def _variable(self, name: str) -> Found:
        if name in self._found:
            origin = self._found[name]
            if origin is None:
                raise ReadsUnknown(f"variable {name} in itself")
            return origin
        if name not in self._given:
            raise ReadsUnknown(f"variable {name}")
        self._found[name] = None
        origin = self._found[name] = self.follow(self._given[name])
        return origin

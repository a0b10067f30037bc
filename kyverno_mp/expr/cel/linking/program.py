"""Compile CEL source, and run the compiled expressions.

Room: expr. Takes: source and an Environment; later an Expression and values. Gives:
``compile_expression``, ``link_expression``, Program. Next: compiler/rules/cel.py,
program/bodies/cel.py.
Source: docs/behaviour/cel 4, 11, 12e.
"""

from collections.abc import Mapping, Sequence

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed, ExpressionInvalid
from kyverno_mp.expr.cel.catalogue import base_library
from kyverno_mp.expr.cel.check import check
from kyverno_mp.expr.cel.environment import Environment
from kyverno_mp.expr.cel.library import Library
from kyverno_mp.expr.cel.linking.expressions import Constructor, Linker
from kyverno_mp.expr.cel.linking.frame import Run
from kyverno_mp.expr.cel.nodes import Expression
from kyverno_mp.expr.cel.syntax.parse import parse
from kyverno_mp.expr.cel.types import Type
from kyverno_mp.expr.cel.values import (
    PER_CALL_COST_MAX,
    CelFailed,
    Meter,
    RuleBudget,
    Value,
)


def compile_expression(
    source: str, environment: Environment
) -> tuple[Expression, Type]:
    """Parse and check one expression; return it with its type.

    Raises: ExpressionInvalid with cel-go's text.
    """
    node = parse(source, has_math="math.@min" in environment.library.functions)
    return Expression(source, node), check(node, source, environment)


class Program:
    """One linked expression; safe to share between threads."""

    __slots__ = ("_bound", "_cost", "_run")

    def __init__(self, run: Run, size: int, cost: int, variables: int) -> None:
        self._run = run
        self._cost = cost
        self._bound = [None] * (size - variables - 1)

    def evaluate(self, values: Sequence[Value], meter: Meter) -> Value:
        """Evaluate with the variables' values, in the order of the environment.

        Raises: ExpressionFailed with cel-go's text, BudgetExceeded.
        """
        meter.left -= self._cost
        if meter.left < meter.check_below:
            meter.check()
        try:
            return self._run([meter, *values, *self._bound])
        except CelFailed as failed:
            raise ExpressionFailed("cel.failed", failed.message) from failed
        except RecursionError:
            raise BudgetExceeded(
                "cel.depth", "expression recursion limit exceeded"
            ) from None


def link_expression(  # noqa: PLR0913 - independent facts of one environment
    expression: Expression,
    variables: tuple[str, ...],
    *,
    records: frozenset[str] = frozenset(),
    library: Library | None = None,
    constructors: Mapping[str, Constructor] | None = None,
    lazy: frozenset[str] = frozenset(),
    absent: frozenset[str] = frozenset(),
) -> Program:
    """Link a compiled expression for these variables.

    ``records``: the variables whose values are values.Record. ``lazy``: the variables
    whose values may be a Failed, whose error every use raises. ``absent``: the
    variables that have no value, whatever the caller passes. Raises: ExpressionInvalid
    if the expression did not compile.
    """
    if expression.node is None:
        raise ExpressionInvalid("cel.uncompiled", expression.error)
    linker = Linker(
        variables,
        library or base_library(),
        records,
        constructors,
        lazy=lazy,
        absent=absent,
    )
    run = linker.link(expression.node)
    return Program(run, linker.size, linker.cost, len(variables))


class Budget:
    """The shared budget of the expressions of one policy."""

    __slots__ = ("left",)

    def __init__(self, cost: int) -> None:
        self.left = cost

    def run(
        self, program: Program, values: Sequence[Value], budget: RuleBudget
    ) -> Value:
        """Evaluate and subtract the cost; the expression may run nested expressions.

        ``budget``: charged with the cost, including checks of the clock. Raises: as
        Program.evaluate, and DeadlinePassed.
        """
        # PERF: comparisons, because ``min`` and ``max`` are calls.
        most = self.left
        if most > PER_CALL_COST_MAX:  # noqa: PLR1730 - as above
            most = PER_CALL_COST_MAX
        meter = Meter(most, budget)
        try:
            return program.evaluate(values, meter)
        finally:
            budget.steps_left -= meter.settle()
            rest = meter.left
            units_left = self.left - most
            if rest > 0:
                units_left += rest
            if units_left < 0:  # noqa: PLR1730 - as above
                units_left = 0
            self.left = units_left

"""Limit the work of parsing and compiling one policy.

Room: expr. Takes: steps, which the parsers, checkers and compilers charge before the
work. Gives: CompileBudget, spend. Next: leader/policy_store.py and
webhook/policy_review.py set the limit. May touch: nothing outside its arguments.

A step stands for about four microseconds. Steps do not depend on the machine: a policy
is rejected everywhere or nowhere. Parsers also run for requests; there no limit is set,
and charging costs one look-up.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from kyverno_mp.errors import PolicyInvalid
from kyverno_mp.limits import COMPILE_STEPS_BETWEEN_CLOCK_CHECKS, COMPILE_STEPS_MAX

TOO_COSTLY: Final = "policy.too_costly"
"""The error code of a policy that exceeds its steps."""


def _nothing() -> None:
    """Check nothing."""


class CompileBudget:
    """The steps of one policy.

    ``check_clock`` is called at intervals while steps are spent; an exception that it
    raises ends the compilation.
    """

    __slots__ = ("_check_clock", "_limit", "_next", "steps")

    def __init__(
        self,
        check_clock: Callable[[], None] = _nothing,
        steps_max: int = COMPILE_STEPS_MAX,
    ) -> None:
        self._check_clock = check_clock
        self._limit = steps_max
        self._next = 0
        self.steps = 0

    def spend(self, steps: int) -> None:
        """Count steps. Raises: PolicyInvalid if there are too many.

        All later calls raise, too: code that handles the error as a fault of one
        expression gets it again at the next expression.
        """
        self.steps += steps
        if self.steps > self._limit:
            raise PolicyInvalid(
                TOO_COSTLY,
                f"policy takes more than {self._limit} steps to read and compile;"
                " split it, or shorten its expressions and lists",
            )
        if self.steps >= self._next:
            self._next = self.steps + COMPILE_STEPS_BETWEEN_CLOCK_CHECKS
            self._check_clock()


_CURRENT: ContextVar[CompileBudget | None] = ContextVar("budget", default=None)


@contextmanager
def bounded(budget: CompileBudget) -> Iterator[CompileBudget]:
    """Charge all parsing and compiling in this context to ``budget``."""
    token = _CURRENT.set(budget)
    try:
        yield budget
    finally:
        _CURRENT.reset(token)


def spend(steps: int = 1) -> None:
    """Count steps of the policy that is being compiled, if there is one.

    Raises: PolicyInvalid (policy.too_costly), and the exceptions of ``check_clock``.
    """
    budget = _CURRENT.get()
    if budget is not None:
        budget.spend(steps)

"""Count the work of reading one policy, so that no policy can keep its reader busy.

Room: expr. Takes: steps, from the parsers, checks and compilers, before the work that
they stand for. Gives: CompileBudget, spend. Next: leader/library.py and
webhook/policy_review.py set the bound. May touch: nothing outside its arguments.

A step stands for about four microseconds, whatever the machine: the same policy is
refused everywhere or nowhere. Parsers work for requests, too, where nobody has set a
bound and a step costs one look-up.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from kyverno_mp.errors import PolicyInvalid
from kyverno_mp.limits import COMPILE_STEPS_BETWEEN_LOOKS, COMPILE_STEPS_MAX

TOO_COSTLY: Final = "policy.too_costly"
"""The code of a policy that takes more than its steps."""


def _nothing() -> None:
    """Look at nothing."""


class CompileBudget:
    """The steps of one policy.

    ``look`` is called now and then while they are spent; what it raises ends the work.
    """

    __slots__ = ("_limit", "_look", "_next", "steps")

    def __init__(
        self,
        look: Callable[[], None] = _nothing,
        steps_max: int = COMPILE_STEPS_MAX,
    ) -> None:
        self._look = look
        self._limit = steps_max
        self._next = 0
        self.steps = 0

    def spend(self, steps: int) -> None:
        """Count steps. Raises: PolicyInvalid once there are too many, and ever after.

        Whoever takes that for the fault of one expression comes to the next one.
        """
        self.steps += steps
        if self.steps > self._limit:
            raise PolicyInvalid(
                TOO_COSTLY,
                f"policy takes more than {self._limit} steps to read and compile;"
                " split it, or shorten its expressions and lists",
            )
        if self.steps >= self._next:
            self._next = self.steps + COMPILE_STEPS_BETWEEN_LOOKS
            self._look()


_CURRENT: ContextVar[CompileBudget | None] = ContextVar("budget", default=None)


@contextmanager
def bounded(budget: CompileBudget) -> Iterator[CompileBudget]:
    """Let what is read and compiled inside, in this thread, spend of ``budget``."""
    token = _CURRENT.set(budget)
    try:
        yield budget
    finally:
        _CURRENT.reset(token)


def spend(steps: int = 1) -> None:
    """Count steps of the policy that is read now; nothing where none is.

    Raises: PolicyInvalid (policy.too_costly), and what a look raises.
    """
    budget = _CURRENT.get()
    if budget is not None:
        budget.spend(steps)

"""Limit the work of parsing and compiling one policy.

Room: expr. Takes: steps, which the parsers, checkers and compilers charge before the
work. Gives: CompileBudget, spend, once, for_exception, in_turn. Next:
leader/policy_store.py and webhook/policy_review.py set the limit.

A step stands for about four microseconds. The number of steps does not depend on the
machine, so a policy is rejected on every machine or on none. Parsers also run for
requests; then no limit is set, and charging costs one look-up.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from heapq import heapify, heappop, heappush
from typing import Any, Final, TypeVar

from kyverno_mp.errors import PolicyInvalid
from kyverno_mp.limits import (
    COMPILE_EXCEPTION_STEPS_MAX,
    COMPILE_EXCEPTIONS_STEPS_MAX,
    COMPILE_STEPS_BETWEEN_CLOCK_CHECKS,
    COMPILE_STEPS_MAX,
)

TOO_COSTLY: Final = "policy.too_costly"
"""The error code of a policy that exceeds its steps."""
EXCEPTION_TOO_COSTLY: Final = "exception.too_costly"
"""The error code of a PolicyException that exceeds its steps, or for which no steps are
left."""

_Item = TypeVar("_Item")
ExpressionKey = tuple[str, bool]
"""The text of an expression, and whether it is of the other dialect."""


def _nothing() -> None:
    """Check nothing."""


class CompileBudget:
    """The steps of one policy.

    ``check_clock`` is called at intervals while steps are spent; an exception that it
    raises ends the compilation.
    """

    __slots__ = (
        "_check_clock",
        "_limit",
        "_next",
        "_steps_by_namespace",
        "earlier",
        "exception_steps",
        "parsed",
        "steps",
    )

    def __init__(
        self,
        check_clock: Callable[[], None] = _nothing,
        steps_max: int = COMPILE_STEPS_MAX,
    ) -> None:
        self._check_clock = check_clock
        self._limit = steps_max
        self._next = 0
        self.steps = 0
        self.exception_steps = 0
        """The steps of the exceptions from the policy, which do not count as the
        policy's."""
        self._steps_by_namespace: dict[str, int] = {}
        self.parsed: dict[ExpressionKey, tuple[Any, int]] = {}
        """PERF: what the expressions of the policy were parsed to, and the steps; the
        checks and the compiler parse each of them."""
        self.earlier: Mapping[ExpressionKey, tuple[Any, int]] = {}
        """PERF: the same of earlier policies, because many contain the same ones."""

    def spend(self, steps: int) -> None:
        """Count steps. Raises: PolicyInvalid if there are too many.

        All later calls raise, too, so code that treats the error as a fault of one
        expression gets the error again at the next expression.
        """
        self.steps += steps
        if self.steps > self._limit:
            raise self._exceeded()
        if self.steps >= self._next:
            self._next = self.steps + COMPILE_STEPS_BETWEEN_CLOCK_CHECKS
            self._check_clock()

    @property
    def all_steps(self) -> int:
        """The steps of the policy and of the exceptions from it."""
        return self.steps + self.exception_steps

    def exception_budget(self) -> "CompileBudget":
        """Return the budget of one exception from this policy.

        Raises: PolicyInvalid if the other exceptions have used up all steps.
        """
        steps_left = COMPILE_EXCEPTIONS_STEPS_MAX - self.exception_steps
        if steps_left <= 0:
            raise _none_left()
        steps_max = min(steps_left, COMPILE_EXCEPTION_STEPS_MAX)
        return _ExceptionBudget(self._check_clock, steps_max)

    def charge_exception(self, namespace: str, steps: int) -> None:
        """Count the steps of an exception of this namespace."""
        self.exception_steps += steps
        self._steps_by_namespace[namespace] = self.spent_by(namespace) + steps

    def spent_by(self, namespace: str) -> int:
        """Return the steps that the exceptions of a namespace have taken."""
        return self._steps_by_namespace.get(namespace, 0)

    def _exceeded(self) -> PolicyInvalid:
        return PolicyInvalid(
            TOO_COSTLY,
            f"policy takes more than {self._limit} steps to read and compile;"
            " split it, or shorten its expressions and lists",
        )


class _ExceptionBudget(CompileBudget):
    """The steps of one exception."""

    __slots__ = ()

    def _exceeded(self) -> PolicyInvalid:
        return PolicyInvalid(
            EXCEPTION_TOO_COSTLY,
            f"the exception takes more than {self._limit} steps to compile;"
            " split it, or shorten its conditions",
        )


def _none_left() -> PolicyInvalid:
    return PolicyInvalid(
        EXCEPTION_TOO_COSTLY,
        "the exceptions from the policy take more than"
        f" {COMPILE_EXCEPTIONS_STEPS_MAX} steps to compile",
    )


_CURRENT: ContextVar[CompileBudget | None] = ContextVar("budget", default=None)


@contextmanager
def bounded(budget: CompileBudget) -> Iterator[CompileBudget]:
    """Charge all parsing and compiling in this context to ``budget``."""
    token = _CURRENT.set(budget)
    try:
        yield budget
    finally:
        _CURRENT.reset(token)


@contextmanager
def for_exception(namespace: str = "", copies: int = 1) -> Iterator[None]:
    """Charge an exception from the policy that is being compiled, if any.

    ``copies``: the number of rules that get the compiled exception; each copy is
    charged as if it were compiled again. The policy's own steps do not change. Raises:
    PolicyInvalid (exception.too_costly).
    """
    policy = _CURRENT.get()
    if policy is None:
        yield
        return
    exception_budget = policy.exception_budget()
    try:
        with bounded(exception_budget):
            # Even an exception without conditions takes time.
            spend()
            yield
        more = exception_budget.steps * (copies - 1)
        all_steps = policy.exception_steps + exception_budget.steps + more
        if more and all_steps > COMPILE_EXCEPTIONS_STEPS_MAX:
            raise _none_left()
        policy.charge_exception(namespace, more)
    finally:
        policy.charge_exception(namespace, exception_budget.steps)


def in_turn(
    exceptions: Iterable[_Item],
    namespace_of: Callable[[_Item], str],
    order: Callable[[_Item], tuple[int, int]],
) -> Iterator[_Item]:
    """Yield the exceptions from a policy so that namespaces get equal shares of steps.

    The next exception is from the namespace that has spent the fewest steps, and is its
    first one by ``order``. Without a budget they are yielded as given.
    """
    policy = _CURRENT.get()
    if policy is None:
        yield from exceptions
        return
    waiting: dict[str, list[_Item]] = {}
    for exception in exceptions:
        waiting.setdefault(namespace_of(exception), []).append(exception)
    for queue in waiting.values():
        queue.sort(key=order, reverse=True)
    turns = [(policy.spent_by(namespace), namespace) for namespace in waiting]
    heapify(turns)
    while turns:
        _, namespace = heappop(turns)
        yield waiting[namespace].pop()
        if waiting[namespace]:
            heappush(turns, (policy.spent_by(namespace), namespace))


def spend(steps: int = 1) -> None:
    """Count steps of the policy that is being compiled, if any.

    Raises: PolicyInvalid (policy.too_costly), and the exceptions of ``check_clock``.
    """
    budget = _CURRENT.get()
    if budget is not None:
        budget.spend(steps)


def once(key: ExpressionKey, parse: Callable[[], _Item]) -> _Item:
    """Return what ``parse`` returns; it runs once for the policies being compiled.

    It is charged each time, so what a policy costs depends on its text alone.
    """
    budget = _CURRENT.get()
    if budget is None:
        return parse()
    cached = budget.parsed.get(key) or budget.earlier.get(key)
    if cached is None:
        before = budget.steps
        parsed = parse()
        budget.parsed[key] = parsed, budget.steps - before
        return parsed
    budget.spend(cached[1])
    return cached[0]  # type: ignore[no-any-return]

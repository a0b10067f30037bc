"""Carry what expressions may see and spend while one rule runs on one request.

Room: expr. Takes: the JSON context built by program/context. Gives: Scope and Runtime,
handed to every linked closure of expr/. Next: template, conditions, pattern, foreach.
May touch: nothing outside its arguments; the clock is passed in.
Source: spec/engine.md 0.2 (numbers), 3 (variables and context).
"""

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from kyverno_mp.errors import BudgetExceeded, DeadlinePassed
from kyverno_mp.limits import (
    EXPRESSION_BYTES_MAX,
    EXPRESSION_STEPS_MAX,
    STEPS_BETWEEN_LOOKS,
)
from kyverno_mp.values.image import ImageSettings
from kyverno_mp.values.jsonvalue import Json


class Bindings(Protocol):
    """What ``$name`` means; names come with their dollar sign."""

    def get(self, name: str, default: Json, /) -> Json:
        """Give the value of ``$name``, or ``default`` when nothing is bound."""


class Runtime:
    """What one rule may spend, and facts that expressions need beside their input.

    ``ints_are_numbers``: True on an admission request, where Kyverno's JSON context
    holds every number as float64, so a Python int counts as a number; False for int64
    data (CLI, background, from the second matched rule of a policy on), where JMESPath
    does not take an int for a number (engine.md 0.2). JMESPath literals are floats.
    ``deadline_ns``: value of ``monotonic_ns()`` after which ``charge`` raises, or 0.
    ``random_bytes``: source of ``random()``; None makes that function fail.
    ``resolve_host``: gives the addresses of a DNS name for ``is_external_url``, raising
    DependencyError when it cannot; None means that no name can be resolved.
    ``images``: gives the operator's default registry.
    ``bindings``: what ``$name`` means in assertion trees, or None; anything with
    ``get(name, default)`` may stand here, so values can be computed when asked for.
    """

    __slots__ = (
        "_look_below",
        "bindings",
        "bytes_left",
        "deadline_ns",
        "images",
        "ints_are_numbers",
        "monotonic_ns",
        "now",
        "random_bytes",
        "resolve_host",
        "steps_left",
    )

    def __init__(  # noqa: PLR0913 - one record of independent facts, keyword-only
        self,
        *,
        now: Callable[[], datetime],
        monotonic_ns: Callable[[], int],
        ints_are_numbers: bool = False,
        deadline_ns: int = 0,
        steps: int = EXPRESSION_STEPS_MAX,
        bytes_max: int = EXPRESSION_BYTES_MAX,
        random_bytes: Callable[[int], bytes] | None = None,
        resolve_host: Callable[[str], list[str]] | None = None,
        images: Callable[[], ImageSettings] = ImageSettings,
    ) -> None:
        self.now = now
        self.monotonic_ns = monotonic_ns
        self.ints_are_numbers = ints_are_numbers
        self.deadline_ns = deadline_ns
        self.steps_left = steps
        # PERF: the clock costs more than the rest of a charge; it is read at the first
        # charge and then once every so many steps.
        self._look_below = steps if deadline_ns else 0
        self.bytes_left = bytes_max
        self.random_bytes = random_bytes
        self.resolve_host = resolve_host
        self.images = images
        self.bindings: Bindings | None = None

    def renew(self) -> None:
        """Give the next rule a full budget; the deadline stays that of the request."""
        self.steps_left = EXPRESSION_STEPS_MAX
        self._look_below = EXPRESSION_STEPS_MAX if self.deadline_ns else 0
        self.bytes_left = EXPRESSION_BYTES_MAX

    def renew_looked(self) -> None:
        """Do as ``renew``; the caller looks at the clock between some rules."""
        self.renew()
        self._look_below = max(self._look_below - STEPS_BETWEEN_LOOKS, 0)

    def charge(self, steps: int = 1) -> None:
        """Spend steps; raises BudgetExceeded, or DeadlinePassed when time is over."""
        left = self.steps_left = self.steps_left - steps
        if left <= self._look_below:
            self._look(left)

    def look_at_clock(self) -> None:
        """Raise DeadlinePassed when time is over, whatever was spent."""
        if self.deadline_ns and self.monotonic_ns() > self.deadline_ns:
            raise DeadlinePassed("expr.deadline", "the request's deadline has passed")

    def _look(self, left: int) -> None:
        """Look at the budget's end and at the clock."""
        if left < 0:
            raise BudgetExceeded("expr.steps", "expression exceeded its step budget")
        if self.deadline_ns:
            self._look_below = max(left - STEPS_BETWEEN_LOOKS, 0)
            self.look_at_clock()

    def charge_bytes(self, count: int) -> None:
        """Spend bytes of built text before building it; raises BudgetExceeded."""
        self.bytes_left -= count
        if self.bytes_left < 0:
            raise BudgetExceeded("expr.bytes", "expression exceeded its byte budget")


class Scope(Protocol):
    """The JSON context of one rule on one request, as expressions see it.

    The implementation is ``program/context.py``. ``root`` is the dict that JMESPath
    queries start from, e.g. ``{"request": {...}, "element": {...}}``; it is complete
    for a query only after ``ensure`` was called with that query's text, because context
    entries and ``images`` are loaded at first mention (engine.md 3.7).
    """

    root: dict[str, Json]
    runtime: Runtime
    operation: str
    """CREATE, UPDATE, DELETE or CONNECT; on DELETE templates rewrite request.object."""

    def ensure(self, query: str) -> None:
        """Load deferred entries that ``query`` mentions; raises ExpressionFailed."""

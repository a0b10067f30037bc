"""Provide a scope with a plain root for tests of expressions."""

from datetime import UTC, datetime
from typing import Any

from kyverno_mp.expr.scope import Runtime


def runtime(*, ints_are_numbers: bool = False, steps: int = 100_000) -> Runtime:
    """Return a budget with a fixed clock."""
    return Runtime(
        now=lambda: datetime(2026, 1, 2, tzinfo=UTC),
        monotonic_ns=lambda: 0,
        ints_are_numbers=ints_are_numbers,
        steps=steps,
    )


class PlainScope:
    """A scope with all data loaded; ``asked`` records the queries."""

    def __init__(
        self,
        root: dict[str, Any],
        operation: str = "CREATE",
        *,
        ints_are_numbers: bool = False,
    ) -> None:
        self.root = root
        self.operation = operation
        self.runtime = runtime(ints_are_numbers=ints_are_numbers)
        self.asked: list[str] = []

    def ensure(self, query: str) -> None:
        """Record the query."""
        self.asked.append(query)

"""Parse a deletion budget: a number or a percentage of the matched objects.

Room: values. Takes: a string. Gives: Budget; None means no budget. Next:
settings/texts.py, cleanup/policy.py.
Source: docs/cleanup.md (deletion budget); upstream has no such budget.
"""

import re
from dataclasses import dataclass
from typing import Final

from kyverno_mp.errors import ExpressionFailed

_BUDGET: Final = re.compile(r"([0-9]{1,9})(%?)", re.ASCII)
_PER_CENT_MAX: Final = 100
_EXPECTED: Final = "expected a number of objects or a percentage such as 20%"


@dataclass(frozen=True, slots=True)
class Budget:
    """The number of objects that one run is allowed to delete."""

    number: int
    is_per_cent: bool = False

    def allows(self, deletions: int, matches: int) -> bool:
        """Return whether a run may delete this many of the matched objects."""
        if self.is_per_cent:
            return deletions * _PER_CENT_MAX <= self.number * matches
        return deletions <= self.number

    def __str__(self) -> str:
        return f"{self.number}%" if self.is_per_cent else str(self.number)


def parse_budget(value: str) -> Budget | None:
    """Return the budget; None for "". Raises: ExpressionFailed (``values.budget``)."""
    if not value:
        return None
    match = _BUDGET.fullmatch(value.strip())
    if match is None or (match[2] and int(match[1]) > _PER_CENT_MAX):
        raise ExpressionFailed("values.budget", _EXPECTED)
    return Budget(int(match[1]), bool(match[2]))


def budget_problem(value: str) -> str:
    """Return the error message for an invalid budget; "" if the text is valid."""
    try:
        parse_budget(value)
    except ExpressionFailed as error:
        return error.message
    return ""

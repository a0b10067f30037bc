"""Define the interface that charges work on JSON values to a budget.

Room: values. Takes: nothing. Gives: Spender, FREE, the costs of containers. Next:
json_equal, json_patch, strategic_merge, json_diff; expr/scope.Runtime is a Spender.
"""

from typing import Final, Protocol


class Spender(Protocol):
    """Charges work before it is done; a step is at most half a microsecond."""

    def charge(self, steps: int, /) -> None:
        """Charge steps. Raises: BudgetExceeded, DeadlinePassed."""

    def charge_bytes(self, count: int, /) -> None:
        """Charge bytes of memory. Raises: BudgetExceeded."""


class _Free:
    """An unlimited budget, for values that the program creates itself."""

    def charge(self, steps: int, /) -> None:
        """Do nothing."""

    def charge_bytes(self, count: int, /) -> None:
        """Do nothing."""


FREE: Final[Spender] = _Free()
COPIED_PER_STEP: Final = 8
"""The number of list or map entries that are copied and compared with the old entries
per step."""
ENTRY_BYTES: Final = 100
"""The memory of one dict entry."""
POINTER_BYTES: Final = 8

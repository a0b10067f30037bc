"""Charge for comparing and sorting the values of a list.

Room: expr. Takes: Runtime and values of one type. Gives: nothing, or BudgetExceeded.
Next: lists.py, objects.py.
"""

from typing import Final

from kyverno_mp.errors import BudgetExceeded
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.limits import SORTED_ITEMS_MAX
from kyverno_mp.values.effort import CHARACTERS_PER_STEP
from kyverno_mp.values.jsonvalue import Json

_COMPARISONS_PER_STEP: Final = 4


def charge_comparisons(runtime: Runtime, values: list[Json], times: int) -> None:
    """Charge ``times`` comparisons per value; strings may have a common prefix."""
    runtime.charge(len(values) * times // _COMPARISONS_PER_STEP)
    if values and type(values[0]) is str:
        runtime.charge(len(values) // _COMPARISONS_PER_STEP)
        runtime.charge(times * (sum(map(len, values)) // CHARACTERS_PER_STEP))


def charge_sorting(runtime: Runtime, values: list[Json]) -> None:
    """Charge for sorting. Raises: BudgetExceeded if it would block for too long."""
    charge_comparisons(runtime, values, len(values).bit_length())
    if len(values) > SORTED_ITEMS_MAX:
        raise BudgetExceeded("expr.sort", "list is too long to be sorted")

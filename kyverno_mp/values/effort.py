"""Estimate the work and memory for values, so that both can be charged in advance.

Room: values. Takes: strings, patterns, JSON data. Gives: steps (at most half a
microsecond of one core each) and bytes. Next: expr/scope, and all code that charges
steps.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from kyverno_mp.values.jsonvalue import Json

Charge: TypeAlias = Callable[[int], None]
"""Called with the steps of the next operation; raises an error to stop it."""


def uncharged(steps: int) -> None:
    """Charge nothing, for callers without a budget."""
    del steps


CHARACTERS_PER_STEP: Final = 128
"""The number of characters that C code reads or writes per step."""
PRINTED_PER_STEP: Final = 4
"""The number of characters or values printed in Go's format per step."""
POINTER_BYTES: Final = 8
"""The memory of one list item."""
LIST_BYTES: Final = 64
"""The memory of a list without its items."""
ENTRY_BYTES: Final = 100
"""The memory of one map entry; up to half of the slots are empty."""
TEXT_LIGHT_MAX: Final = 255
"""Reading strings up to this length is covered by the step of the function call."""
_TEXT_HEAD_BYTES: Final = 64
_SHORT_MAX: Final = 100
"""Longer strings are searched in linear time; shorter ones position by position."""


def width_of(string: str) -> int:
    """Return the bytes per character of a string in memory: 1, 2 or 4."""
    if string.isascii():
        return 1
    return (string.__sizeof__() - _TEXT_HEAD_BYTES) // (len(string) or 1) + 1


def search_steps(part: str, string: str) -> int:
    """Return the steps for a substring search in the worst case."""
    return len(string) * min(len(part) + 8, _SHORT_MAX) // (CHARACTERS_PER_STEP * 8)


def weigh(value: Json, charge: Charge) -> int:
    """Return the steps for one walk over a value, and charge for counting them.

    Each value takes one step, and each string the steps for reading it.
    """
    steps = 0
    pending = [value]
    while pending:
        item = pending.pop()
        kind = type(item)
        if kind is str:
            steps += len(item) // CHARACTERS_PER_STEP
        elif kind is dict:
            charge(len(item))
            steps += len(item)
            pending.extend(item.values())
        elif isinstance(item, list):
            charge(len(item))
            steps += len(item)
            pending.extend(item)
    return 1 + steps

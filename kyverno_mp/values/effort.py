"""Tell how much work and memory values are, so that it can be charged beforehand.

Room: values. Takes: texts, patterns, JSON data. Gives: steps (at most half a
microsecond of one core each) and bytes. Next: expr/scope, and whoever charges.
May touch: nothing outside its arguments.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from kyverno_mp.values.jsonvalue import Json

Charge: TypeAlias = Callable[[int], None]
"""Told the steps of what comes next; raises to stop it."""


def uncharged(steps: int) -> None:
    """Spend nothing: for callers without a budget."""
    del steps


CHARACTERS_PER_STEP: Final = 128
"""Characters that one pass in C over a text reads or writes in a step."""
CHARACTERS_PER_STEP_IN_PYTHON: Final = 2
"""Characters that a loop of ours looks at in a step."""
PRINTED_PER_STEP: Final = 4
"""Characters or values that are printed as Go prints them in a step."""
POINTER_BYTES: Final = 8
"""One item of a list."""
LIST_BYTES: Final = 64
"""A list without its items."""
ENTRY_BYTES: Final = 100
"""One entry of a map, of which up to half the places are empty."""
TEXT_LIGHT_MAX: Final = 255
"""Texts up to this length are read in the step that their function costs anyway."""
_TEXT_HEAD_BYTES: Final = 64
_SHORT_MAX: Final = 100
"""Beyond, texts are searched in linear time; shorter ones by trying each place."""


def width_of(text: str) -> int:
    """Return the bytes that the widest characters of a text take each: 1, 2 or 4."""
    if text.isascii():
        return 1
    return (text.__sizeof__() - _TEXT_HEAD_BYTES) // (len(text) or 1) + 1


def search_steps(part: str, text: str) -> int:
    """Return what it takes to look for a part in a text, at worst."""
    return len(text) * min(len(part) + 8, _SHORT_MAX) // (CHARACTERS_PER_STEP * 8)


def weigh(value: Json, charge: Charge) -> int:
    """Return the steps that one walk over a value takes; charge for finding out.

    A step for each value, and those of reading its texts.
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

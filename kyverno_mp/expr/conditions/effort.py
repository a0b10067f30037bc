"""Charge the comparison of a condition's two sides before it runs.

Room: expr. Takes: Runtime and both sides. Gives: nothing, or BudgetExceeded.
Next: expr/conditions/link.

Each key may be compared with each value, and strings with wildcards in both directions;
a few sums are enough to estimate the worst case.
"""

from typing import Final, NamedTuple

from kyverno_mp.errors import BudgetExceeded
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.limits import DECODED_CHARACTERS_MAX
from kyverno_mp.values.effort import CHARACTERS_PER_STEP, TEXT_LIGHT_MAX, weigh
from kyverno_mp.values.jsonvalue import Json

_LIGHT_MAX: Final = 1000
_TEXT_BYTES: Final = 64
_NUMBER_CHARACTERS_MAX: Final = 1000
_FEW: Final = 64
_PAIRS_PER_STEP: Final = 4
_STEPS_PER_WILDCARD: Final = 2
_SEARCHED_PER_STEP: Final = 1024
_SEARCH_FACTOR_MAX: Final = 100
_STATES_PER_STEP: Final = 128
_READ_PER_STEP: Final = 16
_STEPS: Final = 4
"""The cost of comparing short strings or numbers, including parsing them as
quantities."""
_QUESTION_STEPS: Final = 64


class Weight(NamedTuple):
    """The size of one side.

    ``texts``: the number of strings; ``length``: their total length; ``wild`` and
    ``wild_length``: number and length of the strings with a wildcard; ``questions``:
    the total length of the strings with a question mark.
    """

    texts: int
    length: int
    wild: int
    wild_length: int
    questions: int

    @property
    def short_to(self) -> int:
        """Return the key length up to which one comparison takes ``steps``."""
        light = self.length <= _LIGHT_MAX and not self.questions
        return TEXT_LIGHT_MAX if light else -1

    @property
    def steps(self) -> int:
        """Return the steps for comparing one short key."""
        return _STEPS + _STEPS_PER_WILDCARD * self.wild


def weight_of(value: Json, runtime: Runtime | None) -> Weight:
    """Measure one side; ``runtime`` is None for a constant, which is not charged."""
    if type(value) is str:
        return _text_weight(value)
    if type(value) is not list:
        if type(value) is not dict or runtime is None:
            return Weight(1, 0, 0, 0, 0)
        return Weight(1, CHARACTERS_PER_STEP * weigh(value, runtime.charge), 0, 0, 0)
    if runtime is not None:
        runtime.charge(len(value))
    length = wild = wild_length = questions = 0
    for item in value:
        if type(item) is str:
            size = len(item)
            length += size
            if "?" in item:
                questions += size
            if "*" in item or "?" in item:
                wild += 1
                wild_length += min(size, _SEARCH_FACTOR_MAX)
        elif (type(item) is list or type(item) is dict) and runtime is not None:
            # The container is printed before the comparison.
            length += CHARACTERS_PER_STEP * weigh(item, runtime.charge)
    return Weight(len(value), length, wild, wild_length, questions)


def _text_weight(string: str) -> Weight:
    length = len(string)
    # A string may contain a JSON list.
    count = 1 + string.count(",") if string[:1] == "[" else 1
    if "*" not in string and "?" not in string:
        return Weight(count, length, 0, 0, 0)
    questions = length if "?" in string else 0
    bounded = min(length, _SEARCH_FACTOR_MAX * count)
    return Weight(count, length, count, bounded, questions)


def charge_test(
    runtime: Runtime, key: Json, value: Weight, *, short_to: int, steps: int
) -> None:
    """Charge the test of a key with a value known at link time.

    ``short_to`` and ``steps``: the value's properties of these names.
    """
    few = type(key) is list and len(key) <= _FEW and short_to > 0
    if few and all_short(key):
        runtime.charge_items(_STEPS + len(key) * (steps + value.texts))
        return
    _charge(runtime, weight_of(key, runtime), value)


def charge_comparison(runtime: Runtime, key: Json, value: Json) -> None:
    """Charge a comparison whose two sides both come from the request."""
    kinds = type(key), type(value)
    if kinds == (str, str):
        if len(key) + len(value) <= TEXT_LIGHT_MAX and "?" not in key + value:
            runtime.charge(_STEPS + len(key) + len(value))
            return
    elif kinds == (str, list) and len(value) <= _FEW and len(key) <= TEXT_LIGHT_MAX:
        if all_short(value) and "?" not in key:
            runtime.charge_items(_STEPS + _STEPS_PER_WILDCARD * len(value))
            return
    elif list not in kinds and dict not in kinds and str not in kinds:
        runtime.charge(_STEPS)
        return
    for side in (key, value):
        if type(side) is str and len(side) > TEXT_LIGHT_MAX:
            if len(side) > DECODED_CHARACTERS_MAX:
                raise BudgetExceeded("conditions.size", "text is too long to compare")
            runtime.charge(len(side) // _READ_PER_STEP)
            runtime.charge_bytes(8 * len(side))
    _charge(runtime, weight_of(key, runtime), weight_of(value, runtime))


def all_short(items: list[Json]) -> bool:
    """Return whether all items are short strings without a question mark."""
    for item in items:
        if type(item) is not str or len(item) > TEXT_LIGHT_MAX or "?" in item:
            return False
    return True


def _charge(runtime: Runtime, key: Weight, value: Weight) -> None:
    pairs = key.texts * value.texts
    steps = _STEPS + pairs // _PAIRS_PER_STEP + (key.length + value.length) // 8
    # A string may be parsed as a duration, a quantity or a version.
    for side in (key, value):
        steps += 2 * min(side.length, _NUMBER_CHARACTERS_MAX)
    if value.wild:
        steps += _searched(key, value)
    if key.wild:
        steps += _searched(value, key)
    # The strings are copied into lists and sets.
    runtime.charge_items(steps)
    if key.texts + value.texts > _FEW:
        runtime.charge_bytes(_TEXT_BYTES * (key.texts + value.texts))


def _searched(weight: Weight, patterns: Weight) -> int:
    """Return the steps for matching every string with every pattern."""
    steps = _STEPS_PER_WILDCARD * weight.texts * patterns.wild
    steps += (
        weight.length * (patterns.wild_length + patterns.wild) // _SEARCHED_PER_STEP
    )
    if patterns.questions:
        steps += (_QUESTION_STEPS + patterns.questions) * weight.texts
        steps += weight.length * patterns.questions // _STATES_PER_STEP
    return steps

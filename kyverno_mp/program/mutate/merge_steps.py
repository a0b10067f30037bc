"""Build closures that merge a part of a linked patch into a part of an object.

Room: program.mutate. Takes: parts of a patch, processed by merge_link. Gives: Steps.
Next: program/mutate/merge_lists; program/mutate/merge_link, which combines them.
May touch: nothing outside its arguments; unchanged parts are shared.
Source: docs/behaviour/engine 7.3; the order of steps is the same as in anchors.py and
values/patches/strategic_merge.py, and a test compares every result with theirs.

PERF: these two modules walk over patch and object four times and copy the patch; a Step
contains its part of the patch and visits the object once.
"""

from collections.abc import Callable, Sequence
from typing import Final

from kyverno_mp.program.mutate.anchors import comparable, is_condition, text_program
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.patches.json_equal import same, same_paid
from kyverno_mp.values.patches.merge_list import ABSENT, text_of
from kyverno_mp.values.spending import COPIED_PER_STEP, Spender

Values = Sequence[Json]
"""The values for the holes of the patch."""


class Own(list[int]):
    """The state of each ``+()`` of a list element: PENDING, REMOVED or KEPT.

    ``spend`` charges for visited elements and copied maps.
    """

    __slots__ = ("spend",)
    spend: Spender


Step = Callable[[Json, Values, Own], Json]
"""(the object's part, or ABSENT) -> the merged part.

It returns the same part if nothing changes, and ABSENT to remove the part.
"""
Merge = Callable[[dict[str, Json], Values, Own], dict[str, Json]]
Test = Callable[[dict[str, Json], Values], bool]

Rows = Sequence[Values]
"""The values of the holes, for each element of a foreach.

A Step or Merge whose second argument is Rows merges all rows in order. PERF: the maps
and lists that contain changes are copied once for all elements.
"""

PENDING: Final = 0
REMOVED: Final = 1
KEPT: Final = 2
ENTRIES_FREE: Final = 16
"""PERF: up to this many entries, typical for a patch, are charged by the caller."""
_EMPTY: Final[dict[str, Json]] = {}


class Unfit(Exception):
    """The object has rare features, which need the general algorithm."""


class Unmet(Exception):
    """A condition of the patch is false."""


def repeated(step: Step) -> Step:
    """Merge rows one by one."""

    def merge_rows(old: Json, rows: Rows, state: Own) -> Json:
        new = old
        for values in rows:
            new = step(new, values, state)
        # A row may revert an earlier row.
        return old if new is not old and same_paid(new, old, state.spend) else new

    return merge_rows


# Scalars.


def scalar(value: Json) -> Step:
    """Merge a scalar other than null."""
    printed = text_of(value)

    def merge_scalar(old: Json, _values: Values, _state: Own) -> Json:
        if type(old) is str:
            # KYVERNO: a quoted string is replaced by a quoted string, so the result is
            # a string.
            return old if old == printed else printed
        if old is ABSENT or old is None:
            return value
        return _over(old, value)

    return merge_scalar


def hole(number: int) -> Step:
    """Merge a scalar that depends on the request."""

    def merge_hole(old: Json, values: Values, _state: Own) -> Json:
        value = plain(values[number])
        if old is ABSENT or old is None:
            return value
        if type(old) is str:
            value = text_of(value)
            return old if old == value else value
        return _over(old, value)

    return merge_hole


def plain(value: Json) -> Json:
    """Return the value of a hole. Raises: Unfit unless it is a string or an integer."""
    if type(value) is str:
        if "(" in value and is_condition(value):
            raise Unfit
    elif type(value) is not int and type(value) is not bool:
        raise Unfit
    return value


def _over(old: Json, value: Json) -> Json:
    if type(old) is dict or type(old) is list:
        raise Unfit
    return old if same(old, value) else value


def deletion(_old: Json, _values: Values, _state: Own) -> Json:
    """Merge null, which deletes the key."""
    return ABSENT


# ``+()`` anchors.


def addition(inner: Step) -> Step:
    """Merge a ``+()`` entry outside of lists."""

    def add(old: Json, values: Values, state: Own) -> Json:
        return inner(old, values, state) if old is ABSENT else old

    return add


def shared_addition(slot: int, inner: Step) -> Step:
    """Merge a ``+()`` entry in an element of a list.

    KYVERNO: the first list element that reaches the entry decides for all elements.
    """

    def add_to_all(old: Json, values: Values, state: Own) -> Json:
        if state[slot] == PENDING:
            state[slot] = KEPT if old is ABSENT else REMOVED
        return inner(old, values, state) if state[slot] == KEPT else old

    return add_to_all


# Maps.


def map_merge(entries: Sequence[tuple[str, Step]], tests: Sequence[Test]) -> Merge:
    """Merge a map into a map; conditions are evaluated first."""
    is_large = len(entries) > ENTRIES_FREE

    def merge(dest: dict[str, Json], values: Values, state: Own) -> dict[str, Json]:
        if is_large:
            state.spend.charge(len(entries))
        out = dest
        for key, step in entries:
            old = dest.get(key, ABSENT)
            new = step(old, values, state)
            if new is not old:
                if out is dest:
                    if len(dest) > COPIED_PER_STEP:
                        state.spend.charge(len(dest) // COPIED_PER_STEP)
                    out = dest.copy()
                if new is ABSENT:
                    del out[key]
                else:
                    out[key] = new
        return out

    if not tests:
        return merge

    def merge_when_met(
        dest: dict[str, Json], values: Values, state: Own
    ) -> dict[str, Json]:
        for test in tests:
            if not test(dest, values):
                raise Unmet
        return merge(dest, values, state)

    return merge_when_met


def mapping(merge: Merge, *, is_solid: bool, constant: Json = None) -> Step:
    """Merge a map into a value of any type.

    ``is_solid``: the map always has content; ``constant``: the value for an object that
    lacks the key.
    """

    def merge_mapping(old: Json, values: Values, state: Own) -> Json:
        if type(old) is dict:
            return merge(old, values, state)
        if old is not ABSENT and old is not None:
            raise Unfit
        if constant is not None:
            return constant
        merged = merge(_EMPTY, values, state)
        if merged is not _EMPTY:
            return merged
        return {} if is_solid else old

    return merge_mapping


def condition(key: str, passes: Callable[[Json], bool]) -> Test:
    """Test one ``(key)`` or ``<(key)``."""

    def test(dest: dict[str, Json], _values: Values) -> bool:
        value = dest.get(key, ABSENT)
        if type(value) is str:
            return passes(value)
        return value is not ABSENT and passes(comparable(value))

    return test


def hole_condition(key: str, number: int) -> Test:
    """Test one ``(key)`` whose pattern depends on the request."""

    def test(dest: dict[str, Json], values: Values) -> bool:
        expected = values[number]
        if type(expected) is dict or type(expected) is list:
            raise Unfit
        value = dest.get(key, ABSENT)
        if value is ABSENT:
            return False
        return text_program(text_of(expected)).passes(comparable(value))

    return test

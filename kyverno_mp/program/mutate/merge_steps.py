"""Closures that merge one part of a linked patch into one part of an object.

Room: program.mutate. Takes: parts of a patch, processed by merge_link. Gives: Steps.
Next: program/mutate/merge_link, which combines them.
May touch: nothing outside its arguments; unchanged parts are shared.
Source: docs/behaviour/engine 7.3; the order of things is that of anchors.py and
values/strategic_merge.py, to which a test holds every result equal.

PERF: those two walk over patch and object four times and copy the patch; a Step knows
its part of the patch and visits the object once.
"""

from collections.abc import Callable, Sequence
from typing import Final

from kyverno_mp.expr.template.leaves import filled
from kyverno_mp.program.mutate.anchors import comparable, is_condition, text_program
from kyverno_mp.values.json_equal import same
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.merge_keys import Shape
from kyverno_mp.values.merge_list import ABSENT, text_of
from kyverno_mp.values.spending import COPIED_PER_STEP, Spender
from kyverno_mp.values.strategic_merge import merge_value

Values = Sequence[Json]
"""The values for the holes of the patch."""


class Own(list[int]):
    """The state of each ``+()`` of a list element: PENDING, REMOVED or KEPT.

    ``spend``: charges for the elements that are visited and the maps that are copied.
    """

    __slots__ = ("spend",)
    spend: Spender


Step = Callable[[Json, Values, Own], Json]
"""(the object's part, or ABSENT) -> the merged part; the same part when nothing
changes, ABSENT to remove it."""
Merge = Callable[[dict[str, Json], Values, Own], dict[str, Json]]
Test = Callable[[dict[str, Json], Values], bool]

PENDING: Final = 0
REMOVED: Final = 1
KEPT: Final = 2
_ELEMENT_STEPS: Final = 6
_LONG: Final = 64
_MANY: Final = 16
"""PERF: the few entries of an ordinary patch are charged by the caller."""
_EMPTY: Final[dict[str, Json]] = {}


class Unfit(Exception):
    """The object has rare features: the general way decides."""


class Unmet(Exception):
    """A condition of the patch is false."""


# Scalars.


def scalar(value: Json) -> Step:
    """Merge a scalar that is not null."""
    text = text_of(value)

    def merge_scalar(old: Json, _values: Values, _own: Own) -> Json:
        if type(old) is str:
            # KYVERNO: the replacement of a quoted text is quoted, too, so it becomes a
            # text.
            return old if old == text else text
        if old is ABSENT or old is None:
            return value
        return _over(old, value)

    return merge_scalar


def hole(number: int) -> Step:
    """Merge a scalar that the request provides."""

    def merge_hole(old: Json, values: Values, _own: Own) -> Json:
        value = _plain(values[number])
        if old is ABSENT or old is None:
            return value
        if type(old) is str:
            value = text_of(value)
            return old if old == value else value
        return _over(old, value)

    return merge_hole


def _plain(value: Json) -> Json:
    """Return the value of a hole. Raises: Unfit for all but texts and integers."""
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


def deletion(_old: Json, _values: Values, _own: Own) -> Json:
    """Merge null."""
    return ABSENT


# +().


def addition(inner: Step) -> Step:
    """Merge what ``+()`` adds, outside lists."""

    def add(old: Json, values: Values, own: Own) -> Json:
        return inner(old, values, own) if old is ABSENT else old

    return add


def shared_addition(slot: int, inner: Step) -> Step:
    """Merge what ``+()`` adds in an element of a list.

    KYVERNO: the first element of the object's list that reaches this decides for all.
    """

    def add_to_all(old: Json, values: Values, own: Own) -> Json:
        if own[slot] == PENDING:
            own[slot] = KEPT if old is ABSENT else REMOVED
        return inner(old, values, own) if own[slot] == KEPT else old

    return add_to_all


# Maps.


def map_merge(entries: Sequence[tuple[str, Step]], tests: Sequence[Test]) -> Merge:
    """Merge a map into a map; the conditions come first."""
    is_large = len(entries) > _MANY

    def merge(dest: dict[str, Json], values: Values, own: Own) -> dict[str, Json]:
        if is_large:
            own.spend.charge(len(entries))
        out = dest
        for key, step in entries:
            old = dest.get(key, ABSENT)
            new = step(old, values, own)
            if new is not old:
                if out is dest:
                    if len(dest) > COPIED_PER_STEP:
                        own.spend.charge(len(dest) // COPIED_PER_STEP)
                    out = dest.copy()
                if new is ABSENT:
                    del out[key]
                else:
                    out[key] = new
        return out

    if not tests:
        return merge

    def merge_when_met(
        dest: dict[str, Json], values: Values, own: Own
    ) -> dict[str, Json]:
        for test in tests:
            if not test(dest, values):
                raise Unmet
        return merge(dest, values, own)

    return merge_when_met


def mapping(merge: Merge, *, is_solid: bool) -> Step:
    """Merge a map into any value; ``is_solid``: it always has content."""

    def merge_mapping(old: Json, values: Values, own: Own) -> Json:
        if type(old) is dict:
            return merge(old, values, own)
        if old is not ABSENT and old is not None:
            raise Unfit
        made = merge(_EMPTY, values, own)
        if made is not _EMPTY:
            return made
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
    """Test one ``(key)`` whose pattern the request provides."""

    def test(dest: dict[str, Json], values: Values) -> bool:
        wanted = values[number]
        if type(wanted) is dict or type(wanted) is list:
            raise Unfit
        value = dest.get(key, ABSENT)
        if value is ABSENT:
            return False
        return text_program(text_of(wanted)).passes(comparable(value))

    return test


# Lists.


def other_list(origin: list[Json], holes: Sequence[int], shape: Shape) -> Step:
    """Merge a list without anchors, as the general way does."""

    def merge_other(old: Json, values: Values, own: Own) -> Json:
        if old is None:
            raise Unfit
        if not holes:
            return merge_value(old, origin, shape, own.spend)
        for number in holes:
            _plain(values[number])
        return merge_value(old, filled(origin, values), shape, own.spend)

    return merge_other


def keyed_list(
    key: str, elements: Sequence[tuple[Step, Step]], otherwise: Step
) -> Step:
    """Merge elements that are identified by the text of ``key``.

    ``elements``: a hole or scalar for the text, and the element itself.
    ``otherwise``: the step for an object without the list.
    """
    is_large = len(elements) > _MANY

    def merge_keyed(old: Json, values: Values, own: Own) -> Json:
        if type(old) is not list:
            return otherwise(old, values, own)
        if is_large or len(old) > _LONG:
            own.spend.charge(_ELEMENT_STEPS * len(elements) + len(old))
        rest = _by_key(old, key)
        front: list[Json] = []
        texts = set()
        for text_step, element in elements:
            text = text_step(ABSENT, values, own)
            if type(text) is not str or not text or text in texts:
                raise Unfit
            texts.add(text)
            front.append(element(rest.pop(text, ABSENT), values, own))
        # KYVERNO: new elements, and those that the patch names, come first.
        front.extend(rest.values())
        return _unless_equal(front, old)

    return merge_keyed


def _by_key(elements: list[Json], key: str) -> dict[str, Json]:
    """Return the elements by key. Raises: Unfit unless each has a unique text."""
    try:
        by_key = {element[key]: element for element in elements}
    except (TypeError, KeyError) as error:
        raise Unfit from error
    if len(by_key) != len(elements) or "" in by_key:
        raise Unfit
    for text in by_key:
        if type(text) is not str:
            raise Unfit
    return by_key


def _unless_equal(new: list[Json], old: list[Json]) -> list[Json]:
    if len(new) == len(old):
        for item, twin in zip(new, old, strict=True):
            if item is not twin:
                return new
        return old
    return new


def anchored_list(
    *,
    merge: Merge,
    tests: Sequence[Test],
    additions: Sequence[tuple[int, str]],
    slots: int,
    is_solid: bool,
) -> Step:
    """Merge one element with anchors into every list element that meets them.

    The list is one of named elements. ``additions``: slots and keys of the ``+()`` of
    the element itself, which are processed before its conditions.
    """
    element_steps = _ELEMENT_STEPS * (1 + len(tests) + len(additions))

    def merge_matching(old: Json, values: Values, outer: Own) -> Json:
        if old is ABSENT:
            return ABSENT
        if type(old) is not list:
            raise Unfit
        own = Own([PENDING] * slots)
        spend = own.spend = outer.spend
        is_long = len(old) > _LONG
        # PERF: a short list is charged at once.
        spend.charge(len(old) if is_long else element_steps * len(old))
        front: list[Json] = []
        rest: list[Json] = []
        for existing in _by_key(old, "name").values():
            if is_long:
                spend.charge(element_steps)
            for slot, key in additions:
                if own[slot] == PENDING:
                    own[slot] = REMOVED if key in existing else KEPT
            for test in tests:
                if not test(existing, values):
                    rest.append(existing)
                    break
            else:
                merged = merge(existing, values, own)
                # KYVERNO: of an element without content nothing remains, not even
                # its name; the others come first.
                named = is_solid or KEPT in own
                (front if named else rest).append(merged)
        return _unless_equal(front + rest, old)

    return merge_matching

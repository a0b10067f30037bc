"""Build closures that merge a list of a linked patch into a list of an object.

Room: program.mutate. Takes: elements of a patch, processed by merge_link, with their
Steps and Merges. Gives: Steps. Next: program/mutate/merge_link, which combines them.
May touch: nothing outside its arguments; unchanged parts are shared.
Source: docs/behaviour/engine 7.3, as in program/mutate/merge_steps.
"""

from collections.abc import Sequence
from operator import is_
from typing import Final, NamedTuple

from kyverno_mp.expr.template.leaves import filled
from kyverno_mp.program.mutate.merge_steps import (
    ENTRIES_FREE,
    KEPT,
    PENDING,
    REMOVED,
    Merge,
    Own,
    Rows,
    Step,
    Test,
    Unfit,
    Values,
    plain,
    repeated,
)
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.patches.json_equal import same_paid
from kyverno_mp.values.patches.merge_keys import Shape
from kyverno_mp.values.patches.merge_list import ABSENT
from kyverno_mp.values.patches.strategic_merge import merge_value

_ELEMENT_STEPS: Final = 6
_LONG: Final = 64


def other_list(origin: list[Json], holes: Sequence[int], shape: Shape) -> Step:
    """Merge a list without anchors, like the general algorithm."""

    def merge_other(old: Json, values: Values, state: Own) -> Json:
        if old is None:
            raise Unfit
        if not holes:
            return merge_value(old, origin, shape, state.spend)
        for number in holes:
            plain(values[number])
        return merge_value(old, filled(origin, values), shape, state.spend)

    return merge_other


class Keyed(NamedTuple):
    """A patch element that is identified by a key.

    ``text``: the key, a hole or scalar; ``made``: creates the element in an object that
    lacks it; ``merge``: merges all other fields in an object that has it.
    """

    text: Step
    made: Step
    merge: Merge


def keyed_list(key: str, elements: Sequence[Keyed], otherwise: Step) -> Step:
    """Merge elements that are identified by the text of ``key``.

    ``otherwise``: the step for an object without the list.
    """
    is_large = len(elements) > ENTRIES_FREE

    def merge_keyed(old: Json, values: Values, state: Own) -> Json:
        if type(old) is not list:
            return otherwise(old, values, state)
        if is_large or len(old) > _LONG:
            state.spend.charge(_ELEMENT_STEPS * len(elements) + len(old))
        rest = _by_key(old, key)
        front: list[Json] = []
        names = set()
        for text_step, create, merge in elements:
            name = text_step(ABSENT, values, state)
            if type(name) is not str or not name or name in names:
                raise Unfit
            names.add(name)
            existing = rest.pop(name, ABSENT)
            front.append(
                create(ABSENT, values, state)
                if existing is ABSENT
                else merge(existing, values, state)
            )
        # KYVERNO: new elements and elements named in the patch precede the others.
        front.extend(rest.values())
        return _unless_equal(front, old)

    return merge_keyed


def keyed_rows(key: str, elements: Sequence[Keyed], step: Step) -> Step:
    """Merge rows as ``keyed_list`` does; ``step``: the result of ``keyed_list``."""
    merge_rows = repeated(step)
    backwards = tuple(reversed(elements))

    def merge_keyed_rows(old: Json, rows: Rows, state: Own) -> Json:
        if type(old) is not list:
            return merge_rows(old, rows, state)
        state.spend.charge(len(old) + _ELEMENT_STEPS * len(elements) * len(rows))
        met: set[str] = set()
        # PERF: the map's last entry is the list's first element, so moving an element
        # to the front does not move the others.
        by_key = _by_key(old[::-1], key)
        for values in rows:
            names = set()
            for text_step, create, merge in backwards:
                name = text_step(ABSENT, values, state)
                if type(name) is not str or not name or name in names:
                    raise Unfit
                names.add(name)
                existing = by_key.pop(name, ABSENT)
                by_key[name] = (
                    create(ABSENT, values, state)
                    if existing is ABSENT
                    else merge(existing, values, state)
                )
            met |= names
        new = [*by_key.values()]
        new.reverse()
        if len(met) < len(elements) * len(rows) and same_paid(new, old, state.spend):
            # A row may revert an earlier row.
            return old
        return _unless_equal(new, old)

    return merge_keyed_rows


def _by_key(elements: list[Json], key: str) -> dict[str, Json]:
    """Return the elements by key. Raises: Unfit unless all keys are unique strings."""
    try:
        by_key = {element[key]: element for element in elements}
    except (TypeError, KeyError) as error:
        raise Unfit from error
    if len(by_key) != len(elements) or "" in by_key:
        raise Unfit
    for name in by_key:
        if type(name) is not str:
            raise Unfit
    return by_key


def _unless_equal(new: list[Json], old: list[Json]) -> list[Json]:
    return old if len(new) == len(old) and all(map(is_, new, old)) else new


def anchored_list(
    *,
    merge: Merge,
    tests: Sequence[Test],
    additions: Sequence[tuple[int, str]],
    slots: int,
    is_solid: bool,
) -> Step:
    """Merge one element with anchors into every list element that meets its conditions.

    The list elements have names. ``additions``: slots and keys of the ``+()`` at the
    top level of the element, which are processed before its conditions.
    """
    element_steps = _ELEMENT_STEPS * (1 + len(tests) + len(additions))

    def merge_matching(old: Json, values: Values, outer: Own) -> Json:
        if old is ABSENT:
            return ABSENT
        if type(old) is not list:
            raise Unfit
        state = Own([PENDING] * slots)
        spend = state.spend = outer.spend
        is_long = len(old) > _LONG
        # PERF: a short list is charged in one call.
        spend.charge(len(old) if is_long else element_steps * len(old))
        front: list[Json] = []
        rest: list[Json] = []
        for existing in _by_key(old, "name").values():
            if is_long:
                spend.charge(element_steps)
            for slot, key in additions:
                if state[slot] == PENDING:
                    state[slot] = REMOVED if key in existing else KEPT
            for test in tests:
                if not test(existing, values):
                    rest.append(existing)
                    break
            else:
                merged = merge(existing, values, state)
                # KYVERNO: an element whose patch is empty keeps its place; other
                # patched elements move to the front.
                named = is_solid or KEPT in state
                (front if named else rest).append(merged)
        return _unless_equal(front + rest, old)

    return merge_matching

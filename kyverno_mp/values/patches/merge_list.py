"""Merge lists whose elements have keys, with the same steps as kyaml.

Room: values. Takes: the elements of object and patch, a function that merges two
elements with the same key. Gives: the merged list. Next:
values/patches/strategic_merge. May touch: the lists passed to it, which are the
caller's copies.
Source: docs/behaviour/engine 7.3; kyaml v0.21.1 walk/associative_sequence, fns
ElementSetter.

KYVERNO: for elements without a key, repeated keys and lists with two keys (ports), only
the order of these steps determines the result, so they run in the same order.
"""

from collections.abc import Callable, Sequence
from typing import Final

from kyverno_mp.values.go.gotext import json_text
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.patches.node_kind import MAPPING, wrong_kind
from kyverno_mp.values.spending import ENTRY_BYTES, FREE, Spender


class _Absent:
    """Marks a missing value, which differs from null."""


ABSENT: Final[Json] = _Absent()
_NOWHERE: Final = object()

Join = Callable[[Json, Json], tuple[Json, bool]]
"""(old element or ABSENT, new element or ABSENT) -> (merged or ABSENT, whether it
replaces the old element)."""
_Texts = tuple[str, ...]
_KEY_STEPS: Final = 4
_LOOK_STEPS: Final = 2
"""The steps for reading the keys of one element."""
_COMMON_STEPS: Final = 4
"""The steps for comparing the keys of two elements."""


def text_of(value: Json) -> str:
    """Return the text of a YAML scalar; "" for maps and lists."""
    if type(value) is str:
        return value
    if type(value) is dict or type(value) is list or value is ABSENT:
        return ""
    return json_text(value)


_TEXT: Final = {str}


def is_regular(elements: Sequence[Json], key: str) -> bool:
    """Return whether every element is a map with a unique text under ``key``."""
    # PERF: nearly all keys are strings; this check needs no Python loop.
    keys = [element.get(key) if type(element) is dict else None for element in elements]
    if set(map(type, keys)) == _TEXT:
        names = set(keys)
        return len(names) == len(keys) and "" not in names
    distinct = set()
    for element in elements:
        if type(element) is not dict:
            return False
        value = element.get(key)
        if type(value) is int:
            value = str(value)
        if type(value) is not str or not value or value in distinct:
            return False
        distinct.add(value)
    return True


def merge_scalars(
    dest: Sequence[Json], origin: Sequence[Json], spend: Spender = FREE
) -> list[Json]:
    """Merge lists of scalars: the patch's values first, and each value once.

    KYVERNO: an empty map is dropped like null.
    """
    size = len(dest) + len(origin)
    spend.charge_bytes(ENTRY_BYTES * size)
    merged: dict[str, Json] = {}
    for source in (origin, dest):
        spend.charge(len(source))
        for element in source:
            if element is None or element == {}:
                continue
            if type(element) is dict or type(element) is list:
                raise wrong_kind("ScalarNode", element)
            merged[text_of(element)] = element
    return list(merged.values())


def parted(
    dest: Sequence[Json], origin: Sequence[Json], keys: _Texts, spend: Spender = FREE
) -> tuple[list[Json], list[Json]]:
    """Return the elements that ``origin`` selects by their keys, and the rest.

    With several keys, a key that is missing on one side matches any value on the other.
    If an element of ``origin`` has no key, or an element of ``dest`` is not a map, all
    elements are selected, because then only kyaml's steps determine the result.
    """
    names = [tuple(_key_text(element, key) for key in keys) for element in origin]
    if not all(map(any, names)) or any(type(each) is not dict for each in dest):
        return list(dest), []
    named: list[Json] = []
    rest: list[Json] = []
    for element in dest:
        spend.charge(_KEY_STEPS + _COMMON_STEPS * len(names))
        values = tuple(_key_text(element, key) for key in keys)
        is_named = any(_common(values, name) is not None for name in names)
        (named if is_named else rest).append(element)
    return named, rest


def merge_irregular(
    dest: list[Json],
    origin: list[Json] | None,
    keys: _Texts,
    join: Join,
    spend: Spender = FREE,
) -> list[Json]:
    """Merge lists by ``keys``; ``origin`` is None if the patch does not have the list.

    ``dest`` and ``origin`` may be the same list: then deleting from one also deletes
    from the other.
    """
    size = len(dest) + len(origin or ())
    spend.charge(_KEY_STEPS * size)
    spend.charge_bytes(2 * ENTRY_BYTES * size)
    values = _values(dest, origin, keys)
    if len(keys) > 1:
        _merge_values(values, spend)
    valid = tuple(
        key for index, key in enumerate(keys) if any(v[index] for v in values)
    )
    valid = valid or keys
    items: list[Json] = []
    for value in values:
        spend.charge(_LOOK_STEPS * (size + len(items)) + _KEY_STEPS)
        key_values = tuple(
            key_value
            for key, key_value in zip(keys, value, strict=True)
            if key in valid
        )
        merged = _merge_element(dest, origin, valid, key_values, join)
        if merged is ABSENT or merged is None or merged == {}:
            set_element(dest, ABSENT, valid, key_values)
        else:
            set_element(items, merged, valid, key_values)
    if values:
        _append_all(items, dest, valid, spend)
        return items
    return dest


def _values(dest: list[Json], origin: list[Json] | None, keys: _Texts) -> list[_Texts]:
    """Return the distinct key strings of all elements, the patch's elements first."""
    distinct: dict[_Texts, None] = {}
    for source in (origin, dest):
        for element in source or ():
            distinct.setdefault(tuple(_key_text(element, key) for key in keys))
    return list(distinct)


def _key_text(element: Json, key: str) -> str:
    if type(element) is not dict:
        return ""
    value = element.get(key)
    return "" if value is None else text_of(value)


def _merge_values(values: list[_Texts], spend: Spender) -> None:
    """Merge values that are equal wherever neither of them is empty."""
    for i in range(len(values)):
        spend.charge(_LOOK_STEPS * len(values))
        first = values[i]
        for j in range(len(values)):
            both = _common(first, values[j])
            if both is not None:
                values[i] = values[j] = both


def _common(first: _Texts, second: _Texts) -> _Texts | None:
    if not any(a == b for a, b in zip(first, second, strict=True)):
        return None
    if any(a != b and a and b for a, b in zip(first, second, strict=True)):
        return None
    return tuple(a or b for a, b in zip(first, second, strict=True))


def _merge_element(
    dest: list[Json],
    origin: list[Json] | None,
    keys: _Texts,
    key_values: _Texts,
    join: Join,
) -> Json:
    nonempty = [(k, v) for k, v in zip(keys, key_values, strict=True) if v]
    pairs = nonempty or list(zip(keys, key_values, strict=True))
    old_at = _find(dest, pairs)
    old = ABSENT if old_at < 0 else dest[old_at]
    new = ABSENT
    if origin is not None:
        new_at = _find(origin, pairs)
        new = ABSENT if new_at < 0 else origin[new_at]
    if old is ABSENT and new is ABSENT:
        return ABSENT
    merged, replaces = join(old, new)
    if old_at >= 0 and replaces and merged is not ABSENT:
        dest[old_at] = merged
    return merged


def _find(elements: list[Json], pairs: list[tuple[str, str]]) -> int:
    for index, element in enumerate(elements):
        if type(element) is dict and all(
            key in element and text_of(element[key]) == value for key, value in pairs
        ):
            return index
    return -1


def set_element(
    elements: list[Json], element: Json, keys: Sequence[str], values: Sequence[str]
) -> None:
    """Replace the matching elements with ``element``, or append it; ABSENT deletes.

    KYVERNO: an empty value matches every element that has the key, and a key without a
    value matches the same elements as the previous key.
    """
    remaining: list[Json] = []
    is_found = False
    for current in elements:
        if current is None or current == {}:
            continue
        if type(current) is not dict and values and values[0]:
            remaining.append(current)
            continue
        if not _matches(current, keys, values):
            if values:
                remaining.append(current)
            continue
        is_found = True
        if element is not ABSENT:
            remaining.append(element)
    if not is_found and element is not ABSENT:
        remaining.append(element)
    elements[:] = remaining


def _matches(current: Json, keys: Sequence[str], values: Sequence[str]) -> bool:
    has_matched = False
    for index, key in enumerate(keys):
        if index < len(values):
            if type(current) is not dict:
                raise wrong_kind(MAPPING, current)
            value = current.get(key, _NOWHERE)
            has_matched = value is not _NOWHERE and (
                not values[index] or text_of(value) == values[index]
            )
        if not has_matched:
            return False
    return True


def _append_all(
    items: list[Json], dest: list[Json], keys: _Texts, spend: Spender
) -> None:
    """Overlay the object's elements on the merged elements, which come first."""
    for element in dest:
        spend.charge(_LOOK_STEPS * len(keys) * len(items) + _KEY_STEPS)
        values: list[str] = []
        for key in keys:
            if element is not None and type(element) is not dict:
                raise wrong_kind(MAPPING, element)
            if element is None or key not in element:
                items.append(element)
            else:
                values.append(text_of(element[key]))
        if len(keys) > 1:
            set_element(items, ABSENT, keys, values)
        set_element(items, element, keys, values)

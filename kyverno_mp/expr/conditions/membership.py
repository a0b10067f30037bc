"""Implement AnyIn, AllIn, AnyNotIn and AllNotIn.

Room: expr. Takes: a key and a value. Gives: bool, or a test compiled for one value.
Next: expr/conditions/operators.
Source: docs/behaviour/engine 4.6.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from kyverno_mp.expr.pattern.leaf import match_leaf
from kyverno_mp.values.go.gotext import sprint
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.wildcard import compile_wildcard, contains_wildcard, matches

Hit = Callable[[str], bool]
Combine = Callable[[Hit, Sequence[str]], bool]
MakeHit = Callable[[Sequence[str]], Hit]

_END: Final = r"[-|+]?[0-9]+(?:\.[0-9]+)?[A-Za-z]*"
_RANGE: Final = re.compile(f"{_END}-{_END}\\Z")
_RANGE_CHARACTERS_MAX: Final = 1000


def _any_in(hit: Hit, keys: Sequence[str]) -> bool:
    return any(map(hit, keys))


def _all_in(hit: Hit, keys: Sequence[str]) -> bool:
    return all(map(hit, keys))


def _any_not_in(hit: Hit, keys: Sequence[str]) -> bool:
    return not all(map(hit, keys))


def _all_not_in(hit: Hit, keys: Sequence[str]) -> bool:
    return not any(map(hit, keys))


class Mode:
    """The differences between the four operators.

    ``combine`` evaluates a list of keys; ``negated`` applies to a single key. ``some``:
    the operator requires one matching key, not all; only such operators treat a number
    as a list with one element.
    """

    __slots__ = ("combine", "negated", "some")

    def __init__(self, combine: Combine, *, negated: bool, some: bool) -> None:
        self.combine = combine
        self.negated = negated
        self.some = some


MODES: Final = {
    "AnyIn": Mode(_any_in, negated=False, some=True),
    "AllIn": Mode(_all_in, negated=False, some=False),
    "AnyNotIn": Mode(_any_not_in, negated=True, some=True),
    "AllNotIn": Mode(_all_not_in, negated=True, some=False),
}


def is_member(mode: Mode, key: Json, value: Json) -> bool:
    """Evaluate an operator with both sides known only at run time."""
    if type(key) is str and type(value) is list:
        return _in_list(key, value) is not mode.negated
    return _link(mode, value, _plain_hit)(key)


def link_membership(mode: Mode, value: Json) -> Callable[[Json], bool]:
    """Compile the test for a value known at link time."""
    return _link(mode, value, _prepared_hit)


def scalar_text(key: Json) -> str | None:
    """Return the text of a scalar key; None for null, lists and maps."""
    kind = type(key)
    if kind is str:
        return str(key)
    if kind is int or kind is float or kind is bool:
        return sprint(key)
    return None


def texts_of(items: Sequence[Json]) -> list[str]:
    """Return the list elements in the format of fmt.Sprint."""
    return [item if type(item) is str else sprint(item) for item in items]


def json_strings(document: str) -> list[str] | None:
    """Decode JSON like ``json.Unmarshal`` into a list of strings; None on failure."""
    try:
        decoded = msgspec.json.decode(document)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    if decoded is None:
        return []
    if type(decoded) is not list:
        return None
    strings = ["" if item is None else item for item in decoded]
    return strings if all(type(item) is str for item in strings) else None


def is_json(document: str) -> bool:
    """Return whether the text is valid JSON."""
    try:
        msgspec.json.decode(document, type=msgspec.Raw)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return False
    return True


def _link(mode: Mode, value: Json, make_hit: MakeHit) -> Callable[[Json], bool]:
    kind = type(value)
    if kind is list:
        return _link_list(mode, make_hit(texts_of(value)))
    if kind is str:
        return _link_text(mode, value, make_hit)
    if mode.some and (kind is int or kind is float or kind is bool):
        return _link_number(mode, make_hit([sprint(value)]))
    return _never


def _never(_key: Json) -> bool:
    return False


def _link_list(mode: Mode, hit: Hit) -> Callable[[Json], bool]:
    combine, negated = mode.combine, mode.negated

    def test(key: Json) -> bool:
        if type(key) is str:
            return hit(key) is not negated
        if type(key) is list:
            return combine(hit, texts_of(key))
        printed = scalar_text(key)
        return printed is not None and hit(printed) is not negated

    return test


def _link_number(mode: Mode, hit: Hit) -> Callable[[Json], bool]:
    """Compile the test for a number or bool, which matches only a list of keys."""
    combine = mode.combine

    def test(key: Json) -> bool:
        return type(key) is list and combine(hit, texts_of(key))

    return test


def _link_text(mode: Mode, value: str, make_hit: MakeHit) -> Callable[[Json], bool]:
    scalar_hit, keys_test = _text_tests(mode, value, make_hit)
    match = compile_wildcard(value)
    negated = mode.negated

    def test(key: Json) -> bool:
        if type(key) is list:
            keys = texts_of(key)
            if len(keys) == 1 and keys[0] == value:
                return not negated
            return keys_test is not None and keys_test(keys)
        printed = scalar_text(key)
        if printed is None:
            return False
        if match(printed):
            return not negated
        return scalar_hit is not None and scalar_hit(printed) is not negated

    return test


def _text_tests(
    mode: Mode, value: str, make_hit: MakeHit
) -> tuple[Hit | None, Callable[[Sequence[str]], bool] | None]:
    """Return the tests of a text value for one key and for a list of keys.

    A test of None means that the type is invalid.
    """
    combine = mode.combine
    if len(value) <= _RANGE_CHARACTERS_MAX and _RANGE.match(value):

        def within(key: str) -> bool:
            return match_leaf(key, value)

        if mode.some and mode.negated:
            # KYVERNO: upstream forms the complement at the first "-", which is the sign
            # if the left end is negative (docs/behaviour/engine 4.6).
            outside = value.replace("-", "!-", 1)

            def some_outside(keys: Sequence[str]) -> bool:
                return any(match_leaf(key, outside) for key in keys)

            return within, some_outside

        return within, lambda keys: combine(within, keys)
    strings = json_strings(value) if is_json(value) else [value]
    if strings is None:
        return None, None
    exact = frozenset(strings)
    hit = make_hit(strings)
    return exact.__contains__, lambda keys: combine(hit, keys)


def _in_list(key: str, values: list[Json]) -> bool:
    """Match one key with list elements, with wildcards in both directions."""
    wild = "*" in key or "?" in key
    for value in values:
        printed = value if type(value) is str else sprint(value)
        if (
            printed == key
            or (("*" in printed or "?" in printed) and matches(printed, key))
            or (wild and matches(key, printed))
        ):
            return True
    return False


def _plain_hit(values: Sequence[str]) -> Hit:
    """Return a test for values that are used once."""

    def hit(key: str) -> bool:
        return key in values or _in_list(key, list(values))

    return hit


def _prepared_hit(values: Sequence[str]) -> Hit:
    """Return a reusable test for values: compiled wildcards, and a set of the rest."""
    exact = frozenset(values)
    patterns = tuple(
        compile_wildcard(value) for value in values if contains_wildcard(value)
    )

    def hit(key: str) -> bool:
        if key in exact:
            return True
        for match in patterns:
            if match(key):
                return True
        if "*" in key or "?" in key:
            return any(matches(key, value) for value in values)
        return False

    return hit

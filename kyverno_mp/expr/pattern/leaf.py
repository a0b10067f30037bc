"""Compare one value with a scalar pattern.

Room: expr.pattern. Takes: nodes.Leaf, or a pattern known only at run time. Gives:
closures ``Callable[[Json], bool]``, and match_leaf. Next: fast, explain.
Source: docs/behaviour/engine 5.1-5.4.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import re2

from kyverno_mp.expr.pattern.compare import compile_term, compile_text_test
from kyverno_mp.expr.pattern.nodes import Leaf, Range, Term
from kyverno_mp.expr.pattern.text import parse_alternatives
from kyverno_mp.limits import EXPRESSION_TEXT_BYTES_MAX, PARSE_CACHE_ENTRIES_MAX
from kyverno_mp.values.effort import TEXT_LIGHT_MAX, Charge
from kyverno_mp.values.go.duration import float_to_int64
from kyverno_mp.values.go.gofloat import parse_float
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.wildcard import compile_wildcard, contains_wildcard

Check: TypeAlias = Callable[[Json], bool]

_STEPS_PER_TERM: Final = 6
_SEARCHED_PER_STEP: Final = 1024
_STATES_PER_STEP: Final = 128
_GO_INT: Final = re2.compile(r"[+-]?[0-9]+")
_NUMBER_CHARACTERS_MAX: Final = 1000
_INT64_DIGITS_MAX: Final = 19
_INT64_LIMIT: Final = 1 << 63
_INFINITY: Final = float("inf")


def match_leaf(value: Json, pattern: Json) -> bool:
    """Return whether a value satisfies a pattern value known only at run time.

    A map as the pattern matches any map; a list as the pattern or the value never
    matches. Only compile_leaf tests every element of a list.
    """
    kind = type(pattern)
    if kind is dict:
        return type(value) is dict
    if kind is list or type(value) is list:
        return False
    if kind is str:
        return _text_check(pattern)(value)
    return compile_leaf(Leaf(pattern))(value)


def compile_leaf(leaf: Leaf) -> Check:
    """Compile the test of a leaf, which every element of a list must satisfy."""
    value = leaf.value
    if type(value) is str:
        return _compile_text(value, leaf.alternatives)
    if type(value) is bool:
        return _each(lambda item: item is value)
    if type(value) is int:
        return _each(_int_check(value))
    if type(value) is float:
        return _each(_float_check(value))
    return _each(_is_null)


def charge_leaf(leaf: Leaf, value: Json, charge: Charge) -> None:
    """Charge the test of a value, or of every item of a list, before it runs."""
    pattern = leaf.value
    if type(pattern) is not str:
        terms = length = questions = 0
    else:
        terms, length = leaf_terms(pattern), len(pattern)
        questions = length if "?" in pattern else 0
        if length > EXPRESSION_TEXT_BYTES_MAX:
            charge(length)
    count, characters = 1, 0
    if type(value) is list:
        count = len(value)
        charge(count)
        characters = sum([len(item) for item in value if type(item) is str])
    elif type(value) is str:
        characters = len(value)
    charge(1 + count * (_STEPS_PER_TERM * terms + questions // 8))
    if characters > TEXT_LIGHT_MAX:
        charge(
            characters * (8 * terms + min(length, 100 * terms)) // _SEARCHED_PER_STEP
        )
        charge(characters * questions // _STATES_PER_STEP)


def leaf_terms(pattern: str) -> int:
    """Return the number of comparisons in a text pattern."""
    return 1 + pattern.count("|") + pattern.count("&")


def leaf_check(leaf: Leaf) -> Check:
    """Return the test of a leaf for immediate use; tests of strings are cached."""
    return _text_check(leaf.value) if type(leaf.value) is str else compile_leaf(leaf)


def _text_check(pattern: str) -> Check:
    if len(pattern) > EXPRESSION_TEXT_BYTES_MAX:
        return _compile_text(pattern, parse_alternatives(pattern))
    return _cached_text_check(pattern)


@lru_cache(maxsize=PARSE_CACHE_ENTRIES_MAX)
def _cached_text_check(pattern: str) -> Check:
    return _compile_text(pattern, parse_alternatives(pattern))


def _each(check: Check) -> Check:
    def match_each(value: Json) -> bool:
        if type(value) is not list:
            return check(value)
        return all(type(item) is not list and check(item) for item in value)

    return match_each


def _is_null(value: Json) -> bool:
    return type(value) is not dict and not value


def _int_check(pattern: int) -> Check:
    def match_int(value: Json) -> bool:
        kind = type(value)
        if kind is int:
            return bool(value == pattern)
        if kind is float:
            return value.is_integer() and float_to_int64(value) == pattern
        return kind is str and _parse_int(value) == pattern

    return match_int


def _parse_int(literal: str) -> int | None:
    if len(literal) > _NUMBER_CHARACTERS_MAX or _GO_INT.fullmatch(literal) is None:
        return None
    digits = literal.lstrip("+-").lstrip("0")
    if len(digits) > _INT64_DIGITS_MAX:
        return None
    number = int(literal)
    return number if -_INT64_LIMIT <= number < _INT64_LIMIT else None


def _float_check(pattern: float) -> Check:
    integer = float_to_int64(pattern) if pattern.is_integer() else None

    def match_float(value: Json) -> bool:
        kind = type(value)
        if kind is float:
            return bool(value == pattern)
        if kind is int:
            return integer is not None and bool(value == integer)
        return kind is str and _parse_float(value) == pattern

    return match_float


def _parse_float(literal: str) -> float | None:
    return parse_float(literal) if len(literal) <= _NUMBER_CHARACTERS_MAX else None


class _Scalar(NamedTuple):
    """The tests of one text pattern by type, with precomputed constants."""

    integer: Callable[[int], bool]
    floating: Callable[[float], bool]
    null: bool
    true: bool
    false: bool


def _compile_text(pattern: str, alternatives: tuple[tuple[Term, ...], ...]) -> Check:
    string_check = _text_test(pattern, alternatives)
    scalar: _Scalar | None = None

    def matches(value: Json) -> bool:
        """Test a value that is not a list."""
        nonlocal scalar
        kind = type(value)
        if kind is str:
            return string_check(value)
        # PERF: most values are strings, and the tests of other types take most memory.
        scalar_tests = scalar
        if scalar_tests is None:
            scalar_tests = scalar = _compile_scalar(alternatives)
        if kind is bool:
            return scalar_tests.true if value else scalar_tests.false
        if kind is int:
            return scalar_tests.integer(value)
        if value is None:
            return scalar_tests.null
        return kind is float and scalar_tests.floating(value)

    def match_text_pattern(value: Json) -> bool:
        kind = type(value)
        if kind is str:
            return string_check(value)
        if kind is list:
            return all(matches(item) for item in value)
        return matches(value)

    return match_text_pattern


def _compile_scalar(alternatives: tuple[tuple[Term, ...], ...]) -> _Scalar:
    rows = [[compile_term(term) for term in terms] for terms in alternatives]
    return _Scalar(
        integer=_any_of([_all_of([term.integer for term in row]) for row in rows]),
        floating=_any_of([_all_of([term.floating for term in row]) for row in rows]),
        null=any(all(term.null for term in row) for row in rows),
        true=any(all(term.true for term in row) for row in rows),
        false=any(all(term.false for term in row) for row in rows),
    )


def _text_test(
    pattern: str, alternatives: tuple[tuple[Term, ...], ...]
) -> Callable[[str], bool]:
    # PERF: perf/micro/patterns.py - most patterns are lists of literal names, which
    # compile to one set look-up.
    literals = {pattern}
    tests: list[Callable[[str], bool]] = []
    for terms in alternatives:
        name = _name(terms[0]) if len(terms) == 1 else None
        if name is not None:
            if contains_wildcard(name):
                tests.append(compile_wildcard(name))
            else:
                literals.add(name)
        else:
            tests.append(_all_of([compile_text_test(term) for term in terms]))
    # A set of one takes 200 bytes more than the comparison.
    contains = (
        pattern.__eq__ if len(literals) == 1 else frozenset(literals).__contains__
    )
    if not tests:
        return contains
    matches = _any_of(tests)
    return lambda value: contains(value) or matches(value)


def _name(term: Term) -> str | None:
    """Return the text of a comparison that can only compare strings."""
    if isinstance(term, Range) or term.operator or term.quantity:
        return None
    return term.text if term.duration is None else None


def _all_of(tests: list[Callable[[Json], bool]]) -> Callable[[Json], bool]:
    if len(tests) == 1:
        return tests[0]

    def match_all(value: Json) -> bool:
        for test in tests:  # noqa: SIM110 - PERF: a generator costs more than the loop
            if not test(value):
                return False
        return True

    return match_all


def _any_of(tests: list[Callable[[Json], bool]]) -> Callable[[Json], bool]:
    if len(tests) == 1:
        return tests[0]

    def match_any(value: Json) -> bool:
        for test in tests:  # noqa: SIM110 - PERF: a generator costs more than the loop
            if test(value):
                return True
        return False

    return match_any

"""Build the closures of maps and lists in which an anchor can skip.

Room: expr.pattern. Takes: keys and the closures of their values. Gives: ``code(value)
-> int``, one of PASSED, PLAIN_SKIP, WRAPPED_SKIP, FAILED. Next: fast.
Source: docs/behaviour/engine 5.6.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from kyverno_mp.expr.pattern.explain import (
    FAILED,
    PASSED,
    PLAIN_SKIP,
    WRAPPED_SKIP,
)
from kyverno_mp.expr.pattern.leaf import Check
from kyverno_mp.values.jsonvalue import Json

Code: TypeAlias = Callable[[Json], int]

_ABSENT: Final = object()


class Step(NamedTuple):
    """One key: the code of its value, and the code if it is absent."""

    key: str
    code: Code
    absent: int


def code_of(check: Check, otherwise: int = FAILED) -> Code:
    """Convert a test to a code."""
    return lambda value: PASSED if check(value) else otherwise


def map_code(first: Sequence[Step], then: Sequence[Step]) -> Code:
    """Compile the code of a map with its two phases.

    If an anchor of the map itself skips, the walk ends there, because later keys can no
    longer fail (docs/behaviour/engine 5.6).
    """

    def match_map(value: Json) -> int:
        if type(value) is not dict:
            return FAILED
        get = value.get
        wrapped = applied = False
        for key, code, absent in first:
            member = get(key, _ABSENT)
            result = absent if member is _ABSENT else code(member)
            if result == PASSED:
                applied = True
            elif result == PLAIN_SKIP:
                return WRAPPED_SKIP
            elif result == WRAPPED_SKIP:
                wrapped = True
            else:
                return FAILED
        if wrapped and not applied:
            return WRAPPED_SKIP
        for key, code, absent in then:
            member = get(key, _ABSENT)
            result = absent if member is _ABSENT else code(member)
            if result != PASSED:
                return result
        return PASSED

    return match_map


def each_code(code: Code) -> Code:
    """Compile the code of a list in which every element is evaluated by ``code``."""

    def match_each(values: Json) -> int:
        if type(values) is not list:
            return FAILED
        return _gathered(code(value) for value in values)

    return match_each


def positional_code(codes: Sequence[Code]) -> Code:
    """Compile the code of a list pattern whose first element is a list."""
    count = len(codes)

    def match_positions(values: Json) -> int:
        if type(values) is not list or len(values) < count:
            return FAILED
        return _gathered(code(values[i]) for i, code in enumerate(codes))

    return match_positions


def _gathered(results: Iterable[int]) -> int:
    skipped = applied = False
    for result in results:
        if result == PASSED:
            applied = True
        elif result == FAILED:
            return FAILED
        else:
            skipped = True
    return WRAPPED_SKIP if skipped and not applied else PASSED

"""Test by counting steps that every function charges for its arguments.

The test covers all function tables, so it fails for a new function that charges
nothing. ``tox -e charges`` measures the time and memory of a step.
"""

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice, pairwise
from typing import Any, Final

import pytest

from kyverno_mp.errors import BudgetExceeded, Error, ExpressionFailed
from kyverno_mp.expr.assertion.calls import _TABLE as ASSERTION
from kyverno_mp.expr.assertion.calls import link_call as link_assertion_call
from kyverno_mp.expr.jmespath.functions.calls import KYVERNO, link_call
from kyverno_mp.limits import REGEX_CHARACTERS_MAX
from kyverno_mp.values.jsonvalue import Json
from tests.charges.charges import runtime
from tests.charges.test_charges import _calls, _constants

LARGE: Final = 100_000
SIZE_PER_STEP_MAX: Final = 2048
"""Number of characters that the fastest C function reads in the time of a step."""
CALLS_EACH: Final = 6


def _size(value: Json) -> int:
    if type(value) is str or type(value) is list or type(value) is dict:
        return len(value)
    return 0


def _large_calls(name: str, arguments: Any) -> Iterator[tuple[str, list[Any], int]]:
    for title, values in _calls(name, arguments):
        size = max(map(_size, values), default=0)
        if size >= LARGE:
            yield title, values, size


@pytest.mark.parametrize(
    ("table", "name"),
    [*(("kyverno", n) for n in KYVERNO), *(("assertion", n) for n in ASSERTION)],
)
def test_arguments_are_charged(table: str, name: str) -> None:
    entry = KYVERNO[name] if table == "kyverno" else ASSERTION[name]
    found = _large_calls(name, entry.arguments)
    for title, values, size in islice(found, CALLS_EACH):
        arguments = _constants(values)
        if table == "kyverno":
            call = link_call(KYVERNO, name, arguments)
        else:
            call = link_assertion_call(name, arguments)
        given = runtime()
        before = given.steps_left
        try:
            call(given, None)
        except Error:
            # The call is rejected for its size, its budget or its type.
            continue
        assert before - given.steps_left >= size // SIZE_PER_STEP_MAX, title


REGEX_CALLS: Final[dict[str, list[Any]]] = {
    "regex_match": ["a"],
    "regex_replace_all": ["a", "b"],
    "regex_replace_all_literal": ["a", "b"],
    "random": [],
}


def _spent(name: str, pattern: str) -> int:
    """Return the steps of one call in a separate request."""
    given = runtime()
    before: int = given.steps_left
    call = link_call(KYVERNO, name, _constants([pattern, *REGEX_CALLS[name]]))
    with suppress(ExpressionFailed):
        call(given, None)
    after: int = given.steps_left
    return before - after


@pytest.mark.parametrize("name", REGEX_CALLS)
def test_regex_cost_does_not_depend_on_earlier_callers(name: str) -> None:
    unknown = f"[a-z]{{10}}|never asked for by {name}"
    assert _spent(name, unknown) == _spent(name, unknown)


@pytest.mark.parametrize("name", REGEX_CALLS)
@pytest.mark.parametrize(
    "letters", ["\\pL" * 32, "\\pL{100}" * 12, "(a{100}){10}" * 20]
)
def test_regex_cost_follows_its_compiled_size(name: str, letters: str) -> None:
    """Charges depend on the compiled size; these regexes take some 20 ms."""
    assert _spent(name, letters) > 20_000


def test_policy_is_charged_for_a_regex_once() -> None:
    given = runtime()
    call = link_call(KYVERNO, "regex_match", _constants(["\\pL+x", "a"]))
    left = [given.steps_left]
    for _ in range(3):
        call(given, None)
        left.append(given.steps_left)
    given.begin_policy("another", is_tenant=False)
    left.append(given.steps_left)
    call(given, None)
    first, second, third, _, other = (
        before - after for before, after in pairwise([*left, given.steps_left])
    )
    assert first == other > second == third


@pytest.mark.parametrize("name", REGEX_CALLS)
def test_regex_length_is_bounded(name: str) -> None:
    """RE2 blocks all threads while it compiles."""
    _spent(name, "a" * REGEX_CHARACTERS_MAX)
    with pytest.raises(BudgetExceeded) as caught:
        _spent(name, "a" * (REGEX_CHARACTERS_MAX + 1))
    assert caught.value.code == "expr.regex"

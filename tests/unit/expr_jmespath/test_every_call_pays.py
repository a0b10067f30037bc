"""Test that every function charges for its arguments; counts steps, not time.

The test covers all function tables, so it fails for a new function that charges
nothing. ``tox -e charges`` measures the time and memory of a step.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import pytest

from kyverno_mp.errors import Error
from kyverno_mp.expr.assertion.calls import _TABLE as ASSERTION
from kyverno_mp.expr.assertion.calls import link_call as link_assertion_call
from kyverno_mp.expr.jmespath.functions.calls import KYVERNO, link_call
from kyverno_mp.values.jsonvalue import Json
from tests.charges.charges import runtime
from tests.charges.test_charges import _calls, _constants

LARGE: Final = 100_000
SIZE_PER_STEP_MAX: Final = 2048
"""Characters read by the fastest C function in the time of a step."""
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
            # Rejected for its size, its budget or its type.
            continue
        assert before - given.steps_left >= size // SIZE_PER_STEP_MAX, title

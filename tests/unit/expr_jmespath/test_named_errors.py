"""Errors in the arguments of a function name it; other errors have upstream's text."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed
from kyverno_mp.expr.jmespath.functions.calls import KYVERNO
from kyverno_mp.expr.jmespath.query import search
from kyverno_mp.expr.scope import Runtime

_OF_ARGUMENTS = "incorrect number of args", "Invalid arity", "Invalid type for"
_VALUES = ["`1`", "`null`", '`[1,"x"]`', '`{"a":1}`', "'x'", "'('", "'%'", "'2s'", "&a"]


def _error(expression: str) -> str:
    runtime = Runtime(
        now=lambda: datetime(2026, 1, 1, tzinfo=UTC), monotonic_ns=lambda: 0
    )
    try:
        search(expression)(runtime, {})
    except ExpressionFailed as error:
        return error.message
    except BudgetExceeded:
        pass
    return ""


@pytest.mark.parametrize("name", sorted(KYVERNO))
@given(st.lists(st.sampled_from(_VALUES), max_size=4))
def test_error_of_arguments_names_the_function(name: str, values: list[str]) -> None:
    """Otherwise the author of a long expression does not know which call failed."""
    found = _error(f"{name}({', '.join(values)})")
    if any(text in found for text in _OF_ARGUMENTS):
        assert found.startswith(f"JMESPath function '{name}': "), found


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("split('a')", "JMESPath function 'split': incorrect number of args"),
        ("merge()", "JMESPath function 'merge': Invalid arity."),
        (
            "time_add('2021-01-02T15:04:05Z', 'soon')",
            'time: invalid duration "soon"',
        ),
        # An argument's own error is not the outer function's.
        (
            "to_upper(base64_decode('%'))",
            "illegal base64 data at input byte 0",
        ),
        ("to_upper(nofunc('x'))", "unknown function: nofunc"),
    ],
)
def test_error_precedes_the_text_of_upstream(expression: str, message: str) -> None:
    assert _error(expression) == message

"""Test condition blocks: order, messages and error messages of behaviour/engine 4.1."""

from typing import Any

import msgspec
import pytest

from kyverno_mp.errors import ExpressionFailed, PolicyInvalid
from kyverno_mp.expr.conditions.link import link_conditions
from kyverno_mp.expr.conditions.nodes import Conditions
from kyverno_mp.expr.conditions.parse import parse_conditions
from tests.unit.expr_template.scopes import PlainScope

YES = {"key": "a", "operator": "Equals", "value": "a", "message": "yes"}
ALSO = {"key": "{{ a }}", "operator": "Equals", "value": "a", "message": "also"}
NO = {"key": "{{ a }}", "operator": "Equals", "value": "b", "message": "no"}
NOR = {"key": "a", "operator": "Equals", "value": "{{ b }}", "message": "nor"}
BAD = {"key": "{{ zz }}", "operator": "Equals", "value": "b"}
ROOT = {"a": "a", "b": "b", "n": 5}


def evaluate(raw: Any, **how: bool) -> tuple[bool, str]:
    program = link_conditions(parse_conditions(raw, **how))
    scope = PlainScope(ROOT)
    result = program.evaluate(scope)
    assert program.holds(scope) is result[0]
    return result


def failure(raw: Any) -> str:
    program = link_conditions(parse_conditions(raw))
    messages = []
    for call in (program.holds, program.evaluate):
        with pytest.raises(ExpressionFailed) as caught:
            call(PlainScope(ROOT))
        messages.append(caught.value.message)
    assert messages[0] == messages[1]
    return messages[0]


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        ({}, (True, "")),
        (None, (True, "")),
        ([], (True, "")),
        ({"any": []}, (False, "")),
        ({"any": None, "all": None}, (True, "")),
        ({"all": []}, (True, "")),
        ({"all": [YES, ALSO]}, (True, "yes; also")),
        ({"all": [YES, NO, NOR]}, (False, "no")),
        ({"any": [NO, ALSO, YES]}, (True, "also")),
        ({"any": [NO, NOR]}, (False, "no; nor")),
        ({"any": [NO], "all": [YES, NOR]}, (False, "no; nor")),
        ({"any": [YES], "all": [ALSO]}, (True, "yes; also")),
        ({"any": [NO], "all": [YES]}, (False, "no")),
        ([YES, ALSO], (True, "yes;also")),
        ([YES, NO, NOR], (False, "no")),
    ],
)
def test_results_and_messages(raw: Any, wanted: tuple[bool, str]) -> None:
    """A true block has the messages of true conditions, a false block of false ones."""
    assert evaluate(raw) == wanted


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        ({"any": []}, True),
        ({"any": [NO]}, False),
        ({"any": [NO, YES], "all": [ALSO]}, True),
        ({"all": [NO], "any": [BAD]}, False),
        ({}, True),
    ],
)
def test_exception_conditions(raw: Any, wanted: bool) -> None:  # noqa: FBT001 - a parameter of the table
    """Exceptions evaluate ``all`` first, and an empty ``any`` is true."""
    assert evaluate(raw, of_exception=True)[0] is wanted


def test_error_texts() -> None:
    """The error names the unresolved variable and its side."""
    unknown = (
        'failed to resolve zz at path : JMESPath query failed: Unknown key "zz" in path'
    )
    assert failure([BAD]) == (
        f"failed to substitute variables in condition key: {unknown}"
    )
    value = {"key": "a", "operator": "AnyIn", "value": ["x", "{{ zz }}"]}
    at_item = unknown.replace("path :", "path /1:")
    assert failure({"any": [value]}) == (
        f"failed to substitute variables in condition value: {at_item}"
    )
    unheard = {"key": "a", "operator": "Has", "value": "a"}
    assert failure({"all": [unheard]}) == (
        "failed to create handler for condition operator: %!w(<nil>)"
    )


def test_all_is_evaluated_even_if_any_failed() -> None:
    """An error in ``all`` remains an error whatever ``any`` returns."""
    assert "Unknown key" in failure({"any": [NO], "all": [BAD]})


def test_top_level_numbers_are_floats_and_list_items_are_not() -> None:
    """A policy's 1000000 prints as 1e+06 at the top level and as 1000000 in a list."""
    lone = {"key": 1000000, "operator": "AnyIn", "value": [1000000]}
    assert evaluate([lone])[0] is False
    listed = {"key": [1000000], "operator": "AnyIn", "value": [1000000]}
    assert evaluate([listed])[0] is True
    assert evaluate([{"key": "{{ n }}", "operator": "Equals", "value": 5}])[0] is True


@pytest.mark.parametrize(
    "raw",
    ["x", 5, {"any": {}}, {"all": ["x"]}, [{"operator": 5}], [{"message": []}]],
)
def test_other_shapes_are_rejected(raw: Any) -> None:
    """The author gets an error instead of a rule that never denies."""
    with pytest.raises(PolicyInvalid):
        parse_conditions(raw)


def test_plain_list_is_rejected_where_upstream_rejects_it() -> None:
    """Preconditions of foreach and exceptions support only any/all."""
    with pytest.raises(PolicyInvalid):
        parse_conditions([], any_all_only=True)
    with pytest.raises(PolicyInvalid):
        parse_conditions([], of_exception=True)


def test_conditions_survive_the_snapshot() -> None:
    """A worker decodes the records that the leader encodes."""
    conditions = parse_conditions({"any": [NOR], "all": [BAD]})
    encoded = msgspec.msgpack.encode(conditions)
    assert msgspec.msgpack.decode(encoded, type=Conditions) == conditions

"""Test the condition blocks that the compiler stores (docs/behaviour/engine 4.1)."""

import msgspec

from kyverno_mp.compiler.rules.conditions import build_conditions
from kyverno_mp.policy.fields.conditions import AnyAllConditions, AnyAllConditionsV2


def test_empty_any_differs_from_an_absent_one() -> None:
    """Otherwise, a foreach entry would run or be skipped despite its preconditions."""
    absent = build_conditions(msgspec.convert({"all": []}, AnyAllConditions))
    empty = build_conditions(msgspec.convert({"any": []}, AnyAllConditions))
    assert absent is not None
    assert empty is not None
    assert absent.any is None
    assert empty.any == ()
    assert build_conditions(None) is None


def test_blocks_of_exceptions_are_marked() -> None:
    """Otherwise, an exception's ``any: []`` would be false; upstream's is true."""
    block = msgspec.convert({"any": []}, AnyAllConditionsV2)
    built = build_conditions(block, of_exception=True)
    assert built is not None
    assert built.of_exception
    assert not built.legacy
    plain = build_conditions(msgspec.convert({"any": []}, AnyAllConditions))
    assert plain is not None
    assert not plain.of_exception


def test_every_part_of_a_condition_is_read() -> None:
    """Otherwise, a condition would compare something else because a part is missing."""
    raw = {"key": "{{ a }}", "operator": "AnyIn", "value": [1], "message": "m"}
    built = build_conditions(msgspec.convert({"all": [raw]}, AnyAllConditions))
    assert built is not None
    (one,) = built.all
    assert (one.operator, one.message) == ("AnyIn", "m")
    assert (one.key.is_constant, one.value.constant) == (False, [1])
    number = build_conditions(msgspec.convert({"all": [{"key": 1}]}, AnyAllConditions))
    assert number is not None
    # A whole number as the key is float64; numbers inside lists stay int64 (engine
    # 0.2).
    assert type(number.all[0].key.constant) is float
    assert type(one.value.constant[0]) is int

"""Underscores in numbers, as Go's strconv.ParseFloat takes them.

Expected values: Go's strconv (readFloat, underscoreOK), compared with the real program.
A failure means: a condition compares a number as a text, so a denial is missed.
"""

import math
from typing import Any

import pytest

from kyverno_mp.expr.conditions.operators import comparison
from kyverno_mp.expr.jmespath.yaml_text import decode_yaml
from kyverno_mp.expr.pattern.leaf import match_leaf
from kyverno_mp.policy.reading.yaml_scalar import resolve
from kyverno_mp.values.go.gofloat import parse_float, without_underscores

NUMBERS = {
    "1_000": 1000.0,
    "1_0.5": 10.5,
    "1_0e1_0": 1e11,
    "-1_0": -10.0,
    "+1_0": 10.0,
    "0_1": 1.0,
    "0x1_0p1": 32.0,
    "0x_1p1": 2.0,
    "1_000.0": 1000.0,
    "0x1c.8p0": 28.5,
    "-0X.8P+1": -1.0,
}
OTHERS = ("1_", "_1", "1__0", "1_.5", "1._5", "1e_5", "1_e5", "0b1_0", "0x1_0", "i_nf")
NEVER = ("+nan", "-nan", "0xp1", "0x1p", "0x1.8", "1e400", "0x1p2000", "", " 1", "1 ")


@pytest.mark.parametrize("text", [*NUMBERS, *OTHERS])
def test_conditions(text: str) -> None:
    expected = NUMBERS.get(text)
    key = 7.25 if expected is None else expected + 0.25
    equal, less = comparison("Equals"), comparison("LessThan")
    assert equal is not None
    assert less is not None
    assert equal(key - 0.25, text) is (expected is not None)
    assert less(key - 0.5, text) is (expected is not None)
    assert less(key, text) is False


@pytest.mark.parametrize("text", NUMBERS)
def test_patterns(text: str) -> None:
    assert match_leaf(text, NUMBERS[text] + 0.25) is False
    assert match_leaf(text, NUMBERS[text]) is True


@pytest.mark.parametrize("text", [*NUMBERS, *OTHERS, *NEVER])
def test_parse_float(text: str) -> None:
    assert parse_float(text) == NUMBERS.get(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("inf", math.inf),
        ("+Infinity", math.inf),
        ("-INF", -math.inf),
        ("\u0131nf", None),
    ],
)
def test_infinity(text: str, expected: float | None) -> None:
    assert parse_float(text) == expected


def test_nan_is_a_number_without_a_sign() -> None:
    assert math.isnan(parse_float("NaN") or 0.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1_0.5", 10.5),
        ("1_.5", 1.5),
        ("1._5", 1.5),
        (".5_0", 0.5),
        ("._5", "._5"),
        (".5_", ".5_"),
        ("1e400", "1e400"),
        ("18446744073709551615", 18446744073709551615.0),
        ("0xFFFFFFFFFFFFFFFFFF", "0xFFFFFFFFFFFFFFFFFF"),
        *(
            ("0X10", 16.0),
            ("0B1", 1.0),
            ("0O7", 7.0),
            ("-0X1_0", -16.0),
            ("0B2", "0B2"),
            ("0_x1F", 31.0),
            ("0b-1", -1.0),
            ("0b+_0", 0.0),
            ("-0b-1", "-0b-1"),
            ("0B-1", "0B-1"),
            ("+0x7FFFFFFF", float(2**31 - 1)),
            ("+0xFFFFFFFFFFFFFFFF", "+0xFFFFFFFFFFFFFFFF"),
            ("0xFFFFFFFFFFFFFFFF", float(2**64 - 1)),
            ("+18446744073709551615", float(2**64 - 1)),
            ("-0x8000000000000001", "-0x8000000000000001"),
        ),
        ("_1", "_1"),
    ],
)
def test_yaml(text: str, expected: Any) -> None:
    assert decode_yaml(text, lambda _: None) == expected
    assert resolve(text) == expected


def test_a_text_without_underscores_is_returned_as_it_is() -> None:
    text = "no number"
    assert without_underscores(text) is text

"""Test that strings equal Go's strings."""

import math

import pytest

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.values.go.gotext import (
    float32_plain,
    float_e,
    float_f,
    float_json,
    go_type,
    json_text,
    sprint,
)
from kyverno_mp.values.jsonvalue import Json


# Columns printed by Go 1.26: Sprint, 'E', %f, 'f' with 32 bits, json.Marshal.
@pytest.mark.parametrize(
    ("value", "shown", "exponent", "fixed", "short", "encoded"),
    [
        (1.0, "1", "1E+00", "1.000000", "1", "1"),
        (100000.0, "100000", "1E+05", "100000.000000", "100000", "100000"),
        (1e6, "1e+06", "1E+06", "1000000.000000", "1000000", "1000000"),
        (
            123456789.0,
            "1.23456789e+08",
            "1.23456789E+08",
            "123456789.000000",
            "123456790",
            "123456789",
        ),
        (0.00001, "1e-05", "1E-05", "0.000010", "0.00001", "0.00001"),
        (1e-7, "1e-07", "1E-07", "0.000000", "0.0000001", "1e-7"),
        (0.0, "0", "0E+00", "0.000000", "0", "0"),
    ],
)
def test_floats(
    value: float, shown: str, exponent: str, fixed: str, short: str, encoded: str
) -> None:
    printed = (
        sprint(value),
        float_e(value),
        float_f(value),
        float32_plain(value),
        float_json(value),
    )
    assert printed == (shown, exponent, fixed, short, encoded)


def test_large_floats() -> None:
    assert float_json(1e21) == "1e+21"
    assert float_json(1e20) == "100000000000000000000"
    assert float_e(-1500.0) == "-1.5E+03"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "<nil>"),
        (True, "true"),
        (3, "3"),
        ({"b": ["x", None], "a": 1.5}, "map[a:1.5 b:[x <nil>]]"),
        ([], "[]"),
    ],
)
def test_sprint(value: Json, shown: str) -> None:
    assert sprint(value) == shown


def test_json_text_sorts_keys_and_escapes_html() -> None:
    value = {"b": "<&>\u2028é\x01", "a": [1, 2.0, None, True]}
    escaped = '{"a":[1,2,null,true],"b":"\\u003c\\u0026\\u003e\\u2028é\\u0001"}'
    assert json_text(value) == escaped
    plain = '{"a":[1,2,null,true],"b":"<&>\\u2028é\\u0001"}'
    assert json_text(value, escape_html=False) == plain


def test_json_text_rejects_nan() -> None:
    with pytest.raises(ExpressionFailed, match="unsupported value: NaN"):
        json_text([math.nan])


def test_go_type() -> None:
    assert go_type({}) == "map[string]interface {}"
    assert go_type([]) == "[]interface {}"
    assert go_type(1) == "int64"
    assert go_type(1.0) == "float64"

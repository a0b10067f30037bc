"""Test quantities: Kubernetes' canonical strings, order and arithmetic."""

import pytest

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.values.kubernetes.quantity import (
    Quantity,
    parse_quantity,
    quantity_error,
)


def read(text: str) -> Quantity:
    quantity = parse_quantity(text)
    assert quantity is not None
    return quantity


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0", "0"),
        ("12Ki", "12Ki"),
        ("1500m", "1500m"),
        ("0.5", "500m"),
        ("1.5Gi", "1536Mi"),
        ("1024Ki", "1Mi"),
        ("0.1Ki", "102400m"),
        ("1e3", "1e3"),
        ("1E3", "1E3"),
        ("1E", "1E"),
        ("+5", "+5"),
        ("100000000000000000000", "100E"),
        ("1e-10", "1e-9"),
        ("-", "0"),
        ("Ki", "0"),
    ],
)
def test_text_is_canonical(text: str, canonical: str) -> None:
    assert read(text).text() == canonical


@pytest.mark.parametrize(
    "text", ["", "x", "1e", "1 Gi", "1Ki5", "1..2", "e-10", "\uff11"]
)
def test_quantities_that_kubernetes_rejects(text: str) -> None:
    assert parse_quantity(text) is None
    assert quantity_error(text)


@pytest.mark.parametrize(
    ("left", "right", "sign"),
    [
        ("1Gi", "1000M", 1),
        ("1000m", "1", 0),
        ("-1.5", "0", -1),
        ("1e1000000000", "1Ei", 1),
        ("-1e1000000000", "1", -1),
    ],
)
def test_compare_is_exact(left: str, right: str, sign: int) -> None:
    assert read(left).compare(read(right)) == sign


def test_arithmetic_keeps_the_format_of_the_left_side() -> None:
    assert (read("12Ki") + read("13")).text() == "12301"
    assert (read("0") + read("1Ki")).text() == "1Ki"
    assert (read("12Ki") - read("13Ki")).text() == "-1Ki"
    assert (read("250m") * read("4")).text() == "1"
    assert read("12Ki").divide(read("3")).text() == "4Ki"


def test_distant_exponents_are_an_error_instead_of_exhausting_memory() -> None:
    with pytest.raises(ExpressionFailed):
        _ = read("1e1000000000") + read("1")

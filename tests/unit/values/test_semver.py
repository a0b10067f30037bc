"""Test semantic versions and ranges."""

import pytest

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.values.semver import parse_range, parse_version


@pytest.mark.parametrize(
    ("version", "wanted", "expected"),
    [
        ("4.1.3", ">=4.1.x", True),
        ("4.1.3", "!4.x.x", False),
        ("1.5.0", ">1.0.0 <2.0.0", True),
        ("2.1.0", "=1.2.3 || 2.x", True),
        ("1.0.0-rc.1", "<1.0.0", True),
        ("1.0.0-rc.2", ">1.0.0-rc.10", False),
        ("1.0.0+build", "1.0.0", True),
    ],
)
def test_range(version: str, wanted: str, *, expected: bool) -> None:
    parsed = parse_version(version)
    assert parsed is not None
    assert parse_range(wanted)(parsed) is expected


@pytest.mark.parametrize(
    "text", ["", "1", "1.2", "v1.2.3", "01.2.3", "1.2.3-", "1.2.3+"]
)
def test_versions_are_strict(text: str) -> None:
    assert parse_version(text) is None


@pytest.mark.parametrize("text", ["", "~1.2.0", "|| 1.0.0", "1.0.0 ||", ">=x"])
def test_bad_ranges(text: str) -> None:
    with pytest.raises(ExpressionFailed):
        parse_range(text)

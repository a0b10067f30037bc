"""Patterns of matchImageReferences match as gobwas/glob without separators does.

A failure means: a policy matches other images than its author specified.
"""

import pytest

from kyverno_mp.values.glob import Glob


@pytest.mark.parametrize(
    ("pattern", "text", "is_match"),
    [
        ("ghcr.io/*", "ghcr.io/a/b:v1", True),
        ("ghcr.io/*", "ghcrxio/a", False),
        ("*/app:v?", "reg/app:v1", True),
        ("*/app:v?", "reg/app:v10", False),
        ("**", "a/b", True),
        ("a[bc]d", "acd", True),
        ("a[!bc]d", "acd", False),
        ("a[0-9]", "a5", True),
        ("a[!0-9]", "a5", False),
        ("{docker,ghcr}.io/*", "ghcr.io/x", True),
        ("{docker,ghcr}.io/*", "quay.io/x", False),
        ("{a,b{c,d}}", "bd", True),
        (r"a\*b", "a*b", True),
        (r"a\*b", "axb", False),
        ("a,b", "a,b", True),
        ("a}", "a}", True),
        ("", "a", False),
        ("*", "a\nb", True),
    ],
)
def test_patterns(pattern: str, text: str, is_match: bool) -> None:  # noqa: FBT001 - a column
    assert Glob(pattern).matches(text) is is_match


@pytest.mark.parametrize(
    "pattern", ["[a", "[]", "{a", "a\\", "[b-a]", "{" * 17 + "}" * 17, "a" * 4097]
)
def test_invalid_patterns(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        Glob(pattern)

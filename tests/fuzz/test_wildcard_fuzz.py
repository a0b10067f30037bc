"""Three ways to match a wildcard agree; none takes the product of the lengths."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kyverno_mp.values import wildcard
from kyverno_mp.values.wildcard import compile_wildcard, matches

PATTERNS = st.text(alphabet="ab*?", max_size=12)
TEXTS = st.text(alphabet="abc\n", max_size=12)


@given(PATTERNS, TEXTS)
def test_long_and_short_ways_agree(pattern: str, text: str) -> None:
    """A pattern means the same, however long the text is that it meets."""
    expected = matches(pattern, text)
    assert compile_wildcard(pattern)(text) is expected
    if wildcard.contains_wildcard(pattern):
        assert wildcard._match_long(pattern, text) is expected


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("*" + "a" * 50_000 + "b", "a" * 100_000),
        ("*" + "a?" * 10_000 + "b", "a" * 100_000),
        ("*a" * 20_000 + "b", "a" * 40_000),
    ],
)
def test_no_pattern_takes_long(pattern: str, text: str) -> None:
    """Texts of users meet as pattern and text, e.g. in AnyIn; a worker must go on."""
    start = time.process_time()
    assert matches(pattern, text) is False
    assert time.process_time() - start < 2

"""All wildcard matchers agree; none takes the product of the lengths in time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kyverno_mp.values.wildcard import compile_wildcard, matches
from tests.yardstick import cpu_s

PATTERNS = st.text(alphabet="ab*?", max_size=12)
TEXTS = st.text(alphabet="abc\n", max_size=12)


def rune_by_rune(pattern: str, text: str) -> bool:
    """Match by backtracking, as the specification describes it."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(rune_by_rune(pattern[1:], text[n:]) for n in range(len(text) + 1))
    fits = bool(text) and pattern[0] in ("?", text[0])
    return fits and rune_by_rune(pattern[1:], text[1:])


@given(PATTERNS, TEXTS)
def test_all_matchers_agree(pattern: str, text: str) -> None:
    """A pattern has the same meaning in every matcher."""
    expected = rune_by_rune(pattern, text)
    assert matches(pattern, text) is expected
    assert compile_wildcard(pattern)(text) is expected
    long = "c" * 300 + text
    assert matches("c*" + pattern, long) is compile_wildcard("c*" + pattern)(long)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("*" + "a" * 50_000 + "b", "a" * 100_000),
        ("*" + "a?" * 10_000 + "b", "a" * 100_000),
        ("*a" * 20_000 + "b", "a" * 40_000),
    ],
)
def test_any_pattern_is_fast(pattern: str, text: str) -> None:
    """Users' texts are pattern and text, e.g. in AnyIn; a worker must not block."""
    assert matches(pattern, text) is False
    assert cpu_s(lambda: matches(pattern, text)) < 2

"""Test the wildcard matcher, both plain and compiled."""

from itertools import product

import pytest

from kyverno_mp.values.wildcard import compile_wildcard, contains_wildcard, matches


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("", "", True),
        ("", "a", False),
        ("*", "", True),
        ("?", "", False),
        ("?", "é", True),
        ("a*b*c", "aXbYc", True),
        ("nginx:*", "nginx:1", True),
        ("a/*", "a/b/c", True),
        ("[a]", "a", False),
        ("*?", "", False),
        ("A", "a", False),
    ],
)
def test_matches(pattern: str, text: str, *, expected: bool) -> None:
    assert matches(pattern, text) is expected
    assert compile_wildcard(pattern)(text) is expected


def test_compiled_matcher_equals_plain_matcher() -> None:
    texts = [
        "".join(chars) for size in range(5) for chars in product("ab", repeat=size)
    ]
    for size in range(5):
        for chars in product("ab*?", repeat=size):
            pattern = "".join(chars)
            matcher = compile_wildcard(pattern)
            assert [matcher(text) for text in texts] == [
                matches(pattern, text) for text in texts
            ]


def test_many_stars_do_not_take_exponential_time() -> None:
    assert matches("*a" * 30 + "b", "a" * 2000) is False


def test_contains_wildcard() -> None:
    assert contains_wildcard("a?")
    assert not contains_wildcard("a.b")

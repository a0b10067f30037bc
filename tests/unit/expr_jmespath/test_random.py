"""Test random texts. The errors are those of upstream's generator for the patterns."""

import itertools
import re
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed
from kyverno_mp.expr.cel.catalogue import kyverno_library
from kyverno_mp.expr.cel.environment import Environment
from kyverno_mp.expr.cel.linking.program import compile_expression, link_expression
from kyverno_mp.expr.cel.values import Meter
from kyverno_mp.expr.jmespath.query import search
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.values.jsonvalue import Json


def runtime() -> Runtime:
    numbers = itertools.count(1)
    return Runtime(
        now=lambda: datetime(2026, 1, 2, tzinfo=UTC),
        monotonic_ns=lambda: 0,
        random_bytes=lambda size: next(numbers).to_bytes(size, "big"),
    )


def in_jmespath(pattern: str) -> Json:
    return search("random(@)")(runtime(), pattern)


def in_cel(pattern: str) -> Json:
    library = kyverno_library()
    environment = Environment({}, library=library)
    text = pattern.replace("\\", "\\\\").replace('"', '\\"')
    expression, _ = compile_expression(f'random("{text}")', environment)
    program = link_expression(expression, (), library=library)
    return program.evaluate((), Meter(budget=runtime()))


both = pytest.mark.parametrize("random", [in_jmespath, in_cel])


@both
@pytest.mark.parametrize(
    ("pattern", "error"),
    [
        # An open class was read forever in CEL, until the memory was used up.
        ("[", "missing closing ]: `[`"),
        ("x[0-", "invalid character class range: `-`"),
        ("(a", "missing closing ): `(a`"),
        ("a)", "unexpected ): `a)`"),
        ("\\", "trailing backslash at end of expression: ``"),
        (r"\x{zz}", r"invalid escape sequence: `\x{z`"),
        ("[z-a]", "invalid character class range: `z-a`"),
        ("a{1001}", "invalid repeat count: `{1001}`"),
        ("*a", "missing argument to repetition operator: `*`"),
        # Perl's syntax is no part of POSIX.
        (r"\d{3}", r"invalid escape sequence: `\d`"),
        (r"[\w]", r"invalid escape sequence: `\w`"),
        (r"\pL", r"invalid escape sequence: `\p`"),
        ("(?:ab)", "missing argument to repetition operator: `?`"),
        ("[a-b-c]", "invalid character class range: `-c`"),
    ],
)
def test_pattern_that_is_not_posix_syntax_is_an_error(
    random: Callable[[str], Json], pattern: str, error: str
) -> None:
    with pytest.raises(ExpressionFailed) as caught:
        random(pattern)
    assert f"error parsing regexp: {error}" in caught.value.message


@both
@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("abc", "abc"),
        ("^a$", "a"),
        ("(a|b){2}", "[ab]{2}"),
        (r"\101\x42\x{43}\_", "ABC_"),
        (r"[\101-\103]{5}", "[A-C]{5}"),
        ("[]a]{9}", r"[\]a]{9}"),
        ("[a-c-]{9}", "[a-c-]{9}"),
        ("[[:]{9}", r"[\[:]{9}"),
        ("[[:blank:]]{9}", "[\t ]{9}"),
        ("[^ -~]", "[^ -~]"),
        (r"\x{D800}", "\ufffd"),
        (r"[\x{D800}-\x{DFFF}]{3}", "\ufffd{3}"),
        ("a{,3}|a{,3}", r"a\{,3\}"),
        ("a{01}", r"a\{01\}"),
        ("a{²}", r"a\{²\}"),
        ("a{2}{3}", "aaaaaa"),
        ("a+?b**", "a*b*"),
        ("x{2}?", "(?:xx)?"),
        ("a{2,}", "a{2,4096}"),
    ],
)
def test_text_matches_the_pattern(
    random: Callable[[str], Json], pattern: str, matched: str
) -> None:
    text = random(pattern)
    assert isinstance(text, str)
    assert re.fullmatch(matched, text, re.DOTALL)


@both
def test_pattern_that_is_too_long_is_not_read(random: Callable[[str], Json]) -> None:
    with pytest.raises((BudgetExceeded, ExpressionFailed)):
        random("a" * 10_000)

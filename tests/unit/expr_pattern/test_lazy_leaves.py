"""A leaf compiles the tests of numbers, booleans and null when it needs them.

A failure means: every process holds twice the memory for patterns, or a pattern of text
judges a value that is no string otherwise than before.
"""

from typing import Any

import pytest

from kyverno_mp.expr.pattern import leaf
from kyverno_mp.expr.pattern.compare import compile_term
from kyverno_mp.expr.pattern.nodes import Leaf, Term
from kyverno_mp.expr.pattern.text import parse_alternatives


@pytest.mark.parametrize(
    ("pattern", "fitting", "other"),
    [
        ("a|b*", "bc", 5),
        (">5", 6, 4),
        ("<1Gi", 1.5, 2 << 30),
        ("5-10", 7, 11),
        ("5!-10", 11, 7),
        ("!true", "x", True),
        ("true|1", True, False),
        (">1h & <3h", "2h", 2),
    ],
)
def test_other_types_are_compiled_at_first_use(
    pattern: str, fitting: Any, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Term] = []

    def counted(term: Term) -> Any:
        compiled.append(term)
        return compile_term(term)

    monkeypatch.setattr(leaf, "compile_term", counted)
    check = leaf.compile_leaf(Leaf(pattern, parse_alternatives(pattern)))
    check("2h")
    check(["some", "text"])
    assert compiled == []
    for _ in range(2):
        assert check(fitting)
        assert not check(other)
        assert not check([fitting, other])
        check(1)
        terms = [term for row in parse_alternatives(pattern) for term in row]
        assert compiled == terms

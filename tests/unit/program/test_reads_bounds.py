"""The analysis of what expressions read takes few steps for any policy.

A failure means: a small policy of a tenant stops the event loop of every worker.
"""

import contextlib

import pytest

from kyverno_mp.expr.cel.nodes import Expression
from kyverno_mp.expr.cel.syntax.parse import parse as parse_cel
from kyverno_mp.expr.jmespath.parse import parse
from kyverno_mp.expr.jmespath.reads import follow
from kyverno_mp.expr.reads import Found, Reads, ReadsUnknown, both
from kyverno_mp.ir.cel import NamedExpressionIR
from kyverno_mp.limits import ORIGINS_MAX, READS_TEXT_CHARACTERS_MAX
from kyverno_mp.program.context.cel_reads import mark_expressions


def expression(text: str) -> Expression:
    return Expression(text, parse_cel(text))


def marked(text: str, *variables: tuple[str, str]) -> Reads:
    given = tuple(NamedExpressionIR(name, expression(of)) for name, of in variables)
    reads = Reads()
    mark_expressions([expression(text)], given, reads)
    return reads


@pytest.mark.parametrize(
    "each", ["[{0}, {0}]", "{0} + {0}", "[{0}].map(x, [x, x])", "true ? {0} : [{0}]"]
)
def test_doubling_variables_take_one_step_each(each: str) -> None:
    """As a tree they would have 2^60 leaves."""
    chain = [("v0", "[object.spec]")]
    chain += [(f"v{n}", each.format(f"variables.v{n - 1}")) for n in range(1, 60)]
    with contextlib.suppress(ReadsUnknown):
        found = marked("size(variables.v59) == 1 && variables.v59 != []", *chain)
        assert found.field("spec").whole


@pytest.mark.parametrize("each", ["[@, @]", "[@, @][]", "[[@], @][]"])
def test_doubling_pipes_take_one_step_each(each: str) -> None:
    place = Reads()
    with contextlib.suppress(ReadsUnknown):
        follow(parse(" | ".join(["a", *[each] * 60])), Found((place,))).read_whole()
        assert place.field("a").whole


def test_value_with_many_origins_is_unknown() -> None:
    places = [Found((Reads(),)) for _ in range(ORIGINS_MAX + 1)]
    assert len(both(*places[1:]).places) == ORIGINS_MAX
    with pytest.raises(ReadsUnknown):
        both(*places)
    # Constants have no source.
    assert marked(f"object.a in [{', '.join(map(repr, range(99)))}]").field("a").whole


def test_long_expressions_are_not_analyzed() -> None:
    text = "object.a == 'x'"
    long = " || ".join([text] * (READS_TEXT_CHARACTERS_MAX // len(text)))
    with pytest.raises(ReadsUnknown):
        marked(long)
    assert marked(long[: len(long) // 2].rpartition(" || ")[0]).field("a").whole

"""Evaluators give equal results on a value and on the part that their marks name.

Room: tests. The law of expr/reads.py, for every evaluator of patterns and for JMESPath.
A failure means: a cached verdict may belong to another object.
"""

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kyverno_mp.errors import ExpressionFailed, ExpressionInvalid
from kyverno_mp.expr.jmespath.link import link
from kyverno_mp.expr.jmespath.parse import parse
from kyverno_mp.expr.jmespath.reads import follow
from kyverno_mp.expr.pattern.link import link_pattern
from kyverno_mp.expr.pattern.parse import parse_pattern
from kyverno_mp.expr.pattern.reads import mark_pattern
from kyverno_mp.expr.reads import Found, Reads, ReadsUnknown, cutter
from tests.fuzz.test_jmespath_fuzz import runtime
from tests.fuzz.test_pattern_fuzz import (
    META_PATTERNS,
    META_RESOURCES,
    NAMES,
    PATTERNS,
    RESOURCES,
    SCALARS,
    fitting,
    related,
)
from tests.oracle import pattern as oracle


def part_of(reads: Reads, value: Any) -> Any:
    cut = cutter(reads)
    return value if cut is None else cut(value)


def exactly(one: Any, other: Any) -> bool:
    """Compare as JSON: 1, 1.0 and true are different."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(exactly(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(exactly, one, other))
    return bool(one == other)


def check_pattern(pattern: Any, resource: Any) -> None:
    parsed = parse_pattern(pattern)
    reads = Reads()
    mark_pattern(parsed.root, reads)
    part = part_of(reads, resource)
    program = link_pattern(parsed)
    assert program.passes(part) == program.passes(resource)
    assert program.evaluate(part) == program.evaluate(resource)
    assert program.place(part) == program.place(resource)
    assert oracle.evaluate(pattern, part) == oracle.evaluate(pattern, resource)
    assert exactly(part_of(reads, part), part), "what is cut is cut"


@settings(max_examples=1500)
@given(related())
@example(({"spec": {"X(a)": None}}, {"spec": {"a": {"b": 1}, "b": 2}}))
@example(({"a": ["*"]}, {"a": [{"b": 1}]}))
def test_patterns_read_only_declared_paths(case: tuple[Any, Any]) -> None:
    check_pattern(*case)


@settings(max_examples=800)
@given(META_PATTERNS, META_RESOURCES)
def test_wildcard_keys_read_only_declared_paths(pattern: Any, resource: Any) -> None:
    check_pattern(pattern, resource)


@settings(max_examples=500)
@given(st.lists(META_PATTERNS, max_size=2), st.lists(META_RESOURCES, max_size=3))
def test_wildcard_keys_in_lists_read_only_declared_paths(
    pattern: Any, resource: Any
) -> None:
    check_pattern(pattern, resource)


@settings(max_examples=500)
@given(st.data(), PATTERNS, PATTERNS)
def test_combined_reads_cover_both_patterns(data: Any, one: Any, other: Any) -> None:
    """Rules of a batch share one part."""
    reads = Reads()
    for pattern in (one, other):
        own = Reads()
        mark_pattern(parse_pattern(pattern).root, own)
        reads.add(own)
    resource = data.draw(st.one_of(fitting(one), fitting(other), RESOURCES))
    part = part_of(reads, resource)
    for pattern in (one, other):
        program = link_pattern(parse_pattern(pattern))
        assert program.evaluate(part) == program.evaluate(resource)
        assert program.passes(part) == program.passes(resource)


NAME = st.sampled_from([n for n in NAMES if n not in ("x1", "x2")])
OPERANDS = st.one_of(NAME, st.sampled_from(["@", "`1`", "'a'", "`[]`", "''"]))


def longer(below: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return expressions that contain smaller ones."""
    one = st.one_of(
        st.sampled_from(
            [
                "{}[]",
                "{}[*]",
                "{}[0]",
                "{}[-1]",
                "{}[].a",
                "{}[*].b",
                "({})",
                "!({})",
                "keys({})",
                "length({})",
                "type({})",
                "{} | [0]",
                "{} | keys(@)",
                "{}[].keys(@)[]",
                "{}[?a]",
                "{}[?a == 'a'].b",
                "{}[?b != `1`][]",
            ]
        )
    )
    two = st.sampled_from(
        [
            "{}.{}",
            "{} || {}",
            "{} && {}",
            "{} == {}",
            "{} | {}",
            "[{}, {}]",
            "[{}, {}][]",
            "[{}, {}][].a",
            "{}[].{}",
            "{}[*].{}",
            "{}[?{}]",
            "({} || {}).a",
            "({} && {})[].b",
            "not_null({}, {})",
            "contains({}, {})",
            "{}.[{}, b][]",
        ]
    )
    return st.one_of(
        st.builds(str.format, one, below),
        st.builds(str.format, two, below, below),
    )


EXPRESSIONS = st.recursive(OPERANDS, longer, max_leaves=5)
TREES = st.recursive(
    SCALARS,
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(NAME, below, max_size=4)
    ),
    max_leaves=14,
)
MAPS = st.dictionaries(NAME, TREES, max_size=5)


def outcome(text: str, value: Any) -> tuple[str, Any]:
    try:
        return "", link(parse(text))(runtime(), value)
    except ExpressionFailed as error:
        return error.code, None


@settings(max_examples=3000)
@given(EXPRESSIONS, MAPS)
@example("(a || b).a", {"a": {"b": 1}, "b": {"a": 1}})
@example("(a && b).a", {"a": {"b": 1}, "b": {"a": 1}})
@example("(a || b)[].a", {"a": {"b": 1}, "b": [{"a": 1}]})
@example("a[?b].a", {"a": [{"a": 1, "b": {"a": 1}}, {"a": 2, "b": {}}]})
@example("a[?!b].a", {"a": [{"a": 1, "b": {"a": 1}}, {"a": 2, "b": {}}]})
@example("a[?b || a].labels", {"a": [{"b": {"a": 1}, "labels": 1}, {"labels": 2}]})
@example("a[?b == a].labels", {"a": [{"b": {"a": 1}, "a": {}, "labels": 1}]})
@example("a[?length(b) == `1`].labels", {"a": [{"b": {"a": 1}, "labels": 1}]})
@example("a[].keys(@)[] || ''", {"a": [{"b": 1}, None, {}]})
@example("a.[b, a][].a", {"a": {"b": [{"a": 1, "b": 2}], "a": {"a": 3}}})
def test_queries_read_only_declared_paths(text: str, value: Any) -> None:
    try:
        node = parse(text)
    except ExpressionInvalid:
        return
    reads = Reads()
    try:
        follow(node, Found((reads,))).read_whole()
    except ReadsUnknown:
        return
    one, other = outcome(text, value), outcome(text, part_of(reads, value))
    assert one[0] == other[0]
    assert exactly(one[1], other[1])


def test_most_queries_are_analyzed() -> None:
    """Otherwise the law above would be trivial; and parts are smaller than values."""
    queries = {
        "a[].keys(@)[]": {"a": [{"x": 0, "y": 0}]},
        "a.[b, metadata][].a": {"a": {"b": [{"a": 1}], "metadata": 5}},
        "a[?b == 'x'].labels": {"a": [{"b": "x", "labels": {"z": 1}}]},
    }
    value = {
        "a[].keys(@)[]": {"a": [{"x": {"b": 1}, "y": "name"}], "b": 1},
        "a.[b, metadata][].a": {"a": {"b": [{"a": 1, "b": 2}], "metadata": 5, "x": 1}},
        "a[?b == 'x'].labels": {"a": [{"b": "x", "labels": {"z": 1}, "x": 9}], "b": 1},
    }
    for text, part in queries.items():
        reads = Reads()
        follow(parse(text), Found((reads,))).read_whole()
        assert part_of(reads, value[text]) == part, text

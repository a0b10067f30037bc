"""Compare the fast and the explaining evaluator with the oracle.

Room: tests. Takes: patterns and resources made by Hypothesis over a small alphabet, so
that they meet often.
"""

from typing import Any

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kyverno_mp.expr.pattern.link import link_pattern
from kyverno_mp.expr.pattern.nodes import Pattern
from kyverno_mp.expr.pattern.parse import cached_program, parse_pattern
from tests.oracle import pattern as oracle

NAMES = ["a", "b", "metadata", "labels", "annotations", "x1", "x2"]
WILD_NAMES = [*NAMES, "x*", "x?", "*"]
TEXTS = [
    "*", "?*", "", "a", "a*", "!a", "!*a & *b*", "ab", "true", "false", "0", "!0",
    "5", "<5", ">=5", "> 1", "5 | a", "1-5", "1!-5", "1Mi-2Gi", "<1Gi", "1h", "<=60s",
    "1m", "60s", "1000m", "1.0", "1.5", "1.5E+00", "-1", "0.001", "m", "Ki", ">",
    "2023-01", ">a", "a|b|c&a", "1e3", "!", "!1-5", " a ", "|", "&", "<-1", "+5", "5.",
]  # fmt: skip
NUMBERS = st.sampled_from(
    [0, 1, 5, -1, 1000, 2**31, 60, 0.0, 1.0, 1.5, 1e6, 1e-7, -0.5]
)
SCALARS = st.sampled_from(TEXTS) | NUMBERS | st.sampled_from([None, True, False])


def anchored(names: list[str]) -> st.SearchStrategy[str]:
    forms = ["{}", "{}", "({})", "=({})", "^({})", "X({})", "<({})", "+({})", " =({}) "]
    return st.builds(str.format, st.sampled_from(forms), st.sampled_from(names))


def tree(keys: st.SearchStrategy[str], leaves: int) -> st.SearchStrategy[Any]:
    return st.recursive(
        SCALARS,
        lambda below: (
            st.lists(below, max_size=3) | st.dictionaries(keys, below, max_size=4)
        ),
        max_leaves=leaves,
    )


PATTERNS = tree(anchored(NAMES), 10)
RESOURCES = tree(st.sampled_from(NAMES), 12)
BLOCKS = st.dictionaries(anchored(WILD_NAMES), SCALARS, max_size=3)
LABELS = st.dictionaries(st.sampled_from(WILD_NAMES), SCALARS, max_size=3)


def with_metadata(
    block: st.SearchStrategy[Any], form: st.SearchStrategy[str]
) -> st.SearchStrategy[Any]:
    def wrap(parts: tuple[Any, Any, str, str]) -> Any:
        labels, other, outer, inner = parts
        return {
            outer.format("metadata"): {
                inner.format("labels"): labels,
                "annotations": other,
            }
        }

    return st.tuples(block, block, form, form).map(wrap)


META_PATTERNS = with_metadata(BLOCKS, st.sampled_from(["{}", "=({})", "({})", "<({})"]))
META_RESOURCES = with_metadata(LABELS | SCALARS, st.just("{}"))


@st.composite
def related(draw: st.DrawFn) -> tuple[Any, Any]:
    """Draw a pattern and a resource of a similar shape."""
    pattern = draw(PATTERNS)
    return pattern, draw(fitting(pattern))


def fitting(pattern: Any) -> st.SearchStrategy[Any]:
    other = RESOURCES
    if isinstance(pattern, dict):
        fields = {oracle.name_of(k): fitting(v) for k, v in pattern.items()}
        some = st.fixed_dictionaries({}, optional=fields)
        return st.one_of(some, some, some, other)
    if isinstance(pattern, list):
        one = st.one_of([fitting(item) for item in pattern]) if pattern else other
        return st.one_of(st.lists(one, max_size=4), st.lists(one, max_size=4), other)
    same = st.just(pattern)
    return st.one_of(same, SCALARS, st.lists(SCALARS, max_size=2))


def check(pattern: Any, resource: Any) -> None:
    parsed = parse_pattern(pattern)
    program = link_pattern(parsed)
    verdict = program.evaluate(resource)
    assert tuple(verdict) == oracle.evaluate(pattern, resource)
    assert program.passes(resource) == (verdict.status == "pass")
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(parsed), type=Pattern)
    again = link_pattern(decoded)
    assert again.evaluate(resource) == verdict
    assert again.passes(resource) == program.passes(resource)
    assert cached_program(pattern).evaluate(resource) == verdict


@settings(max_examples=1500)
@given(related())
@example(({"a": [{"(b)": "1", "x1": "2"}]}, {"a": [{"b": 1, "x1": 2}, {"b": 3}]}))
@example(({"^(a)": ["*"]}, {"a": []}))
def test_all_evaluators_agree(case: tuple[Any, Any]) -> None:
    """A difference is a policy that a webhook enforces but a report does not show."""
    check(*case)


@settings(max_examples=800)
@given(META_PATTERNS, META_RESOURCES)
def test_wildcard_keys_agree(pattern: Any, resource: Any) -> None:
    """Metadata blocks change with the resource; both evaluators must follow equally."""
    check(pattern, resource)


@settings(max_examples=500)
@given(st.lists(META_PATTERNS, max_size=2), st.lists(META_RESOURCES, max_size=3))
def test_wildcard_keys_agree_in_lists(pattern: Any, resource: Any) -> None:
    """In a list, skips are tolerated, so the kind of failure matters."""
    check(pattern, resource)


@settings(max_examples=1500)
@given(SCALARS | st.lists(SCALARS, max_size=2), SCALARS)
def test_leaf_evaluators_agree(value: Any, pattern: Any) -> None:
    """Most policies consist of scalars."""
    check(pattern, value)

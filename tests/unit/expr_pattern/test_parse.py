"""Test the pattern parser, its limits and its cache."""

from functools import partial
from typing import Any

import pytest

from kyverno_mp.errors import ExpressionInvalid, InputError
from kyverno_mp.expr.pattern.anchors import parse_anchor
from kyverno_mp.expr.pattern.link import link_pattern
from kyverno_mp.expr.pattern.nodes import Leaf
from kyverno_mp.expr.pattern.parse import cached_program, parse_pattern
from kyverno_mp.limits import PATTERN_DEPTH_MAX
from tests.yardstick import cpu_s


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(a)", ("", "a")),
        (" =(a/b) ", ("=", "a/b")),
        ("^(a)", ("^", "a")),
        ("X(a)", ("X", "a")),
        ("<(a)", ("<", "a")),
        ("+(a)", ("+", "a")),
        ("((a))", ("", "(a)")),
        ("()", None),
        ("=()", None),
        ("Y(a)", None),
        ("(a)b", None),
        ("a", None),
        ("", None),
        (")", None),
        ("=)", None),
        ("X", None),
        ("(a\nb)", None),
        ("(a)\x1f", None),
    ],
)
def test_parse_anchor(text: str, expected: tuple[str, str] | None) -> None:
    """A key wrongly parsed as an anchor would disable a check."""
    assert parse_anchor(text) == expected


def test_any_pattern_numbers_are_floats() -> None:
    """Upstream encodes anyPattern as JSON: the text "5.0" then equals 5."""
    assert link_pattern(parse_pattern(5, any_pattern=True)).passes("5.0")
    assert not link_pattern(parse_pattern(5)).passes("5.0")


def test_integers_beyond_int64_are_floats() -> None:
    """Go decodes them as floats."""
    leaf = parse_pattern(1 << 63).root
    assert type(leaf) is Leaf
    assert type(leaf.value) is float
    with pytest.raises(ExpressionInvalid) as caught:
        parse_pattern(10**400)
    assert caught.value.code == "pattern.number"


def test_cache_distinguishes_types() -> None:
    """1, 1.0 and true are equal in Python and must not share a program."""
    programs = [cached_program({"a": value}) for value in (1, 1.0, True, "1", None)]
    assert len(set(map(id, programs))) == len(programs)
    assert cached_program({"a": 1, "b": 2}) is cached_program({"b": 2, "a": 1})
    assert programs[0].evaluate({"a": "1.0"}).status == "fail"
    assert programs[1].evaluate({"a": "1.0"}).status == "pass"


def _nested(levels: int, *, lists: bool) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value] if lists else {"(a)": value}
    return value


def _nested_existence(levels: int) -> tuple[Any, Any]:
    pattern: Any = {"a": "x"}
    resource: Any = {"a": "y"}
    for _ in range(levels):
        pattern, resource = {"^(a)": [pattern]}, {"a": [resource]}
    return pattern, resource


@pytest.mark.parametrize("lists", [True, False])
def test_depth(lists: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """The deepest accepted pattern runs; a deeper one is an error, not a crash."""
    deepest = _nested(PATTERN_DEPTH_MAX - 1, lists=lists)
    program = link_pattern(parse_pattern(deepest))
    assert program.evaluate(deepest).status == ("pass" if lists else "skip")
    assert program.passes(deepest) is lists
    deeper = _nested(PATTERN_DEPTH_MAX, lists=lists)
    for parse in (parse_pattern, cached_program):
        with pytest.raises(ExpressionInvalid) as caught:
            parse(deeper)
        assert caught.value.code == "pattern.depth"
    with pytest.raises(ExpressionInvalid):
        parse_pattern(_nested(100_000, lists=lists))


def test_deepest_existence() -> None:
    """Existence anchors use the most Python frames per level."""
    pattern, resource = _nested_existence(PATTERN_DEPTH_MAX // 2 - 1)
    program = link_pattern(parse_pattern(pattern))
    assert not program.passes(resource)
    assert program.evaluate(resource).status == "fail"


def test_deep_resource_does_not_crash() -> None:
    """A value nested too deeply to be printed is an InputError."""
    resource = {"a": _nested(5_000, lists=True)}
    program = link_pattern(parse_pattern({"a": "x"}))
    assert not program.passes(resource)
    with pytest.raises(InputError):
        program.evaluate(resource)


def test_time_is_not_quadratic() -> None:
    """Thousands of keys, elements and alternatives take little time."""
    count = 4_000
    keys = {f"=(k{i})": "v" for i in range(count)}
    items = {"a": [{"=(k)": "v"}] * count}
    text = {"a": "|".join(f"v{i}" for i in range(count))}

    def work(pattern: Any) -> None:
        program = link_pattern(parse_pattern(pattern))
        program.passes({"a": [{"k": "v"}] * count})
        program.evaluate({"a": "q"})

    for pattern in (keys, items, text):
        assert cpu_s(partial(work, pattern)) < 5

# ruff: noqa: E501, ISC004 - one row a case: pattern, resource, status, path, text
"""Test results of whole patterns with exact paths and messages (engine 5.5-5.7)."""

from typing import Any

import pytest

from kyverno_mp.expr.pattern.explain import any_pattern_text
from kyverno_mp.expr.pattern.link import link_pattern
from kyverno_mp.expr.pattern.parse import parse_pattern

STRUCTURE = (
    "pattern and resource have different structures. Path: {}. "
    "Expected map[string]interface {{}}, found {}"
)
MISSING = (
    "conditional anchor mismatch: conditional anchor key doesn't exist in the resource"
)

CASES: dict[str, tuple[Any, Any, str, str, str]] = {
    "leaf in list": (
        {"spec": {"containers": [{"image": "!*:latest"}]}},
        {"spec": {"containers": [{"image": "a:1"}, {"image": "b:latest"}]}},
        "fail",
        "/spec/containers/1/image/",
        "resource value 'b:latest' does not match '!*:latest' at path "
        "/spec/containers/1/image/",
    ),
    "missing map": (
        {"spec": {"a": {"b": 1}}},
        {"spec": {}},
        "fail",
        "/spec/a/",
        STRUCTURE.format("/spec/a/", "<nil>"),
    ),
    "map against list": (
        {"a": {"b": 1}}, {"a": [1]}, "fail", "/a/",
        STRUCTURE.format("/a/", "[]interface {}"),
    ),
    "map against float": (
        {"a": {"b": 1}}, {"a": 1.5}, "fail", "/a/", STRUCTURE.format("/a/", "float64")
    ),
    "list against map": (
        {"a": [{"b": 1}]}, {"a": {}}, "fail", "/a/",
        "validation rule failed at path /a/, resource does not satisfy the expected "
        "overlay pattern",
    ),
    "star has the parent's path": (
        {"spec": {"hostname": "*"}}, {"spec": {"hostname": None}}, "fail", "/spec/",
        "/spec//hostname not found",
    ),
    "whole list is printed": (
        {"a": "x"}, {"a": ["x", 1.5, None, {"k": True}]}, "fail", "/a/",
        "resource value '[x 1.5 <nil> map[k:true]]' does not match 'x' at path /a/",
    ),
    "empty list passes a leaf": ({"a": "x"}, {"a": []}, "pass", "", ""),
    "empty list passes maps": ({"a": [{"b": "x"}]}, {"a": []}, "pass", "", ""),
    "empty pattern list": ({"a": []}, {"a": []}, "fail", "/a/", "pattern Array empty"),
    "only element 0 counts": (
        {"a": [{"b": 1}, {"b": 2}]}, {"a": [{"b": 1}]}, "pass", "", ""
    ),
    "length of nested lists": (
        {"a": [["x"], ["y"]]}, {"a": [["x"]]}, "error", "",
        "validate Array failed, array length mismatch, resource Array len is 1 and "
        "pattern Array len is 2",
    ),
    "negation": (
        {"spec": {"X(hostPath)": "null"}}, {"spec": {"hostPath": None}}, "fail",
        "/spec/hostPath/",
        "negation anchor matched in resource: /spec/hostPath/ is not allowed",
    ),
    "condition key missing": (
        {"(a)": "x", "b": "y"}, {"b": "z"}, "skip", "", MISSING
    ),
    "condition mismatch": (
        {"(a)": "x", "b": "y"}, {"a": "z", "b": "z"}, "skip", "",
        "conditional anchor mismatch: resource value 'z' does not match 'x' at path /a/",
    ),
    "all list elements skip": (
        {"a": [{"(n)": "x", "v": 1}]}, {"a": [{"n": "p"}, {"v": 2}]}, "skip", "",
        "conditional anchor mismatch: resource value 'p' does not match 'x' at path "
        "/a/0/n/; " + MISSING,
    ),
    "one list element skips": (
        {"a": [{"(n)": "x", "v": 1}]}, {"a": [{"n": "p"}, {"n": "x", "v": 1}]},
        "pass", "", "",
    ),
    "a nested map's skip skips all": (
        {"spec": {"(n)": "x"}, "zz": "1"}, {"spec": {"n": "y"}, "zz": "2"}, "skip", "",
        "conditional anchor mismatch: resource value 'y' does not match 'x' at path "
        "/spec/n/",
    ),
    "global anchor absent": ({"<(a)": "x", "b": "y"}, {"b": "y"}, "pass", "", ""),
    "global anchor mismatch": (
        {"<(a)": "x", "b": "y"}, {"a": "q", "b": "n"}, "skip", "",
        "global anchor mismatch: resource value 'q' does not match 'x' at path /a/",
    ),
    "existence absent": ({"^(a)": [{"b": 1}]}, {}, "pass", "", ""),
    "existence not met": (
        {"^(a)": [{"b": 1}, {"b": 2}]}, {"a": [{"b": 1}]}, "fail", "/a/",
        "existence anchor validation failed at path /a/",
    ),
    "existence on a map": (
        {"^(a)": [{"b": 1}]}, {"a": {}}, "fail", "/a/",
        "invalid resource type map[string]interface {}: Existence ^ () anchor can be "
        "used only on list/array type resource",
    ),
    "existence pattern of texts": (
        {"^(a)": ["x"]}, {"a": ["x"]}, "fail", "/a/",
        "invalid pattern type []interface {}: Pattern has to be of type map to compare "
        "against items in resource",
    ),
    "a missing condition key makes a failure an error": (
        {"a": [{"=(c)": {"(d)": "x"}, "e": "y"}], "b": "n"},
        {"a": [{"c": {}, "e": "y"}, {"e": "y"}], "b": "q"}, "error", "",
        "resource value 'q' does not match 'n' at path /b/",
    ),
    "add-if-not-present is a literal key": (
        {"+(a)": "x"}, {"a": "x"}, "fail", "/+(a)/",
        "resource value '<nil>' does not match 'x' at path /+(a)/",
    ),
    "anchored keys run before plain ones, in reverse order": (
        {"a": "1", "m": {"=(x)": "1"}, "n": {"=(x)": "1"}},
        {"a": "2", "m": {"x": "2"}, "n": {"x": "2"}}, "fail", "/n/x/",
        "resource value '2' does not match '1' at path /n/x/",
    ),
    "a failure after a skipping sibling is forgiven": (
        {"(a)": "x", "=(b)": "y"}, {"a": "q", "b": "q"}, "skip", "",
        "conditional anchor mismatch: resource value 'q' does not match 'x' at path /a/",
    ),
    "a failure before a skipping sibling is not": (
        {"(b)": "x", " =(0)": "y"}, {"0": "q", "b": "q"}, "fail", "/0/",
        "resource value 'q' does not match 'y' at path /0/",
    ),
    "negation sorts last": (
        {"X(a)": None, "(b)": "x"}, {"a": 1, "b": "x"}, "fail", "/a/",
        "negation anchor matched in resource: /a/ is not allowed",
    ),
    "words of an anchor in a value decide nothing": (
        {"a": "x"}, {"a": "conditional anchor mismatch"}, "fail", "/a/",
        "resource value 'conditional anchor mismatch' does not match 'x' at path /a/",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_outcome(name: str) -> None:
    """A different path or text would break users' tests and reports."""
    pattern, resource, status, path, text = CASES[name]
    program = link_pattern(parse_pattern(pattern))
    assert tuple(program.evaluate(resource)) == (status, path, text)
    assert program.passes(resource) == (status == "pass")


APPARMOR = {"=(metadata)": {"=(annotations)": {"=(armor/*)": "default | local/*"}}}
BLOCK_CASES: list[tuple[Any, Any, str, str]] = [
    (APPARMOR, {"metadata": {"annotations": {"armor/a": "default"}}}, "pass", ""),
    (APPARMOR, {"metadata": {"annotations": {"other": "x"}}}, "pass", ""),
    (APPARMOR, {"metadata": {}}, "pass", ""),
    (
        APPARMOR,
        {"metadata": {"annotations": {"armor/a": "default", "armor/b": "none"}}},
        "fail",
        "/metadata/annotations/armor/b/",
    ),
    ({"metadata": {"labels": {"x*": "?*"}}}, {"metadata": {"labels": {"x1": "a"}}}, "pass", ""),
    (
        {"metadata": {"labels": {"x*": "?*"}}},
        {"metadata": {"labels": {"y": "a"}}},
        "fail",
        "/metadata/labels/x*/",
    ),
    # A non-string value is dropped if the resource has the block.
    ({"metadata": {"labels": {"a": 5}}}, {"metadata": {"labels": {"a": "6"}}}, "pass", ""),
    (
        {"metadata": {"labels": {"a": 5}}},
        {"metadata": {}},
        "fail",
        "/metadata/labels/",
    ),
    (
        {"t": {"metadata": {"labels": {"x?": "1", "x*": "2", "(y)": "3"}}}},
        {"t": {"metadata": {"labels": {"x1": "1", "y": "3"}}}},
        "fail",
        "/t/metadata/labels/x1/",
    ),
    # Two keys that become the same key: the one that finds a violation applies.
    (
        {"metadata": {"labels": {"*": "a*", "tier": "?*"}}},
        {"metadata": {"labels": {"tier": "b"}}},
        "fail",
        "/metadata/labels/tier/",
    ),
    (
        {"metadata": {"labels": {"*": "a*", "tier": "?*"}}},
        {"metadata": {"labels": {"tier": "ab"}}},
        "pass",
        "",
    ),
    # A condition that is met is not replaced by one that would skip the rule.
    (
        {"metadata": {"labels": {"(t*)": "b", "(tier)": "c"}}, "x": "1"},
        {"metadata": {"labels": {"tier": "b"}}, "x": "2"},
        "fail",
        "/x/",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "resource", "status", "path"), BLOCK_CASES)
def test_wildcard_keys(pattern: Any, resource: Any, status: str, path: str) -> None:
    """Wildcard keys apply only to labels and annotations."""
    program = link_pattern(parse_pattern(pattern))
    verdict = program.evaluate(resource)
    assert (verdict.status, verdict.path) == (status, path)
    assert program.passes(resource) == (status == "pass")


def test_any_pattern_texts() -> None:
    """Any-pattern messages have the three forms of 5.8."""
    skipped = link_pattern(parse_pattern({"(a)": "x"})).evaluate({})
    failed = link_pattern(parse_pattern({"a": "x"})).evaluate({})
    broken = link_pattern(parse_pattern({"a": [["x"]]})).evaluate({"a": []})
    assert any_pattern_text("r", 0, skipped) == f"rule r[0] skipped: {MISSING}"
    assert any_pattern_text("r", 1, failed) == "rule r[1] failed at path /a/"
    assert any_pattern_text("r", 2, broken) == (
        "rule r[2] failed: validate Array failed, array length mismatch, resource Array "
        "len is 0 and pattern Array len is 1"
    )

"""Expressions and checks of chainsaw tests have the same meaning as in chainsaw."""

from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.errors import Error
from tests.e2e.chainsaw.expressions import evaluate, fill, fill_reference, problems
from tests.e2e.chainsaw.manifests import read_objects
from tests.e2e.chainsaw.surroundings import as_called_by_service

NAMES = {"name": "p", "namespace": "ns", "count": 2.0, "error": None}


@pytest.mark.parametrize(
    ("value", "filled"),
    [
        ("($name)", "p"),
        ("(join('-', [$name, $namespace]))", "p-ns"),
        ("($count)", 2),
        ("plain", "plain"),
        ("a ($name)", "a ($name)"),
        (r"\($name)\ ".strip(), "($name)"),
        ({"($name)": ["($name)", 1, True, None]}, {"($name)": ["p", 1, True, None]}),
    ],
)
def test_values_are_substituted_and_keys_are_not(value: Any, filled: Any) -> None:
    """Keys in parentheses are policy anchors or check expressions, so they are kept."""
    assert fill(value, NAMES) == filled


def test_invalid_expression_is_an_error() -> None:
    with pytest.raises(Error):
        fill("(nothing($name))", NAMES)


def test_bindings_are_visible_with_their_dollar_sign() -> None:
    assert evaluate("$test.metadata.name", {"test": {"metadata": {"name": "x"}}}) == "x"


@pytest.mark.parametrize(
    ("check", "payload", "names", "is_met"),
    [
        ({"($error != null)": True}, None, {"error": "denied"}, True),
        ({"($error != null)": True}, None, {"error": None}, False),
        ({"($error)": "denied"}, None, {"error": "denied"}, True),
        ({"(contains($stderr, 'b'))": True}, None, {"stderr": "abc"}, True),
        ({"(trim_space($stdout))": "x"}, None, {"stdout": " x\n"}, True),
        ({"spec": {"a": 1}}, {"spec": {"a": 1, "b": 2}}, {}, True),
        ({"spec": {"a": 1}}, {"spec": {"a": 2}}, {}, False),
        ({"(items[?a == 'x'])": [{"b": 1}]}, {"items": [{"a": "x", "b": 1}]}, {}, True),
        ({"(length(items))": 2}, {"items": [1]}, {}, False),
        ({"(a > `1`)": True}, {"a": 2}, {}, True),
        ({"a": "($name)"}, {"a": "p"}, NAMES, True),
    ],
)
def test_checks(check: Any, payload: Any, names: Any, *, is_met: bool) -> None:
    assert (not problems(check, payload, names)) is is_met


def test_only_the_reference_of_an_expected_object_is_substituted() -> None:
    """The other fields are an assertion tree, evaluated against the actual values."""
    wanted = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": "($name)", "annotations": {"a": "($name)"}},
        "status": {"(phase)": "(phase)"},
    }
    assert fill_reference(wanted, NAMES) == {
        **wanted,
        "metadata": {"name": "p", "annotations": {"a": "($name)"}},
    }


def test_files_yield_their_objects_in_order(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text("kind: B\n---\nkind: C\nwhen: 2020-01-01\n---\n")
    (tmp_path / "a.yaml").write_text("kind: XList\nitems: [{kind: X}, {kind: Y}]\n")
    objects = read_objects({"file": "*.yaml"}, tmp_path, {})
    assert [one["kind"] for one in objects] == ["X", "Y", "B", "C"]
    assert objects[-1]["when"] == "2020-01-01"
    named = read_objects({"file": "($f)"}, tmp_path, {"f": "b.yaml"})
    assert [one["kind"] for one in named] == ["B", "C"]


def test_unterminated_last_line_is_ended(tmp_path: Path) -> None:
    """K8S: kubectl and chainsaw read files by line and terminate the last line."""
    (tmp_path / "a.yaml").write_text("kind: A\ntext: |\n  x")
    (found,) = read_objects({"file": "a.yaml"}, tmp_path, {})
    assert found["text"] == "x\n"


def test_webhooks_with_a_url_are_shown_with_a_service() -> None:
    url = {"url": "https://127.0.0.1:9443/validate/fail", "caBundle": "x"}
    found = {
        "kind": "ValidatingWebhookConfiguration",
        "webhooks": [{"name": "a", "clientConfig": url}],
    }
    (shown,) = as_called_by_service(found)["webhooks"]
    assert shown["name"] == "a"
    assert shown["clientConfig"]["caBundle"] == "x"
    assert shown["clientConfig"]["service"] == {
        "name": "kyverno-svc",
        "namespace": "kyverno",
        "path": "/validate/fail",
        "port": 443,
    }
    assert as_called_by_service({"kind": "Pod"}) == {"kind": "Pod"}

"""Mock responses in test files: apiCallResponses, globalContextEntries.

Expected: docs/behaviour/v1.19 8; Kyverno cmd/cli/kubectl-kyverno/apis/v1alpha1/test.go
at v1.19.0 (texts).
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import Command, pod

Json = Any
URL = "https://example.com/config"
EVERY_POD: Json = {
    "resourceRules": [
        {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE"],
            "resources": ["pods"],
        }
    ]
}
ANSWER: Json = {"url": URL, "method": "GET", "response": {"body": {"allowed": True}}}
ENTRY: Json = {"name": "e", "data": {"owners": ["a", "b"]}}
MAPS = """
apiVersion: v1
kind: ConfigMap
metadata: {name: one}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: two}
"""


def in_cel(expression: str, kind: str = "ValidatingPolicy") -> Json:
    """Return a policy that passes or selects if an expression is true."""
    spec: Json = {"matchConstraints": EVERY_POD, "autogen": {"podControllers": {}}}
    if kind == "ValidatingPolicy":
        spec["validations"] = [{"expression": expression}]
        spec["autogen"]["podControllers"]["controllers"] = []
    else:
        del spec["autogen"]
        conditions = [{"name": "c", "expression": expression}]
        spec |= {"schedule": "* * * * *", "conditions": conditions}
    return {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": kind,
        "metadata": {"name": "p"},
        "spec": spec,
    }


def of_rules(entry: Json, key: str) -> Json:
    """Return a ClusterPolicy that passes if a context entry's value is ``a``."""
    condition = {"key": key, "operator": "NotEquals", "value": "a"}
    rule = {
        "name": "r",
        "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
        "context": [{"name": "found", **entry}],
        "validate": {"deny": {"conditions": {"all": [condition]}}},
    }
    annotation = {"pod-policies.kyverno.io/autogen-controllers": "none"}
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p", "annotations": annotation},
        "spec": {"background": False, "rules": [rule]},
    }


@pytest.fixture
def run(command: Command, tmp_path: Path) -> Any:
    """Run a test of one policy on one Pod, with further fields."""

    def call(policy: Json, result: str = "pass", **fields: Json) -> Any:
        (tmp_path / "policy.yaml").write_text(json.dumps(policy))
        (tmp_path / "pod.yaml").write_text(pod("good"))
        (tmp_path / "maps.yaml").write_text(MAPS)
        is_rule = policy["kind"] == "ClusterPolicy"
        expected = {
            "policy": "p",
            **({"rule": "r"} if is_rule else {f"is{policy['kind']}": True}),
            "kind": "Pod",
            "resources": ["good"],
            "result": result,
        }
        test = {
            "apiVersion": "cli.kyverno.io/v1alpha1",
            "kind": "Test",
            "metadata": {"name": "t"},
            "policies": ["policy.yaml"],
            "resources": ["pod.yaml"],
            "results": [expected],
            **fields,
        }
        (tmp_path / "kyverno-test.yaml").write_text(json.dumps(test))
        return command("test", tmp_path)

    return call


@pytest.mark.parametrize("kind", ["ValidatingPolicy", "DeletingPolicy"])
@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        # Upstream's mock and a call in a cluster return these values.
        (f"http.get('{URL}').body.allowed == true", ANSWER),
        (f"http.get('{URL}').allowed == true", ANSWER),
        (f"http.get('{URL}').statusCode == 200", {**ANSWER, "method": ""}),
        (
            f"http.post('{URL}', {{'a': 'b'}}).statusCode == 403",
            {**ANSWER, "method": "post", "response": {"body": {}, "statusCode": 403}},
        ),
    ],
)
def test_http(run: Any, kind: str, expression: str, answer: Json) -> None:
    done = run(in_cel(expression, kind), apiCallResponses=[answer])
    assert done.code == 0, done.out + done.err


def test_calls_without_a_mock_are_not_made(run: Any) -> None:
    """Otherwise, a test would depend on the network, or pass without a response."""
    text = "http.get('http://127.0.0.1:1/x').statusCode == 200"
    done = run(in_cel(text), "error", apiCallResponses=[ANSWER])
    assert done.code == 0, done.out + done.err


@pytest.mark.parametrize(
    ("expression", "entry"),
    [
        ("globalContext.get('e').owners[1] == 'b'", ENTRY),
        ("globalContext.get('e', 'first') == 'a'", "projections"),
        ("globalContext.get('e').first == 'a'", "projections"),
        ("globalContext.get('e')[1].metadata.name == 'two'", "files"),
        ("globalContext.get('e').size() == 1", {"name": "e", "resources": [{"a": 1}]}),
        ("globalContext.get('e')[0] == 'a'", {**ENTRY, "fieldPath": "owners"}),
        ("globalContext.get('other') == null", ENTRY),
    ],
)
def test_global_context(run: Any, expression: str, entry: Json) -> None:
    projections = [{"name": "first", "path": "owners[0]"}]
    entry = {
        "projections": {**ENTRY, "projections": projections},
        "files": {"name": "e", "resourceFiles": ["maps.yaml"]},
    }.get(entry if isinstance(entry, str) else "", entry)
    done = run(in_cel(expression), globalContextEntries=[entry])
    assert done.code == 0, done.out + done.err


def test_mocked_answer_decides(run: Any) -> None:
    """Otherwise, such a test could not fail."""
    answer = {**ANSWER, "response": {"body": {"allowed": False}}}
    text = f"http.get('{URL}').body.allowed == true"
    assert run(in_cel(text), apiCallResponses=[answer]).code == 1
    assert run(in_cel(text), "fail", apiCallResponses=[answer]).code == 0


@pytest.mark.parametrize(
    ("entry", "key", "fields"),
    [
        (
            {"apiCall": {"urlPath": "/api/v1/x", "jmesPath": "name"}},
            "{{ found }}",
            {
                "apiCallResponses": [
                    {"urlPath": "/api/v1/x", "response": {"body": {"name": "a"}}}
                ]
            },
        ),
        (
            {"globalReference": {"name": "e"}},
            "{{ found.owners[0] }}",
            {"globalContextEntries": [ENTRY]},
        ),
    ],
)
def test_context_entries_of_rules(
    run: Any, entry: Json, key: str, fields: Json
) -> None:
    done = run(of_rules(entry, key), **fields)
    assert done.code == 0, done.out + done.err


MISTAKES: list[tuple[str, Json, str]] = [
    ("a", [{"response": {"body": {}}}], "[0]: either url or urlPath is required"),
    (
        "a",
        [{**ANSWER, "urlPath": "/x"}],
        "[0]: url and urlPath are mutually exclusive",
    ),
    ("a", [{**ANSWER, "url": "ftp://x"}], "must be an absolute https/http URL"),
    ("a", [{**ANSWER, "url": "https://"}], "has scheme but no host"),
    ("a", [{"urlPath": "x", "response": {"body": {}}}], "must be an absolute path"),
    ("a", [{**ANSWER, "method": "PUT"}], "[0]: method must be GET or POST"),
    ("a", [{**ANSWER, "response": {}}], "response.body is required"),
    (
        "a",
        [{**ANSWER, "response": {"body": [1]}}],
        "response.body must be a JSON object",
    ),
    (
        "a",
        [{**ANSWER, "response": {"body": {}, "statusCode": 99}}],
        "statusCode 99 must be between 100 and 599",
    ),
    ("a", [ANSWER, ANSWER], f'duplicate entry for "{URL}" (key "GET:{URL}")'),
    ("a", [{**ANSWER, "status": 1}], 'unknown field "status"'),
    ("g", [{"data": {}}], "globalContextEntries: name is required"),
    ("g", [ENTRY, ENTRY], 'globalContextEntries: duplicate name "e"'),
    ("g", [{"name": "e"}], "one of data, resources, or resourceFiles is required"),
    (
        "g",
        [{**ENTRY, "resources": []}],
        "data, resources, and resourceFiles are mutually exclusive",
    ),
    ("g", [{"name": "e", "data": [1]}], 'entry "e": data must be a JSON object'),
    ("g", [{"name": "e", "resources": [1]}], "resources[0]: must be a JSON object"),
    (
        "g",
        [{**ENTRY, "projections": [{"path": "x"}]}],
        'entry "e": projection name is required',
    ),
    (
        "g",
        [{**ENTRY, "projections": [{"name": "x"}]}],
        'entry "e" projection "x": path is required',
    ),
    ("g", [{**ENTRY, "fieldPath": "a["}], 'entry "e" fieldPath: '),
    (
        "g",
        [{"name": "e", "resourceFiles": ["/etc/passwd"]}],
        "resourceFiles[0]: file path must not be absolute",
    ),
    (
        "g",
        [{"name": "e", "resourceFiles": ["a/../../x"]}],
        "resourceFiles[0]: file path must not escape the test directory",
    ),
]


@pytest.mark.parametrize(("field", "given", "text"), MISTAKES)
def test_invalid_mocks(run: Any, field: str, given: Json, text: str) -> None:
    """Upstream rejects such a test; a typing error would remove the response."""
    name = {"a": "apiCallResponses", "g": "globalContextEntries"}[field]
    done = run(in_cel("true"), **{name: given})
    assert done.code == 1
    assert text in done.out + done.err


GLOBAL = """
apiVersion: kyverno.io/v2beta1
kind: GlobalContextEntry
metadata: {name: maps}
spec:
  kubernetesResource: {version: v1, resource: configmaps, namespace: NAMESPACE}
  projections: [{name: names, jmesPath: "[].metadata.name"}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: one, namespace: a}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: two, namespace: b}
"""


@pytest.mark.parametrize(
    ("namespace", "expression"),
    [
        ("a", "globalContext.get('maps').map(m, m.metadata.name) == ['one']"),
        ("", "globalContext.get('maps').size() == 2"),
        ("b", "globalContext.get('maps', 'names') == ['two']"),
        ("b", "globalContext.get('other') == null"),
    ],
)
def test_entries_among_the_resources(
    command: Command, tmp_path: Path, namespace: str, expression: str
) -> None:
    """Otherwise, ``apply`` could not be used for a policy that reads entries."""
    (tmp_path / "policy.yaml").write_text(json.dumps(in_cel(expression)))
    objects = GLOBAL.replace("NAMESPACE", json.dumps(namespace))
    (tmp_path / "objects.yaml").write_text(f"{objects}---\n{pod('good')}")
    given = ("apply", tmp_path / "policy.yaml", "-r", tmp_path / "objects.yaml")
    done = command(*given)
    assert done.code == 0, done.out + done.err
    assert "pass: 1, fail: 0" in done.out


def test_mocked_entry_applies_to_rules_of_apply(
    command: Command, tmp_path: Path
) -> None:
    """GlobalReference entries used to be skipped without a cluster."""
    entry = {"globalReference": {"name": "maps", "jmesPath": "[0].metadata.name"}}
    policy = of_rules(entry, "{{ found }}")
    (tmp_path / "policy.yaml").write_text(json.dumps(policy))
    objects = GLOBAL.replace("NAMESPACE", "a").replace("name: one", "name: a")
    (tmp_path / "objects.yaml").write_text(f"{objects}---\n{pod('good')}")
    given = ("apply", tmp_path / "policy.yaml", "-r", tmp_path / "objects.yaml")
    done = command(*given)
    assert done.code == 0, done.out + done.err
    assert "pass: 1, fail: 0" in done.out


def test_projection_that_cannot_be_computed(command: Command, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(json.dumps(in_cel("true")))
    objects = GLOBAL.replace("[].metadata.name", "[")
    (tmp_path / "objects.yaml").write_text(objects)
    given = ("apply", tmp_path / "policy.yaml", "-r", tmp_path / "objects.yaml")
    done = command(*given)
    assert done.code == 1
    assert "projection names of GlobalContextEntry maps" in done.err

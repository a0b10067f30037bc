"""Results of 1.19: ``operation``, ``jsonPayloads`` and ``generatedResources``.

A failure means: a test file of Kyverno 1.19 fails, or a policy for updates and
deletions cannot be tested. Source: docs/behaviour/v1.19 8.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kyverno_mp.values.jsonvalue import Json
from tests.unit.cli.conftest import Command, pod

_PODS: Json = {"any": [{"resources": {"kinds": ["Pod"], "operations": ["DELETE"]}}]}
RULES: Json = {
    "apiVersion": "kyverno.io/v1",
    "kind": "ClusterPolicy",
    "metadata": {"name": "p"},
    "spec": {
        "background": False,
        "rules": [
            {
                "name": "r",
                "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
                "validate": {
                    "message": "m",
                    "deny": {
                        "conditions": {
                            "all": [
                                {
                                    "key": "{{ request.operation }}",
                                    "operator": "Equals",
                                    "value": "DELETE",
                                },
                                {
                                    "key": "{{ request.oldObject.metadata.name }}",
                                    "operator": "Equals",
                                    "value": "a",
                                },
                            ]
                        }
                    },
                },
            },
            {
                "name": "only",
                "match": _PODS,
                "validate": {"message": "m", "deny": {}},
            },
        ],
    },
}


def in_cel(kind: str, expression: str, *operations: str, **spec: Json) -> Json:
    """Return a policy in CEL on Pods."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    spec = {
        "matchConstraints": {"resourceRules": [{**rule, "operations": operations}]},
        "validations": [{"expression": expression, "message": "m"}],
        **spec,
    }
    group = "policies.kyverno.io"
    if kind.endswith("AdmissionPolicy"):
        group = "admissionregistration.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": kind,
        "metadata": {"name": "v"},
        "spec": spec,
    }


def run(
    command: Command, folder: Path, policy: Json, results: Json, **fields: Json
) -> tuple[int, list[dict[str, Any]], str]:
    """Run one test; return the exit code, the rows and standard error."""
    (folder / "policy.yaml").write_text(yaml.safe_dump(policy))
    (folder / "pods.yaml").write_text(pod("a"))
    test = {
        "apiVersion": "cli.kyverno.io/v1alpha1",
        "kind": "Test",
        "metadata": {"name": "t"},
        "policies": ["policy.yaml"],
        "resources": ["pods.yaml"],
        "results": results,
        **fields,
    }
    (folder / "kyverno-test.yaml").write_text(json.dumps(test))
    done = command("test", folder, "-o", "json")
    return done.code, json.loads(done.out) if done.out else [], done.err


def entry(policy: str, verdict: str, operation: str = "", rule: str = "") -> Json:
    found = {"policy": policy, "kind": "Pod", "resources": ["a"], "result": verdict}
    more = {"operation": operation, "rule": rule}
    return {**found, **{key: value for key, value in more.items() if value}}


def test_a_result_of_rules_has_its_operation(command: Command, tmp_path: Path) -> None:
    """Each operation is one run; a result without one has the run's."""
    results: Json = [
        entry("p", "pass", rule="r"),
        entry("p", "pass", "CREATE", rule="r"),
        entry("p", "pass", "UPDATE", rule="r"),
        entry("p", "fail", "DELETE", rule="r"),
        entry("p", "fail", "DELETE", rule="only"),
    ]
    code, rows, err = run(command, tmp_path, RULES, results)
    assert code == 0, err
    assert [row["REASON"] for row in rows] == ["Ok"] * 5
    wrong: Json = [entry("p", "pass", "DELETE", rule="r")]
    assert run(command, tmp_path, RULES, wrong)[0] == 1


@pytest.mark.parametrize("kind", ["ValidatingPolicy", "ValidatingAdmissionPolicy"])
def test_a_result_of_cel_has_its_operation(
    command: Command, tmp_path: Path, kind: str
) -> None:
    """UPDATE: both objects are the resource; DELETE: the object is null."""
    expression = (
        "request.operation == 'CREATE' ? oldObject == null && object.metadata.name =="
        " 'a' : request.operation == 'UPDATE' ? oldObject == object :"
        " object == null && oldObject.metadata.name != 'a'"
    )
    if kind == "ValidatingAdmissionPolicy":  # has no request in the command line
        expression = "object != null ? object.metadata.name == 'a' : oldObject == null"
    policy = in_cel(kind, expression, "CREATE", "UPDATE", "DELETE")
    results: Json = [
        entry("v", "pass"),
        entry("v", "pass", "UPDATE"),
        entry("v", "fail", "DELETE"),
    ]
    code, _, err = run(command, tmp_path, policy, results)
    assert code == 0, err


def test_operations_are_matched(command: Command, tmp_path: Path) -> None:
    policy = in_cel("ValidatingPolicy", "false", "DELETE")
    code, rows, _ = run(command, tmp_path, policy, [entry("v", "fail", "DELETE")])
    assert (code, [row["REASON"] for row in rows]) == (0, ["Ok"])
    code, rows, _ = run(command, tmp_path, policy, [entry("v", "fail", "UPDATE")])
    assert code == 0
    assert [row["REASON"] for row in rows] == ["Excluded"]


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (
            entry("v", "fail", "CONNECT"),
            (
                'invalid test result for policy v: invalid operation "CONNECT", must be'
                " one of CREATE, UPDATE, DELETE"
            ),
        ),
        (
            {**entry("v", "fail", "DELETE"), "isDeletingPolicy": True},
            (
                "invalid test result for policy v: operation is not supported for"
                " deleting policies"
            ),
        ),
    ],
)
def test_impossible_operations_are_errors(
    command: Command, tmp_path: Path, result: Json, reason: str
) -> None:
    run(command, tmp_path, RULES, [result])
    done = command("test", tmp_path)
    assert done.code == 1
    assert reason in done.out + done.err


def test_several_payloads(command: Command, tmp_path: Path) -> None:
    """A result names payloads as it names objects, also those in a folder."""
    policy = in_cel("ValidatingPolicy", "object.a == 1", evaluation={"mode": "JSON"})
    assert isinstance(policy, dict)
    policy["spec"]["matchConstraints"] = {}
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "good.json").write_text('{"a": 1}')
    (tmp_path / "bad.yaml").write_text("a: 2")
    names: Json = ["in/good.json", "bad.yaml"]
    results: Json = [
        {"policy": "v", "kind": "", "resources": ["in/good.json"], "result": "pass"},
        {"policy": "v", "kind": "", "resources": ["bad.yaml"], "result": "fail"},
    ]
    code, rows, err = run(
        command, tmp_path, policy, results, resources=[], jsonPayloads=names
    )
    assert code == 0, err
    assert [row["REASON"] for row in rows] == ["Ok", "Ok"]


def test_each_generated_object_is_in_one_of_the_files(
    command: Command, tmp_path: Path
) -> None:
    objects = (
        '["one", "two"].map(n, {"apiVersion": dyn("v1"), "kind": dyn("ConfigMap"),'
    )
    objects += ' "metadata": dyn({"name": n}), "data": dyn({"k": "v"})})'
    spec: Json = {
        "generate": [{"expression": f'generator.Apply("default", {objects})'}],
    }
    policy = in_cel("GeneratingPolicy", "true", "CREATE", **spec)
    assert isinstance(policy, dict)
    del policy["spec"]["validations"]
    for name, data in (("one", "v"), ("two", "v"), ("three", "w")):
        made = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "default"},
            "data": {"k": data},
        }
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(made))
    result = entry("v", "pass")
    assert isinstance(result, dict)
    files: Json = ["one.yaml", "two.yaml", "three.yaml"]
    code, rows, err = run(
        command, tmp_path, policy, [{**result, "generatedResources": files}]
    )
    assert code == 0, err
    assert [row["REASON"] for row in rows] == ["Ok", "Ok"]
    code, rows, _ = run(
        command, tmp_path, policy, [{**result, "generatedResources": ["one.yaml"]}]
    )
    assert code == 1
    assert sorted(row["REASON"] for row in rows) == ["Ok", "Resource error"]
    code, rows, _ = run(
        command, tmp_path, policy, [{**result, "generatedResource": "two.yaml"}]
    )
    assert code == 1


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"name": "made"}, "Ok"),
        ({"name": "made", "labels": {"a": "b"}}, "Resource diff"),
        ({"name": "made", "namespace": "apps"}, "Resource error"),
    ],
)
def test_a_generated_object_may_be_cluster_wide(
    command: Command, tmp_path: Path, metadata: Json, reason: str
) -> None:
    """Its file names no namespace, as in the cluster (1.19; an error in 1.18)."""
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    (tmp_path / "made.yaml").write_text(yaml.safe_dump(made))
    namespace = '{"apiVersion": dyn("v1"), "kind": dyn("Namespace")'
    namespace += ', "metadata": dyn({"name": "made"})}'
    policy = in_cel(
        "GeneratingPolicy",
        "true",
        "CREATE",
        generate=[{"expression": f'generator.Apply("", [{namespace}])'}],
    )
    assert isinstance(policy, dict)
    del policy["spec"]["validations"]
    result = entry("v", "pass")
    assert isinstance(result, dict)
    _, rows, err = run(
        command, tmp_path, policy, [{**result, "generatedResource": "made.yaml"}]
    )
    assert [row["REASON"] for row in rows] == [reason], err


@pytest.mark.parametrize("kind", ["ValidatingPolicy", "ValidatingAdmissionPolicy"])
@pytest.mark.parametrize(
    ("resource", "failures"),
    [("pods/eviction", 1), ("pods/*", 1), ("pods", 0), ("pods/exec", 0)],
)
def test_values_make_an_object_that_of_a_subresource(
    command: Command, tmp_path: Path, kind: str, resource: str, failures: int
) -> None:
    """Policies in CEL match it as in the cluster (1.20; never in 1.18)."""
    policy = in_cel(kind, "false", "CREATE")
    assert isinstance(policy, dict)
    policy["spec"]["matchConstraints"]["resourceRules"][0]["resources"] = [resource]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction"}
    (tmp_path / "eviction.yaml").write_text(
        yaml.safe_dump({**eviction, "metadata": {"name": "a", "namespace": "apps"}})
    )
    named: Json = {"version": "v1", "name": "pods/eviction", "kind": "Eviction"}
    parent: Json = {"version": "v1", "name": "pods", "kind": "Pod"}
    subresource = {
        "subresource": {**named, "group": "policy"},
        "parentResource": parent,
    }
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(policy))
    values = {"apiVersion": "cli.kyverno.io/v1alpha1", "kind": "Values"}
    (tmp_path / "values.yaml").write_text(
        yaml.safe_dump({**values, "subresources": [subresource]})
    )
    policy_file, resource_file, values_file = (
        tmp_path / f"{name}.yaml" for name in ("policy", "eviction", "values")
    )
    done = command("apply", policy_file, "-r", resource_file, "-f", values_file)
    assert f"fail: {failures}, " in done.out
    without_values = command("apply", policy_file, "-r", resource_file)
    assert "fail: 0, " in without_values.out, "an Eviction is no Pod"


@pytest.mark.parametrize("field", ["generatedResource", "generatedResources"])
@pytest.mark.parametrize(
    ("data", "wanted", "reason"),
    [
        ("v", "pass", "Ok"),
        ("v", "fail", "Want fail, got pass"),
        ("w", "pass", "Resource diff"),
        ("w", "fail", "Ok"),
    ],
)
def test_a_wanted_failure_is_another_generated_object(
    command: Command, tmp_path: Path, field: str, data: str, wanted: str, reason: str
) -> None:
    """As with a patched object."""
    made: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "made"}}
    given = {**made, "metadata": {"name": "made", "namespace": "default"}}
    (tmp_path / "made.yaml").write_text(yaml.safe_dump({**given, "data": {"k": data}}))
    rule = {
        "name": "r",
        "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
        "generate": {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": "made",
            "namespace": "default",
            "data": {"data": {"k": "v"}},
        },
    }
    policy: Json = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "v"},
        "spec": {"rules": [rule]},
    }
    result = entry("v", wanted)
    assert isinstance(result, dict)
    files: Json = "made.yaml" if field == "generatedResource" else ["made.yaml"]
    _, rows, err = run(
        command, tmp_path, policy, [{**result, "rule": "r", field: files}]
    )
    assert [row["REASON"] for row in rows] == [reason], err

"""Policies of policies.kyverno.io on the command line.

Expected: docs/behaviour/cli 2 to 15; docs/behaviour/cel 6, 12.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.cli.conftest import Command, pod

POLICY = """
apiVersion: policies.kyverno.io/v1
kind: ValidatingPolicy
metadata: {name: no-latest}
spec:
  validationActions: [Audit]
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}
  validations:
  - expression: "object.spec.containers.all(c, !c.image.endsWith(':latest'))"
    message: tag it
  auditAnnotations:
  - {key: name, valueExpression: request.name}
"""
EXCEPTION = """
apiVersion: policies.kyverno.io/{version}
kind: PolicyException
metadata: {{name: excepted, namespace: team}}
spec:
  policyRefs: [{{name: no-latest, kind: ValidatingPolicy}}]
  matchConditions: [{{name: bad, expression: "object.metadata.name == 'bad'"}}]
"""
CONTEXT = """
apiVersion: cli.kyverno.io/v1alpha1
kind: Context
metadata: {name: c}
spec:
  resources:
  - {apiVersion: v1, kind: ConfigMap, metadata: {name: m, namespace: ns}, data: {k: v}}
  images:
  - {image: "nginx:1.25", config: {config: {User: "0"}}}
"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: ns}
spec: {template: {spec: {containers: [{name: c, image: "nginx:latest"}]}}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "pods.yaml").write_text(
        pod("good", "nginx:1.25") + pod("bad", "nginx:latest")
    )
    return tmp_path


def apply(command: Command, folder: Path, *more: Any) -> Any:
    return command("apply", folder / "policy.yaml", "-r", folder / "pods.yaml", *more)


def rows(command: Command, folder: Path, *more: Any) -> list[dict[str, Any]]:
    out = apply(command, folder, "-p", "--output-format", "json", *more).out
    (report,) = map(json.loads, out.splitlines())
    found: list[dict[str, Any]] = report["results"]
    return found


def test_text_and_exit_code(command: Command, folder: Path) -> None:
    done = apply(command, folder)
    assert done.code == 1
    assert "Applying 1 policy rule(s) to 2 resource(s)..." in done.out
    failure = "policy no-latest -> resource apps/Pod/bad failed:\n1 -  tag it"
    assert failure in done.out
    assert "pass: 1, fail: 1, warn: 0, error: 0, skip: 0" in done.out


def test_reports(command: Command, folder: Path) -> None:
    good, bad = rows(command, folder)
    assert (good["source"], good["result"]) == ("KyvernoValidatingPolicy", "pass")
    assert (bad["policy"], bad["message"]) == ("no-latest", "tag it")
    assert "rule" not in bad
    assert bad["properties"] == {
        "name": "bad",
        "process": "background scan",
        "cel.validationIndex": "0",
    }


@pytest.mark.parametrize(
    ("second", "expected"),
    [("object.spec.x == 1", "1"), ("true", None), ("false", "1")],
)
def test_reports_name_the_validation_that_failed(
    command: Command, folder: Path, second: str, expected: str | None
) -> None:
    """As in 1.19: the index of the validation that failed or could not be evaluated."""
    raw = yaml.safe_load(POLICY)
    validations = [{"expression": "true"}, {"expression": second, "message": "m"}]
    raw["spec"]["validations"] = validations
    (folder / "policy.yaml").write_text(yaml.safe_dump(raw))
    found = {
        row.get("properties", {}).get("cel.validationIndex")
        for row in rows(command, folder)
    }
    assert found == {expected}


def test_autogen(command: Command, folder: Path) -> None:
    (folder / "pods.yaml").write_text(DEPLOYMENT)
    done = apply(command, folder)
    assert "policy no-latest -> resource ns/Deployment/web failed:" in done.out
    assert "pass: 0, fail: 1," in done.out


@pytest.mark.parametrize("version", ["v1alpha1", "v1beta1", "v1"])
def test_exceptions(command: Command, folder: Path, version: str) -> None:
    file = folder / "exception.yaml"
    file.write_text(EXCEPTION.format(version=version))
    done = apply(command, folder, "-e", file)
    assert (done.code, "with 1 exception(s)" in done.out) == (0, True)
    assert "pass: 1, fail: 0, warn: 0, error: 0, skip: 1" in done.out
    _, bad = rows(command, folder, "-e", file)
    assert (bad["rule"], bad["result"]) == ("exception", "skip")
    assert bad["properties"]["exceptions"] == "excepted"
    wanted = "rule is skipped due to policy exception: team/excepted"
    assert bad["message"] == wanted


def test_exception_among_the_policies(command: Command, folder: Path) -> None:
    """Only v1beta1 is accepted; other versions drop the path (docs/behaviour/cli 4)."""
    with (folder / "policy.yaml").open("a") as file:
        file.write("---" + EXCEPTION.format(version="v1beta1"))
    assert apply(command, folder).code == 1
    assert apply(command, folder, "--exceptions-within-policies").code == 0
    text = (folder / "policy.yaml").read_text()
    (folder / "policy.yaml").write_text(text.replace("v1beta1", "v1"))
    done = apply(command, folder)
    assert "policy type not supported policies.kyverno.io/v1 PolicyExc" in done.err


@pytest.mark.parametrize(
    ("selector", "wanted"),
    [
        ("{matchExpressions: [{key: app, operator: DoesNotExist}]}", ["bad", "good"]),
        (
            "{matchExpressions: [{key: app, operator: NotIn, values: [web]}]}",
            ["bad", "good"],
        ),
        ("{matchExpressions: [{key: app, operator: Exists}]}", ["good"]),
        ("{matchLabels: {app: other}}", []),
    ],
)
def test_object_selectors(
    command: Command, folder: Path, selector: str, wanted: list[str]
) -> None:
    """The absent old object has no labels, as in the real program."""
    labelled = pod("good", "nginx:1.25").replace(
        "name: good", "labels: {app: web}\n  name: good"
    )
    (folder / "pods.yaml").write_text(labelled + pod("bad", "nginx:1.25"))
    text = POLICY.replace(
        "  matchConstraints:\n",
        f"  matchConstraints:\n    objectSelector: {selector}\n",
    )
    (folder / "policy.yaml").write_text(text)
    done = apply(command, folder, "-p", "--output-format", "json").out
    found = [one for line in done.splitlines() for one in json.loads(line)["results"]]
    assert sorted(one["resources"][0]["name"] for one in found) == wanted


@pytest.mark.parametrize(
    ("labels", "wanted"), [("{}", "bare"), ("{env: x}", "bare"), ("", "named")]
)
def test_namespace_labels(
    command: Command, folder: Path, labels: str, wanted: str
) -> None:
    """Only an unknown namespace has its name as a label, as in the real program."""
    term = "{key: kubernetes.io/metadata.name, operator: DoesNotExist}"
    text = POLICY.replace(
        "  matchConstraints:\n",
        f"  matchConstraints:\n    namespaceSelector: {{matchExpressions: [{term}]}}\n",
    )
    (folder / "policy.yaml").write_text(text)
    known = f"namespaceSelector: [{{name: apps, labels: {labels}}}]" if labels else ""
    (folder / "values.yaml").write_text(
        f"apiVersion: cli.kyverno.io/v1alpha1\nkind: Values\n{known}\n"
    )
    done = apply(command, folder, "-f", folder / "values.yaml")
    passed = 1 if wanted == "bare" else 0
    assert f"pass: {passed}, fail: {passed}," in done.out


def test_context_file(command: Command, folder: Path) -> None:
    (folder / "context.yaml").write_text(CONTEXT)
    checks = (
        ("resource.get('v1', 'configmaps', 'ns', 'm').data.k == 'v'", "pass"),
        ("dyn(resource.get('v1', 'configmaps', 'x', 'm')) == null", "pass"),
        ("resource.list('v1', 'configmaps', 'ns').items.size() == 1", "pass"),
        ("resource.list('v1', 'configmaps', '').items.size() == 0", "pass"),
        (
            "resource.list('v1', 'secrets', '').items.size() == 0",
            "failed to list resource: secrets resource not found",
        ),
        ("image.getMetadata('nginx:1.25').config.config.User == '0'", "pass"),
        (
            "image.getMetadata('x').config == 1",
            "failed to get image data: image data for x not found in the context",
        ),
        ("globalContext.get('e') == null", "failed to get global reference"),
        ("http.get('http://127.0.0.1:1/').statusCode == 200", "request failed: "),
    )
    for text, wanted in checks:
        policy = POLICY.partition("  validations:")[0]
        (folder / "policy.yaml").write_text(
            f'{policy}  validations: [{{expression: "{text}"}}]\n'
        )
        given = ("--context-file", folder / "context.yaml")
        first = rows(command, folder, *given)[0]
        shown = first["result"] if wanted == "pass" else first["message"]
        assert wanted in shown, (text, first)


def test_policy_that_does_not_compile_is_an_error(
    command: Command, folder: Path
) -> None:
    text = POLICY.replace("object.spec.containers.all", "objekt.spec.containers.all")
    (folder / "policy.yaml").write_text(text)
    done = apply(command, folder)
    assert done.code == 1
    assert "policy no-latest: " in done.err
    assert "undeclared reference to 'objekt'" in done.err
    assert "error: 1," in done.out


def test_namespaced_policies(command: Command, folder: Path) -> None:
    """Namespaced policies apply to every namespace here (docs/behaviour/cel 1)."""
    text = POLICY.replace("kind: Val", "kind: NamespacedVal")
    text = text.replace("{name: no-latest}", "{name: no-latest, namespace: team}")
    (folder / "policy.yaml").write_text(text)
    done = apply(command, folder, "-p", "--output-format", "json")
    reports = [json.loads(line) for line in done.out.splitlines()]
    assert {one["kind"] for one in reports} == {"PolicyReport"}
    assert {one["metadata"]["namespace"] for one in reports} == {"team"}
    found = [row["policy"] for one in reports for row in one["results"]]
    assert found == ["team/no-latest"] * 2


def test_parallel_output_is_the_same(command: Command, folder: Path) -> None:
    alone = apply(command, folder, "--jobs", "1")
    assert apply(command, folder, "--jobs", "2").out == alone.out


def test_explain(command: Command, folder: Path) -> None:
    done = command("explain", folder / "policy.yaml", "-o", "json")
    (shown,) = json.loads(done.out)
    assert (done.code, shown["kind"]) == (0, "ValidatingPolicy")
    first, jobs, others = shown["rules"]
    assert first["body"] == "1 validation, 1 auditAnnotation"
    assert (first["action"], first["kinds"]) == ("Audit", ["v1/pods"])
    assert jobs["kinds"] == ["batch/v1/cronjobs"]
    assert (others["name"], others["autogen"]) == ("autogen-defaults", True)


@pytest.mark.parametrize(
    ("old", "new", "code", "path"),
    [
        ("object.spec.c", "objekt.spec.c", "policy.expression", "column 1: undeclared"),
        (
            "request.name",
            "1 == 1",
            "policy.expression",
            "output is expected to be either",
        ),
        ("resourceRules:", "resourceRulez:", "policy.unknown_field", ""),
    ],
)
def test_lint(
    command: Command, folder: Path, old: str, new: str, code: str, path: str
) -> None:
    file = folder / "policy.yaml"
    file.write_text(POLICY.replace(old, new))
    found = json.loads(command("lint", file, "-o", "json", "--target", "cli").out)
    assert [one["code"] for one in found] == [code]
    assert path in found[0]["message"]


def test_lint_for_the_server(command: Command, folder: Path) -> None:
    """Some policies are rejected by the webhook or not evaluated by the server."""
    file = folder / "policy.yaml"
    head = POLICY.partition("  matchConstraints:")[0]
    named = head.replace("kind: Val", "kind: NamespacedVal").replace(
        "{name: no-latest}", "{name: no-latest, namespace: team}"
    )
    check = "validations: [{expression: \"http.get('u').a == 1\"}]"
    file.write_text(f"{named}  {check}\n")
    found = json.loads(command("lint", file, "-o", "json").out)
    codes = {one["code"] for one in found}
    assert codes == {"policy.required", "policy.http"}
    file.write_text(POLICY.replace("spec:", "spec:\n  evaluation: {mode: JSON}"))
    (told,) = json.loads(command("lint", file, "-o", "json").out)
    assert told["code"] == "lint.unsupported"
    assert "evaluation mode JSON" in told["message"]

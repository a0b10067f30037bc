"""Policies in CEL that mutate, generate or delete, on the command line.

Expected: docs/behaviour/cli 8 to 15; docs/behaviour/cel 10; the real program.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.cli.conftest import Command, pod
from tests.unit.values.test_custom_types import definition

MUTATING = """
apiVersion: policies.kyverno.io/v1
kind: MutatingPolicy
metadata: {name: label}
spec:
  autogen: {podControllers: {controllers: []}}
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: "Object{metadata: Object.metadata{labels: {'team': 'a'}}}"
"""
GENERATING = """
apiVersion: policies.kyverno.io/v1
kind: GeneratingPolicy
metadata: {name: settings}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}
  variables:
  - name: made
    expression: >-
      {'apiVersion': dyn('v1'), 'kind': dyn('ConfigMap'),
      'metadata': dyn({'name': object.metadata.name}), 'data': dyn({'k': 'v'})}
  generate:
  - expression: generator.apply('other', [variables.made])
"""
DELETING = """
apiVersion: policies.kyverno.io/v1
kind: DeletingPolicy
metadata: {name: old}
spec:
  schedule: "* * * * *"
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}
  conditions: [{name: bad, expression: "object.metadata.name == 'bad'"}]
"""
TEST = """
apiVersion: cli.kyverno.io/v1alpha1
kind: Test
metadata: {{name: t}}
policies: [policy.yaml]
resources: [pods.yaml]
{more}
results:
- {{policy: {policy}, kind: Pod, resources: [{pod}], result: pass, {field}}}
"""
TARGET = "{apiVersion: v1, kind: ConfigMap, metadata: {name: config, namespace: ns}}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pods.yaml").write_text(pod("good") + pod("bad"))
    return tmp_path


def apply(command: Command, folder: Path, policy: str, *more: Any) -> Any:
    (folder / "policy.yaml").write_text(policy)
    return command("apply", folder / "policy.yaml", "-r", folder / "pods.yaml", *more)


def rows(command: Command, folder: Path, policy: str) -> list[dict[str, Any]]:
    out = apply(command, folder, policy, "-p", "--output-format", "json").out
    line = next(one for one in out.splitlines() if '"results"' in one)
    found: list[dict[str, Any]] = json.loads(line[line.index("{") :])["results"]
    return found


def test_mutations_are_printed_and_count_twice(command: Command, folder: Path) -> None:
    done = apply(command, folder, MUTATING)
    assert done.code == 0
    first = done.out.split("---")[0].split("applied to apps/Pod/good:")[1]
    assert yaml.safe_load(first)["metadata"]["labels"]["team"] == "a"
    assert done.out.count("Mutation has been applied successfully.") == 2
    assert "pass: 4, fail: 0, warn: 0, error: 0, skip: 0" in done.out


def test_report_of_mutations(command: Command, folder: Path) -> None:
    found = rows(command, folder, MUTATING)
    assert [(one["policy"], one["result"], one["message"]) for one in found] == [
        ("label", "pass", "success"),
        ("label", "pass", "success"),
    ]
    assert {one["source"] for one in found} == {"KyvernoMutatingPolicy"}
    assert not any("rule" in one for one in found)


def test_generated_objects(command: Command, folder: Path) -> None:
    done = apply(command, folder, GENERATING)
    made = done.out.split("applied to apps/Pod/good:")[1].split("---")[0]
    assert yaml.safe_load(made) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "good", "namespace": "other"},
        "data": {"k": "v"},
    }
    assert "pass: 2, fail: 0, warn: 0, error: 0, skip: 0" in done.out
    (good, _) = rows(command, folder, GENERATING)
    assert (good["rule"], good["message"], good["source"]) == (
        "settings",
        "policy evaluated successfully",
        "KyvernoGeneratingPolicy",
    )


TEMPLATE = """
apiVersion: policies.kyverno.io/v1
kind: GeneratingPolicy
metadata: {name: settings}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}
  auditAnnotations: [{key: pod, valueExpression: string(object.metadata.name)}]
  generate:
  - template:
      interpolate: cel
      value: |
        apiVersion: v1
        kind: ConfigMap
        metadata:
          name: (( object.metadata.name ))
          namespace: other
        data: {k: v}
"""


def test_objects_of_a_template(command: Command, folder: Path) -> None:
    """Results equal an expression's; annotations are properties of the row (1.19)."""
    made = [
        apply(command, folder, one).out.split("applied to apps/Pod/good:")[1]
        for one in (GENERATING, TEMPLATE)
    ]
    assert made[0].split("---")[0] == made[1].split("---")[0]
    (good, _) = rows(command, folder, TEMPLATE)
    assert good["result"] == "pass"
    assert good["properties"]["pod"] == "good"


def test_invalid_template(command: Command, folder: Path) -> None:
    """``lint`` names the line of the YAML."""
    (folder / "policy.yaml").write_text(TEMPLATE.replace("v}", "(( nowhere ))}"))
    done = command("lint", folder / "policy.yaml")
    assert done.code == 1
    assert 'line 6: invalid placeholder expression "nowhere"' in done.out


def test_objects_that_a_policy_would_delete(command: Command, folder: Path) -> None:
    done = apply(command, folder, DELETING)
    assert (done.code, "pass: 1, fail: 1, warn: 0" in done.out) == (1, True)
    good, bad = rows(command, folder, DELETING)
    assert (good["result"], good["message"]) == ("fail", "resource did not match")
    assert (bad["result"], bad["message"], bad["rule"]) == (
        "pass",
        "resource matched",
        "old",
    )


def run_test(
    command: Command,
    folder: Path,
    policy: str,
    *,
    pod: str = "good",
    field: str = "",
    more: str = "",
) -> Any:
    (folder / "policy.yaml").write_text(policy)
    name = yaml.safe_load(policy)["metadata"]["name"]
    text = TEST.format(policy=name, pod=pod, field=field, more=more)
    (folder / "kyverno-test.yaml").write_text(text)
    return command("test", folder)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (("-r", "pods.yaml"), "on resource: no such key: nope"),
        (("--json", "payload.json"), "on json: no such key: nope"),
    ],
)
def test_errors_of_deletions_are_printed(
    command: Command, folder: Path, given: tuple[str, str], line: str
) -> None:
    (folder / "payload.json").write_text('{"metadata": {"name": "x"}}')
    policy = folder / "policy.yaml"
    policy.write_text(DELETING.replace("metadata.name == 'bad'", "metadata.nope == 1"))
    option, name = given
    args = ("apply", policy, option, folder / name)
    text = f"failed to apply deleting policies {line}\n"
    assert text in command(*args, "--continue-on-fail").out
    assert text not in command(*args).out


def test_test_file_compares_the_mutated_object(command: Command, folder: Path) -> None:
    wanted = yaml.safe_load(pod("good"))
    wanted["metadata"]["labels"] = {"team": "a"}
    (folder / "patched.yaml").write_text(yaml.safe_dump(wanted))
    field = "patchedResources: patched.yaml"
    assert run_test(command, folder, MUTATING, field=field).code == 0
    wanted["metadata"]["labels"] = {"team": "b"}
    (folder / "patched.yaml").write_text(yaml.safe_dump(wanted))
    assert run_test(command, folder, MUTATING, field=field).code == 1


def test_test_file_compares_the_generated_object(
    command: Command, folder: Path
) -> None:
    made = "{apiVersion: v1, kind: ConfigMap, metadata: {name: good, namespace: other}"
    (folder / "made.yaml").write_text(f"{made}, data: {{k: v}}}}")
    field = "generatedResource: made.yaml"
    done = run_test(command, folder, GENERATING, field=field)
    assert (done.code, "/good" in done.out) == (0, True)
    (folder / "made.yaml").write_text(f"{made}, data: {{k: w}}}}")
    assert run_test(command, folder, GENERATING, field=field).code == 1


def test_test_file_for_deletions(command: Command, folder: Path) -> None:
    assert run_test(command, folder, DELETING, pod="bad").code == 0
    assert run_test(command, folder, DELETING, pod="good").code == 1


def test_a_test_prints_errors_of_deletions(command: Command, folder: Path) -> None:
    policy = DELETING.replace("metadata.name == 'bad'", "metadata.nope == 1")
    lines = run_test(command, folder, policy, pod="bad").out.splitlines()
    failed = "failed to apply policy {} on resource: no such key: nope"
    at = lines.index(failed.format("good"))
    assert lines[at + 1 : at + 3] == [failed.format("bad"), "  Checking results ..."]


@pytest.mark.parametrize(
    ("value", "label"),
    [
        ("'a'", "a"),
        # Upstream: the request is the trigger's, for all targets.
        ("request.kind.kind + request.operation + request.namespace", "PodCREATEapps"),
    ],
)
def test_test_file_for_existing_objects(
    command: Command, folder: Path, value: str, label: str
) -> None:
    """The result row names the target, and constraints apply to targets."""
    policy = MUTATING.replace("'a'", value)
    policy += "  evaluation: {mutateExisting: {enabled: true}}\n"
    rule = '{apiGroups: [""], apiVersions: [v1], operations: ["*"], resources: [%s]}'
    found = rule % "configmaps"
    policy += f"  targetMatchConstraints: {{resourceRules: [{found}]}}\n"
    (folder / "target.yaml").write_text(TARGET)
    wanted = TARGET.replace("ns}", f"ns, labels: {{team: {label}}}}}")
    (folder / "patched.yaml").write_text(wanted)
    done = run_test(
        command,
        folder,
        policy,
        pod="config",
        field="patchedResources: patched.yaml",
        more="targetResources: [target.yaml]",
    )
    assert (done.code, "v1/ConfigMap/ns/config" in done.out) == (0, True)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (MUTATING.replace("'a'}", "'a'"), "policy.expression"),
        (GENERATING.replace("variables.made", "variables.none"), "policy.expression"),
        (DELETING.replace("== 'bad'", "+ 1"), "policy.expression"),
        (MUTATING.replace("mutations:", "mutation:"), "policy.unknown_field"),
    ],
)
def test_lint(command: Command, folder: Path, text: str, code: str) -> None:
    (folder / "policy.yaml").write_text(text)
    done = command("lint", folder / "policy.yaml", "-o", "json")
    assert done.code == 1
    assert code in done.out


@pytest.mark.parametrize(
    ("operation", "summary"),
    [("CREATE", "pass: 1, fail: 1,"), ("'*'", "pass: 0, fail: 0,")],
)
def test_exclusions_from_a_deletion(
    command: Command, folder: Path, operation: str, summary: str
) -> None:
    """Otherwise, the verdict would differ from upstream's, which sets no operation."""
    rule = "{apiGroups: [''], apiVersions: [v1], resources: [pods]}"
    rule = rule.replace("}", f", operations: [{operation}]}}")
    wanted = f"    excludeResourceRules: [{rule}]\n  conditions:"
    text = DELETING.replace("  conditions:", wanted)
    (folder / "policy.yaml").write_text(text)
    done = command("apply", folder / "policy.yaml", "-r", folder / "pods.yaml")
    assert summary in done.out


@pytest.mark.parametrize(
    "constraint",
    [
        "    objectSelector: {matchLabels: {no: one}}\n",
        "    namespaceSelector: {matchLabels: {no: one}}\n",
        (
            "    excludeResourceRules: [{apiGroups: [''], apiVersions: [v1],"
            " operations: ['*'], resources: [pods]}]\n"
        ),
    ],
)
def test_object_outside_the_constraints_of_a_deletion_has_no_result(
    command: Command, folder: Path, constraint: str
) -> None:
    """As in 1.19: otherwise one such object in a file ends the command with 1."""
    text = DELETING.replace("  conditions:", f"{constraint}  conditions:")
    done = apply(command, folder, text)
    assert (done.code, "pass: 0, fail: 0, warn: 0, error: 0" in done.out) == (0, True)
    text = DELETING.replace("resources: [pods]", "resources: [secrets]")
    assert apply(command, folder, text).code == 0


def test_lint_for_the_server(command: Command, folder: Path) -> None:
    """Upstream's webhook also rejects these policies."""
    text = DELETING.replace("* * * * *", "every day")
    text = text.replace("resourceRules:", "excludeResourceRules:")
    (folder / "policy.yaml").write_text(text)
    path = folder / "policy.yaml"
    done = command("lint", path, "--target", "server", "-o", "json")
    assert "is not in proper cron format" in done.out
    assert "a matchConstraints with at least one resource rule is required" in done.out


@pytest.mark.parametrize(
    ("text", "body", "effects"),
    [
        (MUTATING, "1 mutation", ["pure"]),
        (GENERATING, "1 expression", ["calls the cluster"]),
        (DELETING, "schedule * * * * *", ["pure"]),
    ],
)
def test_explain(
    command: Command, folder: Path, text: str, body: str, effects: list[str]
) -> None:
    (folder / "policy.yaml").write_text(text)
    done = command("explain", folder / "policy.yaml", "-o", "json")
    (policy,) = json.loads(done.out)
    first = policy["rules"][0]
    assert (first["body"], first["kinds"], first["effects"]) == (
        body,
        ["v1/pods"],
        effects,
    )


WIDGETS = """
apiVersion: policies.kyverno.io/v1
kind: MutatingPolicy
metadata: {name: widgets}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [example.org], apiVersions: [v1], resources: [widgets],
       operations: [CREATE]}
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: >-
        Object{spec: Object.spec{entries: [Object.spec.entries{name: "a", port: 2}]}}
---
apiVersion: example.org/v1
kind: Widget
metadata: {name: w, namespace: n}
spec: {entries: [{name: a, port: 1}, {name: b}]}
"""


@pytest.mark.parametrize("is_defined", [True, False])
def test_custom_kind_merges_by_its_crd_schema(
    command: Command, tmp_path: Path, *, is_defined: bool
) -> None:
    """Otherwise, list elements would be lost."""
    policy, _, widget = WIDGETS.partition("---")
    (tmp_path / "p.yaml").write_text(policy)
    (tmp_path / "w.yaml").write_text(widget)
    crd: Any = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.org"},
        **definition(),
    }
    if not is_defined:
        for version in crd["spec"]["versions"]:
            version["name"] = "v2"
    (tmp_path / "crd.yaml").write_text(json.dumps(crd))
    done = command(
        *("apply", tmp_path / "p.yaml", "-r", tmp_path / "w.yaml"),
        *("--crd-path", tmp_path / "crd.yaml"),
    )
    assert done.code == (0 if is_defined else 1)
    if is_defined:
        (changed,) = (
            one for one in yaml.safe_load_all(_documents(done.out)) if one is not None
        )
        assert changed["spec"]["entries"] == [{"name": "a", "port": 2}, {"name": "b"}]
    else:
        assert "type converter must not be nil" in done.out + done.err


def _documents(out: str) -> str:
    """Return the YAML documents of an output that also has other lines."""
    lines = out.splitlines()
    first = lines.index("apiVersion: example.org/v1")
    last = lines.index("---", first)
    return "\n".join(lines[first:last])


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("ValidatingPolicy", {"validations": [{"expression": "true"}]}),
        (
            "MutatingPolicy",
            {
                "mutations": [
                    {
                        "patchType": "ApplyConfiguration",
                        "applyConfiguration": {"expression": "Object{}"},
                    }
                ]
            },
        ),
        (
            "GeneratingPolicy",
            {"generate": [{"expression": "generator.Apply('a', [])"}]},
        ),
        (
            "ImageValidatingPolicy",
            {
                "attestors": [{"name": "a", "cosign": {"key": {"data": "k"}}}],
                "matchImageReferences": [{"glob": "*"}],
                "validations": [{"expression": "true"}],
            },
        ),
        (
            "DeletingPolicy",
            {
                "schedule": "* * * * *",
                "conditions": [{"name": "c", "expression": "true"}],
            },
        ),
    ],
)
def test_exception_that_does_not_compile_is_named(
    command: Command, tmp_path: Path, kind: str, spec: dict[str, Any]
) -> None:
    """Otherwise the author searches for the error in the policy."""
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
    }
    policy = {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": kind,
        "metadata": {"name": "p"},
        "spec": {"matchConstraints": {"resourceRules": [rule]}, **spec},
    }
    exceptions = [
        {
            "apiVersion": "policies.kyverno.io/v1",
            "kind": "PolicyException",
            "metadata": {"name": name, "namespace": "team"},
            "spec": {
                "policyRefs": [{"name": "p", "kind": kind}],
                "matchConditions": [{"name": "c", "expression": expression}],
            },
        }
        for name, expression in (("good", "false"), ("bad", "object.x"))
    ]
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(policy))
    (tmp_path / "e.yaml").write_text(yaml.safe_dump_all(exceptions))
    (tmp_path / "r.yaml").write_text(pod("web"))
    files = ("-r", tmp_path / "r.yaml", "--exception", tmp_path / "e.yaml")
    done = command("apply", tmp_path / "p.yaml", *files)
    assert done.code == 1
    assert (
        "PolicyException team/bad: spec.matchConditions[0].expression: output is"
        " expected to be of type bool"
    ) in done.err
    assert "team/good" not in done.out + done.err

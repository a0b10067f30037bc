"""Apply, test and lint with the API server's own policies."""

import json
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Command

VALIDATING = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: few, annotations: {policies.kyverno.io/scored: "false"}}
spec:
  matchConstraints:
    resourceRules:
    - apiGroups: [""]
      apiVersions: [v1]
      operations: [CREATE]
      resources: [configmaps]
  validations:
  - {expression: "object.metadata.name != 'b'", message: not b}
  - {expression: "object.metadata.?labels.seen.hasValue()", message: not seen}
"""
MUTATING = """
---
apiVersion: admissionregistration.k8s.io/v1beta1
kind: MutatingAdmissionPolicy
metadata: {name: seen}
spec:
  matchConditions: [{name: c, expression: "object.metadata.name != 'c'"}]
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: 'Object{metadata: Object.metadata{labels: {"seen": "yes"}}}'
"""
BINDING = """
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: few-binding}
spec: {policyName: few, validationActions: [Deny]}
"""
TEST = """
apiVersion: cli.kyverno.io/v1alpha1
kind: Test
metadata: {name: t}
policies: [policy.yaml]
resources: [maps.yaml]
results:
- {policy: few, rule: unread, kind: ConfigMap, resources: [a], result: pass}
- {policy: few, kind: ConfigMap, resources: [b, c], result: warn}
- {policy: seen, kind: ConfigMap, resources: [c], result: skip}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policy.yaml").write_text(VALIDATING + MUTATING + BINDING)
    maps = [
        f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n"
        for name in "abc"
    ]
    (tmp_path / "maps.yaml").write_text("---\n".join(maps))
    (tmp_path / "kyverno-test.yaml").write_text(TEST)
    return tmp_path


def test_apply(command: Command, folder: Path) -> None:
    done = command("apply", folder / "policy.yaml", "-r", folder / "maps.yaml")
    assert "Applying 2 policy rule(s) to 3 resource(s)..." in done.out
    assert "policy few -> resource default/ConfigMap/b failed:\n1 - few not b" in (
        done.out
    )
    assert "1 - few not seen" in done.out
    # Two passes and the mutation's skip; scored causes no warning (docs/behaviour/cli
    # 9).
    assert done.out.endswith("pass: 3, fail: 2, warn: 0, error: 0, skip: 1 \n")
    assert (done.code, done.err) == (1, "")


def test_report_names_source_and_binding(command: Command, folder: Path) -> None:
    done = command(
        "apply", folder / "policy.yaml", "-r", folder / "maps.yaml", "--policy-report"
    )
    assert "source: ValidatingAdmissionPolicy" in done.out
    assert "source: MutatingAdmissionPolicy" in done.out
    assert "binding: few-binding" in done.out


def test_test(command: Command, folder: Path) -> None:
    done = command("test", folder)
    assert "Applying 2 policies to 3 resources" in done.out
    assert "Test Summary: 4 tests passed and 0 tests failed" in done.out
    assert done.code == 0


def test_kind_of_a_provided_crd(command: Command, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        VALIDATING.replace('[""]', "[x.org]").replace("configmaps", "things")
    )
    thing = "apiVersion: x.org/v1\nkind: Thing\nmetadata: {name: b}\n"
    (tmp_path / "r.yaml").write_text(thing)
    (tmp_path / "crd.yaml").write_text(
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n"
        "metadata: {name: things.x.org}\n"
        "spec: {group: x.org, names: {kind: Thing, plural: things}}\n"
    )
    given = ("apply", tmp_path / "p.yaml", "-r", tmp_path / "r.yaml")
    done = command(*given)
    assert "failed to map gvk to gvr x.org/v1, Kind=Thing" in done.err
    assert done.code != 0
    done = command(*given, "--crd-path", tmp_path / "crd.yaml")
    assert "1 - few not b" in done.out


def test_failed_mutation_is_reported(command: Command, folder: Path) -> None:
    policy = MUTATING.replace('{"seen": "yes"}', '{1: "yes"}')
    (folder / "policy.yaml").write_text(policy)
    done = command("apply", folder / "policy.yaml", "-r", folder / "maps.yaml")
    assert "policy seen: not applied: map key" in done.err
    assert done.out.endswith("pass: 0, fail: 0, warn: 0, error: 0, skip: 1 \n")


def test_lint(command: Command, folder: Path) -> None:
    assert command("lint", folder / "policy.yaml").code == 0
    (folder / "policy.yaml").write_text(VALIDATING.replace("message", "mesage"))
    done = command("lint", folder / "policy.yaml")
    assert 'unknown field "mesage"' in done.out
    assert done.code == 1


def test_explain(command: Command, tmp_path: Path) -> None:
    """Policies of the API server are shown with their matches and bindings."""
    file = tmp_path / "p.yaml"
    file.write_text(
        """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: v}
spec:
  failurePolicy: Ignore
  paramKind: {apiVersion: v1, kind: ConfigMap}
  matchConstraints:
    resourceRules:
    - apiGroups: [apps]
      apiVersions: [v1]
      resources: [deployments, statefulsets]
      operations: [CREATE, UPDATE]
  matchConditions: [{name: m, expression: "true"}]
  validations: [{expression: "true"}, {expression: "false"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: b}
spec: {policyName: v, validationActions: [Deny]}
"""
    )
    done = command("explain", file, "-o", "json")
    assert done.code == 0
    (policy,) = json.loads(done.out)
    assert (policy["kind"], policy["failurePolicy"]) == (
        "ValidatingAdmissionPolicy",
        "Ignore",
    )
    (rule,) = policy["rules"]
    assert rule["body"] == "2 validations, 1 matchCondition"
    assert rule["kinds"] == ["apps/v1/deployments", "apps/v1/statefulsets"]
    assert rule["operations"] == ["CREATE", "UPDATE"]
    assert rule["action"] == "bound by b"
    assert rule["effects"] == ["calls the cluster"]
    assert "bound by b" in command("explain", file).out

"""Fix rewrites only old syntax, and the rewritten files work as before."""

from pathlib import Path

import yaml

from tests.unit.cli.conftest import LATEST_POLICY, Command

OLD_POLICY = """# lost on saving
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: no-latest, creationTimestamp: null, uid: x}
spec:
  validationFailureAction: enforce
  rules:
  - name: tagged
    match:
      resources:
        kinds: [Pod]
        selector:
          matchExpressions: [{key: app, operator: In, values: [a]}]
    exclude:
      subjects: [{kind: User, name: root}]
    preconditions:
    - {key: "{{ request.operation }}", operator: NotIn, value: [DELETE]}
    validate:
      deny:
        conditions:
          any:
          - {key: a, operator: Equal, value: b}
status: {ready: true}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: kept}
"""
OLD_TEST = """name: old
policies: [policy.yaml]
resources: [pods.yaml]
variables: values.yaml
results:
- {policy: no-latest, rule: tagged, resource: good, kind: Pod, status: pass}
- {policy: no-latest, rule: tagged, resource: bad, kind: Pod, result: fail}
- {policy: no-latest, rule: tagged, resources: [other, good], kind: Pod, result: pass}
"""


def test_policy(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(OLD_POLICY)
    done = command("fix", "policy", tmp_path)
    assert done.out.splitlines() == [
        f"Processing file ({file})...",
        "  WARNING: validationFailureAction uses old value `enforce`, updating",
        "  WARNING: match uses old syntax, moving to any",
        "  WARNING: exclude uses old syntax, moving to any",
        "  WARNING: preconditions use old syntax, moving to all",
        "  WARNING: condition uses old operator `NotIn`, updating",
        "  WARNING: condition uses old operator `Equal`, updating",
        "Done.",
    ]
    assert file.read_text() == OLD_POLICY


def test_saved_policy(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(OLD_POLICY)
    assert command("fix", "policy", tmp_path, "--save").code == 0
    policy, kept = yaml.safe_load_all(file.read_text())
    (rule,) = policy["spec"]["rules"]
    assert policy["metadata"] == {"name": "no-latest"}
    assert policy["spec"]["validationFailureAction"] == "Enforce"
    (chosen,) = rule["match"]["any"]
    assert chosen["resources"]["selector"]["matchExpressions"][0]["operator"] == "In"
    assert rule["exclude"] == {
        "any": [{"subjects": [{"kind": "User", "name": "root"}]}]
    }
    assert rule["preconditions"]["all"][0]["operator"] == "AnyNotIn"
    assert rule["validate"]["deny"]["conditions"]["any"][0]["operator"] == "Equals"
    assert "status" not in policy
    assert kept["metadata"]["name"] == "kept"
    again = command("fix", "policy", tmp_path, "--save")
    assert again.out.splitlines() == [f"Processing file ({file})...", "Done."]


def test_test_file(command: Command, tmp_path: Path, pods_file: Path) -> None:
    (tmp_path / "policy.yaml").write_text(LATEST_POLICY)
    (tmp_path / "values.yaml").write_text("globalValues: {a: b}\n")
    file = tmp_path / "kyverno-test.yaml"
    file.write_text(OLD_TEST)
    # The old fields are unknown; without them, the file would be reported as
    # deprecated.
    assert 'unknown field "resource"' in command("test", tmp_path).out
    done = command("fix", "test", tmp_path, "--save", "--compress")
    assert "uses deprecated `status` field" in done.out
    assert f"  Saving test file ({file})...\n    OK\n" in done.out
    fixed = yaml.safe_load(file.read_text())
    assert fixed["metadata"] == {"name": "old"}
    assert [(r["result"], r["resources"]) for r in fixed["results"]] == [
        ("fail", ["bad"]),
        ("pass", ["good", "other"]),
    ]
    values = yaml.safe_load((tmp_path / "values.yaml").read_text())
    assert values["kind"] == "Values"
    assert pods_file.exists()
    assert "2 tests passed and 0 tests failed" in command("test", tmp_path).out

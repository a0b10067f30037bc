"""JSON patches of MutatingPolicies. All expectations are upstream's results."""

from pathlib import Path

import pytest

from tests.unit.cli.conftest import Command

POLICY = """
apiVersion: policies.kyverno.io/v1
kind: MutatingPolicy
metadata: {{name: patch}}
spec:
  matchConstraints:
    resourceRules:
    - {{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}}
  mutations:
  - patchType: JSONPatch
    jsonPatch: {{expression: '[{operations}]'}}
"""
POD = "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {a: null}}"


def patched(command: Command, folder: Path, *operations: str) -> str:
    written = ", ".join(f"JSONPatch{{{one}}}" for one in operations)
    (folder / "policy.yaml").write_text(POLICY.format(operations=written))
    (folder / "pod.yaml").write_text(POD)
    return command(
        "apply", folder / "policy.yaml", "-r", folder / "pod.yaml"
    ).out.replace("\n", "|")


@pytest.mark.parametrize(
    ("operation", "shown"),
    [
        ('op: "add", path: "/spec/x", value: duration("-1500ms")', "x: -1.5s|"),
        (
            'op: "add", path: "/spec/x", value: timestamp("2024-01-01T00:00:00.5+02:00")',  # noqa: E501 - one operation
            'x: "2024-01-01T00:00:00.5+02:00"|',
        ),
        ('op: "add", path: "/spec/x", value: [optional.of(1)]', "x:|  - 1|"),
        ('op: "add", path: "/spec/x"', "x: null|"),
        ('op: "add", path: "/spec/x", value: optional.none()', "optional.none() deref"),
        ('op: "add", path: "/spec/x", value: 0.0 / 0.0', "invalid NaN value|"),
        ('op: "add", path: "/spec/x", value: [-1.0 / 0.0]', "invalid -Inf value|"),
        (
            'op: "remove", path: "/kind"',
            "Object 'Kind' is missing in '{",
        ),
        ('op: "replace", path: "/kind", value: ""', "Object 'Kind' is missing in"),
        ('op: "replace", path: "/kind", value: 1', "number into Go struct field .kind"),
        (
            'op: "replace", path: "/apiVersion", value: ["v1"]',
            "array into Go struct field .apiVersion of type string|",
        ),
        ('op: "replace", path: "", value: [1]', "array into Go value of type struct {"),
        (
            'op: "add", path: "", value: {"apiVersion": "v1", "kind": "Pod"}',
            'JSON Patch: add operation does not apply: doc is missing path: "": ',
        ),
        (
            'op: "copy", from: "/spec", path: ""',
            "copy operation does not apply: doc is missing destination path: : missing",
        ),
        (
            'op: "move", from: "/spec", path: ""',
            "move operation does not apply: doc is missing destination path: : missing",
        ),
    ],
)
def test_operation(
    command: Command, tmp_path: Path, operation: str, shown: str
) -> None:
    assert shown in patched(command, tmp_path, operation)


@pytest.mark.parametrize(
    ("test", "passes"),
    [
        ('path: "/spec/a"', True),
        ('path: "/spec/none"', True),
        ('path: "/spec/a", value: null', False),
        ('path: "/spec/none", value: null', False),
    ],
)
def test_null_never_passes_a_test_operation(
    command: Command, tmp_path: Path, test: str, *, passes: bool
) -> None:
    change = 'op: "add", path: "/spec/ok", value: 1'
    out = patched(command, tmp_path, f'op: "test", {test}', change)
    assert ("ok: 1" in out, "pass: 2, fail: 0" in out) == (passes, True)

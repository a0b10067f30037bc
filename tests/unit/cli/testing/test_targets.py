"""``apply`` and ``test`` find the target objects of rules."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.cli.conftest import Command

MAPS: list[dict[str, Any]] = [
    {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": {"is": name}},
    }
    for name, namespace in (("a1", "apps"), ("a2", "apps"), ("b1", "apps"), ("a1", "x"))
]
OTHERS = [
    {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "apps"}},
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "apps"}},
]


@pytest.mark.parametrize(
    ("target", "changed", "error"),
    [
        ({"name": "a1", "namespace": "apps"}, 1, ""),
        ({"name": "a*", "namespace": "apps"}, 2, ""),
        ({"name": "a1"}, 2, ""),
        ({"namespace": "apps"}, 3, ""),
        ({"selector": {"matchLabels": {"is": "b1"}}}, 1, ""),
        # A named object is read even if the selector does not match it.
        (
            {
                "name": "a1",
                "namespace": "apps",
                "selector": {"matchLabels": {"is": "b1"}},
            },
            1,
            "",
        ),
        ({"name": "c*", "namespace": "apps"}, 0, ""),
        ({"name": "c", "namespace": "apps"}, 0, ': configmaps "c" not found'),
        (
            {"kind": "Deployment", "apiVersion": "apps/v1", "name": "c"},
            0,
            "",
        ),
        (
            {
                "kind": "Deployment",
                "apiVersion": "apps/v1",
                "name": "c",
                "namespace": "apps",
            },
            0,
            ': deployments.apps "c" not found',
        ),
        # The mock cluster of the real program's ``apply`` has few kinds; its ``test``
        # knows those of the targets, too.
        ({"kind": "Pod", "name": "p", "namespace": "apps"}, 1, ""),
        ({"kind": "Service", "name": "p", "namespace": "apps"}, 0, ": not found"),
        ({"kind": "*", "name": "p", "namespace": "apps"}, 0, ": not found"),
        ({"kind": "Namespace", "name": "apps"}, 1, ""),
    ],
)
def test_targets(
    command: Command,
    tmp_path: Path,
    pods_file: Path,
    target: dict[str, Any],
    changed: int,
    error: str,
) -> None:
    patch = {"metadata": {"labels": {"seen": "{{ target.metadata.name }}"}}}
    rule = {
        "name": "r",
        "match": {"any": [{"resources": {"kinds": ["Pod"], "names": ["good"]}}]},
        "mutate": {
            "targets": [{"apiVersion": "v1", "kind": "ConfigMap", **target}],
            "patchStrategicMerge": patch,
        },
    }
    policy = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {
            "name": "p",
            "annotations": {"pod-policies.kyverno.io/autogen-controllers": "none"},
        },
        "spec": {"rules": [rule]},
    }
    file, given = tmp_path / "p.yaml", tmp_path / "targets.yaml"
    file.write_text(yaml.safe_dump(policy))
    given.write_text(yaml.safe_dump_all([*MAPS, *OTHERS]))
    done = command("apply", file, "-r", pods_file, "--target-resource", given)
    assert done.out.count("\n    seen: ") == changed
    assert ("error:  " in done.out) is bool(error)
    assert f"error:  {error}\n" in done.out or not error
    assert done.code == int(bool(error))


def _test_file(folder: Path, policy: dict[str, Any], *results: dict[str, Any]) -> None:
    maps = [{**one, "data": {"x": "1"}} for one in MAPS[:2]]
    changed = [
        {**one, "metadata": {**one["metadata"], "annotations": {"t": value}}}
        for one, value in zip(maps, ("a", "other"), strict=True)
    ]
    test = {
        "apiVersion": "cli.kyverno.io/v1alpha1",
        "kind": "Test",
        "metadata": {"name": "t"},
        "policies": ["policy.yaml"],
        "resources": ["resources.yaml"],
        "results": [
            {"kind": "ConfigMap", "patchedResources": "patched.yaml", **one}
            for one in results
        ],
    }
    (folder / "policy.yaml").write_text(yaml.safe_dump(policy))
    (folder / "resources.yaml").write_text(yaml.safe_dump_all(maps))
    (folder / "patched.yaml").write_text(yaml.safe_dump_all(changed))
    (folder / "kyverno-test.yaml").write_text(yaml.safe_dump(test))


RULE = {
    "apiVersion": "kyverno.io/v1",
    "kind": "ClusterPolicy",
    "metadata": {"name": "p"},
    "spec": {
        "rules": [
            {
                "name": "r",
                "match": {"any": [{"resources": {"kinds": ["ConfigMap"]}}]},
                "mutate": {
                    "patchStrategicMerge": {"metadata": {"annotations": {"t": "a"}}}
                },
            }
        ]
    },
}
EXISTING = {
    "apiVersion": "policies.kyverno.io/v1",
    "kind": "MutatingPolicy",
    "metadata": {"name": "p"},
    "spec": {
        "evaluation": {"mutateExisting": {"enabled": True}},
        "matchConstraints": {
            "resourceRules": [
                {
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "operations": ["CREATE"],
                    "resources": ["configmaps"],
                }
            ]
        },
        "mutations": [
            {
                "patchType": "ApplyConfiguration",
                "applyConfiguration": {
                    "expression": "Object{metadata: Object.metadata{annotations:"
                    " Object.metadata.annotations{t: 'a'}}}"
                },
            }
        ],
    },
}
OF_RULE = {"policy": "p", "rule": "r"}
OF_POLICY = {"policy": "p", "isMutatingPolicy": True}


@pytest.mark.parametrize(
    ("policy", "named"), [(RULE, OF_RULE), (EXISTING, OF_POLICY)], ids=["rule", "cel"]
)
def test_a_wanted_failure_is_another_patched_object(
    command: Command, tmp_path: Path, policy: dict[str, Any], named: dict[str, Any]
) -> None:
    """A policy for existing objects changes the objects of the test themselves."""
    results = [
        {**named, "resources": ["a1"], "result": "pass"},
        {**named, "resources": ["a2"], "result": "fail"},
    ]
    _test_file(tmp_path, policy, *results)
    done = command("test", tmp_path)
    assert done.code == 0, done.out
    assert "2 tests passed and 0 tests failed" in done.out


@pytest.mark.parametrize(
    ("policy", "named"), [(RULE, OF_RULE), (EXISTING, OF_POLICY)], ids=["rule", "cel"]
)
def test_an_equal_object_is_no_failure_and_another_one_no_pass(
    command: Command, tmp_path: Path, policy: dict[str, Any], named: dict[str, Any]
) -> None:
    results = [
        {**named, "resources": ["a1"], "result": "fail"},
        {**named, "resources": ["a2"], "result": "pass"},
    ]
    _test_file(tmp_path, policy, *results)
    done = command("test", tmp_path)
    assert done.code == 1
    assert "0 tests passed and 2 tests failed" in done.out

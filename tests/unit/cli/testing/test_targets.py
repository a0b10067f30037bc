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
        # The real program's mock cluster has few kinds.
        ({"kind": "Pod", "name": "p", "namespace": "apps"}, 0, ": not found"),
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

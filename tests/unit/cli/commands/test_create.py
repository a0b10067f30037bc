"""Files written by ``create`` are accepted by the commands that read them."""

from pathlib import Path

import pytest
import yaml

from tests.unit.cli.conftest import LATEST_POLICY, Command, pod


def test_test_values_and_user_info_are_valid(
    command: Command, policy_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "pods.yaml").write_text(pod("good") + pod("bad", "nginx:latest"))
    command(
        "create", "values", "-g", "request.operation=CREATE", "-n", "apps,env=prod",
        "--rule", "no-latest,tagged,x.y=1", "--resource", "no-latest,good,a=b",
        "-o", tmp_path / "values.yaml",
    )  # fmt: skip
    command(
        "create", "user-info", "-u", "alice", "-g", "dev,ops", "-r", "apps:admin",
        "-c", "viewer", "-o", tmp_path / "user.yaml",
    )  # fmt: skip
    command(
        "create", "test", "-n", "mine", "-p", policy_file.name, "-r", "pods.yaml",
        "--values", "values.yaml", "--pass", "no-latest,tagged,good,apps,Pod",
        "--fail", "no-latest,tagged,bad,,Pod", "-o", tmp_path / "kyverno-test.yaml",
    )  # fmt: skip
    done = command("test", tmp_path)
    assert "2 tests passed and 0 tests failed" in done.out
    applied = command(
        "apply", policy_file, "-r", tmp_path / "pods.yaml",
        "-f", tmp_path / "values.yaml", "-u", tmp_path / "user.yaml",
    )  # fmt: skip
    assert "pass: 1, fail: 1" in applied.out


def test_exception_is_valid(command: Command, tmp_path: Path) -> None:
    policy, file = tmp_path / "policy.yaml", tmp_path / "exception.yaml"
    policy.write_text(LATEST_POLICY)
    (tmp_path / "pod.yaml").write_text(pod("bad", "nginx:latest"))
    done = command(
        "create", "exception", "mine", "--policy-rules", "no-latest,tagged",
        "--any", "kind=Pod,kind=Job,name=ba*,namespace=apps,operation=CREATE",
        "-o", file,
    )  # fmt: skip
    assert done.code == 0
    assert yaml.safe_load(file.read_text())["spec"]["match"] == {
        "any": [
            {
                "resources": {
                    "kinds": ["Pod", "Job"],
                    "names": ["ba*"],
                    "namespaces": ["apps"],
                    "operations": ["CREATE"],
                }
            }
        ]
    }
    done = command("apply", policy, "-r", tmp_path / "pod.yaml", "-e", file)
    assert "fail: 0, warn: 0, error: 0, skip: 1" in done.out


def test_metrics_config(command: Command) -> None:
    done = command("create", "metrics-config", "-i", "a,b", "-e", "c")
    document = yaml.safe_load(done.out)
    assert document["metadata"] == {"name": "kyverno-metrics", "namespace": "kyverno"}
    found = yaml.safe_load(document["data"]["namespaces"])
    assert found == {"include": ["a", "b"], "exclude": ["c"]}


def test_cluster_role(command: Command) -> None:
    done = command(
        "create", "cluster-role", "x", "-g", "apps", "--verbs", "all",
        "--resources", "deployments,pods",
    )  # fmt: skip
    assert yaml.safe_load(done.out) == {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {
            "name": "kyverno-x-permission",
            "labels": {"rbac.kyverno.io/aggregate-to-background-controller": "true"},
        },
        "rules": [
            {
                "apiGroups": ["apps"],
                "resources": ["deployments,pods"],
                "verbs": ["create", "get", "update", "delete", "list", "watch"],
            }
        ],
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["exception", "x"], 'required flag(s) "policy-rules" not set'),
        (["exception", "x", "--policy-rules", "p,r", "--any", "Pod"], "expected key="),
        (["values", "-g", "novalue"], "expected key=value"),
        (["test", "--pass", "p,r"], "expected policy,rule,resource"),
        (["cluster-role", "x", "-g", "a"], 'required flag(s) "verbs", "resources"'),
    ],
)
def test_rejected_arguments(
    command: Command, arguments: list[str], message: str
) -> None:
    done = command("create", *arguments)
    assert done.code == 1
    assert message in done.err

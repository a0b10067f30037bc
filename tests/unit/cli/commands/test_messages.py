"""Mistakes of new users: empty files, misspelt paths, odd policies.

A failure means: a command prints nothing, or a message that does not lead to the
mistake.
"""

import json
from pathlib import Path

import pytest

from kyverno_mp.cli.output.counted import counted
from tests.unit.cli.conftest import LATEST_POLICY, Command, pod

CLEANUP = """
apiVersion: kyverno.io/v2
kind: CleanupPolicy
metadata: {name: old, namespace: team}
spec:
  match: {any: [{resources: {kinds: [Pod, apps/v1/Deployment]}}]}
  context:
  - name: all
    apiCall: {urlPath: /api/v1/namespaces}
  conditions: {all: [{key: "{{ target.metadata.name }}", operator: Equals, value: a}]}
  schedule: "*/5 * * * *"
"""


def test_explain_shows_cleanup_policies(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "clean.yaml"
    file.write_text(CLEANUP)
    (policy,) = json.loads(command("explain", file, "-o", "json").out)
    (rule,) = policy["rules"]
    assert (policy["kind"], policy["policy"]) == ("CleanupPolicy", "team/old")
    assert rule["body"] == "schedule */5 * * * *"
    assert rule["kinds"] == ["Pod", "apps/v1/Deployment"]
    assert (rule["namespaces"], rule["context"]) == (["team"], ["all"])
    assert (rule["action"], rule["effects"]) == ("delete", ["calls the cluster"])
    done = command("explain", file)
    assert (done.code, done.err) == (0, "")
    assert "CleanupPolicy team/old" in done.out


def test_lint_reports_an_empty_file(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("# nothing yet\n")
    done = command("lint", file)
    assert done.code == 0
    assert f"{file}:1:1: note: empty file [lint.not_a_policy]" in done.out


def test_misspelled_kubeconfig_is_named(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy.yaml").write_text(LATEST_POLICY)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    done = command("apply", tmp_path / "policy.yaml", "--cluster")
    assert done.code == 2
    assert f"KUBECONFIG={tmp_path / 'none'} does not exist" in done.err


def test_unreachable_cluster(command: Command, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(LATEST_POLICY)
    (tmp_path / "config").write_text(
        """
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: c}}]
current-context: c
"""
    )
    kubeconfig = ("--kubeconfig", tmp_path / "config")
    done = command("apply", tmp_path / "policy.yaml", "--cluster", *kubeconfig)
    assert done.code == 3
    assert "the API server that the kubeconfig names cannot be reached" in done.err


def test_bench_uses_singular_and_plural(command: Command, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(LATEST_POLICY)
    (tmp_path / "pod.yaml").write_text(pod("a"))
    files = (tmp_path / "policy.yaml", "-r", tmp_path / "pod.yaml")
    done = command("bench", *files, "--seconds", "0.01")
    assert done.out.startswith("1 policy with 3 rules, 1 object\n")
    assert [counted(2, "policy"), counted(0, "rule")] == ["2 policies", "0 rules"]


def test_completion_lists_the_shells(command: Command) -> None:
    assert "bash, zsh, fish, powershell" in command("completion", "tcsh").err


def test_serve_suggests_the_nearest_flag(command: Command) -> None:
    done = command("serve", "--standalone", "--policy", "x")
    assert done.err == "Error: no such flag: --policy; the nearest is --policies\n"


def test_serve_names_the_flag_of_a_missing_folder(
    command: Command, tmp_path: Path
) -> None:
    done = command("serve", "--standalone", "--policies", tmp_path / "none")
    assert done.code == 2
    expected = f"--policies (KYVERNO_MP_POLICIES_DIR): {tmp_path / 'none'} does not"
    assert expected in done.err


BODY = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {{name: p}}
spec:
  rules:
  - name: r
    match: {{any: [{{resources: {{kinds: [ConfigMap]}}}}]}}
    validate: {{message: m, {body}}}
"""


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("cel", "cel: {expressions: [{expression: 'true'}]}"),
        ("pattern", "pattern: {data: {a: b}}"),
        ("deny", "deny: {conditions: {all: []}}"),
        (
            "manifests",
            "manifests: {attestors: [{entries: [{keyless: {issuer: i, subject: s}}]}]}",
        ),
    ],
)
def test_explain_names_the_body_of_a_rule(
    command: Command, tmp_path: Path, name: str, body: str
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(BODY.format(body=body))
    (policy,) = json.loads(command("explain", file, "-o", "json").out)
    (rule,) = policy["rules"]
    assert rule["body"] == f"validate.{name}"

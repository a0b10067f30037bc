"""Policies and exceptions without a namespace are reported as written in the file."""

import json
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Command

POLICY = """
apiVersion: kyverno.io/v1
kind: Policy
metadata: {name: bare}
spec:
  rules:
  - name: r
    match: {any: [{resources: {kinds: [ConfigMap]}}]}
    validate: {message: m, pattern: {data: {a: "?*"}}}
"""
EXCEPTION = """
apiVersion: kyverno.io/v2
kind: PolicyException
metadata: {name: ex}
spec:
  exceptions: [{policyName: NAME, ruleNames: [r]}]
  match: {any: [{resources: {kinds: [ConfigMap]}}]}
"""
OBJECT = """
apiVersion: v1
kind: ConfigMap
metadata: {name: one}
data: {b: x}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: two, namespace: other}
data: {b: x}
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "p.yaml").write_text(POLICY)
    (tmp_path / "r.yaml").write_text(OBJECT)
    return tmp_path


def test_policy_without_namespace(command: Command, files: Path) -> None:
    flags = ("-r", files / "r.yaml", "-p", "--output-format", "json")
    done = command("apply", files / "p.yaml", *flags)
    [report] = [json.loads(line) for line in done.out.splitlines()]
    assert (report["kind"], report["metadata"]) == ("ClusterReport", {"name": "merged"})
    [row] = report["results"]
    assert (row["policy"], row["result"]) == ("bare", "fail")
    assert row["resources"][0]["name"] == "one"


def test_failures_become_exceptions(command: Command, files: Path) -> None:
    flags = ("-r", files / "r.yaml", "--generate-exceptions")
    assert "policyName: bare" in command("apply", files / "p.yaml", *flags).out


@pytest.mark.parametrize(
    ("name", "code", "summary"),
    [
        ("bare", 0, "pass: 0, fail: 0, warn: 0, error: 0, skip: 1"),
        ("default/bare", 1, "pass: 0, fail: 1, warn: 0, error: 0, skip: 0"),
    ],
)
def test_exceptions_use_the_name_as_written(
    command: Command, files: Path, name: str, code: int, summary: str
) -> None:
    (files / "e.yaml").write_text(EXCEPTION.replace("NAME", name))
    flags = ("-r", files / "r.yaml", "-e", files / "e.yaml")
    done = command("apply", files / "p.yaml", *flags)
    assert done.code == code
    assert summary in done.out


def test_exception_without_namespace(command: Command, files: Path) -> None:
    (files / "e.yaml").write_text(EXCEPTION.replace("NAME", "bare"))
    flags = ("-r", files / "r.yaml", "-e", files / "e.yaml", "-p")
    out = command("apply", files / "p.yaml", *flags).out
    assert "message: rule is skipped due to policy exceptionsex\n" in out
    assert "exceptions: ex\n" in out

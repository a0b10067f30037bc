"""With a machine-readable format, standard output contains only this format."""

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.cli.conftest import Command, pod

TEST = """
apiVersion: cli.kyverno.io/v1alpha1
kind: Test
metadata: {name: t}
policies: [policy.yaml]
resources: [pods.yaml, pods.yaml]
results:
- {policy: no-latest, rule: tagged, kind: Pod, resources: [good], result: pass}
- {policy: no-latest, rule: tagged, kind: Pod, resources: [bad], result: pass}
"""


def _markdown(text: str) -> list[list[str]]:
    """Return the rows of a table; every line must belong to the table."""
    lines = text.splitlines()
    assert all(line.startswith("|") for line in lines), lines
    return [line.split("|")[1:-1] for line in lines[2:]]


PARSERS: dict[str, Callable[[str], Any]] = {
    "json": json.loads,
    "yaml": yaml.safe_load,
    "junit": lambda text: list(ET.fromstring(text).iter("testcase")),
    "markdown": _markdown,
    "sarif": lambda text: json.loads(text)["runs"][0]["results"],
}


@pytest.fixture
def folder(policy_file: Path, pods_file: Path) -> Path:
    assert pods_file.parent == policy_file.parent
    (policy_file.parent / "kyverno-test.yaml").write_text(TEST + "---\n" + TEST)
    return policy_file.parent


@pytest.mark.parametrize("form", PARSERS)
@pytest.mark.parametrize(
    ("flags", "rows", "failures"),
    [((), 4, 2), (("--fail-only",), 2, 2), (("-t", "policy=nobody"), 0, 0)],
)
def test_test(
    command: Command,
    folder: Path,
    form: str,
    flags: tuple[str, ...],
    rows: int,
    failures: int,
) -> None:
    done = command("test", folder, "-o", form, *flags)
    wanted = failures if form == "sarif" else rows
    assert len(PARSERS[form](done.out)) == wanted
    assert "Test Summary:" in done.err
    assert done.code == (1 if failures else 0)


@pytest.mark.parametrize("form", PARSERS)
def test_test_without_tests(command: Command, tmp_path: Path, form: str) -> None:
    done = command("test", tmp_path, "-o", form)
    assert (list(PARSERS[form](done.out)), done.code) == ([], 0)
    assert done.err == "\nNo test yamls available\n"


def test_test_that_ends_early_reports_partial_results(
    command: Command, folder: Path
) -> None:
    """Upstream prints finished rows before the failure, too."""
    broken = TEST.replace("policies: [policy.yaml]", "policies: [gone.yaml]")
    (folder / "kyverno-test.yaml").write_text(TEST + "---\n" + broken)
    done = command("test", folder, "-o", "json")
    assert [row["ID"] for row in json.loads(done.out)] == [1, 2]
    assert "gone.yaml" in done.err
    assert done.code == 1


def test_test_with_a_file_keeps_standard_output_empty(
    command: Command, folder: Path
) -> None:
    file = folder / "rows.json"
    done = command("test", folder, "-o", "json", "--output-file", file)
    assert (done.out, done.code) == ("", 1)
    assert len(json.loads(file.read_text())) == 4


INVALID = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: invalid}
spec:
  rules:
  - name: r
    match: {any: [{resources: {kinds: [Pod]}}]}
    validate: {message: "{{ nothing.here }}", pattern: {spec: {x: "{{ nothing }}"}}}
"""
MUTATING = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: labels}
spec:
  rules:
  - name: r
    match: {any: [{resources: {kinds: [Pod]}}]}
    mutate: {patchStrategicMerge: {metadata: {labels: {a: b}}}}
"""
OLD_USER = "userInfo: {username: alice}\n"


def _reports(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


APPLY: dict[str, tuple[tuple[str, ...], Callable[[str], Any]]] = {
    "report-yaml": (("-p",), lambda text: list(yaml.safe_load_all(text))),
    "report-json": (("-p", "--output-format", "json"), _reports),
    "exceptions": (
        ("--generate-exceptions",),
        lambda text: list(yaml.safe_load_all(text)),
    ),
    **{form: (("--output-format", form), PARSERS[form]) for form in ("sarif", "junit")},
    # A line of numbers below the table is valid Markdown.
    "markdown": (
        ("--output-format", "markdown"),
        lambda text: _markdown(text.rpartition("\n\npass: ")[0]),
    ),
}


@pytest.mark.parametrize("form", APPLY)
def test_apply(command: Command, folder: Path, policy_file: Path, form: str) -> None:
    """Run with invalid policies, old files, mutations to a file, and a missing file."""
    (folder / "invalid.yaml").write_text(INVALID)
    (folder / "mutating.yaml").write_text(MUTATING)
    (folder / "user.yaml").write_text(OLD_USER)
    flags, parse = APPLY[form]
    done = command(
        "apply",
        policy_file,
        folder / "invalid.yaml",
        folder / "mutating.yaml",
        "-r",
        folder / "pods.yaml",
        "-r",
        folder / "gone.yaml",
        "-u",
        folder / "user.yaml",
        "-o",
        folder / "out.yaml",
        *flags,
    )
    assert parse(done.out)
    assert "deprecated schema" in done.err
    assert done.code == 1


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (("--audit-warn", "--warn-exit-code", "3"), 3, "exit as warnExitCode is 3"),
        (("--warn-no-pass",), 0, "exit as no objects satisfied policy\n"),
    ],
)
def test_exit_messages_are_not_in_the_report(
    command: Command,
    folder: Path,
    policy_file: Path,
    flags: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    audit = policy_file.read_text().replace("Enforce", "Audit")
    policy_file.write_text(audit)
    kind = "ConfigMap" if code == 0 else "Pod"
    file = folder / "object.yaml"
    file.write_text(pod("bad", "nginx:latest").replace("kind: Pod", f"kind: {kind}"))
    done = command(
        "apply", policy_file, "-r", file, "-p", "--output-format", "json", *flags
    )
    assert len(_reports(done.out)) == (1 if code else 0)
    assert done.err.endswith(said)
    assert done.code == code

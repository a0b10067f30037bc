"""A malformed file is reported with its line, never with a traceback."""

from pathlib import Path

import pytest

from tests.unit.cli.conftest import Command

API = "apiVersion: cli.kyverno.io/v1alpha1\nkind: "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("apiVersion: 1\nkind: Pod", "apiVersion is not text"),
        ("apiVersion: v1", "has no kind"),
        ("- 1", "has no kind"),
        ("a: 1\nb: [\nc: }", "object.yaml: line 3: did not find expected node"),
    ],
)
def test_resources(
    command: Command, policy_file: Path, tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "object.yaml"
    file.write_text(text)
    done = command("apply", policy_file, "-r", file)
    assert done.code == 1
    assert message in done.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("policies: [", ": line 3: did not find expected node content"),
        ("policies: x", "string into Go struct field Test.policies of type []string"),
        ("policies: [[1]]", "field Test.policies of type string"),
        ("results: [x]", "field Test.results of type v1alpha1.TestResult"),
        ("wrong: 1", 'unknown field "wrong"'),
    ],
)
def test_tests(command: Command, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "kyverno-test.yaml").write_text(f"{API}Test\n{text}\n")
    done = command("test", tmp_path)
    assert (done.code, done.err) == (1, "Error: found 1 errors after loading tests\n")
    assert message in done.out

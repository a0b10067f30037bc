"""A test that cannot be evaluated is named, and the tests beside it run."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.unit.cli.conftest import LATEST_POLICY, Command, pod

MATCHED = LATEST_POLICY.replace("no-latest", "in-cel").partition("    validate:")[0]
ANYONE = "additionalExtensions: {a: b}"
VERIFY = f"{MATCHED}    verifyImages: [{{imageReferences: ['*'], {ANYONE}}}]\n"
ATTESTORS = "attestors: [{entries: [{keys: {kms: k}}]}]"
MANIFESTS = f"{MATCHED}    validate: {{manifests: {{{ATTESTORS}}}}}\n"
TEST = """
apiVersion: cli.kyverno.io/v1alpha1
kind: Test
metadata: {{name: t}}
policies: [{policies}]
resources: [pods.yaml]
results:
- {{policy: {policy}, rule: tagged, kind: Pod, resources: [{pod}], result: {result}}}
"""
NEEDS = {
    "verifyImages": VERIFY,
    "manifests": MANIFESTS,
}


def write(folder: Path, text: str, **names: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "no-latest.yaml").write_text(LATEST_POLICY)
    (folder / "in-cel.yaml").write_text(text)
    (folder / "pods.yaml").write_text(pod("good") + pod("bad", "nginx:latest"))
    given = {"policies": "in-cel.yaml", "policy": "in-cel", "pod": "good"} | names
    test = TEST.format(**{"result": "pass"} | given)
    (folder / "kyverno-test.yaml").write_text(test)
    return folder


@pytest.fixture(params=NEEDS)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return three tests; the second one cannot be evaluated."""
    judged = {"policies": "no-latest.yaml", "policy": "no-latest"}
    write(tmp_path / "a", LATEST_POLICY, **judged)
    write(tmp_path / "b", NEEDS[request.param])
    write(tmp_path / "c", LATEST_POLICY, pod="bad", **judged)
    return tmp_path


def test_unsupported_test_is_skipped_by_name(command: Command, root: Path) -> None:
    done = command("test", root)
    assert "\nTest Summary: 1 tests passed and 1 tests failed\n" in done.out
    assert "Skipped: 1 tests of 1 test file\n" in done.out
    assert f"skipped: {root / 'b' / 'kyverno-test.yaml'}: not evaluated" in done.err
    assert "in-cel" in done.err
    assert (done.code, done.err.splitlines()[-1]) == (1, "Error: 1 tests failed")


def test_skipped_test_is_no_success_unless_allowed(
    command: Command, root: Path
) -> None:
    """A skipped test was not checked, so a pipeline must not treat it as passed."""
    write(root / "c", "a: 1", policies="no-latest.yaml", policy="no-latest")
    done = command("test", root)
    assert "\nTest Summary: 2 tests passed and 0 tests failed\n" in done.out
    assert done.code == 1
    assert "Error: 1 tests were skipped" in done.err
    done = command("test", root, "--allow-skipped")
    assert (done.code, "Error" in done.err) == (0, False)
    assert "skipped: " in done.err


def test_formats_mark_skipped_tests(command: Command, root: Path) -> None:
    done = command("test", root, "-o", "json")
    rows = [
        (one["POLICY"], one["RESULT"], one["REASON"]) for one in json.loads(done.out)
    ]
    assert rows == [
        ("no-latest", "Pass", "Ok"),
        ("in-cel", "Skip", "Not evaluated"),
        ("no-latest", "Fail", "Want pass, got fail"),
    ]
    suites = ET.fromstring(command("test", root, "-o", "junit").out)
    assert suites.attrib == {"tests": "3", "failures": "1", "skipped": "1"}
    assert len(suites.findall("./testsuite/testcase/skipped")) == 1


def test_selector_can_exclude_it(command: Command, root: Path) -> None:
    done = command("test", root, "-t", "policy=no-latest")
    assert "1 tests passed and 1 tests failed" in done.out
    assert "kipped" not in done.out + done.err


def test_rule_without_expected_results_is_irrelevant(
    command: Command, tmp_path: Path
) -> None:
    """The policy's other rules are evaluated as before."""
    verify = VERIFY[VERIFY.index("  - name") :].replace("tagged", "signed")
    text = LATEST_POLICY.replace("no-latest", "in-cel") + verify
    done = command("test", write(tmp_path / "a", text))
    assert (done.code, "1 tests passed" in done.out) == (0, True)

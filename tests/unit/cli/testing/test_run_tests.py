"""Test compares rows and writes documents for other programs."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml

from tests.unit.cli.conftest import Command
from tests.unit.cli.sarif_essentials import check_sarif

HEAD = """
apiVersion: cli.kyverno.io/v1alpha1
kind: Test
metadata: {name: t}
policies: [policy.yaml]
resources: [pods.yaml]
results:
"""
GOOD = (
    "- {policy: no-latest, rule: tagged, kind: Pod, resources: [good], result: pass}\n"
)
WRONG = (
    "- {policy: no-latest, rule: tagged, kind: Pod, resources: [bad], result: pass}\n"
)
CHECKS = """checks:
- match: {resource: {metadata: {name: bad}}, policy: {metadata: {name: no-latest}}}
  assert: {status: fail, "(contains(message, 'tag'))": true}
- match: {rule: {name: tagged}, resource: {metadata: {name: good}}}
  error: {status: fail}
- match: {rule: {name: nothing}}
  assert: {status: fail}
- assert: {status: fail}
"""


@pytest.fixture
def folder(tmp_path: Path, policy_file: Path, pods_file: Path) -> Path:
    assert policy_file.parent == pods_file.parent == tmp_path
    (tmp_path / "kyverno-test.yaml").write_text(HEAD + GOOD + WRONG)
    return tmp_path


def test_failure(command: Command, folder: Path) -> None:
    done = command("test", folder)
    assert "Want pass, got fail" in done.out
    assert "\nTest Summary: 1 tests passed and 1 tests failed\n\n" in done.out
    assert (done.code, done.err) == (1, "Error: 1 tests failed\n")


def test_fail_only(command: Command, folder: Path) -> None:
    done = command("test", folder, "--fail-only")
    assert "\nTest Summary: 1 out of 2 tests failed\n\n" in done.out
    assert "Aggregated Failed Test Cases : \n" in done.out
    assert done.code == 1


def test_sarif_alone_on_standard_output(command: Command, folder: Path) -> None:
    done = command("test", folder, "-o", "sarif")
    (found,) = check_sarif(json.loads(done.out))
    place = json.loads(json.dumps(found))["locations"][0]["physicalLocation"]
    assert place["region"]["startLine"] == 9
    assert place["artifactLocation"]["uri"].endswith("/kyverno-test.yaml")
    assert done.code == 1


@pytest.mark.parametrize("form", ["json", "yaml", "junit", "markdown", "sarif"])
def test_output_file_contains_one_document(
    command: Command, folder: Path, form: str
) -> None:
    second = folder / "second"
    second.mkdir()
    (second / "kyverno-test.yaml").write_text(
        HEAD.replace("policy.yaml", "../policy.yaml").replace("pods.", "../pods.")
        + GOOD
    )
    file = folder / "rows.out"
    assert command("test", folder, "-o", form, "--output-file", file).code == 1
    text = file.read_text()
    if form == "junit":
        assert ET.fromstring(text).attrib == {"tests": "3", "failures": "1"}
    elif form == "markdown":
        assert len(text.splitlines()) == 5
    elif form == "sarif":
        assert len(check_sarif(json.loads(text))) == 1
    else:
        rows = json.loads(text) if form == "json" else yaml.safe_load(text)
        assert [row["ID"] for row in rows] == [1, 2, 3]


def test_junit_escapes(command: Command, folder: Path) -> None:
    file = folder / "rows.xml"
    name = 'a"<b>&'
    entry = json.dumps({"policy": name, "rule": name, "result": "pass"})
    (folder / "kyverno-test.yaml").write_text(HEAD + f"- {entry}\n")
    command("test", folder, "-o", "junit", "--output-file", file)
    case = ET.parse(file).find("testsuite/testcase")
    assert case is not None
    assert case.attrib["classname"] == name


def test_checks(command: Command, folder: Path) -> None:
    (folder / "kyverno-test.yaml").write_text(HEAD + GOOD + CHECKS)
    done = command("test", folder, "-o", "json", "--output-file", folder / "rows.json")
    rows = json.loads((folder / "rows.json").read_text())
    assert [(row["RESOURCE"], row["RESULT"]) for row in rows[1:]] == [
        ("apps/Pod/bad", "Pass"),
        ("apps/Pod/good", "Pass"),
        ("apps/Pod/good", "Fail"),
        ("apps/Pod/bad", "Pass"),
    ]
    assert rows[3]["REASON"] == 'status: Invalid value: "pass": Expected value: "fail"'
    assert done.code == 1


def test_selector(command: Command, folder: Path) -> None:
    done = command("test", folder, "-t", "resource=good")
    assert "1 tests passed and 0 tests failed" in done.out
    assert done.code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "requires at least 1 arg(s), only received 0"),
        (
            ["{}", "-o", "xml"],
            (
                "Invalid value for '-o': 'xml' is not one of 'json', 'yaml',"
                " 'markdown', 'junit', 'sarif', 'github', 'tap'."
            ),
        ),
        (["{}/second", "--require-tests"], "no tests found"),
    ],
)
def test_rejected_arguments(
    command: Command, folder: Path, arguments: list[str], message: str
) -> None:
    (folder / "second").mkdir()
    done = command("test", *(part.format(folder) for part in arguments))
    assert (done.code, done.err) == (1, f"Error: {message}\n")


def test_each_object_without_a_result_has_a_row(command: Command, folder: Path) -> None:
    file = folder / "kyverno-test.yaml"
    both = "kind: Pod, resources: [good, bad], result: pass}\n"
    file.write_text(f"{HEAD}- {{policy: gone, rule: tagged, {both}")
    done = command("test", folder)
    assert done.out.count("Not found") == 2
    assert "0 tests passed and 2 tests failed" in done.out
    file.write_text(
        HEAD.replace("[pods.yaml]", "[]") + f"- {{policy: gone, rule: tagged, {both}"
    )
    done = command("test", folder)
    assert (done.code, "│" in done.out) == (0, False)


def test_policy_that_mutates_and_validates_has_two_rows(
    command: Command, folder: Path, policy_file: Path
) -> None:
    policy = yaml.safe_load(policy_file.read_text())
    match = {"any": [{"resources": {"kinds": ["ConfigMap"]}}]}
    patch = {"patchStrategicMerge": {"metadata": {"labels": {"a": "b"}}}}
    policy["spec"]["rules"].append({"name": "add", "match": match, "mutate": patch})
    policy_file.write_text(yaml.safe_dump(policy))
    (folder / "kyverno-test.yaml").write_text(HEAD + GOOD)
    done = command("test", folder)
    reasons = [
        line.split("│")[-2].strip() for line in done.out.split("\n") if "│" in line
    ]
    assert [reason for reason in reasons if reason in ("Ok", "Excluded")] == [
        "Excluded",
        "Ok",
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("policy.yaml", None, "failed to load policies (stat "),
        ("policy.yaml", "kind: Pod\napiVersion: v1", "failed to load policies (failed"),
        ("pods.yaml", None, "failed to load resources (stat "),
    ],
)
def test_unreadable_file_ends_the_test(
    command: Command, folder: Path, name: str, text: str | None, message: str
) -> None:
    path = folder / name
    path.unlink() if text is None else path.write_text(text)
    done = command("test", folder)
    assert done.err.startswith(f"Error: failed to run test (error: {message}")
    assert done.code == 1


def test_later_unreadable_file_is_reported(command: Command, folder: Path) -> None:
    more = HEAD.replace("[pods.yaml]", "[pods.yaml, gone.yaml]")
    (folder / "kyverno-test.yaml").write_text(more + GOOD)
    done = command("test", folder)
    assert f"failed to load resources: {folder / 'gone.yaml'}. " in done.out
    assert done.code == 0


@pytest.mark.parametrize(
    ("selector", "kept", "problem"),
    [
        ("policy=no-*,policy=*-latest", 2, ""),
        ("policy=no-*,policy=other", 0, ""),
        ("resource=good", 1, ""),
        ("", 2, ""),
        ("bogus", 2, "Invalid test-case-selector argument (bogus). Parameter must"),
        ("rule=a=b", 2, "Invalid test-case-selector argument (rule=a=b)."),
        ("kind=Pod", 2, "Invalid test-case-selector (kind=Pod). Parameter can only"),
    ],
)
def test_selector_items(
    command: Command, folder: Path, selector: str, kept: int, problem: str
) -> None:
    done = command("test", folder, "-t", selector)
    assert done.out.count("│ no-latest │") == kept
    assert problem in done.out


CLONES = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: clones}
spec:
  rules:
  - name: copy
    match: {any: [{resources: {kinds: [Pod]}}]}
    generate: {SPEC}
"""
SOURCE = """
apiVersion: v1
kind: ConfigMap
metadata: {name: source, namespace: from}
data: {a: b}
"""
ONE = (
    "{apiVersion: v1, kind: ConfigMap, name: made, namespace: apps,"
    " clone: {name: source, namespace: from}}"
)
EACH = f"{{foreach: [{{list: '`[1]`', {ONE[1:]}]}}"


@pytest.mark.parametrize(
    ("spec", "rows", "reasons"),
    [
        (ONE, ["source.yaml"], ["Ok"]),
        # The rule's first result decides, here on a file that does not exist.
        (ONE, ["gone.yaml", "source.yaml"], ["Excluded", "Excluded"]),
        (EACH, ["source.yaml"], ["Excluded"]),
    ],
)
def test_sources_of_clones(
    command: Command, folder: Path, spec: str, rows: list[str], reasons: list[str]
) -> None:
    (folder / "policy.yaml").write_text(CLONES.replace("{SPEC}", spec))
    (folder / "source.yaml").write_text(SOURCE)
    (folder / "made.yaml").write_text(
        SOURCE.replace("name: source, namespace: from", "name: made, namespace: apps")
    )
    text = "".join(
        "- {policy: clones, rule: copy, kind: Pod, resources: [good], result: pass,"
        f" generatedResource: made.yaml, cloneSourceResource: {row}}}\n"
        for row in rows
    )
    (folder / "kyverno-test.yaml").write_text(HEAD + text)
    done = command("test", folder)
    found = [
        line.split("│")[-2].strip() for line in done.out.split("\n") if "│ " in line
    ]
    assert found[1:] == reasons
    assert done.code == 0


def test_rejected_policy_names_the_reason(command: Command, folder: Path) -> None:
    """The real program also skips the policy's row and shows the reason."""
    policy = (folder / "policy.yaml").read_text()
    lists = "      foreach: [{list: '{{ request.object.spec.containers }}'}]\n"
    assert policy.count("    validate:\n") == 1
    (folder / "policy.yaml").write_text(
        policy.replace("    validate:\n", "    mutate:\n" + lists + "    validate:\n")
    )
    (folder / "kyverno-test.yaml").write_text(HEAD + GOOD)
    done = command("test", folder, "-o", "json", "--detailed-results")
    (row,) = json.loads(done.out)
    assert (row["RESULT"], row["REASON"]) == ("Skip", "Invalid Policy")
    assert "only one operation (" in row["Message"]

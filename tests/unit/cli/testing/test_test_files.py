"""A test file is decoded as in Go: names in any case, strings, errors.

The expected values were produced by encoding/json with sigs.k8s.io/yaml, which decoded
these documents into equivalent structs.
"""

from pathlib import Path

import pytest

from kyverno_mp.values.jsonvalue import Json
from tests.unit.cli.conftest import LATEST_POLICY, Command, pod

JSON = "error unmarshaling JSON: while decoding JSON: json:"
YAML = "error converting YAML to JSON: yaml:"
CANNOT = f"{JSON} cannot unmarshal"
HEAD = "apiVersion: cli.kyverno.io/v1alpha1\nkind: Test\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "results:\n- {rule: 1}",
            (
                f"{CANNOT} number into Go struct field"
                " TestResult.results.TestResultBase.rule of type string"
            ),
        ),
        ("metadata: {name: 1, foo: 2}", f'{JSON} unknown field "foo"'),
        ("foo: 1", f'{JSON} unknown field "foo"'),
        ("results:\n- {foo: 1}", f'{JSON} unknown field "foo"'),
        (
            "results:\n- {resources: a}",
            (
                f"{CANNOT} string into Go struct field"
                " TestResult.results.TestResultData.resources of type []string"
            ),
        ),
        (
            "results: {}\n",
            (
                f"{CANNOT} object into Go struct field Test.results of type"
                " []v1alpha1.TestResult"
            ),
        ),
        (
            "policies: a",
            f"{CANNOT} string into Go struct field Test.policies of type []string",
        ),
        (
            "results:\n- a",
            (
                f"{CANNOT} string into Go struct field Test.results of type"
                " v1alpha1.TestResult"
            ),
        ),
        ("a: 1\na: 2", f'{YAML} unmarshal errors:\n  line 2: key "a" already set'),
        ("a: b: c", f"{YAML} mapping values are not allowed in this context"),
        (
            "results:\n- {policy: p}\n- {result: 1, kind: 2}",
            (
                f"{CANNOT} number into Go struct field"
                " TestResult.results.TestResultBase.kind of type string"
            ),
        ),
        (
            "metadata: {labels: {a: 1, b: null}, annotations: {a: [1]}}",
            (
                f"{CANNOT} array into Go struct field"
                " ObjectMeta.metadata.annotations of type string"
            ),
        ),
        ("rule: [unclosed", f"{YAML} line 1: did not find expected ',' or ']'"),
        ("\tx: 1", f"{YAML} found character that cannot start any token"),
        ("- a\n- b", f"{CANNOT} array into Go value of type v1alpha1.Test"),
        ("a", f"{CANNOT} string into Go value of type v1alpha1.Test"),
        (
            "results:\n- {failOnMissingResources: 'true'}",
            (
                f"{CANNOT} string into Go struct field"
                " TestResult.results.TestResultBase.failOnMissingResources of type bool"
            ),
        ),
        (
            "results:\n- {resources: [1, null]}",
            (
                f"{CANNOT} number into Go struct field"
                " TestResult.results.TestResultData.resources of type string"
            ),
        ),
        ("zzz: 1\naaa: 2\nname: [1]", f'{JSON} unknown field "aaa"'),
        (
            "values: [1]",
            (
                f"{CANNOT} array into Go struct field Test.values of type"
                " v1alpha1.ValuesSpec"
            ),
        ),
        (
            "kind: 1\napiVersion: true",
            (
                f"{CANNOT} bool into Go struct field Test.TypeMeta.apiVersion of type"
                " string"
            ),
        ),
        ("a: 1\nb: c: d\n", f"{YAML} line 2: mapping values are not allowed in this"),
        ("a: 'x\nb: 1\n", f"{YAML} line 3: found unexpected end of stream"),
        ("a: 1\nb: *x\n", f"{YAML} unknown anchor 'x' referenced"),
        ('a: 1\nb: "\\q"\n', f"{YAML} line 2: found unknown escape character"),
        ("1: a", f'{JSON} unknown field "1"'),
        ("\u017fpecs: 1", f'{JSON} unknown field "\u017fpecs"'),
    ],
)
def test_decoding_errors_have_gos_texts(
    command: Command, tmp_path: Path, text: str, error: str
) -> None:
    file = tmp_path / "kyverno-test.yaml"
    file.write_text(text)
    done = command("test", tmp_path)
    assert f"\nTest errors:\n  Path: {file}\n    Error: {error}" in done.out
    assert (done.code, done.err) == (1, "Error: found 1 errors after loading tests\n")


def _test(changes: dict[str, str]) -> str:
    text = (
        f"{HEAD}metadata: {{name: 1}}\npolicies: [1.yaml]\nresources: [pods.yaml]\n"
        "values: {policies: [{name: 1, rules: [{name: 2, values: {a: b}}]}]}\n"
        "results:\n"
        "- {policy: no-latest, rule: tagged, kind: Pod, resources: [bad], result: fail,"
        " failOnMissingResources: true}\n"
    )
    for name, other in changes.items():
        assert f"{name}:" in text
        text = text.replace(f"{name}:", f"{other}:")
    return text


NAMES = [
    "apiVersion",
    "kind",
    "metadata",
    "name",
    "policies",
    "resources",
    "values",
    "rules",
    "results",
    "policy",
    "rule",
    "result",
    "failOnMissingResources",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("other", [str.upper, str.lower, str.swapcase, str.title])
def test_names_are_case_insensitive(
    command: Command, tmp_path: Path, name: str, other: Json
) -> None:
    """Otherwise, such a name would be reported as unknown, and no test would run."""
    (tmp_path / "1.yaml").write_text(LATEST_POLICY)
    (tmp_path / "pods.yaml").write_text(pod("bad", "nginx:latest"))
    (tmp_path / "kyverno-test.yaml").write_text(_test({name: other(name)}))
    done = command("test", tmp_path)
    assert "Test Summary: 1 tests passed and 0 tests failed" in done.out
    assert done.code == 0


def test_case_folding_equals_gos(command: Command, tmp_path: Path) -> None:
    (tmp_path / "1.yaml").write_text(LATEST_POLICY)
    (tmp_path / "pods.yaml").write_text(pod("bad", "nginx:latest"))
    text = _test({"results": "re\u017fult\u017f", "kind": "\u212aind"})
    (tmp_path / "kyverno-test.yaml").write_text(text)
    assert "1 tests passed" in command("test", tmp_path).out


def test_last_of_two_names_that_differ_in_case_wins(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "1.yaml").write_text(LATEST_POLICY)
    (tmp_path / "pods.yaml").write_text(pod("bad", "nginx:latest"))
    (tmp_path / "kyverno-test.yaml").write_text(_test({}) + "POLICIES: [gone.yaml]\n")
    assert "1 tests passed" in command("test", tmp_path).out


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        (
            "-f",
            "APIVERSION: cli.kyverno.io/v1alpha1\nKIND: Values\nGlobalValues: {}\n",
        ),
        ("-u", "ApiVersion: cli.kyverno.io/v1alpha1\nKind: UserInfo\nuserinfo: {}\n"),
    ],
)
def test_names_in_other_files_are_case_insensitive(
    command: Command,
    policy_file: Path,
    pods_file: Path,
    tmp_path: Path,
    flag: str,
    text: str,
) -> None:
    file = tmp_path / "more.yaml"
    file.write_text(text)
    done = command("apply", policy_file, "-r", pods_file, flag, file)
    assert "pass: 1, fail: 1" in done.out

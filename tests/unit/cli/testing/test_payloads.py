"""Files that only policies in CEL read are decoded strictly, and reported if unused."""

import json
from pathlib import Path

import pytest

from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.sources.payloads import load_context, load_payload
from tests.unit.cli.conftest import LATEST_POLICY, Command, pod

CONTEXT = """
apiVersion: cli.kyverno.io/v1alpha1
kind: Context
metadata: {name: c}
spec:
  resources:
  - {apiVersion: v1, kind: ConfigMap, metadata: {name: m, namespace: n}}
  images:
  - {image: "nginx:1", registry: docker.io, config: {config: {User: "0"}}}
"""
CEL_POLICY = """
apiVersion: policies.kyverno.io/v1
kind: ValidatingPolicy
metadata: {name: v}
spec: {evaluation: {mode: JSON}, validations: [{expression: "object.a == 1"}]}
"""


def test_context(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(CONTEXT)
    found = load_context(file)
    assert [one["kind"] for one in found.resources] == ["ConfigMap"]
    assert found.images["nginx:1"]["registry"] == "docker.io"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kind: Context", "kind: Values", ""),
        ("registry:", "regstry:", 'unknown field "regstry"'),
        ("resources:", "resource:", 'unknown field "resource"'),
        ("registry:", "REGISTRY:", ""),
        ("kind: ConfigMap", "king: ConfigMap", "Object 'Kind' is missing in '{"),
    ],
)
def test_context_is_strict(tmp_path: Path, old: str, new: str, message: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(CONTEXT.replace(old, new, 1))
    if not message:
        load_context(file)
        return
    with pytest.raises(CommandFailed, match=message):
        load_context(file)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.json", '{"a": 1}', ""),
        ("p.yaml", "a: 1", ""),
        ("p.txt", "a: 1", "unrecognized payload format"),
        ("p.json", "[1]", "not one map"),
        ("p.yaml", "a: 1\n---\nb: 1", "not one map"),
        ("p.json", "{", "Expecting property name"),
    ],
)
def test_payload(tmp_path: Path, name: str, text: str, message: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    if not message:
        assert load_payload(file) == {"a": 1}
        return
    with pytest.raises(CommandFailed, match=message):
        load_payload(file)


def write_test(folder: Path, **fields: object) -> None:
    (folder / "policy.yaml").write_text(LATEST_POLICY)
    (folder / "cel.yaml").write_text(CEL_POLICY)
    (folder / "context.yaml").write_text(CONTEXT)
    (folder / "payload.json").write_text('{"a": 1}')
    (folder / "pods.yaml").write_text(pod("bad", "nginx:latest"))
    result = {"policy": "no-latest", "rule": "tagged", "kind": "Pod", "result": "fail"}
    test = {
        "apiVersion": "cli.kyverno.io/v1alpha1",
        "kind": "Test",
        "metadata": {"name": "t"},
        "policies": ["policy.yaml"],
        "resources": ["pods.yaml"],
        "results": [{**result, "resources": ["bad"]}],
    }
    (folder / "kyverno-test.yaml").write_text(json.dumps({**test, **fields}))


def test_policies_that_read_no_context_are_tested(
    command: Command, tmp_path: Path
) -> None:
    write_test(tmp_path, context="context.yaml", jsonPayload="payload.json")
    done = command("test", tmp_path)
    assert done.code == 0, done.err
    assert "  Loading JSON payload ..." in done.out
    assert "1 tests passed and 0 tests failed" in done.out


def test_policies_that_read_the_context_are_tested(
    command: Command, tmp_path: Path
) -> None:
    results = [{"policy": "v", "kind": "", "result": "pass"}]
    given = {"policies": ["cel.yaml"], "resources": [], "jsonPayload": "payload.json"}
    write_test(tmp_path, **given, results=results)
    done = command("test", tmp_path, "-o", "json", "--detailed-results")
    assert done.code == 0
    # The real program writes a slash before a name without a folder.
    rows = json.loads(done.out)
    (row,) = (one for one in rows if one["RESOURCE"] == "/payload.json")
    assert (row["RESULT"], row["REASON"], row["Message"]) == ("Pass", "Ok", "success")


def test_invalid_context_fails_the_test(command: Command, tmp_path: Path) -> None:
    write_test(tmp_path, context="pods.yaml")
    done = command("test", tmp_path)
    assert done.code == 1
    assert "error unmarshaling JSON: while decoding JSON: json: unknown" in done.err


def test_apply_to_a_payload(command: Command, tmp_path: Path) -> None:
    write_test(tmp_path)
    payload = tmp_path / "payload.json"
    done = command("apply", tmp_path / "policy.yaml", "--json", payload)
    assert done.code == 0
    assert " to 1 resource(s)..." in done.out
    done = command("apply", tmp_path / "cel.yaml", "--json", payload)
    assert done.code == 0
    assert "pass: 1, fail: 0" in done.out
    payload.write_text('{"a": 2}')
    done = command("apply", tmp_path / "cel.yaml", "--json", payload)
    assert done.code == 1
    assert "policy v -> resource JSON payload failed:" in done.out
    assert "1 -  CEL expression validation failed at index 0" in done.out


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("validations:", "validaciones:", 'unknown field "validaciones"'),
        ("kind: ValidatingPolicy", "kind: Policy", "policy type not supported"),
    ],
)
def test_cel_policies_are_decoded(
    command: Command, tmp_path: Path, old: str, new: str, reason: str
) -> None:
    write_test(tmp_path)
    file = tmp_path / "cel.yaml"
    file.write_text(CEL_POLICY.replace(old, new))
    done = command("apply", file, "-r", tmp_path / "pods.yaml")
    assert f"policy path skipped: {file}: " in done.err
    assert reason in done.err


NUMBERS = """
apiVersion: policies.kyverno.io/v1
kind: ValidatingPolicy
metadata: {name: v}
spec:
  evaluation: {mode: JSON}
  validations:
  - expression: size(object) > 2
    message: small
  - expression: "false"
    messageExpression: >-
      string(type(object.a) == double) + ' ' + string(object.b) + ' ' +
      string(oldObject == null)
"""


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "p.json",
            '{"a": 1, "b": 9007199254740993, "c": {}}',
            "true 9.007199254740992e+15 true",
        ),
        (
            "p.yaml",
            "{a: 1, b: 9007199254740993, c: 1.5}",
            "false 9007199254740993 true",
        ),
        ("p.json", "{}", "small"),
    ],
)
def test_payload_numbers(
    command: Command, tmp_path: Path, name: str, text: str, message: str
) -> None:
    """As in the real program, numbers are doubles, and an empty payload is a map."""
    (tmp_path / "v.yaml").write_text(NUMBERS)
    (tmp_path / name).write_text(text)
    done = command("apply", tmp_path / "v.yaml", "--json", tmp_path / name)
    assert f"1 -  {message}\n" in done.out
    assert "pass: 0, fail: 1, warn: 0, error: 0, skip: 0" in done.out

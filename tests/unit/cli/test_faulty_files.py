"""A file of the wrong shape is told with its place; it never ends in a traceback."""

from pathlib import Path

import pytest

from tests.unit.cli.conftest import Command

API = "apiVersion: cli.kyverno.io/v1alpha1\nkind: "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("apiVersion: v1\nkind: Pod\nmetadata: x", "document 0: metadata is no map"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: [a]}", "name is no text"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {namespace: {}}", "namespace is no"),
        ("apiVersion: 1\nkind: Pod", "apiVersion is no text"),
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
        ("policies: [", ": line 4: did not find expected node content"),
        ("policies: x", ".policies: expected list, got str"),
        ("policies: [1]", "policies[0]: expected a map, got int"),
        ("globals: {}", 'unknown field "globals"'),
        ("namespaces: [{metadata: 1}]", "namespaces: metadata: expected a map"),
        ("namespaces: [{metadata: {name: 1}}]", "metadata.name is no text"),
        ("namespaceSelector: [{name: [a]}]", "namespaceSelector.name: expected str"),
        ("namespaceSelector: [{labels: {a: 1}}]", "labels[0]: expected a text"),
        ("subresources: [1]", "subresources[0]: expected a map"),
    ],
)
def test_values(
    command: Command,
    policy_file: Path,
    pods_file: Path,
    tmp_path: Path,
    text: str,
    message: str,
) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(f"{API}Values\n{text}\n")
    done = command("apply", policy_file, "-r", pods_file, "-f", file)
    assert done.code == 1
    assert message in done.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("policies: [1]", "policies[0]: expected a text, got int"),
        ("results: [{policy: p, resources: [1]}]", "results[0].resources[0]: expected"),
        ("results: [{policy: [p]}]", "results[0].policy: expected str, got list"),
        ("results: [x]", "results[0]: expected a map, got str"),
        ("wrong: 1", 'unknown field "wrong"'),
    ],
)
def test_tests(command: Command, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "kyverno-test.yaml").write_text(f"{API}Test\n{text}\n")
    done = command("test", tmp_path)
    assert (done.code, done.err) == (1, "Error: found 1 errors after loading tests\n")
    assert message in done.out

"""Differences are reported by field, with the terms of the test file."""

from pathlib import Path

import pytest

from kyverno_mp.cli.output.field_diff import field_differences
from kyverno_mp.values.jsonvalue import Json
from tests.unit.cli.conftest import Command, pod


@pytest.mark.parametrize(
    ("wanted", "actual", "lines"),
    [
        ({"a": 1}, {"a": 1.0}, []),
        ({"a": 1}, {"a": 2}, ["a: expected 1, got 2"]),
        ({"a": 1}, {"a": True}, ["a: expected 1, got true"]),
        ({"a": {"b": "x"}}, {"a": {}}, ['a.b: expected "x", got nothing']),
        ({}, {"c": None}, ["c: expected nothing, got null"]),
        ([{"x": 1}], [{"x": 1}, 2], ["[1]: expected nothing, got 2"]),
        ({"l": [1, 2]}, {"l": [1]}, ["l[1]: expected 2, got nothing"]),
        ({"a": []}, {"a": {}}, ["a: expected [], got {}"]),
    ],
)
def test_lines(wanted: Json, actual: Json, lines: list[str]) -> None:
    assert list(field_differences(wanted, actual)) == lines


def test_failed_test_lists_the_fields(command: Command, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(
        "apiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {name: p}\n"
        "spec:\n  rules:\n  - name: r\n"
        "    match: {any: [{resources: {kinds: [Pod]}}]}\n"
        "    mutate: {patchStrategicMerge: {spec: {nodeName: here}}}\n"
    )
    (tmp_path / "pods.yaml").write_text(pod("one"))
    (tmp_path / "patched.yaml").write_text(pod("one") + "  nodeName: there\n")
    (tmp_path / "kyverno-test.yaml").write_text(
        "apiVersion: cli.kyverno.io/v1alpha1\nkind: Test\nmetadata: {name: t}\n"
        "policies: [policy.yaml]\nresources: [pods.yaml]\nresults:\n"
        "- {policy: p, rule: r, kind: Pod, resources: [one], result: pass,"
        " patchedResources: patched.yaml}\n"
    )
    done = command("test", tmp_path)
    assert "Resource diff" in done.out
    assert '\n  spec.nodeName: expected "there", got "here"\n' in done.err
    assert done.code == 1

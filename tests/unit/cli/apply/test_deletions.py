"""Mutate rules on a deletion, as the real program 1.18.2 answers.

The real program printed every expected status and text. A failure means: a pipeline
that applies policies to deletions sees other results than with Kyverno.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kyverno_mp.values.jsonvalue import Json
from tests.unit.cli.conftest import Command

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": "default", "labels": {"q": "r"}},
    "spec": {"containers": [{"name": "c", "image": "nginx"}]},
}
VALUES = {
    "apiVersion": "cli.kyverno.io/v1alpha1",
    "kind": "Values",
    "globalValues": {"request.operation": "DELETE"},
}
NO_KIND = "failed to unmarshal patched resource: Object 'Kind' is missing in "
NO_OBJECT = ": invalid value, expected object"


def merge(**metadata: Json) -> dict[str, Json]:
    return {"patchStrategicMerge": {"metadata": metadata}}


def patch(text: str) -> dict[str, Json]:
    return {"patchesJson6902": f"- {{{text}}}"}


CASES: dict[str, tuple[dict[str, Json], str, str]] = {
    "merge": (
        merge(labels={"a": "b"}),
        "error",
        NO_KIND + """'{"metadata":{"labels":{"a":"b"}}}'""",
    ),
    "condition": (merge(labels={"(q)": "r", "a": "b"}), "error", NO_KIND + "'{}'"),
    "kind": (
        {"patchStrategicMerge": {"kind": "Pod", "metadata": {"name": "new"}}},
        "pass",
        "mutated Pod/new",
    ),
    "foreach": (
        {"foreach": [{"list": "request.oldObject.spec.containers", **merge(name="x")}]},
        "error",
        f"failed to mutate elements: {NO_KIND}" + """'{"metadata":{"name":"x"}}'""",
    ),
    "add": (
        patch("op: add, path: /x, value: y"),
        "error",
        f"failed to patch resource: error in add for path: '/x'{NO_OBJECT}",
    ),
    "add below": (
        patch("op: add, path: /a/0, value: 1"),
        "error",
        (
            "failed to patch resource: add operation does not apply: doc is missing"
            ' path: "/a/0": missing value'
        ),
    ),
    "remove": (
        patch("op: remove, path: /x"),
        "error",
        f"failed to patch resource: error in remove for path: '/x'{NO_OBJECT}",
    ),
    "remove below": (
        patch("op: remove, path: /a/b"),
        "error",
        (
            "failed to patch resource: json: error calling MarshalJSON for type"
            f" *jsonpatch.partialDoc{NO_OBJECT}"
        ),
    ),
    "replace": (
        patch("op: replace, path: /x, value: 1"),
        "error",
        (
            "failed to patch resource: replace operation does not apply: doc is missing"
            " key: /x: missing value"
        ),
    ),
    "replace below": (
        patch("op: replace, path: /a/b, value: 1"),
        "error",
        (
            "failed to patch resource: replace operation does not apply: doc is missing"
            " path: /a/b: missing value"
        ),
    ),
    "test": (
        patch("op: test, path: /a, value: null"),
        "error",
        f"failed to patch resource: error in test for path: '/a'{NO_OBJECT}",
    ),
    "test below": (
        patch("op: test, path: /a/b, value: 1"),
        "error",
        (
            "failed to patch resource: test operation does not apply: is missing path:"
            " /a/b: missing value"
        ),
    ),
    "copy": (
        patch("op: copy, from: /x, path: /y"),
        "error",
        f"failed to patch resource: error in copy for from: '/x'{NO_OBJECT}",
    ),
    "move": (
        patch("op: move, from: /a, path: /y"),
        "error",
        f"failed to patch resource: error in move for path: 'a'{NO_OBJECT}",
    ),
    "move below": (
        patch("op: move, from: /a/b, path: /y"),
        "error",
        (
            "failed to patch resource: move operation does not apply: doc is missing"
            " from path: /a/b: missing value"
        ),
    ),
}


def policy(name: str, rule: dict[str, Json], kind: str = "Pod") -> dict[str, Json]:
    match = {"any": [{"resources": {"kinds": [kind]}}]}
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": name},
        "spec": {"rules": [{"name": "r", "match": match, **rule}]},
    }


def results_of(
    command: Command, folder: Path, *policies: dict[str, Json]
) -> tuple[int, list[Any]]:
    for name, content in (("pod", POD), ("values", VALUES)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "policies.yaml").write_text(yaml.safe_dump_all(policies))
    files = ["-r", folder / "pod.json", "-f", folder / "values.json"]
    done = command("apply", folder / "policies.yaml", *files, "--policy-report")
    mark = "apiVersion: openreports.io"
    report = done.out.partition(mark)[2]
    found = yaml.safe_load(mark + report) if report else {}
    return done.code, found.get("results") or []


@pytest.mark.parametrize("name", CASES)
def test_patch_of_a_deleted_object(command: Command, tmp_path: Path, name: str) -> None:
    body, status, message = CASES[name]
    code, found = results_of(command, tmp_path, policy("p", {"mutate": body}))
    assert [(one["result"], one["message"]) for one in found] == [(status, message)]
    assert code == (1 if status == "error" else 0)


@pytest.mark.parametrize("kind", ["Pod", "Service"])
def test_later_policies_see_no_object(
    command: Command, tmp_path: Path, kind: str
) -> None:
    """KYVERNO: later policies get no object even if the first one does not match."""
    first = policy("first", {"mutate": merge(labels={"a": "b"})}, kind)
    deny = {"deny": {"conditions": {"any": [{"key": 1, "operator": "Equals"}]}}}
    deny["deny"]["conditions"]["any"][0]["value"] = 1
    second = policy("second", {"validate": {"message": "m", **deny}})
    assert results_of(command, tmp_path, second)[0] == 1
    code, found = results_of(command, tmp_path, first, second)
    assert [one["policy"] for one in found] == (["first"] if kind == "Pod" else [])
    assert code == (1 if kind == "Pod" else 0)

"""``inventory`` lists what Kyverno plans to stop executing, before a move.

A failure means: an operator overlooks a policy, or believes that it can move.
Expected: docs/upgrade.md; the kinds that Kyverno 1.19.1 marks as deprecated.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.cli.conftest import Command
from tests.unit.kube.fake_api import FakeApi

MATCH = {"any": [{"resources": {"kinds": ["Pod"]}}]}
MOVES = {
    "apiVersion": "kyverno.io/v1",
    "kind": "ClusterPolicy",
    "metadata": {"name": "moves"},
    "spec": {
        "rules": [
            {
                "name": "r",
                "match": MATCH,
                "validate": {
                    "failureAction": "Enforce",
                    "message": "no",
                    "pattern": {"spec": {"hostNetwork": "false"}},
                },
            }
        ]
    },
}
STAYS = {
    "apiVersion": "kyverno.io/v2beta1",
    "kind": "ClusterPolicy",
    "metadata": {"name": "stays"},
    "spec": {
        "rules": [
            {
                "name": "mutates",
                "match": MATCH,
                "context": [{"name": "c", "apiCall": {"urlPath": "/api/v1/pods"}}],
                "preconditions": {"all": []},
                "mutate": {"patchStrategicMerge": {"spec": {"a": "{{ c }}"}}},
            },
            {
                "name": "verifies",
                "match": MATCH,
                "verifyImages": [{"imageReferences": ["*"], "attestors": []}],
            },
        ]
    },
}
OTHERS: list[dict[str, Any]] = [
    {
        "apiVersion": "kyverno.io/v1",
        "kind": "Policy",
        "metadata": {"name": "own", "namespace": "shop"},
        "spec": {"rules": [{"name": "r", "match": MATCH, "validate": {"deny": {}}}]},
    },
    {
        "apiVersion": "kyverno.io/v2",
        "kind": "CleanupPolicy",
        "metadata": {"name": "old", "namespace": "shop"},
        "spec": {"match": MATCH, "schedule": "* * * * *"},
    },
    {
        "apiVersion": "kyverno.io/v2beta1",
        "kind": "PolicyException",
        "metadata": {"name": "excused", "namespace": "shop"},
        "spec": {"match": MATCH, "exceptions": []},
    },
    {"apiVersion": "kyverno.io/v2", "kind": "GlobalContextEntry", "metadata": {}},
    {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": "PolicyException",
        "metadata": {"name": "of-cel"},
    },
    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}},
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "all.yaml"
    documents = [*OTHERS, STAYS, MOVES]
    path.write_text("\n---\n".join(map(json.dumps, documents)))
    return path


def test_each_object_has_its_version_constructs_and_way(
    file: Path, command: Command
) -> None:
    done = command("inventory", str(file.parent), "-o", "json")
    assert done.code == 0
    rows = {row["name"]: row for row in json.loads(done.out)}
    assert {(row["kind"], row["version"]) for row in rows.values()} == {
        ("ClusterPolicy", "v1"),
        ("ClusterPolicy", "v2beta1"),
        ("Policy", "v1"),
        ("CleanupPolicy", "v2"),
        ("PolicyException", "v2beta1"),
    }
    assert (rows["moves"]["movesTo"], rows["moves"]["whyNot"]) == (
        "ValidatingPolicy",
        "",
    )
    assert rows["moves"]["uses"] == ["validate.pattern"]
    assert rows["stays"]["movesTo"] == ""
    assert rows["stays"]["whyNot"]
    assert rows["stays"]["rules"] == 2
    assert rows["stays"]["uses"] == [
        "JMESPath",
        "context.apiCall",
        "mutate.patchStrategicMerge",
        "preconditions",
        "verifyImages.attestors",
        "verifyImages.imageReferences",
    ]
    assert rows["own"]["namespace"] == "shop"
    assert rows["old"]["uses"] == ["schedule"]
    assert rows["old"]["movesTo"] == "NamespacedDeletingPolicy"
    assert rows["moves"]["source"].endswith("all.yaml:15")


def test_tables_count_what_moves(file: Path, command: Command) -> None:
    lines = command("inventory", str(file), "-o", "markdown").out.splitlines()
    assert lines[0].startswith("| kind | version | policy |")
    assert (
        "| ClusterPolicy | v1 | moves | 1 | validate.pattern | ValidatingPolicy |"
        in (lines)
    )
    assert lines[-1].startswith("5 objects, of which 2 move.")
    assert "5 objects, of which 2 move." in command("inventory", str(file)).out
    quick = command("inventory", str(file), "--quick").out
    assert "5 objects, of which 0 move." in quick
    assert "not tried" in quick


def test_a_cluster_tells_in_which_version_an_object_was_written(
    api: FakeApi, command: Command
) -> None:
    """The API server converts what it stores, and a manifest breaks with its own."""
    applied = json.dumps({"apiVersion": "kyverno.io/v2beta1", "kind": "ClusterPolicy"})
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": applied}
    path = "/apis/kyverno.io/v1/clusterpolicies/{}"
    spec = MOVES["spec"]
    api.put(path.format("a"), metadata={"annotations": annotations}, spec=spec)
    api.put(path.format("b"), spec=spec)
    found = json.loads(command("inventory", "--cluster", "-o", "json").out)
    assert [(row["name"], row["version"]) for row in found] == [
        ("a", "v2beta1"),
        ("b", "v1"),
    ]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "name files or folders, or --cluster"),
        (("--cluster", "x"), "name files or folders, or --cluster"),
        (("gone.yaml",), "gone.yaml"),
    ],
)
def test_bad_input_is_an_error(
    words: tuple[str, ...], text: str, command: Command
) -> None:
    done = command("inventory", *words)
    assert done.code == 1
    assert text in done.err


ODD = st.recursive(
    st.sampled_from([None, 5, "x", "kyverno.io/v1", "ClusterPolicy", "{{ a }}"]),
    lambda below: (
        st.lists(below, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                ["name", "annotations", "rules", "validate", "context", "match"]
            ),
            below,
            max_size=3,
        )
    ),
    max_leaves=6,
)
PLACES = st.sampled_from([(), ("kind",), ("apiVersion",), ("metadata",), ("spec",)])


@given(PLACES, ODD)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_object_ends_the_list(
    tmp_path: Path, command: Command, place: tuple[str, ...], odd: Any
) -> None:
    """A file of somebody else's may hold anything."""
    broken = {**MOVES, place[0]: odd} if place else odd
    path = tmp_path / "p.json"
    path.write_text("\n---\n".join(map(json.dumps, [broken, OTHERS[0]])))
    done = command("inventory", str(path), "-o", "json")
    assert done.code == 0, done.err
    assert "own" in [row["name"] for row in json.loads(done.out)]


def test_names_of_strangers_are_escaped(tmp_path: Path, command: Command) -> None:
    name = "x\u202e\n::error::|"
    policy = {**MOVES, "metadata": {"name": name}, "spec": {"rules": 7}}
    (tmp_path / "p.json").write_text(json.dumps(policy))
    done = command("inventory", str(tmp_path / "p.json"), "-o", "markdown")
    assert "\u202e" not in done.out
    assert not any(line.startswith("::") for line in done.out.splitlines())
    assert len(done.out.splitlines()) == 5


def test_gradual_policies_are_named(tmp_path: Path, command: Command) -> None:
    """Kyverno ignores the annotation, so the policy would deny for everyone."""
    percent = {"kyverno-mp.io/enforce-percent": "10", "other": "1"}
    gradual = {**MOVES, "metadata": {"name": "gradual", "annotations": percent}}
    path = tmp_path / "all.yaml"
    path.write_text("\n---\n".join(map(json.dumps, [MOVES, gradual])))
    lines = command("inventory", str(path), "--quick", "-o", "markdown").out
    assert "| gradual | 1 | gradual enforcement, validate.pattern |" in lines
    assert "1 policy with gradual enforcement for all objects at once" in lines

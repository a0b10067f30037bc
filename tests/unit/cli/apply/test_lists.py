"""Objects are judged one by one, even if a file wraps them in several lists.

Every wrapping must have the outcome of the plain documents.
"""

import json
from pathlib import Path

import pytest
import yaml

from kyverno_mp.values.jsonvalue import Json
from tests.unit.cli.conftest import LATEST_POLICY, Command, pod

PODS = [
    yaml.safe_load(pod(name, image).lstrip("-\n"))
    for name, image in (("good", "nginx:1.27"), ("bad", "nginx:latest"))
]
BARE = [
    {key: value for key, value in one.items() if key not in ("apiVersion", "kind")}
    for one in PODS
]


def listed(kind: str, items: list[Json], **more: Json) -> dict[str, Json]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {}, "items": items, **more}


WRAPPINGS = {
    "list": listed("List", PODS),
    "typed": listed("PodList", PODS),
    "bare items": listed("PodList", BARE),
    "nested": listed("List", [PODS[0], listed("List", [listed("PodList", BARE[1:])])]),
    "with empty lists": listed(
        "List", [listed("PodList", []), *PODS, listed("List", [])]
    ),
    "as kubectl writes": listed("List", PODS, metadata={"resourceVersion": ""}),
}


@pytest.fixture(params=WRAPPINGS)
def wrapped(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    file = tmp_path / "wrapped.yaml"
    file.write_text(yaml.safe_dump(WRAPPINGS[request.param]))
    return file


def test_apply_evaluates_each_item(
    command: Command, policy_file: Path, pods_file: Path, wrapped: Path
) -> None:
    plain = command("apply", policy_file, "-r", pods_file)
    assert "to 2 resource(s)" in plain.out
    assert "pass: 1, fail: 1" in plain.out
    assert command("apply", policy_file, "-r", wrapped) == plain


def test_test_evaluates_each_item(
    command: Command, policy_file: Path, wrapped: Path
) -> None:
    (wrapped.parent / "kyverno-test.yaml").write_text(
        "apiVersion: cli.kyverno.io/v1alpha1\nkind: Test\nmetadata: {name: t}\n"
        f"policies: [{policy_file.name}]\nresources: [wrapped.yaml]\nresults:\n"
        "- {policy: no-latest, kind: Pod, resources: [good], result: pass}\n"
        "- {policy: no-latest, kind: Pod, resources: [bad], result: fail}\n"
    )
    done = command("test", wrapped.parent, "-o", "json")
    rows = [(one["RESOURCE"], one["RESULT"]) for one in json.loads(done.out)]
    assert rows == [("v1/Pod/apps/good", "Pass"), ("v1/Pod/apps/bad", "Pass")]
    assert done.code == 0


def test_policies_in_lists_are_loaded(
    command: Command, pods_file: Path, tmp_path: Path
) -> None:
    policy = yaml.safe_load(LATEST_POLICY)
    typed = {"apiVersion": "kyverno.io/v1", "kind": "ClusterPolicyList"}
    bare = {key: policy[key] for key in ("metadata", "spec")}
    for raw in (
        listed("List", [policy]),
        listed("List", [listed("List", [policy])]),
        {**typed, "items": [policy]},
        {**typed, "items": [bare]},
    ):
        file = tmp_path / "policies.yaml"
        file.write_text(yaml.safe_dump(raw))
        done = command("apply", file, "-r", pods_file)
        assert "pass: 1, fail: 1" in done.out


def test_named_object_is_no_list(command: Command, tmp_path: Path) -> None:
    """A custom kind can end in List and have ``items``: it is judged as one object."""
    policy, resource = tmp_path / "policy.yaml", tmp_path / "resource.yaml"
    policy.write_text(LATEST_POLICY.replace("[Pod]", "[AllowList]"))
    raw = listed("AllowList", BARE, metadata={"name": "mine", "namespace": "apps"})
    resource.write_text(yaml.safe_dump(raw))
    done = command("apply", policy, "-r", resource)
    assert "policy no-latest -> resource apps/AllowList/mine failed" in done.out


@pytest.mark.parametrize(
    ("item", "lacking"),
    [
        ({"metadata": {"name": "a"}}, "kind"),
        ("text", "kind"),
        ({"kind": "Pod"}, "apiVersion"),
    ],
)
def test_item_that_is_no_object_ends_the_run(
    command: Command, policy_file: Path, tmp_path: Path, item: Json, lacking: str
) -> None:
    """The run ends as for a separate document; the error names the list position."""
    file = tmp_path / "list.yaml"
    file.write_text(yaml.safe_dump(listed("List", [PODS[0], item])))
    done = command("apply", policy_file, "-r", file)
    assert f"document 0, item 1 has no {lacking}" in done.err
    assert done.code == 1


def test_other_inputs_keep_the_list(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "list.yaml"
    file.write_text(yaml.safe_dump(listed("List", PODS)))
    done = command("jp", "query", "-i", file, "-c", "length(items)")
    assert done.out == "# length(items)\n2\n"

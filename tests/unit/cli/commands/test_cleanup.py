"""``cleanup`` previews deletions by clean-up policies, with a small API server."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cleanup.cluster import (
    Recorded,
    config_map,
    controller,
    deleting,
    dependencies_of,
    names,
    policy,
    serve_kinds,
)
from tests.unit.cli.conftest import Command
from tests.unit.kube.fake_api import FakeApi, running
from tests.unit.queues.turned_clock import TurnedClock

FILE = """
apiVersion: kyverno.io/v2
kind: ClusterCleanupPolicy
metadata:
  name: old
  annotations: {kyverno-mp.io/deletion-budget: "1"}
spec:
  schedule: "TZ=Asia/Tokyo 0 3 * * *"
  match: {any: [{resources: {kinds: [ConfigMap]}}]}
  conditions: {any: [{key: "{{ target.data.old }}", operator: Equals, value: "yes"}]}
"""


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeApi]:
    """Serve some ConfigMaps, and name the server in KUBECONFIG."""
    with running() as server:
        named = {
            "clusters": [{"name": "c", "cluster": {"server": server.url}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        }
        file = tmp_path / "kubeconfig"
        file.write_text(json.dumps({**named, "current-context": "x"}))
        monkeypatch.setenv("KUBECONFIG", str(file))
        serve_kinds(server)
        for name, old in (("one", "yes"), ("two", "yes"), ("three", "no")):
            config_map(server, name, data={"old": old})
        yield server


def test_policy_file_is_shown_as_a_table(
    api: FakeApi, command: Command, tmp_path: Path
) -> None:
    """Otherwise, users could not preview the deletions of a policy."""
    file = tmp_path / "policy.yaml"
    file.write_text(FILE)
    done = command("cleanup", "--cluster", str(file))
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].split() == ["POLICY", "KIND", "NAMESPACE", "NAME"]
    assert [line.split() for line in lines[1:3]] == [
        ["old", "ConfigMap", "a", "one"],
        ["old", "ConfigMap", "a", "two"],
    ]
    assert lines[3].startswith(
        "old: 2 of 3 matching objects would be deleted; next run: "
    )
    assert lines[3].endswith("T18:00:00Z; the deletion budget of 1 would halt it")
    assert not api.count("^(DELETE|PUT|POST|PATCH)")
    assert len(names(api)) == 3


def test_cluster_policy_is_shown_as_json(api: FakeApi, command: Command) -> None:
    """Otherwise, programs could not check a policy before its next run."""
    policy(api, "mine", namespace="a", schedule="@hourly")
    policy(api, "theirs", schedule="@hourly")
    config_map(api, "elsewhere", namespace="b")
    done = command("cleanup", "-c", "a/mine", "theirs", "-o", "json")
    assert done.code == 0
    mine, theirs = json.loads(done.out)["policies"]
    assert (mine["policy"], mine["kind"]) == ("a/mine", "CleanupPolicy")
    assert [one["name"] for one in mine["objects"]] == ["one", "three", "two"]
    assert len(theirs["objects"]) == theirs["matched"] == 4
    assert (mine["halted"], mine["budget"], mine["problems"]) == (False, None, [])
    assert not api.count("^(DELETE|PUT|POST|PATCH)")


def test_resource_filters_of_the_cluster_apply(api: FakeApi, command: Command) -> None:
    """Otherwise, objects would be shown that the service ignores."""
    policy(api, "all", schedule="@hourly")
    filters = {"resourceFilters": "[*/*,kyverno,*][*/*,a,t*]"}
    config_map(api, "kyverno", namespace="kyverno", data=filters)
    done = command("cleanup", "--cluster", "all", "-o", "json")
    [shown] = json.loads(done.out)["policies"]
    assert [one["name"] for one in shown["objects"]] == ["one"]


def test_undecidable_objects_are_reported(
    api: FakeApi, command: Command, tmp_path: Path
) -> None:
    """Otherwise, an object that the service keeps would be missing silently."""
    config_map(api, "bare")
    file = tmp_path / "policy.yaml"
    file.write_text(FILE.replace("ConfigMap", "ConfigMap, Widget"))
    done = command("cleanup", "--cluster", str(file))
    assert done.code == 1
    assert "ConfigMap/a/bare cannot be decided" in done.err
    assert "kind Widget is not served" in done.err


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["cleanup", "nowhere"], 1, "give --cluster"),
        (
            ["cleanup", "--cluster", "nowhere"],
            1,
            "no such file, and not in the cluster",
        ),
        (["cleanup", "--cluster", "a/nowhere"], 1, "CleanupPolicy a/nowhere"),
        (["cleanup", "--cluster"], 1, "Missing argument"),
    ],
)
def test_invalid_arguments(
    api: FakeApi, command: Command, arguments: list[str], code: int, text: str
) -> None:
    assert api is not None
    done = command(*arguments)
    assert done.code == code
    assert text in done.err


def test_invalid_policy_is_rejected(
    api: FakeApi, command: Command, tmp_path: Path
) -> None:
    """Otherwise, the preview would show objects of a policy that never runs."""
    assert api is not None
    file = tmp_path / "policy.yaml"
    file.write_text(FILE.replace("TZ=Asia/Tokyo 0 3 *", "0 3"))
    done = command("cleanup", "--cluster", str(file))
    assert done.code == 2
    assert "expected exactly 5 fields, found 4" in done.err


def test_namespace_deleted_while_the_command_runs(
    api: FakeApi, command: Command
) -> None:
    """Otherwise, a deleted namespace would end the command or be reported."""
    selector = {"matchLabels": {"team": "a"}}
    resources = {"kinds": ["ConfigMap"], "namespaceSelector": selector}
    policy(api, "all", schedule="@hourly", match={"any": [{"resources": resources}]})
    api.put("/api/v1/namespaces/a", metadata={"labels": {"team": "a"}})
    config_map(api, "one", namespace="gone")
    done = command("cleanup", "--cluster", "all", "-o", "json")
    assert (done.code, done.err) == (0, "")
    [shown] = json.loads(done.out)["policies"]
    assert {one["namespace"] for one in shown["objects"]} == {"a"}
    assert shown["problems"] == []


IN_CEL = """
apiVersion: policies.kyverno.io/v1
kind: DeletingPolicy
metadata: {name: old}
spec:
  schedule: "0 3 * * *"
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], resources: [configmaps]}]
  variables: [{name: old, expression: "object.data.old"}]
  conditions: [{name: old, expression: "variables.old == 'yes'"}]
"""


def test_deleting_policy_from_a_file(
    api: FakeApi, command: Command, tmp_path: Path
) -> None:
    """Otherwise, policies in CEL would be skipped without a message."""
    file = tmp_path / "policy.yaml"
    file.write_text(IN_CEL)
    done = command("cleanup", "--cluster", str(file))
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert [line.split() for line in lines[1:3]] == [
        ["old", "ConfigMap", "a", "one"],
        ["old", "ConfigMap", "a", "two"],
    ]
    assert lines[3].startswith("old: 2 of 3 matching objects would be deleted; next")
    assert not api.count("^(DELETE|PUT|POST|PATCH)")


def test_deleting_policies_of_the_cluster(api: FakeApi, command: Command) -> None:
    """Otherwise, a namespaced policy would be shown with other namespaces' objects."""
    text = "namespaceObject.metadata.labels['env'] == 'test'"
    deleting(api, "mine", namespace="a")
    deleting(api, "all", conditions=[{"name": "c", "expression": text}])
    policy(api, "all", schedule="@hourly", match={"any": []})
    api.put("/api/v1/namespaces/a", metadata={"labels": {}})
    api.put("/api/v1/namespaces/b", metadata={"labels": {"env": "test"}})
    config_map(api, "elsewhere", namespace="b")
    done = command("cleanup", "-c", "a/mine", "all", "-o", "json")
    mine, classic, every = json.loads(done.out)["policies"]
    assert (mine["policy"], mine["kind"]) == ("a/mine", "NamespacedDeletingPolicy")
    assert [one["name"] for one in mine["objects"]] == ["one", "three", "two"]
    # Two kinds share one name, and both are shown.
    assert (classic["kind"], every["kind"]) == (
        "ClusterCleanupPolicy",
        "DeletingPolicy",
    )
    assert [one["name"] for one in every["objects"]] == ["elsewhere"]
    # The label is missing there, so the object is kept and reported.
    assert done.code == 1
    assert len(every["problems"]) == 3


def test_pool_deletes_the_listed_objects(
    api: FakeApi, command: Command, tmp_path: Path
) -> None:
    """Otherwise, the preview would differ from the service's actions."""
    file = tmp_path / "policy.yaml"
    file.write_text(IN_CEL)
    [shown] = json.loads(command("cleanup", "--cluster", str(file), "-o", "json").out)[
        "policies"
    ]
    conditions = [{"name": "c", "expression": "object.data.old == 'yes'"}]
    deleting(api, "old", conditions=conditions)
    before, clock = names(api), TurnedClock()
    clock.turn(61)
    with controller(api, dependencies_of(api, Recorded(), clock.clock)) as one:
        one.settle()
    gone = sorted(set(before) - set(names(api)))
    assert gone == [f"{one['namespace']}/{one['name']}" for one in shown["objects"]]


@pytest.mark.parametrize(
    ("flags", "left"),
    [((), ["one", "two"]), (("--exception-namespace", "*"), ["two"])],
)
def test_exceptions_follow_the_operators_settings(
    api: FakeApi,
    command: Command,
    tmp_path: Path,
    flags: tuple[str, ...],
    left: list[str],
) -> None:
    """Otherwise, objects would be shown that an exception keeps."""
    file = tmp_path / "policy.yaml"
    file.write_text(IN_CEL)
    expression = "object.metadata.name == 'one'"
    api.put(
        "/apis/policies.kyverno.io/v1beta1/namespaces/e/policyexceptions/x",
        spec={
            "policyRefs": [{"name": "old", "kind": "DeletingPolicy"}],
            "matchConditions": [{"name": "c", "expression": expression}],
        },
    )
    done = command("cleanup", "--cluster", str(file), "-o", "json", *flags)
    [shown] = json.loads(done.out)["policies"]
    assert [one["name"] for one in shown["objects"]] == left


def test_unreadable_exceptions_end_the_run(
    api: FakeApi, command: Command, tmp_path: Path
) -> None:
    """Otherwise, objects would be shown that an unread exception may keep."""
    file = tmp_path / "policy.yaml"
    file.write_text(IN_CEL)
    api.fault("policyexceptions", *[403] * 20)
    done = command("cleanup", "-c", str(file), "--exception-namespace", "e")
    assert done.code == 1
    assert "policyexceptions cannot be listed" in done.err
    assert done.out == ""


def test_posts_of_expressions_are_not_sent(
    api: FakeApi, command: Command, tmp_path: Path
) -> None:
    """Otherwise, a preview would create objects."""
    file = tmp_path / "policy.yaml"
    posts = (
        "resource.post('v1', 'configmaps', 'a',"
        " {'metadata': {'name': 'made'}}).metadata.name == 'made'"
    )
    file.write_text(IN_CEL.replace("variables.old == 'yes'", posts))
    command("cleanup", "--cluster", str(file))
    assert api.count("^POST .*configmaps")
    assert api.count("^POST") == api.count(r"^POST .*\?dryRun=All$")


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ("0 3 * * *", "0 3 *", "cron"),
        ("variables.old == 'yes'", "variables.old", "bool"),
    ],
)
def test_invalid_deleting_policy_is_rejected(
    api: FakeApi, command: Command, tmp_path: Path, before: str, after: str, text: str
) -> None:
    """Otherwise, the preview would show objects of a policy that never runs."""
    assert api is not None
    file = tmp_path / "policy.yaml"
    file.write_text(IN_CEL.replace(before, after))
    done = command("cleanup", "--cluster", str(file))
    assert done.code == 2
    assert text in done.err

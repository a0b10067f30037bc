"""``cleanup``: what clean-up policies would delete, against a small API server."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cleanup.cluster import config_map, names, policy, serve_kinds
from tests.unit.cli.conftest import Command
from tests.unit.kube.fake_api import FakeApi, running

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


def test_a_file_is_shown_as_a_table(
    api: FakeApi, command: Command, tmp_path: Path
) -> None:
    """Nobody could see what a policy does before it does it."""
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


def test_a_stored_policy_is_shown_as_json(api: FakeApi, command: Command) -> None:
    """Programs could not check a policy before its next run."""
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


def test_filters_of_the_cluster_apply(api: FakeApi, command: Command) -> None:
    """Objects would be shown that the service leaves alone."""
    policy(api, "all", schedule="@hourly")
    filters = {"resourceFilters": "[*/*,kyverno,*][*/*,a,t*]"}
    config_map(api, "kyverno", namespace="kyverno", data=filters)
    done = command("cleanup", "--cluster", "all", "-o", "json")
    [shown] = json.loads(done.out)["policies"]
    assert [one["name"] for one in shown["objects"]] == ["one"]


def test_what_cannot_be_decided_is_told(
    api: FakeApi, command: Command, tmp_path: Path
) -> None:
    """An object that the service keeps would be missing without a word."""
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
def test_mistakes(
    api: FakeApi, command: Command, arguments: list[str], code: int, text: str
) -> None:
    assert api is not None
    done = command(*arguments)
    assert done.code == code
    assert text in done.err


def test_a_policy_that_cannot_run_is_refused(
    api: FakeApi, command: Command, tmp_path: Path
) -> None:
    """The preview would show objects of a policy that never runs."""
    assert api is not None
    file = tmp_path / "policy.yaml"
    file.write_text(FILE.replace("TZ=Asia/Tokyo 0 3 *", "0 3"))
    done = command("cleanup", "--cluster", str(file))
    assert done.code == 2
    assert "expected exactly 5 fields, found 4" in done.err


def test_a_namespace_goes_while_the_command_runs(
    api: FakeApi, command: Command
) -> None:
    """The command would end, or report a problem, because of what is gone."""
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

"""``bench --cluster`` reads everything that flags do not name from the cluster.

A failure means: a user tunes a policy that the cluster does not have.
"""

import json
from pathlib import Path

import yaml

from tests.unit.cli.cluster import put_pods
from tests.unit.cli.commands.test_bench import SLOW
from tests.unit.cli.conftest import LATEST_POLICY, Command, pod
from tests.unit.kube.fake_api import FakeApi
from tests.unit.kube.test_discovery import group, resource


def _store(api: FakeApi, text: str) -> None:
    """Serve the kinds of policies, and store the policies of a YAML text."""
    kinds = [
        resource("clusterpolicies", "ClusterPolicy", scope="Cluster"),
        resource("policies", "Policy"),
    ]
    api.answers["/apis"]["items"].append(group("kyverno.io", "v1", *kinds))
    for one in yaml.safe_load_all(text):
        if one:
            path = f"/apis/kyverno.io/v1/clusterpolicies/{one['metadata']['name']}"
            api.put(path, metadata=one["metadata"], spec=one["spec"])


def test_policies_and_objects_of_a_cluster(api: FakeApi, command: Command) -> None:
    _store(api, LATEST_POLICY + SLOW)
    put_pods(api, 5)
    done = command("bench", "--cluster", "--seconds", "0.1", "-o", "json")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert (found["policies"], found["objects"]) == (2, 5)
    assert found["slowest"][0]["policy"] == "slow"
    assert not api.count("GET /api/v1/(secrets|configmaps)")


def test_cluster_policies_for_objects_from_files(
    api: FakeApi, command: Command, tmp_path: Path
) -> None:
    _store(api, SLOW)
    pods = tmp_path / "pods.yaml"
    pods.write_text("".join(pod(f"p{number}") for number in range(4)))
    done = command("bench", "-c", "-r", pods, "--seconds", "0.1", "-o", "json")
    assert json.loads(done.out)["objects"] == 4
    assert not api.count("GET /api/v1/pods")


def test_policies_from_files_for_cluster_objects(
    api: FakeApi, command: Command, tmp_path: Path
) -> None:
    policies = tmp_path / "policies.yaml"
    policies.write_text(LATEST_POLICY + SLOW)
    put_pods(api, 3)
    put_pods(api, 2, "other")
    flags = ("-c", "--namespace", "other", "--seconds", "0.1", "-o", "json")
    found = json.loads(command("bench", policies, *flags).out)
    assert (found["policies"], found["objects"]) == (2, 2)
    assert not api.count("GET /apis/kyverno.io")


def test_sample_of_many_objects_is_measured(api: FakeApi, command: Command) -> None:
    _store(api, SLOW)
    put_pods(api, 1001)
    done = command("bench", "-c", "--seconds", "0.01", "-o", "json")
    assert done.err == "measured: 1000 of 1001 objects\n"
    assert json.loads(done.out)["objects"] == 1000


def test_a_cluster_without_the_kinds(api: FakeApi, command: Command) -> None:
    done = command("bench", "--cluster")
    assert done.code == 1
    assert "the cluster does not have the kind ClusterPolicy" in done.err


def test_a_cluster_without_policies(api: FakeApi, command: Command) -> None:
    _store(api, "")
    done = command("bench", "--cluster")
    assert (done.code, done.out) == (1, "")
    assert done.err == "Error: the cluster has no policies with rules\n"


def test_rejected_policy_is_named(api: FakeApi, command: Command) -> None:
    refused = SLOW.replace("name: long-query", "title: long-query")
    _store(api, LATEST_POLICY + refused.replace("slow", "refused"))
    put_pods(api, 1)
    done = command("bench", "--cluster", "--seconds", "0.01")
    assert done.code == 0
    assert done.err.startswith("not measured: ")
    assert "refused" in done.err
    assert "1 policy with" in done.out


def test_namespace_deleted_before_the_measurement(
    api: FakeApi, command: Command
) -> None:
    """Otherwise, one deleted object would prevent all measurements."""
    _store(api, SLOW)
    put_pods(api, 2)
    put_pods(api, 1, "gone")
    done = command("bench", "-c", "--seconds", "0.01", "-o", "json")
    assert (done.code, json.loads(done.out)["objects"]) == (0, 2)
    assert done.err == "skipped, its namespace was deleted: gone/Pod/p0\n"

"""Cluster data that policies can read, and the ports that provide it."""

from functools import partial
from pathlib import Path

import pytest

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.leader.cluster_data import NAMES, ClusterDataFolder
from kyverno_mp.leader.folder import Folder
from kyverno_mp.program.ports import ApiRequest
from kyverno_mp.snapshot.data import DataSegment, encode_data
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.webhook.shared import SharedClusterData

WORLD = """
apiVersion: v1
kind: Namespace
metadata: {name: a, labels: {team: x}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: cm, namespace: a}
data: {k: v}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: rb, namespace: a}
roleRef: {kind: Role, name: editor}
subjects:
- {kind: User, name: alice}
- {kind: ServiceAccount, name: bot}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: rb2, namespace: b}
roleRef: {kind: ClusterRole, name: view}
subjects: [{kind: Group, name: devs}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: crb}
roleRef: {kind: ClusterRole, name: admin}
subjects: [{kind: Group, name: devs}]
---
apiVersion: kyverno-mp.io/v1alpha1
kind: ApiCallAnswer
metadata: {name: version}
spec: {urlPath: /version, response: {major: "1"}}
---
apiVersion: kyverno-mp.io/v1alpha1
kind: ApiCallAnswer
metadata: {name: down}
spec: {method: POST, url: "http://svc.a/x", error: "HTTP 503: down"}
---
apiVersion: kyverno.io/v2beta1
kind: GlobalContextEntry
metadata: {name: cms}
spec:
  kubernetesResource: {version: v1, resource: configmaps, namespace: a}
  projections: [{name: names, jmesPath: "[].metadata.name"}]
---
apiVersion: kyverno.io/v2beta1
kind: GlobalContextEntry
metadata: {name: major}
spec:
  apiCall: {urlPath: /version, refreshInterval: 10s}
---
apiVersion: kyverno.io/v2beta1
kind: GlobalContextEntry
metadata: {name: lost}
spec:
  apiCall: {urlPath: /nowhere, refreshInterval: 10s}
"""


@pytest.fixture
def cluster_data(tmp_path: Path) -> SharedClusterData:
    (tmp_path / "world.yaml").write_text(WORLD)
    folder = ClusterDataFolder(Folder(tmp_path))
    assert folder.poll(0, force=False)
    assert folder.problems == ()
    segments = {
        name: DataSegment(
            Segment.from_bytes(
                bytes(encode_data(name, values, generation=1, salt=bytes(16))), name
            )
        )
        for name, values in folder.segments().items()
    }
    assert set(segments) == set(NAMES)
    return SharedClusterData({name: partial(segments.get, name) for name in segments})


def test_namespaces_and_config_maps(cluster_data: SharedClusterData) -> None:
    assert cluster_data.labels("a") == {"team": "x"}
    assert cluster_data.labels("b") is None
    assert cluster_data.config_map("a", "cm", 0)["data"] == {"k": "v"}
    with pytest.raises(ExpressionFailed, match='configmaps "no" not found'):
        cluster_data.config_map("a", "no", 0)


def test_roles_include_namespaced_and_cluster_bindings(
    cluster_data: SharedClusterData,
) -> None:
    assert cluster_data.roles_of("a", "alice", ["devs"]) == (("a:editor",), ("admin",))
    assert cluster_data.roles_of("b", "alice", ["devs"]) == ((), ("admin", "view"))
    bot = "system:serviceaccount:a:bot"
    assert cluster_data.roles_of("a", bot, []) == (("a:editor",), ())


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/api/v1/namespaces", ["a"]),
        ("/api/v1/configmaps", ["cm"]),
        ("/api/v1/namespaces/a/configmaps", ["cm"]),
    ],
)
def test_lists_are_returned(
    cluster_data: SharedClusterData, path: str, names: list[str]
) -> None:
    answer = cluster_data.call(ApiRequest("GET", path), 0)
    assert [item["metadata"]["name"] for item in answer["items"]] == names


def test_objects_and_provided_answers(cluster_data: SharedClusterData) -> None:
    one = cluster_data.call(ApiRequest("GET", "/api/v1/namespaces/a/configmaps/cm"), 0)
    assert one["data"] == {"k": "v"}
    assert cluster_data.call(ApiRequest("GET", "/version"), 0) == {"major": "1"}
    with pytest.raises(ExpressionFailed, match="HTTP 503: down"):
        cluster_data.call(ApiRequest("POST", url="http://svc.a/x"), 0)
    with pytest.raises(ExpressionFailed, match="no answer is given"):
        cluster_data.call(ApiRequest("GET", "/nowhere"), 0)


def test_global_context(cluster_data: SharedClusterData) -> None:
    assert cluster_data.entry("cms")[0]["metadata"]["name"] == "cm"
    assert cluster_data.entry("cms.names") == ["cm"]
    assert cluster_data.entry("major") == {"major": "1"}
    refusals = {
        "lost": "GET /nowhere: not given",
        "lost.part": "GET /nowhere: not given",
        "unknown": "failed to fetch entry key=unknown",
        "unknown.part": "failed to fetch entry key=unknown",
        "cms.part": 'projection "part" not found',
        "major.part": "no data available",
    }
    for name, text in refusals.items():
        with pytest.raises(ExpressionFailed) as raised:
            cluster_data.entry(name)
        assert raised.value.message == text


def test_invalid_file_keeps_the_last_data(tmp_path: Path) -> None:
    path = tmp_path / "world.yaml"
    path.write_text(WORLD)
    folder = ClusterDataFolder(Folder(tmp_path))
    folder.poll(0, force=False)
    before = folder.segments()
    path.write_text("a: [")
    folder.poll(0, force=True)
    assert folder.segments() == before
    assert len(folder.problems) == 1

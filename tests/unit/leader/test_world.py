"""What policies may read of the world, and the doors that hand it out."""

from functools import partial
from pathlib import Path

import pytest

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.leader.folder import Folder
from kyverno_mp.leader.world import NAMES, WorldFolder
from kyverno_mp.program.ports import ApiRequest
from kyverno_mp.snapshot.data import DataSegment, encode_data
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.webhook.shared import SharedWorld

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
def world(tmp_path: Path) -> SharedWorld:
    (tmp_path / "world.yaml").write_text(WORLD)
    folder = WorldFolder(Folder(tmp_path))
    assert folder.look(0, force=False)
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
    return SharedWorld({name: partial(segments.get, name) for name in segments})


def test_namespaces_and_config_maps(world: SharedWorld) -> None:
    assert world.labels("a") == {"team": "x"}
    assert world.labels("b") is None
    assert world.config_map("a", "cm")["data"] == {"k": "v"}
    with pytest.raises(ExpressionFailed, match='configmaps "no" not found'):
        world.config_map("a", "no")


def test_roles_are_those_of_the_namespace_and_of_the_cluster(
    world: SharedWorld,
) -> None:
    assert world.roles_of("a", "alice", ["devs"]) == (("a:editor",), ("admin",))
    assert world.roles_of("b", "alice", ["devs"]) == ((), ("admin", "view"))
    bot = "system:serviceaccount:a:bot"
    assert world.roles_of("a", bot, []) == (("a:editor",), ())


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/api/v1/namespaces", ["a"]),
        ("/api/v1/configmaps", ["cm"]),
        ("/api/v1/namespaces/a/configmaps", ["cm"]),
    ],
)
def test_lists_are_answered(world: SharedWorld, path: str, names: list[str]) -> None:
    answer = world.call(ApiRequest("GET", path), 0)
    assert [item["metadata"]["name"] for item in answer["items"]] == names


def test_objects_and_given_answers(world: SharedWorld) -> None:
    one = world.call(ApiRequest("GET", "/api/v1/namespaces/a/configmaps/cm"), 0)
    assert one["data"] == {"k": "v"}
    assert world.call(ApiRequest("GET", "/version"), 0) == {"major": "1"}
    with pytest.raises(ExpressionFailed, match="HTTP 503: down"):
        world.call(ApiRequest("POST", url="http://svc.a/x"), 0)
    with pytest.raises(ExpressionFailed, match="no answer is given"):
        world.call(ApiRequest("GET", "/nowhere"), 0)


def test_global_context(world: SharedWorld) -> None:
    assert world.entry("cms")[0]["metadata"]["name"] == "cm"
    assert world.entry("cms.names") == ["cm"]
    assert world.entry("major") == {"major": "1"}
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
            world.entry(name)
        assert raised.value.message == text


def test_a_broken_file_keeps_the_last_world(tmp_path: Path) -> None:
    path = tmp_path / "world.yaml"
    path.write_text(WORLD)
    folder = WorldFolder(Folder(tmp_path))
    folder.look(0, force=False)
    before = folder.segments()
    path.write_text("a: [")
    folder.look(0, force=True)
    assert folder.segments() == before
    assert len(folder.problems) == 1

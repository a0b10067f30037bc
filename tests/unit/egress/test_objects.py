"""Objects, kinds and permissions as a worker reads them from the cluster."""

from collections.abc import Iterator
from typing import Any

import pytest

from kyverno_mp.egress import objects as module
from kyverno_mp.egress.access_reviews import LivePermissions
from kyverno_mp.egress.kinds import LiveKinds, directory_of, rows_of
from kyverno_mp.egress.objects import LiveObjects
from kyverno_mp.errors import ExpressionFailed, KubeNotFound, KubeRefused
from kyverno_mp.kube.discovery import Directory
from kyverno_mp.kube.resource import Resource, core
from kyverno_mp.policy.ports import PermissionTarget
from kyverno_mp.program.ports import ObjectQuery
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.built_in_kinds import ApiResource
from kyverno_mp.values.kubernetes.kinds import KindSelector, parse_kind
from tests.unit.kube.fake_api import FakeApi, running
from tests.waiting import far_ns

REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


def kind(resource: Resource, name: str, subresource: str = "") -> Resource:
    return Resource(
        group=resource.group,
        version=resource.version,
        plural=resource.plural,
        kind=name,
        namespaced=resource.namespaced,
        subresource=subresource,
    )


DEPLOYMENTS = Resource(group="apps", version="v1", plural="deployments")
DIRECTORY = Directory(
    [
        kind(core("configmaps"), "ConfigMap"),
        kind(core("namespaces", namespaced=False), "Namespace"),
        kind(DEPLOYMENTS, "Deployment"),
        kind(DEPLOYMENTS, "Scale", "scale"),
    ]
)


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with running() as server:
        for namespace, name in (("a", "x"), ("a", "y"), ("b", "x")):
            server.put(f"/api/v1/namespaces/{namespace}/configmaps/{name}")
        server.put("/api/v1/namespaces/a")
        yield server


def known(api: FakeApi, rows: Json | None = None) -> LiveKinds:
    published = rows_of(DIRECTORY) if rows is None else rows
    return LiveKinds(lambda: published, api.client())


def find(api: FakeApi, text: str, **where: str) -> list[str]:
    asked = ObjectQuery(*parse_kind(text), **where)
    found = LiveObjects(api.client(), known(api)).objects(asked, soon())
    assert all(one["kind"] and one["apiVersion"] for one in found)
    return [
        "/".join(
            filter(None, (one["metadata"].get("namespace"), one["metadata"]["name"]))
        )
        for one in found
    ]


def soon() -> int:
    return far_ns()


@pytest.mark.parametrize(
    ("text", "where", "expected", "path"),
    [
        (
            "v1/ConfigMap",
            {"namespace": "a", "name": "x"},
            ["a/x"],
            "/api/v1/namespaces/a/configmaps/x",
        ),
        ("v1/ConfigMap", {"namespace": "a", "name": "none"}, [], ""),
        (
            "v1/ConfigMap",
            {"namespace": "a"},
            ["a/x", "a/y"],
            "/api/v1/namespaces/a/configmaps?limit=500",
        ),
        ("v1/ConfigMap", {"name": "x"}, ["a/x", "b/x"], ""),
        ("v1/ConfigMap", {"namespace": "?", "name": "y*"}, ["a/y"], ""),
        ("ConfigMap", {}, ["a/x", "a/y", "b/x"], ""),
        ("v1/Namespace", {"name": "a"}, ["a"], "/api/v1/namespaces/a"),
        ("v1/Namespace", {"namespace": "a"}, [], ""),
    ],
)
def test_objects_are_looked_up_by_resource(
    text: str, where: dict[str, str], expected: list[str], path: str, api: FakeApi
) -> None:
    assert find(api, text, **where) == expected
    if path:
        assert api.requests[-1][1] == path


def test_unserved_kind_is_an_error(api: FakeApi) -> None:
    with pytest.raises(ExpressionFailed, match="failed to get GVR for kind"):
        find(api, "example.com/v1/Foo")


def test_answer_size_is_bounded(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIVE_OBJECTS_BYTES_MAX", 100)
    with pytest.raises(ExpressionFailed, match="has more than"):
        find(api, "v1/ConfigMap")


def test_collection_is_read_page_by_page(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KUBE_PAGE_OBJECTS", 1)
    assert find(api, "v1/ConfigMap") == ["a/x", "a/y", "b/x"]
    assert api.count("GET /api/v1/configmaps") == 3


def test_subresources_of_existing_objects_are_found(api: FakeApi) -> None:
    api.put("/apis/apps/v1/namespaces/a/deployments/d")
    path = "/apis/apps/v1/namespaces/a/deployments/d/scale"
    metadata = {"name": "d", "namespace": "a"}
    api.answers[path] = {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": metadata,
    }
    assert find(api, "apps/v1/Deployment/scale") == ["a/d"]


def test_directory_survives_a_round_trip() -> None:
    assert directory_of(rows_of(DIRECTORY)) == DIRECTORY


def test_workers_use_the_discovered_kinds(api: FakeApi) -> None:
    kinds = known(api)
    assert kinds.is_complete
    (found,) = kinds.find(parse_kind("Deployment/scale"))
    assert (found.resource.plural, found.subresource) == ("deployments", "scale")
    assert kinds.cluster_kinds() == {"Namespace", "v1/Namespace"}
    assert kinds.subresource_kinds() == {"Scale"}
    assert not api.requests


def test_unknown_kinds_are_looked_up_but_not_each_time(api: FakeApi) -> None:
    """A policy that follows its CRD at once is not rejected for a missing kind."""
    api.answers["/api"] = {"versions": []}
    api.answers["/apis"] = {
        "groups": [{"versions": [{"groupVersion": "example.com/v1"}]}]
    }
    foos: dict[str, Any] = {"name": "foos", "kind": "Foo", "namespaced": True}
    api.answers["/apis/example.com/v1"] = {"resources": [foos]}
    kinds = known(api)
    (found,) = kinds.find(KindSelector("*", "*", "Foo", ""))
    assert found.resource.api_version == "example.com/v1"
    asked = len(api.requests)
    assert kinds.find(KindSelector("*", "*", "Nothing", "")) == []
    assert len(api.requests) == asked


def test_kind_of_a_resource_takes_no_call(api: FakeApi) -> None:
    """A review of a subresource is decoded where no I/O is possible."""
    kinds = known(api)
    assert kinds.kind_of("apps", "v1", "deployments") == "Deployment"
    assert kinds.kind_of("apps", "v1", "widgets") is None
    assert not api.requests


def test_unpublished_data_is_incomplete(api: FakeApi) -> None:
    kinds = LiveKinds(lambda: None, api.client())
    assert not kinds.is_complete


def target(namespace: str = "") -> PermissionTarget:
    pods = ApiResource("", "v1", "Pod", "pods", is_namespaced=True)
    return PermissionTarget(pods, namespace=namespace)


def test_permissions_are_cached_for_a_while(api: FakeApi) -> None:
    api.answers[REVIEWS] = {"status": {"allowed": True}}
    permissions = LivePermissions(api.client())
    account = "system:serviceaccount:kyverno:background"
    assert permissions.allows(account, "get", target())
    assert permissions.allows(account, "get", target())
    assert api.count("POST") == 1
    api.answers[REVIEWS] = {"status": {"allowed": False, "denied": True}}
    assert not permissions.allows(account, "get", target("a"))
    assert api.count("POST") == 2
    api.answers[REVIEWS] = {"status": {"allowed": True}}
    # Users retry immediately after they grant a permission.
    assert permissions.allows(account, "get", target("a"))


def test_missing_answer_is_no_permission(api: FakeApi) -> None:
    api.fault("POST", 403)
    with pytest.raises(KubeRefused):
        LivePermissions(api.client()).allows("alice", "get", target())
    api.answers[REVIEWS] = {}
    assert not LivePermissions(api.client()).allows("alice", "get", target())


def test_one_of_several_kinds_is_removed(api: FakeApi) -> None:
    """Otherwise, targets of the other kinds would not be found."""
    api.fault("GET /apis/apps/v1/deployments", 404)
    assert find(api, "*") == ["a", "a/x", "a/y", "b/x"]
    api.fault("GET /api/v1/configmaps", 404)
    with pytest.raises(KubeNotFound):
        find(api, "ConfigMap")

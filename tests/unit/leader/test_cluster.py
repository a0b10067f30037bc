"""Changes in informers become segments, and only real changes are published."""

from collections.abc import Iterator

import msgspec
import pytest

from kyverno_mp.egress.kinds import directory_of
from kyverno_mp.kube.discovery import Directory
from kyverno_mp.kube.resource import core
from kyverno_mp.leader.cluster import LiveClusterData, LivePolicies
from kyverno_mp.leader.cluster_data import PAIRS_OF
from kyverno_mp.leader.context.cluster import ClusterGlobalContext
from kyverno_mp.leader.policy_store import PolicyStore
from kyverno_mp.program.ports import ApiRequest
from kyverno_mp.values.jsonvalue import Json
from tests.unit.kube.fake_api import FakeApi, running
from tests.waiting import wait_for

POLICIES = "/apis/kyverno.io/v1/clusterpolicies"
RULE = {
    "name": "r",
    "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
    "validate": {"message": "m", "pattern": {"metadata": {"name": "?*"}}},
}
POLICY = {
    "apiVersion": "kyverno.io/v1",
    "kind": "ClusterPolicy",
    "spec": {"rules": [RULE]},
}


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with running() as server:
        yield server


def test_policies_are_created_and_deleted(api: FakeApi) -> None:
    api.put(f"{POLICIES}/one", **POLICY)
    source = LivePolicies(api.client())
    for informer in source.informers:
        informer.start()
    try:
        wait_for(lambda: all(informer.synced for informer in source.informers))
        policy_store = PolicyStore(lambda _: True)
        policy_set = policy_store.update(source.poll(0))
        assert [(one.name, one.ready) for one in policy_set.policies] == [("one", True)]
        source.published(7)
        plural, version = source.version_of("ClusterPolicy", ("", "one"))
        versions, generation = source.settled
        assert (generation, versions[plural] >= version > 0) == (7, True)
        # A status write, like our own, does not change the policy.
        api.put(f"{POLICIES}/one", **POLICY, status={"conditions": []})
        wait_for(lambda: source.informers[0].notified_version == str(api.version))
        _, version = source.version_of("ClusterPolicy", ("", "one"))
        assert versions[plural] < version == api.version
        assert not source.poll(0)
        source.published(7)
        versions, generation = source.settled
        assert (versions[plural], generation) == (version, 7)
        api.remove(f"{POLICIES}/one")
        wait_for(lambda: not len(source.informers[0]))
        assert policy_store.update(source.poll(0)).policies == ()
    finally:
        for informer in source.informers:
            informer.stop()


def no_calls(request: ApiRequest, deadline_ns: int) -> bytes:
    raise AssertionError((request, deadline_ns))


def test_no_config_maps_without_caching(api: FakeApi) -> None:
    client = api.client()
    context = ClusterGlobalContext(client, no_calls, 256)
    cluster_data = LiveClusterData(
        client, context, lambda: Directory(()), config_maps=False
    )
    plurals = [informer.scope.resource.plural for informer in cluster_data.informers]
    assert plurals == ["namespaces", "rolebindings", "clusterrolebindings"]
    assert cluster_data.poll(0, force=False)
    assert cluster_data.segments()["configmaps"] == {}


def test_cluster_data_becomes_segments(api: FakeApi) -> None:
    api.put("/api/v1/namespaces/a", metadata={"labels": {"x": "y"}})
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    api.put(
        f"{rbac}/clusterrolebindings/b",
        roleRef={"kind": "ClusterRole", "name": "admin"},
        subjects=[{"kind": "User", "name": "alice"}],
    )
    api.put("/api/v1/namespaces/a/configmaps/m", data={"k": "v"})
    client = api.client()
    context = ClusterGlobalContext(client, no_calls, 256)
    served = Directory([core("pods")])
    cluster_data = LiveClusterData(client, context, lambda: served)
    for informer in cluster_data.informers:
        informer.start()
    try:
        wait_for(lambda: all(informer.synced for informer in cluster_data.informers))
        assert cluster_data.poll(0, force=False)
        assert not cluster_data.poll(0, force=False)
        segments = dict(cluster_data.segments())
        decoded = {
            name: {key: msgspec.json.decode(value) for key, value in values.items()}
            for name, values in segments.items()
        }
        namespace = decoded["namespaces"].pop("a/")
        assert namespace["metadata"]["labels"] == {"x": "y"}
        assert decoded["namespaces"] == {"a": {"x": "y"}, "": {}}
        assert decoded["configmaps"]["a/m"]["data"] == {"k": "v"}
        assert decoded["roles"] == {"n:alice": [["", "ClusterRole", "admin"]]}
        assert decoded["apicalls"] == {}
        assert decoded["globalcontext"] == {}
        assert directory_of(decoded["kinds"]["kinds"]) == served
        # An unchanged part is an identical object, so it is not published again.
        api.put("/api/v1/namespaces/b", metadata={"labels": {"x": "y"}})
        wait_for(lambda: cluster_data.poll(0, force=False))
        moved = [n for n, s in cluster_data.segments().items() if s is not segments[n]]
        assert moved == ["namespaces"]
    finally:
        for informer in cluster_data.informers:
            informer.stop()


def live_data(api: FakeApi) -> LiveClusterData:
    client = api.client()
    context = ClusterGlobalContext(client, no_calls, 256)
    made = LiveClusterData(client, context, lambda: Directory(()))
    for informer in made.informers:
        informer.start()
    # The keys of a list follow its objects.
    wait_for(lambda: all(informer.notified_version for informer in made.informers))
    return made


def stop(data: LiveClusterData) -> None:
    for informer in data.informers:
        informer.stop()


def test_only_changed_objects_are_encoded_again(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        api.put(f"/api/v1/namespaces/n{number}", metadata={"labels": {"x": "y"}})
    encoded: list[str] = []
    pairs_of = PAIRS_OF["namespaces"]

    def counting(raw: Json) -> Iterator[tuple[str, Json]]:
        encoded.append(raw["metadata"]["name"])
        yield from pairs_of(raw)

    data = live_data(api)
    try:
        data.poll(0, force=False)
        counted = {**PAIRS_OF, "namespaces": counting}
        monkeypatch.setattr("kyverno_mp.leader.cluster.PAIRS_OF", counted)
        api.put("/api/v1/namespaces/new", metadata={"labels": {"x": "z"}})
        wait_for(lambda: data.poll(0, force=False))
        assert "new" in data.segments()["namespaces"]
        assert encoded == ["new"]
    finally:
        stop(data)


def test_incremental_state_equals_a_fresh_read(api: FakeApi) -> None:
    path = "/api/v1/namespaces"
    api.put(f"{path}/stays", metadata={"labels": {"x": "y"}})
    api.put(f"{path}/changes", metadata={"labels": {"x": "y"}})
    api.put(f"{path}/goes")
    for name in ("stays", "changes", "goes"):
        api.put(f"{path}/stays/configmaps/{name}", data={"k": "v"})
    data = live_data(api)
    try:
        data.poll(0, force=False)
        api.put(f"{path}/changes", metadata={"labels": {"x": "z"}})
        api.put(f"{path}/new")
        api.remove(f"{path}/goes")
        api.put(f"{path}/stays/configmaps/changes", data={"k": "w"})
        api.put(f"{path}/stays/configmaps/new", data={"k": "v"})
        api.remove(f"{path}/stays/configmaps/goes")
        assert_same_as_anew(api, data)
        for name in ("stays", "changes", "new"):
            api.remove(f"{path}/{name}")
        # Without any Namespace the list does not count as complete.
        assert_same_as_anew(api, data)
        assert data.segments()["namespaces"] == {}
        api.put(f"{path}/stays")
        assert_same_as_anew(api, data)
        assert set(data.segments()["namespaces"]) == {"stays", "stays/", ""}
    finally:
        stop(data)


def assert_same_as_anew(api: FakeApi, data: LiveClusterData) -> None:
    fresh = live_data(api)
    try:
        fresh.poll(0, force=False)

        def is_same() -> bool:
            data.poll(0, force=False)
            return data.segments() == fresh.segments()

        wait_for(is_same)
    finally:
        stop(fresh)

"""Generate and mutate-existing by kyverno-mp itself on a real control plane.

A failure means: a generated object is missing, does not follow its trigger, its source
or its policy, or is created for a request that was denied.
"""

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from kyverno_mp.kube.access import from_kubeconfig
from kyverno_mp.kube.cache import Informer, whole
from kyverno_mp.kube.pool import Pool
from kyverno_mp.kube.resource import Key
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.queues.update_requests import UPDATE_REQUESTS
from tests.e2e.api import Api, Refused
from tests.e2e.background import (
    BACKGROUND,
    POOL,
    REQUESTS,
    ROLES,
    USER,
    Json,
    Space,
    space_in,
    stays,
)
from tests.e2e.conftest import Cluster
from tests.e2e.control_plane import ControlPlane
from tests.e2e.product import Product, configured, holder_of, started
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

MANY = 200
POLICY_DATA = {"data": {"from": "policy"}}


@pytest.fixture(scope="module")
def running(
    shared_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Product]:
    with (
        started(shared_plane, tmp_path_factory.mktemp("background"), POOL) as product,
        configured(shared_plane, generateSuccessEvents="true"),
    ):
        yield product


@pytest.fixture
def space(api: Api, shared_plane: ControlPlane, running: Product) -> Iterator[Space]:
    wait_for(lambda: holder_of(api, BACKGROUND) == "first")
    with space_in(api, shared_plane.etcd_url) as made:
        yield made


def test_generated_data_follows_trigger_and_policy(api: Api, space: Space) -> None:
    path = space.policy(space.generate(data=POLICY_DATA))
    trigger = space.trigger()
    space.await_data("t", **{"from": "policy"})
    api.patch(f"{space.maps}/t", {"data": {"from": "hand", "more": "1"}})
    space.await_data("t", **{"from": "policy"})
    api.delete(f"{space.maps}/t")
    space.await_data("t", **{"from": "policy"})
    rule = space.generate(data={"data": {"from": "changed"}})
    api.patch(path, {"spec": {"rules": [rule]}})
    space.await_data("t", **{"from": "changed"})
    space.await_done()
    before = space.version("t")
    api.patch(trigger, {"metadata": {"labels": {"other": "1"}}})
    space.await_done()
    assert space.version("t") == before, "written, though nothing changed"
    api.patch(trigger, {"metadata": {"labels": {"team": "red"}}})
    wait_for(lambda: space.data("t") is None)
    api.patch(trigger, {"metadata": {"labels": {"team": "blue"}}})
    space.await_data("t", **{"from": "changed"})
    api.delete(path)
    wait_for(lambda: space.data("t") is None)
    space.await_done()


def test_unsynchronized_objects_stay(api: Api, space: Space) -> None:
    path = space.policy(space.generate(data=POLICY_DATA, synchronize=False))
    trigger = space.trigger()
    space.await_data("t", **{"from": "policy"})
    api.patch(f"{space.maps}/t", {"data": {"from": "hand"}})
    api.delete(trigger)
    api.delete(path)
    assert stays(lambda: space.data("t") == {"from": "hand"})


def test_downstream_is_deleted_with_its_trigger(api: Api, space: Space) -> None:
    space.policy(space.generate(data=POLICY_DATA))
    trigger = space.trigger()
    space.trigger("other")
    space.await_data("t", **{"from": "policy"})
    space.await_data("other", **{"from": "policy"})
    api.delete(trigger)
    wait_for(lambda: space.names() == {"other"})


def test_clone_follows_its_source(api: Api, space: Space) -> None:
    """A missing source is a failure with status and Event until the source exists."""
    source = {"namespace": space.name, "name": "source"}
    space.policy(space.generate(clone=source))
    space.trigger()
    request = wait_for(lambda: next(iter(_failed(space)), None))
    assert "not found" in request["status"]["message"]
    assert request["status"]["retryCount"] >= 1
    wait_for(lambda: "not found" in _events(api, "PolicyError"))
    space.put("source", a="1")
    space.await_data("t", a="1")
    space.await_done()
    api.patch(f"{space.maps}/source", {"data": {"a": "2"}})
    space.await_data("t", a="2")
    api.patch(f"{space.maps}/t", {"data": {"a": "hand"}})
    space.await_data("t", a="2")
    api.delete(f"{space.maps}/source")
    wait_for(lambda: space.data("t") is None)


def _failed(space: Space) -> list[Json]:
    found = space.requests()
    return [one for one in found if (one.get("status") or {}).get("state") == "Failed"]


def _events(api: Api, reason: str) -> str:
    found = api.get("/apis/events.k8s.io/v1/events")["items"]
    return " ".join(one.get("note", "") for one in found if one["reason"] == reason)


def test_clone_list_and_foreach(api: Api, space: Space) -> None:
    target = {"metadata": {"name": f"{space.name}-b"}}
    api.create("/api/v1/namespaces", target)
    for name in ("one", "two"):
        api.create(
            space.maps,
            {
                "metadata": {"name": name, "labels": {"copy": space.name}},
                "data": {"is": name},
            },
        )
    selector = {"matchLabels": {"copy": space.name}}
    kinds = {"namespace": space.name, "kinds": ["v1/ConfigMap"], "selector": selector}
    listed = space.rule(
        "listed",
        generate={
            "namespace": f"{space.name}-b",
            "synchronize": True,
            "cloneList": kinds,
        },
    )
    each = {
        "list": "['x', 'y']",
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "{{ element }}-{{ request.object.metadata.name }}",
        "namespace": space.name,
        "data": {"data": {"of": "{{ element }}"}},
    }
    looped = space.rule("looped", generate={"synchronize": True, "foreach": [each]})
    path = space.policy(listed, looped)
    space.trigger()
    space.await_data("x-t", of="x")
    space.await_data("y-t", of="y")
    other = Space(api, f"{space.name}-b")
    other.await_data("one", **{"is": "one"})
    other.await_data("two", **{"is": "two"})
    api.delete(f"{space.maps}/one")
    wait_for(lambda: other.names() == {"two"})
    api.delete(path)
    wait_for(lambda: space.names() == {"two"})
    api.ask("DELETE", f"/api/v1/namespaces/{space.name}-b")


def test_generate_existing_runs_on_policy_creation(api: Api, space: Space) -> None:
    space.trigger("early")
    api.create(space.accounts, {"metadata": {"name": "unlabelled"}})
    space.policy(space.generate(data=POLICY_DATA, generateExisting=True))
    space.await_data("early", **{"from": "policy"})
    assert stays(lambda: space.names() == {"early"})


def _mutate(space: Space, label: str, **fields: Json) -> Json:
    target = {"apiVersion": "v1", "kind": "ConfigMap", "namespace": space.name}
    patch = {"data": {label: "{{ request.object.metadata.name }}"}}
    return space.rule(
        label,
        mutate={
            "targets": [{**target, "name": "target"}],
            "patchStrategicMerge": patch,
            **fields,
        },
    )


def test_existing_objects_are_mutated(api: Api, space: Space) -> None:
    """The trigger or the policy causes it; our own writes cause no further mutation."""
    space.trigger("early")
    space.put("target", kept="yes")
    space.put("untouched", kept="yes")
    space.policy(_mutate(space, "early", mutateExistingOnPolicyUpdate=True))
    space.await_data("target", kept="yes", early="early")
    space.policy(_mutate(space, "late"), name="late")
    assert stays(lambda: space.data("target") == {"kept": "yes", "early": "early"}, 1)
    space.trigger("t")
    space.await_data("target", kept="yes", early="t", late="t")
    assert space.data("untouched") == {"kept": "yes"}
    wait_for(lambda: "resource mutated" in _events(api, "PolicyApplied"))
    space.await_done()
    before = space.version("target")
    api.patch(f"{space.accounts}/t", {"metadata": {"labels": {"other": "1"}}})
    space.await_done()
    assert space.version("target") == before, "written, though nothing changed"


def test_denied_request_triggers_nothing(
    api: Api, shared_plane: ControlPlane, space: Space
) -> None:
    space.policy(space.generate(data=POLICY_DATA))
    refusing = space.rule(
        "no",
        validate={"failureAction": "Enforce", "message": "no", "deny": {}},
        preconditions={
            "all": [
                {
                    "key": "{{ request.object.metadata.name }}",
                    "operator": "Equals",
                    "value": "refused",
                }
            ]
        },
    )
    space.policy(refusing, name="no")
    with _requests_of(shared_plane, space) as made:
        with pytest.raises(Refused, match="no"):
            space.trigger("refused")
        dry = {"metadata": {"name": "dry", "labels": {"team": "blue"}}}
        api.create(f"{space.accounts}?dryRun=All", dry)
        space.trigger("allowed")
        space.await_data("allowed", **{"from": "policy"})
        wait_for(lambda: made)
        assert stays(lambda: len(made) == 1, 0.5)
    assert space.names() == {"allowed"}


@contextmanager
def _requests_of(shared_plane: ControlPlane, space: Space) -> Iterator[set[str]]:
    """Collect the UpdateRequests for policies of the test, until the block ends.

    Objects that earlier tests generated are deleted later and cause requests, too.
    """
    client = Client(Pool(from_kubeconfig(shared_plane.kubeconfig)), "test")
    scope = WatchScope(resource=UPDATE_REQUESTS, namespace="kyverno")
    informer: Informer[bytes] = Informer(client, scope, whole)
    found: set[str] = set()

    def note(key: Key) -> None:
        raw = informer.get(key)
        if raw is not None and space.name in json.loads(raw)["spec"]["policy"]:
            found.add(key[1])

    informer.on_change(note)
    informer.start()
    try:
        assert informer.wait_synced(30)
        yield found
    finally:
        informer.stop()
        client.close()


def test_permission_granted_later_is_used(api: Api, space: Space) -> None:
    """It is missing when the policy is created, and noticed later without a restart."""
    kind = {"apiVersion": "v1", "kind": "Service"}
    body = {"spec": {"ports": [{"port": 80}]}}
    rule = space.generate(**kind, data=body)
    with pytest.raises(Refused, match="requires permissions"):
        space.policy(rule)
    label = {"rbac.kyverno.io/aggregate-to-background-controller": "true"}
    verbs = ["create", "delete", "get", "list", "update"]
    grant = {"apiGroups": [""], "resources": ["services"], "verbs": verbs}
    name = f"test:{space.name}"
    raw = {"metadata": {"name": name, "labels": label}, "rules": [grant]}
    api.create(ROLES, raw)
    wait_for(lambda: _is_taken(space, rule))
    api.delete(f"{ROLES}/{name}")
    # K8S: the aggregated role follows a moment later.
    role = f"{ROLES}/kyverno:background-controller"
    wait_for(lambda: "services" not in str(api.get(role)["rules"]))
    space.trigger()
    request = wait_for(lambda: next(iter(_failed(space)), None))
    assert "403" in request["status"]["message"]
    api.create(ROLES, raw)
    space.await_done()
    services = api.get(f"/api/v1/namespaces/{space.name}/services")["items"]
    assert [one["metadata"]["name"] for one in services] == ["t"]
    api.delete(f"{ROLES}/{name}")


def _is_taken(space: Space, rule: Json) -> bool:
    try:
        space.policy(rule)
    except Refused:
        return False
    return True


def test_many_triggers(
    cluster: Cluster, api: Api, shared_plane: ControlPlane, space: Space
) -> None:
    """Nothing is lost, with few calls each; deleting the policy deletes all objects."""
    path = space.policy(space.generate(data=POLICY_DATA))
    shared_plane.audit.mark()

    def some(start: int) -> None:
        with Api(cluster.access) as own:
            one = Space(own, space.name)
            for number in range(start, MANY, 4):
                one.trigger(f"t{number}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(some, range(4)))
    wanted = {f"t{number}" for number in range(MANY)}
    wait_for(lambda: space.names() == wanted)
    space.await_done()
    asked = shared_plane.audit.asked(USER)
    calls = [one for one in asked if one.resource not in ("leases", "events")]
    # The leader creates the UpdateRequest in addition to these three.
    assert len(calls) <= 3.5 * MANY, Counter((o.verb, o.resource) for o in calls)
    created = [one for one in calls if (one.verb, one.resource) == _CREATED]
    assert len([one for one in created if one.code == 201]) == MANY
    shared_plane.audit.mark()
    api.delete(path)
    wait_for(lambda: not space.names())
    calls = [one for one in shared_plane.audit.asked(USER) if one.verb == "delete"]
    assert len([one for one in calls if one.resource == "configmaps"]) == MANY
    assert api.get(REQUESTS)["items"] == []


_CREATED = ("create", "configmaps")

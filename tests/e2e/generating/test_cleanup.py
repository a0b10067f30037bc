"""Clean-up by kyverno-mp itself on a real control plane, as its own account.

A failure means: objects are kept or deleted wrongly, for example when permissions are
missing, or when the API server or the lease holder is away.
"""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.api import Api, Refused
from tests.e2e.conftest import Cluster
from tests.e2e.control_plane import ControlPlane
from tests.e2e.namespaces import end_namespace
from tests.e2e.product import CLEANUP, Product, configured, holder_of, started
from tests.waiting import unique, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

MANY: Final = 500
_POLICIES: Final = "/apis/kyverno.io/v2/clustercleanuppolicies"
_OWN: Final = "/apis/kyverno.io/v2/namespaces/{}/cleanuppolicies"
_ROLES: Final = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
_TTL: Final = "cleanup.kyverno.io/ttl"
_USER: Final = f":{CLEANUP}"
_VERBS: Final = ["get", "list", "watch", "delete"]
Json = Any


@pytest.fixture(scope="module")
def plane(shared_plane: ControlPlane, api: Api) -> ControlPlane:
    grant(api, "configmaps")
    return shared_plane


@pytest.fixture(scope="module")
def running(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Product]:
    folder = tmp_path_factory.mktemp("cleanup")
    extra = {"CLEANUP_WORKERS": "1", "CLEANUP_DISCOVERY_S": "5"}
    with (
        started(plane, folder, {**extra, "POD_NAME": "first"}) as product,
        configured(plane, generateSuccessEvents="true"),
    ):
        yield product


@pytest.fixture
def space(api: Api, shared_plane: ControlPlane, running: Product) -> Iterator[str]:
    """Yield a new namespace; its objects and policies are deleted after the test."""
    wait_for(lambda: holder_of(api, CLEANUP) == "first")
    name = f"cleanup-{unique()}"
    api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    yield name
    for one in api.get(_POLICIES)["items"]:
        api.delete(f"{_POLICIES}/{one['metadata']['name']}")
    end_namespace(api, shared_plane.etcd_url, name)


def grant(api: Api, *resources: str) -> str:
    """Let the cleanup account delete these resources, as documented."""
    name = "test:cleanup:" + ":".join(resources)
    label = {"rbac.kyverno.io/aggregate-to-cleanup-controller": "true"}
    rule = {"apiGroups": [""], "resources": list(resources), "verbs": _VERBS}
    api.create(_ROLES, {"metadata": {"name": name, "labels": label}, "rules": [rule]})
    return name


def put(
    api: Api, space: str, name: str, plural: str = "configmaps", **raw: Json
) -> str:
    """Create an object and return its uid."""
    metadata = {"name": name, **raw.pop("metadata", {})}
    path = f"/api/v1/namespaces/{space}/{plural}"
    created = api.create(path, {"metadata": metadata, **raw})
    return str(created["metadata"]["uid"])


def put_many(cluster: Cluster, space: str) -> None:
    """Create many objects over a few connections."""

    def some(start: int) -> None:
        with Api(cluster.access) as own:
            for number in range(start, MANY, 8):
                put(own, space, f"c{number}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(some, range(8)))


def names(api: Api, space: str, plural: str = "configmaps") -> set[str]:
    found = api.get(f"/api/v1/namespaces/{space}/{plural}")["items"]
    return {one["metadata"]["name"] for one in found} - {"kube-root-ca.crt"}


def policy(api: Api, space: str, name: str = "p", **spec: Json) -> None:
    """Create a policy on the ConfigMaps of a namespace, except those of Kubernetes."""
    resources = {"kinds": ["ConfigMap"], "namespaces": [space]}
    given = {
        "schedule": "@every 2s",
        "match": {"any": [{"resources": resources}]},
        "exclude": {"any": [{"resources": {"names": ["kube-root-ca.crt", "kept"]}}]},
        **spec,
    }
    raw = {"kind": "ClusterCleanupPolicy", "metadata": {"name": name}, "spec": given}
    # The webhook of a new policy may lack a permission that was just granted.
    wait_for(lambda: _is_taken(api, {"apiVersion": "kyverno.io/v2", **raw}))


def _is_taken(api: Api, raw: Json) -> bool:
    status, body = api.ask("POST", _POLICIES, raw)
    if status == 400 and "no permission" in body["message"]:
        return False
    if status >= 300:
        raise Refused(status, body)
    return True


def condition(api: Api, path: str) -> Json:
    status = api.get(path).get("status") or {}
    return next(iter(status.get("conditions") or [{}]))


def test_policy_deletes_selected_objects(api: Api, space: str) -> None:
    put(api, space, "old", data={"keep": "no"})
    put(api, space, "new", data={"keep": "yes"})
    put(api, space, "kept", data={"keep": "no"})
    held = {"key": "{{ target.data.keep }}", "operator": "Equals", "value": "no"}
    policy(api, space, conditions={"any": [held]})
    wait_for(lambda: names(api, space) == {"new", "kept"})
    wait_for(lambda: condition(api, f"{_POLICIES}/p").get("status") == "True")
    time.sleep(3)
    assert names(api, space) == {"new", "kept"}
    events = api.get("/apis/events.k8s.io/v1/namespaces/default/events")["items"]
    said = f"successfully cleaned up the target resource ConfigMap/{space}/old"
    found = [one for one in events if one["note"] == said]
    assert [one["reportingController"] for one in found] == ["kyverno-cleanup"]


def test_namespaced_policy_stays_in_its_namespace(api: Api, space: str) -> None:
    other = f"{space}-other"
    api.create("/api/v1/namespaces", {"metadata": {"name": other}})
    put(api, space, "mine")
    put(api, other, "theirs")
    spec = {
        "schedule": "@every 1s",
        "match": {"any": [{"resources": {"kinds": ["ConfigMap"], "names": ["*i*e*"]}}]},
    }
    api.create(
        _OWN.format(space),
        {
            "apiVersion": "kyverno.io/v2",
            "kind": "CleanupPolicy",
            "metadata": {"name": "own"},
            "spec": spec,
        },
    )
    wait_for(lambda: names(api, space) == set())
    time.sleep(2)
    assert names(api, other) == {"theirs"}
    api.delete(f"/api/v1/namespaces/{other}")


@pytest.mark.parametrize(("said", "is_left"), [("Orphan", True), ("Background", False)])
def test_dependents(api: Api, space: str, said: str, *, is_left: bool) -> None:
    uid = put(api, space, "owner")
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}
    put(api, space, "kept", metadata={"ownerReferences": [owner]})
    policy(api, space, deletionPropagationPolicy=said)
    wait_for(lambda: "owner" not in names(api, space))

    def is_settled() -> bool:
        if not is_left:
            return not names(api, space)
        found = api.get(f"/api/v1/namespaces/{space}/configmaps/kept")
        return "ownerReferences" not in found["metadata"]

    wait_for(is_settled)


def test_missing_permissions_are_reported_at_admission_and_later(
    api: Api, space: str
) -> None:
    """A kind that can no longer be deleted is named; the others are still deleted."""
    kinds = {"kinds": ["Secret", "ConfigMap"], "namespaces": [space]}
    raw = {
        "apiVersion": "kyverno.io/v2",
        "kind": "ClusterCleanupPolicy",
        "metadata": {"name": "early"},
        "spec": {"schedule": "@hourly", "match": {"any": [{"resources": kinds}]}},
    }
    with pytest.raises(Refused, match="no permission to delete kind Secret"):
        api.create(_POLICIES, raw)
    role = grant(api, "secrets")
    policy(api, space, match={"any": [{"resources": kinds}]}, schedule="@every 4s")
    api.delete(f"{_ROLES}/{role}")
    put(api, space, "one")
    put(api, space, "hidden", "secrets")
    path = f"{_POLICIES}/p"
    wait_for(lambda: condition(api, path).get("reason") == "Forbidden")
    put(api, space, "two")
    wait_for(lambda: not names(api, space))
    assert names(api, space, "secrets") == {"hidden"}
    said = "permission to list kind Secret"
    wait_for(lambda: said in condition(api, path)["message"])


def test_ttl_labels(api: Api, plane: ControlPlane, space: str) -> None:
    """Each is deleted within two seconds after it is due, by one call."""
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=8)
    due = at.strftime("%Y-%m-%dT%H%M%SZ")
    wait_for(lambda: _is_watching(api, plane, space))
    plane.audit.mark()
    for number in range(20):
        put(api, space, f"c{number}", metadata={"labels": {_TTL: due}})
    put(api, space, "long", metadata={"labels": {_TTL: "1h"}})
    put(api, space, "bad", metadata={"labels": {_TTL: "soon"}})
    while datetime.now(UTC) < at:
        assert len(names(api, space)) == 22
        time.sleep(0.2)
    wait_for(lambda: names(api, space) == {"long", "bad"}, 2)
    asked = [one for one in plane.audit.asked(_USER) if one.namespace == space]
    calls = Counter((one.verb, one.resource) for one in asked)
    assert calls["delete", "configmaps"] == 20
    assert sum(calls[verb, "configmaps"] for verb in ("get", "list")) == 0
    events = api.get(f"/apis/events.k8s.io/v1/namespaces/{space}/events")["items"]
    assert [one["regarding"]["name"] for one in events] == ["bad"]


def _is_watching(api: Api, plane: ControlPlane, space: str) -> bool:
    """Return whether labelled ConfigMaps are watched: a due one is deleted."""
    put(api, space, f"due-{unique()}", metadata={"labels": {_TTL: "0s"}})
    del plane
    time.sleep(1)
    return not names(api, space)


def test_api_server_outage(api: Api, plane: ControlPlane, space: str) -> None:
    """Objects that became due meanwhile are deleted afterwards."""
    put(api, space, "later", metadata={"labels": {_TTL: "4s"}})
    policy(api, space, schedule="@every 3s")
    plane.apiserver.stop(signal.SIGKILL)
    time.sleep(5)
    plane.apiserver.start()
    with Api(plane.access) as own:
        wait_for(lambda: _answers(own))
        wait_for(lambda: names(own, space) == set())
        put(own, space, "more")
        wait_for(lambda: names(own, space) == set())


def _answers(api: Api) -> bool:
    try:
        return api.ask("GET", "/readyz")[0] == 200
    except OSError:
        return False


def test_killed_process_resumes_its_run(
    api: Api, cluster: Cluster, plane: ControlPlane, running: Product, space: str
) -> None:
    """The process is killed several times in a run of 500 deletions."""
    put_many(cluster, space)
    plane.audit.mark()
    policy(api, space, schedule="@every 1h")
    # K8S: the schedule counts from the creation; a status makes a run due now.
    past = {"status": {"lastExecutionTime": "2026-01-01T00:00:00Z"}}
    api.patch(f"{_POLICIES}/p/status", past)
    for left in (450, 300, 150):
        await_fewer(api, space, left)
        os.kill(running.processes()["cleanup"], signal.SIGKILL)
    wait_for(lambda: names(api, space) == set())
    wait_for(lambda: condition(api, f"{_POLICIES}/p").get("reason") == "Succeeded")
    # Four threads delete; three processes were killed.
    check_once(plane, space, cut_off=3 * 4)


def await_fewer(api: Api, space: str, count: int) -> None:
    """Wait until fewer objects than this remain."""
    wait_for(lambda: len(names(api, space)) < count)


def check_once(plane: ControlPlane, space: str, cut_off: int = 0) -> None:
    """Check that each object was deleted once, by at most two calls except after kills.

    ``cut_off``: deletions that may have been in progress when their process was killed.
    K8S: the audit log has no success for a call whose client disconnected.
    """
    asked = [one for one in plane.audit.asked(_USER) if one.namespace == space]
    deleted = Counter(one.name for one in asked if one.verb == "delete" and one.done)
    assert MANY - cut_off <= len(deleted) <= MANY
    assert set(deleted.values()) == {1}
    assert len(asked) <= 2.1 * MANY + 50


def test_suspended_holder_resumes_safely(
    api: Api,
    cluster: Cluster,
    plane: ControlPlane,
    running: Product,
    space: str,
    tmp_path: Path,
) -> None:
    """Another holder took over in the meantime; nothing is deleted twice."""
    put_many(cluster, space)
    extra = {"CLEANUP_WORKERS": "1", "POD_NAME": "second"}
    second = Product(plane, tmp_path, 0, extra, account=CLEANUP)
    second.start()
    try:
        plane.audit.mark()
        policy(api, space, schedule="@every 1h")
        past = {"status": {"lastExecutionTime": "2026-01-01T00:00:00Z"}}
        api.patch(f"{_POLICIES}/p/status", past)
        await_fewer(api, space, MANY - 50)
        suspended = running.processes()["cleanup"]
        os.kill(suspended, signal.SIGSTOP)
        wait_for(lambda: holder_of(api, CLEANUP) == "second")
        await_fewer(api, space, MANY - 250)
        os.kill(suspended, signal.SIGCONT)
        wait_for(lambda: names(api, space) == set())
        check_once(plane, space)
    finally:
        second.stop()
        print(second.program.log.read_text()[-4000:])

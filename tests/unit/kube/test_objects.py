"""Objects are written as intended, once, and never after a lost lease."""

import threading
from typing import Any

import pytest

from kyverno_mp.errors import KubeConflict, LeaseLost
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.resource import core
from tests.unit.kube.fake_api import FakeApi

MAPS = core("configmaps")
KEY = ("a", "m")


def config_map(**data: str) -> dict[str, Any]:
    return {"metadata": {"name": "m", "namespace": "a"}, "data": data}


def test_create_find_delete(api: FakeApi) -> None:
    objects = Objects(api.client())
    assert objects.find(MAPS, KEY) is None
    objects.create(MAPS, config_map(x="1"))
    with pytest.raises(KubeConflict) as raised:
        objects.create(MAPS, config_map(x="2"))
    assert raised.value.code == "kube.exists"
    found = objects.find(MAPS, KEY)
    assert found is not None
    with pytest.raises(KubeConflict):
        objects.delete(MAPS, KEY, uid="another")
    assert objects.delete(MAPS, KEY, uid=found["metadata"]["uid"])
    assert not objects.delete(MAPS, KEY)


def test_change_retries_after_a_conflict(api: FakeApi) -> None:
    objects = Objects(api.client())
    objects.create(MAPS, config_map(n="0"))
    raced = threading.Event()

    def edit(raw: Any) -> Any:
        if not raced.is_set():
            raced.set()
            api.put("/api/v1/namespaces/a/configmaps/m", data={"n": "5"})
        return {**raw, "data": {"n": str(int(raw["data"]["n"]) + 1)}}

    changed = objects.change(MAPS, KEY, edit)
    assert changed is not None
    assert changed["data"] == {"n": "6"}
    assert objects.change(MAPS, ("a", "none"), edit) is None


def test_lost_lease_stops_every_write(api: FakeApi) -> None:
    def lost() -> None:
        raise LeaseLost("kube.lease_lost", "lost")

    objects = Objects(api.client()).guarded(lost)
    writes = (
        lambda: objects.create(MAPS, config_map()),
        lambda: objects.replace(MAPS, config_map()),
        lambda: objects.merge(MAPS, KEY, {}),
        lambda: objects.apply(MAPS, config_map()),
        lambda: objects.delete(MAPS, KEY),
    )
    for write in writes:
        with pytest.raises(LeaseLost):
            write()
    assert api.requests == []


def test_apply_names_its_manager(api: FakeApi) -> None:
    Objects(api.client()).apply(MAPS, config_map(x="1"))
    method, target, headers = api.requests[0]
    assert method == "PATCH"
    assert target.endswith("configmaps/m?fieldManager=kyverno-mp&force=true")
    assert headers["content-type"] == "application/apply-patch+yaml"


def test_write_is_not_retried_after_a_lost_lease(api: FakeApi) -> None:
    """The server may request a longer wait than the lease lasts."""
    held = [True, False]

    def guard() -> None:
        if not held.pop(0):
            raise LeaseLost("kube.lease_lost", "gone")

    api.fault("POST", ("retry", 429, 0))
    with pytest.raises(LeaseLost):
        Objects(api.client()).guarded(guard).create(MAPS, config_map())
    assert api.count("POST") == 1
    assert not api.objects


def test_deletion_has_the_version_as_precondition(api: FakeApi) -> None:
    made = api.put("/api/v1/namespaces/a/configmaps/m")["metadata"]
    changed = api.put("/api/v1/namespaces/a/configmaps/m", data={"k": "v"})["metadata"]
    objects = Objects(api.client())
    with pytest.raises(KubeConflict):
        objects.delete(
            MAPS,
            KEY,
            made["uid"],
            resource_version=made["resourceVersion"],
        )
    assert objects.delete(
        MAPS,
        KEY,
        changed["uid"],
        resource_version=changed["resourceVersion"],
        propagation="Foreground",
    )
    ((_, options),) = api.deletions
    assert options["propagationPolicy"] == "Foreground"
    assert options["preconditions"] == {
        "uid": changed["uid"],
        "resourceVersion": changed["resourceVersion"],
    }


def test_each_manager_owns_its_applied_fields(api: FakeApi) -> None:
    objects = Objects(api.client(), manager="kyverno-mp-pool")
    objects.guarded(lambda: None).apply(MAPS, config_map(k="v"))
    assert "fieldManager=kyverno-mp-pool" in api.requests[-1][1]

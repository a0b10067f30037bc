"""Objects that are watched are read without a call, and never older than known."""

from collections.abc import Iterator
from typing import Any

import pytest

from kyverno_mp.errors import DependencyError, LeaseLost
from kyverno_mp.kube.followed import FollowedObjects
from kyverno_mp.kube.resource import core
from tests.unit.kube.fake_api import FakeApi
from tests.waiting import HANG_S, wait_for

SECRETS = core("secrets")
KEY = ("kyverno", "s")
PATH = "/api/v1/namespaces/kyverno/secrets/s"
READS = "GET .*/secrets/s"


@pytest.fixture
def objects(api: FakeApi) -> Iterator[FollowedObjects]:
    made = FollowedObjects(api.client(), [(SECRETS, KEY)])
    for informer in made.informers:
        informer.start()
        assert informer.wait_synced(HANG_S)
    yield made
    for informer in made.informers:
        informer.stop()


def value(objects: FollowedObjects) -> Any:
    found = objects.find(SECRETS, KEY)
    return found and found["data"]["v"]


def secret(content: str) -> Any:
    metadata = {"namespace": "kyverno", "name": "s"}
    return {"metadata": metadata, "data": {"v": content}}


def test_watched_object_is_read_without_a_call(
    api: FakeApi, objects: FollowedObjects
) -> None:
    assert objects.find(SECRETS, KEY) is None
    api.put(PATH, data={"v": "1"})
    wait_for(lambda: value(objects) == "1")
    api.put(PATH, data={"v": "2"})
    wait_for(lambda: value(objects) == "2")
    api.remove(PATH)
    wait_for(lambda: objects.find(SECRETS, KEY) is None)
    assert api.count(READS) == 0


def test_own_writes_are_read_at_once(api: FakeApi, objects: FollowedObjects) -> None:
    """Also by copies with another guard, while the watch is late."""
    api.silent = True
    objects.create(SECRETS, secret("1"))
    assert value(objects) == "1"
    found = objects.find(SECRETS, KEY)
    assert found is not None
    objects.guarded(lambda: None).replace(SECRETS, {**found, "data": {"v": "2"}})
    assert value(objects) == "2"
    assert api.count(READS) == 0


def test_later_change_replaces_the_own_write(
    api: FakeApi, objects: FollowedObjects
) -> None:
    objects.create(SECRETS, secret("1"))
    api.put(PATH, data={"v": "2"})
    wait_for(lambda: value(objects) == "2")
    api.remove(PATH)
    wait_for(lambda: objects.find(SECRETS, KEY) is None)


def test_object_is_read_live_while_the_watch_fails(api: FakeApi) -> None:
    """Old state would hide an outage."""
    api.put(PATH, data={"v": "1"})
    api.fault("GET .*watch=1", *([403] * 1000))
    objects = FollowedObjects(api.client(), [(SECRETS, KEY)])
    (informer,) = objects.informers
    informer.start()
    try:
        wait_for(lambda: informer.failures)
        api.put(PATH, data={"v": "2"})
        assert value(objects) == "2"
        api.fault(READS, 403)
        with pytest.raises(DependencyError):
            objects.find(SECRETS, KEY)
    finally:
        informer.stop()


def test_guard_protects_writes_of_watched_objects(objects: FollowedObjects) -> None:
    def guard() -> None:
        raise LeaseLost("kube.lease_lost", "not held")

    with pytest.raises(LeaseLost):
        objects.guarded(guard).create(SECRETS, secret("1"))
    assert objects.find(SECRETS, KEY) is None


def test_only_the_named_objects_are_listed(
    api: FakeApi, objects: FollowedObjects
) -> None:
    """A role grants the names only."""
    assert value(objects) is None
    lists = [path for _, path, _ in api.requests if "/secrets" in path]
    assert all("fieldSelector=metadata.name%3Ds" in path for path in lists)

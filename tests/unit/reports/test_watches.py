"""Which fields of an object count as a change, and which objects exist."""

from typing import Any

import msgspec
import pytest

from kyverno_mp.kube.resource import core
from kyverno_mp.queues.clock import Clock
from kyverno_mp.reports.feed import Feed
from kyverno_mp.reports.scan.watches import KindWatch, content_digest
from tests.unit.kube.fake_api import FakeApi
from tests.waiting import wait_for

Json = Any
POD: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "x",
        "resourceVersion": "1",
        "generation": 1,
        "labels": {"a": "1"},
        "managedFields": [{"manager": "m"}],
    },
    "spec": {"containers": [{"name": "c"}], "nodeName": "n"},
    "status": {"phase": "Pending"},
}


def digest(raw: Json) -> bytes:
    return content_digest(msgspec.json.encode(raw))


def without(raw: Json, *names: str) -> Json:
    return {name: value for name, value in raw.items() if name not in names}


@pytest.mark.parametrize(
    "other",
    [
        # K8S: an item of a list has neither field.
        without(POD, "apiVersion", "kind"),
        # KYVERNO: neither the status nor the node of a Pod (6.3).
        {**POD, "status": {"phase": "Running"}},
        {**POD, "spec": without(POD["spec"], "nodeName")},
        {**POD, "spec": {**POD["spec"], "nodeName": "other"}},
        {**POD, "metadata": {**POD["metadata"], "resourceVersion": "2"}},
        {**POD, "metadata": without(POD["metadata"], "managedFields", "generation")},
    ],
)
def test_change_of_an_unread_field_is_ignored(other: Json) -> None:
    assert digest(other) == digest(POD)


@pytest.mark.parametrize(
    "other",
    [
        {**POD, "spec": {"containers": [{"name": "d"}], "nodeName": "n"}},
        {**POD, "metadata": {**POD["metadata"], "labels": {"a": "2"}}},
        {**POD, "metadata": {**POD["metadata"], "annotations": {"a": "1"}}},
        {**POD, "metadata": {**POD["metadata"], "ownerReferences": []}},
        {**POD, "data": {}},
    ],
)
def test_change_of_a_read_field_is_noticed(other: Json) -> None:
    assert digest(other) != digest(POD)


@pytest.mark.parametrize("fault", ["expire", {"code": 403, "reason": "Forbidden"}])
def test_objects_of_an_unfinished_list_may_be_gone(api: FakeApi, fault: Json) -> None:
    """Otherwise, they count as existing for ever, and get reports."""
    for number in range(600):
        api.put(f"/api/v1/namespaces/a/pods/p{number:03}")
    api.put("/api/v1/namespaces/a/pods/gone")
    api.fault("continue=500", fault)

    def on_request(_method: str, target: str) -> None:
        if "continue=500" in target:
            api.on_request = lambda _method, _target: None
            api.remove("/api/v1/namespaces/a/pods/gone")

    api.on_request = on_request
    watch = KindWatch(api.client(), core("pods"), Feed(), Clock())
    watch.start()
    try:
        wait_for(lambda: api.watching == 1)
        assert watch.get(("a", "gone")) is None
        assert len(watch) == 600
    finally:
        watch.stop()

"""Objects and Events are written as meant, once, and never past a lost lease."""

import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from kyverno_mp.errors import KubeConflict, LeaseLost
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.events import Events, Notice, Reference, cut_note, event_name
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


def test_change_reads_anew_after_a_lost_race(api: FakeApi) -> None:
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


def test_a_lost_lease_stops_every_write(api: FakeApi) -> None:
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


def notice(note: str = "n", reason: str = "PolicyViolation") -> Notice:
    return Notice(
        regarding=Reference("kyverno.io/v1", "ClusterPolicy", "p", uid="1"),
        reason=reason,
        action="Resource Blocked",
        note=note,
        controller="kyverno-admission",
    )


def events(api: FakeApi, clock: list[int], **options: Any) -> Events:
    wall = datetime(2026, 1, 1, tzinfo=UTC)
    return Events(
        Objects(api.client()),
        "host",
        clock_ns=lambda: clock[0] * 10**9,
        wall=lambda: wall,
        **options,
    )


def test_an_event_has_upstreams_shape(api: FakeApi) -> None:
    sink = events(api, [0])
    sink.tell(notice())
    sink.flush()
    (raw,) = api.objects.values()
    assert raw["metadata"]["name"] == f"p.{1767225600 * 10**9:x}"
    assert raw["metadata"]["namespace"] == "default"
    assert raw["type"] == "Warning"
    assert raw["reportingController"] == "kyverno-admission"
    assert raw["reportingInstance"] == "kyverno-admission-host"
    assert raw["eventTime"] == "2026-01-01T00:00:00.000000Z"


def test_repeats_become_a_count(api: FakeApi) -> None:
    clock = [0]
    sink = events(api, clock)
    for _ in range(100):
        sink.tell(notice())
        sink.flush()
    assert api.count("POST") == 1
    assert api.count("PATCH") == 0
    clock[0] = 40
    sink.flush()
    (raw,) = api.objects.values()
    assert raw["series"]["count"] == 100
    assert api.count("PATCH") == 1


def test_one_object_cannot_flood(api: FakeApi) -> None:
    sink = events(api, [0])
    for number in range(100):
        sink.tell(notice(str(number)))
    sink.flush()
    assert (sink.written, sink.dropped) == (25, 75)


def test_the_queue_is_bounded_and_says_so(api: FakeApi) -> None:
    sink = events(api, [0], queued_max=2)
    assert [sink.tell(notice()) for _ in range(3)] == [True, True, False]
    assert sink.dropped == 1


def test_omitted_reasons_and_nameless_objects_tell_nothing(api: FakeApi) -> None:
    sink = events(api, [0], omit=["PolicyApplied"])
    assert not sink.tell(notice(reason="PolicyApplied"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("Ab_c", "ab-c"), ("-x-", "a-x-z"), ("a.b", "a.b"), ("", "az")],
)
def test_event_names(name: str, expected: str) -> None:
    assert event_name(name) == expected


def test_notes_are_cut_as_upstream_does() -> None:
    assert cut_note("x" * 1024) == "x" * 1024
    assert cut_note("x" * 1025) == "x" * 1021 + "..."

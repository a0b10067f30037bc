"""New facts are reported once, repeats are counted, and floods are limited.

A failure means: a user does not learn of a violation, or etcd fills with copies of one.
"""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from kyverno_mp.errors import KubeUnavailable
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.events import (
    EventFilter,
    EventInfo,
    Events,
    Reference,
    cut_note,
    event_name,
)
from tests.unit.kube.fake_api import FakeApi

AT_NS = 1767225600 * 10**9


def event_info(note: str = "n", **changes: Any) -> EventInfo:
    regarding = Reference("kyverno.io/v1", "ClusterPolicy", "p", uid="1")
    base = EventInfo(
        regarding=regarding,
        reason="PolicyViolation",
        action="Resource Blocked",
        note=note,
        controller="kyverno-admission",
    )
    return replace(base, **changes)


def events(api: FakeApi, clock: list[int], **options: Any) -> Events:
    wall = datetime(2026, 1, 1, tzinfo=UTC)
    return Events(
        Objects(api.client()),
        "host",
        clock_ns=lambda: clock[0] * 10**9,
        wall=lambda: wall,
        **options,
    )


def test_event_has_upstreams_fields(api: FakeApi) -> None:
    sink = events(api, [0])
    sink.submit(event_info())
    sink.flush()
    (raw,) = api.objects.values()
    assert raw["metadata"]["name"] == f"p.{AT_NS:x}"
    assert raw["metadata"]["namespace"] == "default"
    assert raw["type"] == "Warning"
    assert raw["reportingController"] == "kyverno-admission"
    assert raw["reportingInstance"] == "kyverno-admission-host"
    assert raw["eventTime"] == "2026-01-01T00:00:00.000000Z"
    assert "related" not in raw


def test_event_is_in_the_namespace_of_its_object(api: FakeApi) -> None:
    sink = events(api, [0])
    pod = Reference("v1", "Pod", "web", "shop")
    sink.write(event_info(regarding=pod, related=Reference("v1", "Node", "n")))
    ((_, namespace, _, _),) = api.objects
    assert namespace == "shop"
    (raw,) = api.objects.values()
    assert raw["related"] == {"apiVersion": "v1", "kind": "Node", "name": "n"}


def test_repeated_events_are_counted(api: FakeApi) -> None:
    clock = [0]
    sink = events(api, clock)
    for _ in range(100):
        sink.submit(event_info())
        sink.flush()
    assert api.count("POST") == 1
    assert api.count("PATCH") == 0
    clock[0] = 40
    sink.flush()
    (raw,) = api.objects.values()
    assert raw["series"]["count"] == 100
    assert api.count("PATCH") == 1


def test_each_attempt_to_create_an_object_is_a_repeat(api: FakeApi) -> None:
    """K8S: a rejected object has another uid at each attempt."""
    sink = events(api, [0])
    for number in range(30):
        thing = Reference("v1", "Pod", "web", "a", uid=f"{number}")
        sink.write(event_info(related=thing))
    assert (sink.written, sink.dropped) == (1, 0)
    again = Reference("kyverno.io/v1", "ClusterPolicy", "p", uid="2")
    sink.write(event_info(regarding=again))
    assert sink.written == 2, "a policy made again has events of its own"


def test_events_with_other_messages_have_a_budget(api: FakeApi) -> None:
    sink = events(api, [0])
    for number in range(100):
        sink.write(event_info(str(number)))
    assert (sink.written, sink.dropped) == (25, 75)


@pytest.mark.parametrize("told_apart_by", ["related", "topic", "reason"])
def test_first_event_of_each_kind_is_never_dropped(
    api: FakeApi, told_apart_by: str
) -> None:
    """If a hundred objects or rules violate a policy at once, all are reported."""
    sink = events(api, [0])
    for number in range(100):
        value = f"x{number}"
        thing = Reference("v1", "Pod", value, "a")
        changes = {told_apart_by: thing if told_apart_by == "related" else value}
        for _ in range(3):
            sink.write(event_info(f"about {value}", **changes))
    assert (sink.written, sink.dropped) == (100, 0)


def test_queue_is_bounded_and_drops_are_counted(api: FakeApi) -> None:
    sink = events(api, [0], queued_max=2)
    assert [sink.submit(event_info()) for _ in range(3)] == [True, True, False]
    assert sink.dropped == 1


@pytest.mark.parametrize(
    ("successes", "reason", "action", "wanted"),
    [
        (None, "PolicyApplied", "Resource Passed", False),
        (None, "PolicyViolation", "Resource Passed", True),
        ((), "PolicyApplied", "Resource Passed", True),
        (("Resource Mutated",), "PolicyApplied", "Resource Passed", False),
        (("Resource Mutated",), "PolicyApplied", "Resource Mutated", True),
        ((), "PolicySkipped", "Resource Passed", False),
    ],
)
def test_events_are_configurable(
    successes: tuple[str, ...] | None,
    reason: str,
    action: str,
    wanted: bool,  # noqa: FBT001 - a table
) -> None:
    asked = None if successes is None else frozenset(successes)
    chosen = EventFilter(frozenset({"PolicySkipped"}), lambda: asked)
    assert chosen(event_info(reason=reason, action=action)) is wanted


def test_object_without_a_name_gets_no_event(api: FakeApi) -> None:
    sink = events(api, [0])
    assert not sink.submit(event_info(regarding=Reference("v1", "Pod", "", "a")))
    assert sink.dropped == 0


def test_event_with_a_seed_is_written_once(
    api: FakeApi,
) -> None:
    """A leader that was killed before it recorded the write repeats the write."""
    said = event_info(at_ns=AT_NS + 123456789, seed="u-1")
    for _ in range(2):
        sink = events(api, [0])
        sink.write(said)
        sink.write(replace(said, topic="another rule"))
        assert sink.dropped == 0
    assert len(api.objects) == 2
    times = {raw["eventTime"] for raw in api.objects.values()}
    assert times == {"2026-01-01T00:00:00.123457Z"}
    stamps = {int(key[3].removeprefix("p."), 16) for key in api.objects}
    assert all(abs(stamp - AT_NS - 123456789) < 2 * 10**6 for stamp in stamps)


def test_event_that_cannot_be_written_is_retried(api: FakeApi) -> None:
    sink = events(api, [0])
    api.fault("POST", 500, 500, 500)
    with pytest.raises(KubeUnavailable):
        sink.write(event_info())
    sink.submit(event_info())
    sink.flush()
    assert (sink.queued_count, sink.dropped, sink.written) == (1, 0, 0)
    api.faults.clear()
    sink.flush()
    assert (sink.queued_count, sink.dropped, sink.written) == (0, 0, 1)


@pytest.mark.parametrize(("code", "dropped"), [(403, 1), (422, 1), (404, 0)])
def test_rejected_event_is_dropped(api: FakeApi, code: int, dropped: int) -> None:
    sink = events(api, [0])
    api.fault("POST", code)
    sink.write(event_info())
    assert (sink.written, sink.dropped) == (0, dropped)
    sink.write(event_info())
    assert sink.written == 1, "a refused event starts no series"


def test_count_outlives_its_event(api: FakeApi) -> None:
    clock = [0]
    sink = events(api, clock)
    sink.write(event_info())
    sink.write(event_info())
    api.objects.clear()
    api.fault("PATCH", 404)
    clock[0] = 40
    sink.flush()
    sink.write(event_info("other"))
    assert len(api.objects) == 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [("Ab_c", "ab-c"), ("-x-", "a-x-z"), ("a.b", "a.b"), ("", "az")],
)
def test_event_names(name: str, expected: str) -> None:
    assert event_name(name) == expected


def test_notes_are_truncated_like_upstreams() -> None:
    assert cut_note("x" * 1024) == "x" * 1024
    assert cut_note("x" * 1025) == "x" * 1021 + "..."

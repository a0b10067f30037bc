"""Objects with a TTL label against an API server: deletion times and reports."""

from typing import Any

import pytest

from kyverno_mp import limits
from kyverno_mp.queues.clock import Clock
from kyverno_mp.settings.settings import Settings
from kyverno_mp.values.kubernetes.grants import TTL_VERBS
from tests.unit.cleanup.cluster import (
    Recorded,
    at,
    config_map,
    controller,
    dependencies_of,
    held_for,
    names,
    resource,
    running_cleanup,
    serve_kinds,
)
from tests.unit.kube.fake_api import EVERYTHING, FakeApi
from tests.unit.queues.turned_clock import TurnedClock
from tests.waiting import HANG_S, wait_for

Json = Any
LABEL = "cleanup.kyverno.io/ttl"
PROPAGATION = "cleanup.kyverno.io/propagation-policy"
DELETED = "kyverno_ttl_controller_deletedobjects_total"
ERRORS = "kyverno_ttl_controller_errors_total"
INFO = "kyverno_ttl_controller_info"


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


def labelled(api: FakeApi, name: str, value: str, **fields: Json) -> Json:
    return config_map(api, name, labels={LABEL: value}, **fields)


def calls(api: FakeApi) -> int:
    """Return the number of requests without restarted watches."""
    return api.count("") - api.count("watch=1")


# Each row is a label's value and the second of deletion, after 2026-01-01T00:00:00Z.
TIMES: list[tuple[str, float]] = [
    ("30s", 40),
    ("10m", 610),
    ("2h", 7210),
    ("1d", 86410),
    ("1w", 7 * 86400 + 10),
    ("90sec", 100),
    ("1h30m", 5410),
    ("2026-01-01T001500Z", 900),
    ("2026-01-02", 86400),
    ("2025-12-31", 0),
]


@pytest.mark.parametrize(("value", "second"), TIMES)
def test_expired_object_is_deleted(
    api: FakeApi, clock: TurnedClock, recorded: Recorded, value: str, second: float
) -> None:
    """Otherwise, objects would be deleted too early, or never."""
    serve_kinds(api)
    labelled(api, "one", value, created_s=10)
    clock.turn(11)
    with controller(api, dependencies_of(api, recorded, clock.clock)) as one:
        one.settle()
        if second > 11:
            assert names(api) == ["a/one"]
            clock.turn(second - 11 - 0.5)
            one.settle()
            assert names(api) == ["a/one"]
            clock.turn(0.5)
            one.settle()
    assert names(api) == []
    assert recorded.counts[DELETED, ("a", "", "v1", "configmaps")] == 1
    assert recorded.total(ERRORS) == 0


def test_deletion_is_one_call_with_preconditions(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """Without preconditions, a changed object would be deleted."""
    serve_kinds(api)
    stored = [labelled(api, f"c{number}", "1s") for number in range(50)]
    clock.turn(60)
    with controller(api, dependencies_of(api, recorded, clock.clock)) as one:
        before = calls(api)
        one.settle()
        assert calls(api) - before == 50
    wanted = {
        one["metadata"]["uid"]: one["metadata"]["resourceVersion"] for one in stored
    }
    sent = [options["preconditions"] for _, options in api.deletions]
    assert {one["uid"]: one["resourceVersion"] for one in sent} == wanted
    assert all("propagationPolicy" not in options for _, options in api.deletions)


@pytest.mark.parametrize(
    ("said", "sent"),
    [("Foreground", "Foreground"), ("Orphan", "Orphan"), ("foreground", None)],
)
def test_propagation_policy(
    api: FakeApi, clock: TurnedClock, recorded: Recorded, said: str, sent: str | None
) -> None:
    """Otherwise, dependents would be deleted or kept against the annotation.

    The annotation's value is case-sensitive.
    """
    serve_kinds(api)
    labelled(api, "one", "1s", annotations={PROPAGATION: said})
    clock.turn(60)
    with controller(api, dependencies_of(api, recorded, clock.clock)) as one:
        one.settle()
    assert [options.get("propagationPolicy") for _, options in api.deletions] == [sent]


def test_invalid_value_is_reported_once(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """Otherwise, each change of the object and each round would cause an Event."""
    serve_kinds(api)
    labelled(api, "one", "soon")
    with controller(api, dependencies_of(api, recorded, clock.clock)) as one:
        one.settle()
        labelled(api, "one", "soon", data={"changed": "yes"})
        one.settle()
        one.cleanup.ttl.timers.resync()
        one.settle()
        assert recorded.total(ERRORS) == len(recorded.events) == 1
        labelled(api, "one", "later")
        one.settle()
        assert recorded.total(ERRORS) == len(recorded.events) == 2
    assert names(api) == ["a/one"]
    info = recorded.events[0]
    assert (info.regarding.kind, info.regarding.name) == ("ConfigMap", "one")
    assert info.reason == "PolicyError"
    said = (
        "cleanup.kyverno.io/ttl label value cannot be parsed as any recognizable format"
    )
    assert info.note.startswith(said)


def test_changed_label_takes_effect(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """Otherwise, an object with a removed or postponed label would be deleted."""
    serve_kinds(api)
    for name in ("later", "sooner", "off"):
        labelled(api, name, "30s")
    with controller(api, dependencies_of(api, recorded, clock.clock)) as one:
        labelled(api, "later", "1h")
        labelled(api, "sooner", "10s")
        config_map(api, "off")
        clock.turn(11)
        one.settle()
        assert names(api) == ["a/later", "a/off"]
        clock.turn(20)
        one.settle()
        assert names(api) == ["a/later", "a/off"]


def test_failing_kind_blocks_no_other(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """In upstream, one failing kind stops all clean-up (controllers 14.29)."""
    serve_kinds(api)
    labelled(api, "one", "1s", plural="secrets")
    api.fault("GET /api/v1/configmaps", *[403] * 1000)
    api.fault("DELETE /api/v1/namespaces/a/secrets/forbidden", 403)
    labelled(api, "forbidden", "1s", plural="secrets")
    with running_cleanup(dependencies_of(api, recorded, Clock())):
        wait_for(lambda: names(api, "secrets") == ["a/forbidden"])
        wait_for(
            lambda: any(
                "TTL watch of configmaps" in text
                for one in recorded.health
                for text in one
            ),
            HANG_S,
        )
    assert recorded.total(ERRORS) == 1


def test_denied_deletion_is_retried_after_a_minute_or_a_change(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """Otherwise, each round of the timers would repeat the rejected call."""
    serve_kinds(api)
    for name in ("same", "changed"):
        labelled(api, name, "1s")
        api.fault(f"DELETE /api/v1/namespaces/a/configmaps/{name}", 403)
    clock.turn(60)
    with controller(api, dependencies_of(api, recorded, clock.clock)) as one:
        one.settle()
        api.drop_watches()
        one.cleanup.ttl.timers.resync()
        one.settle()
        assert names(api) == ["a/changed", "a/same"]
        assert api.count("DELETE") == recorded.total(ERRORS) == 2
        labelled(api, "changed", "1s", data={"new": "yes"})
        one.settle()
        assert names(api) == ["a/same"]
        clock.turn(59)
        one.cleanup.ttl.timers.resync()
        one.settle()
        assert names(api) == ["a/same"]
        clock.turn(1)
        one.settle()
    assert names(api) == []


def test_only_permitted_kinds_are_watched(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """Otherwise, the API server would reject a watch every half minute."""
    serve_kinds(api)

    def may(asked: Json) -> bool:
        if asked["resource"] == "secrets":
            return bool(asked.get("namespace") == "b")
        return bool(asked["resource"] == "configmaps" or asked["verb"] != "delete")

    api.may = may
    for name in ("a", "b"):
        labelled(api, "one", "1s", namespace=name, plural="secrets")
    labelled(api, "one", "1s")
    clock.turn(60)
    bound = ("a", "b")
    dependencies = dependencies_of(
        api, recorded, clock.clock, bound_namespaces=lambda: bound
    )
    with controller(api, dependencies) as one:
        one.settle()
        watched = sorted(one.cleanup.ttl.watches.all())
    assert watched == [("", "configmaps", ""), ("", "secrets", "b")]
    assert names(api) == []
    assert names(api, "secrets") == ["a/one"]
    assert api.count("DELETE") == recorded.total(DELETED) == 2
    assert not api.count(r"GET /api/v1/secrets\?")


def test_labels_without_effect_are_reported(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """Otherwise, the objects would be kept for ever without a word."""
    serve_kinds(api)
    api.grants = [("", {**EVERYTHING, "verbs": ["list", "watch"]})]
    for name in ("x", "y"):
        labelled(api, name, "1s")
    config_map(api, "z")
    clock.turn(60)
    dependencies = dependencies_of(api, recorded, clock.clock)
    with controller(api, dependencies) as one:
        ttl = one.cleanup.ttl
        one.settle()
        wait_for(ttl.watches.undeletable)
        assert list(ttl.problems()) == []
        (problem,) = dependencies.rights.problems()
        assert "may not delete configmaps" in problem
        assert "no effect on 2 of them" in problem
        assert "kubectl create clusterrole" in problem
        assert names(api) == ["a/x", "a/y", "a/z"]
        # A new permission needs no discovery.
        api.grants.append(("", {**EVERYTHING, "verbs": ["delete"]}))
        calls_before = api.count("GET /apis?$")
        ttl.refresh(discovers=False)
        one.settle()
        assert names(api) == ["a/z"]
        assert api.count("GET /apis?$") == calls_before
        assert list(ttl.problems()) == []
        assert dependencies.rights.problems() == []


def test_a_changed_role_of_a_namespace_is_noticed(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    serve_kinds(api)
    api.grants = []
    labelled(api, "one", "1s")
    clock.turn(60)
    dependencies = dependencies_of(
        api, recorded, clock.clock, bound_namespaces=lambda: ("a",)
    )
    with controller(api, dependencies) as one:
        one.cleanup.ttl.refresh(discovers=False)
        reviews = api.count("selfsubjectrulesreviews")
        one.cleanup.ttl.refresh(discovers=False)
        # The answer for the namespace contains the rules for the whole cluster, too.
        assert api.count("selfsubjectrulesreviews") == reviews + 1
        api.grants = [("a", EVERYTHING)]
        one.cleanup.ttl.refresh(discovers=False)
        one.settle()
        assert names(api) == []
        api.grants = []
        one.cleanup.ttl.refresh(discovers=False)
        assert not one.cleanup.ttl.watches.all()


def test_kinds_and_permissions_are_refreshed(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """Otherwise, objects of a new CustomResourceDefinition would never be deleted."""
    serve_kinds(api)
    widgets = resource("widgets", "Widget")
    path = "/apis/x.io/v1/namespaces/a/widgets/one"
    with controller(api, dependencies_of(api, recorded, clock.clock)) as one:
        metadata = {"creationTimestamp": at(0), "labels": {LABEL: "1s"}}
        api.put(path, metadata=metadata)
        clock.turn(60)
        serve_kinds(api, ("x.io", "v1", [widgets]))
        one.cleanup.ttl.refresh()
        one.settle()
        assert names(api, "widgets") == []
        assert recorded.counts[INFO, ("x.io", "v1", "widgets")] == 1
        serve_kinds(api)
        one.cleanup.ttl.refresh()
        assert ("x.io", "widgets", "") not in one.cleanup.ttl.watches.all()
        assert recorded.counts[INFO, ("x.io", "v1", "widgets")] == 0
        api.grants = [("", {**EVERYTHING, "resources": ["configmaps", "pods"]})]
        one.cleanup.ttl.refresh()
        assert ("", "secrets", "") not in one.cleanup.ttl.watches.all()


def test_refresh_without_changes_takes_few_calls(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """Upstream sends three access reviews for each kind every minute."""
    serve_kinds(api)
    api.grants = [("", {**EVERYTHING, "verbs": [verb]}) for verb in TTL_VERBS]
    with controller(api, dependencies_of(api, recorded, clock.clock)) as one:
        before = calls(api)
        clock.turn(600)
        one.cleanup.ttl.refresh()
        assert calls(api) - before == 3


def test_a_new_holder_asks_once_for_all_kinds(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """Otherwise, each hand-over of the lease would cost three reviews for each kind."""
    kinds = [resource(f"kinds{number}", f"Kind{number}") for number in range(60)]
    serve_kinds(api, ("x.io", "v1", kinds))
    read = {**EVERYTHING, "verbs": ["list", "watch"]}
    delete = {"verbs": ["delete"], "apiGroups": ["x.io"], "resources": ["kinds7"]}
    api.grants = [("", read), ("b", delete)]
    dependencies = dependencies_of(
        api, recorded, clock.clock, bound_namespaces=lambda: ("a", "b")
    )
    with controller(api, dependencies) as one:
        assert list(one.cleanup.ttl.watches.all()) == [("x.io", "kinds7", "b")]
    # Of the cluster and of two namespaces.
    assert api.count("selfsubjectrulesreviews") == 3
    assert api.count("selfsubjectaccessreviews") == 0


def test_a_grant_that_one_api_server_does_not_know_yet_is_taken_up(
    api: FakeApi,
    clock: TurnedClock,
    recorded: Recorded,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each API server follows the rules with a cache of its own."""
    serve_kinds(api)
    api.grants = []
    labelled(api, "one", "1s")
    clock.turn(60)
    dependencies = dependencies_of(
        api, recorded, clock.clock, bound_namespaces=lambda: ("b",)
    )
    with controller(api, dependencies) as one:
        rules_in = api.rules_in
        api.grants = [("", EVERYTHING)]
        with monkeypatch.context() as patched:
            older = {"resourceRules": [], "incomplete": False}
            patched.setattr(
                api, "rules_in", lambda at: rules_in(at) if at == "b" else older
            )
            one.cleanup.ttl.refresh(discovers=False)
        assert ("", "configmaps", "") not in one.cleanup.ttl.watches.all()
        one.cleanup.ttl.refresh(discovers=False)
        one.settle()
    assert names(api) == []


def test_rules_that_cannot_be_listed_are_asked_for_with_the_kinds(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """An authorization webhook lists no rules, as on many managed clusters."""
    serve_kinds(api)
    api.may = lambda _asked: True
    with controller(api, dependencies_of(api, recorded, clock.clock)) as one:
        before = api.count("selfsubjectaccessreviews")
        for _ in range(12):
            one.cleanup.ttl.refresh(discovers=False)
        assert api.count("selfsubjectaccessreviews") == before
        one.cleanup.ttl.refresh()
        assert api.count("selfsubjectaccessreviews") > before


def test_watch_count_is_bounded(
    api: FakeApi,
    clock: TurnedClock,
    recorded: Recorded,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise, a cluster with thousands of kinds would need thousands of threads."""
    monkeypatch.setattr("kyverno_mp.cleanup.ttl.watches.CLEANUP_WATCHES_MAX", 2)
    assert limits.CLEANUP_WATCHES_MAX > 2
    serve_kinds(api)
    with controller(api, dependencies_of(api, recorded, clock.clock)) as one:
        assert len(one.cleanup.ttl.watches.all()) == 2
        [problem] = one.cleanup.problems()
    assert problem.startswith("2 resources above the limit of 2")


def test_objects_beyond_the_timer_limit_are_found_again(
    api: FakeApi,
    clock: TurnedClock,
    recorded: Recorded,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise, a full queue would lose objects."""
    monkeypatch.setattr("kyverno_mp.cleanup.ttl.timers.CLEANUP_TTL_TIMERS_MAX", 5)
    serve_kinds(api)
    for number in range(12):
        labelled(api, f"c{number}", "1s")
    clock.turn(60)
    with controller(api, dependencies_of(api, recorded, clock.clock)) as one:
        one.settle()
        assert len(names(api)) == 7
        for _ in range(2):
            one.cleanup.ttl.timers.resync()
            one.settle()
    assert names(api) == []
    assert recorded.total(DELETED) == 12


def test_wall_clock_step_causes_only_a_short_delay(
    api: FakeApi, recorded: Recorded
) -> None:
    """Timers use monotonic time, but the label refers to the wall clock."""
    serve_kinds(api)
    labelled(api, "one", "1h")
    clock = TurnedClock()
    stepped = TurnedClock()
    both = Clock(clock.monotonic_s, stepped.now)
    with controller(api, dependencies_of(api, recorded, both)) as one:
        one.settle()
        stepped.turn(3601)
        one.cleanup.ttl.timers.resync()
        one.settle()
    assert names(api) == []


def test_conflict_is_retried(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """Otherwise, an object that changes often would never be deleted."""
    serve_kinds(api)
    labelled(api, "one", "1s")
    clock.turn(60)
    api.fault("^DELETE", 409)
    with controller(api, dependencies_of(api, recorded, clock.clock)) as one:
        one.settle()
        assert names(api) == ["a/one"]
        clock.turn(1)
        one.settle()
    assert names(api) == []
    assert recorded.total(ERRORS) == 0


def test_dry_run_reports_each_object_once(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """Otherwise, a user who tries a label would lose objects."""
    serve_kinds(api)
    labelled(api, "one", "1s")
    clock.turn(60)
    dependencies = dependencies_of(
        api, recorded, clock.clock, settings=Settings(cleanup_dry_run=True)
    )
    with controller(api, dependencies) as one:
        one.settle()
        labelled(api, "one", "1s", data={"changed": "yes"})
        one.settle()
    assert names(api) == ["a/one"]
    assert recorded.notes() == ["dry run: the TTL 1s expired; it would be deleted"]


def test_terminating_objects_are_skipped(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """Otherwise, an object with a finalizer would be deleted again and again."""
    serve_kinds(api)
    metadata = {
        "creationTimestamp": at(0),
        "deletionTimestamp": at(5),
        "labels": {LABEL: "1s"},
    }
    api.put("/api/v1/namespaces/a/configmaps/going", metadata=metadata)
    clock.turn(60)
    with controller(api, dependencies_of(api, recorded, clock.clock)) as one:
        one.settle()
    assert not api.count("^DELETE")


@pytest.mark.parametrize("writes", range(0, 12, 2))
def test_new_holder_continues(
    api: FakeApi, clock: TurnedClock, recorded: Recorded, writes: int
) -> None:
    """Otherwise, objects would be deleted twice or forgotten."""
    serve_kinds(api)
    for number in range(5):
        labelled(api, f"c{number}", "1s")
    clock.turn(60)
    lost = dependencies_of(api, recorded, clock.clock, holds_lease=held_for(writes))
    with controller(api, lost) as one:
        one.settle()
        assert len(api.deletions) == min(5, writes)
    with controller(api, dependencies_of(api, recorded, clock.clock)) as one:
        one.settle()
    assert names(api) == []
    assert len(api.deletions) == recorded.total(DELETED) == 5

"""Events of scans.

Expected values: docs/behaviour/controllers 9.1; Kyverno pkg/event/events.go and
pkg/controllers/report/utils/events.go. A failure means: an Event is missing, differs
from upstream's, or is repeated although nothing changed.
"""

from typing import Any

import msgspec
import pytest

from kyverno_mp.kube.events import EventInfo
from kyverno_mp.limits import (
    REPORTS_EVENTS_BURST,
    REPORTS_EVENTS_PER_S,
    REPORTS_EVENTS_RULES_MAX,
)
from kyverno_mp.reports.scan import events as scan_events
from kyverno_mp.results.entries import KYVERNO, Row, Subject, Timestamp
from tests.unit.kube.fake_api import FakeApi
from tests.unit.reports.world import (
    NOW_S,
    Term,
    labelled,
    new_cluster,
    pod,
    policy,
    report_of,
    results,
    term,
)

Json = Any
_DROPPED = "kyverno_mp_reports_events_dropped_total"
_FAILURE = "validation error: the label team is required."
EXCEPTION = {
    "apiVersion": "kyverno.io/v2",
    "kind": "PolicyException",
    "metadata": {"name": "e", "namespace": "ns"},
    "spec": {
        "exceptions": [{"policyName": "p", "ruleNames": ["r"]}],
        "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
    },
}


def _told(one: Term) -> list[EventInfo]:
    """Return the Events since the last call."""
    found = list(one.recorded.events)
    one.recorded.events.clear()
    return found


def _shown(info: EventInfo) -> tuple[str, ...]:
    on = info.regarding
    return (on.kind, on.namespace, on.name, info.reason, info.action)


@pytest.mark.parametrize("namespace", ["", "a"])
def test_failure_creates_events_on_the_object_and_the_policy(
    api: FakeApi, namespace: str
) -> None:
    """Both Events have upstream's messages; the policy's Event names the object."""
    world = new_cluster(api)
    world.serve(policy(namespace=namespace, metadata={"uid": "policy-uid"}))
    raw = pod(api)
    pod(api, "fine", team="t")
    with term(api, world) as one:
        one.settle()
        on_object, on_policy = _told(one)
    kind = "Policy" if namespace else "ClusterPolicy"
    violated = ("PolicyViolation", "Resource Passed")
    assert _shown(on_object) == ("Pod", "a", "x", *violated)
    assert on_object.regarding.uid == raw["metadata"]["uid"]
    assert on_object.regarding.api_version == "v1"
    assert on_object.related is None
    path = "rule r failed at path /metadata/labels/team/"
    assert on_object.note == f"policy p/r fail: {_FAILURE} {path}"
    assert _shown(on_policy) == (kind, namespace, "p", *violated)
    assert on_policy.regarding.api_version == "kyverno.io/v1"
    assert on_policy.regarding.uid == "policy-uid"
    assert on_policy.related == on_object.regarding
    assert on_policy.note == f"Pod a/x: [r] fail; {_FAILURE} {path}"
    assert {on_object.controller, on_policy.controller} == {"kyverno-scan"}


def test_only_changed_rows_create_events(api: FakeApi) -> None:
    """A scan period, a new holder or a change of another row does not repeat them."""
    world = new_cluster(api)
    world.serve(policy("p"), policy("q", labelled(label="owner")))
    pod(api)
    with term(api, world) as one:
        one.settle()
        assert len(_told(one)) == 4
        one.pass_s(3601)
        assert one.evaluators.objects > 1
        assert not _told(one)
    with term(api, world) as one:
        one.settle()
        assert one.evaluators.objects
        assert not _told(one)
        pod(api, team="t")
        one.settle()
        assert not _told(one), "a row passes, and the other one is as it was"
        pod(api)
        one.settle()
        assert [info.topic for info in _told(one)] == ["/p/r", "r"]


@pytest.mark.parametrize("scored", ["true", "false"])
def test_event_status_is_the_rules(api: FakeApi, scored: str) -> None:
    """KYVERNO: a warning in the report is a failure in the Event."""
    world = new_cluster(api)
    metadata = {"annotations": {"policies.kyverno.io/scored": scored}}
    world.serve(policy(metadata=metadata))
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
        word = "fail" if scored == "true" else "warn"
        assert results(report_of(api, raw)) == [("p", "r", word)]
        assert [" fail" in info.note for info in _told(one)] == [True, True]


def test_error_is_reported_as_a_violation(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule cannot be evaluated."""
    world = new_cluster(api)
    world.serve(policy())
    pod(api)
    with term(api, world) as one:
        engine = type(one.evaluators.evaluator._engine)

        def broken(*_given: Any) -> Any:
            raise RuntimeError("secret text")

        monkeypatch.setattr(engine, "explain", broken)
        one.settle()
        found = _told(one)
    assert [info.reason for info in found] == ["PolicyViolation"] * 2
    assert all(" error" in info.note for info in found)
    assert "secret text" not in str(found)


def test_exception_creates_an_event(api: FakeApi) -> None:
    """The Events are on the exception and on the policy (9.1); PolicySkipped."""
    world = new_cluster(api)
    world.serve(policy(), exceptions=(EXCEPTION,))
    pod(api)
    with term(api, world) as one:
        one.settle()
        of_exception, of_policy = _told(one)
    skipped = ("PolicySkipped", "Resource Passed")
    assert _shown(of_exception) == ("PolicyException", "ns", "e", *skipped)
    text = "resource Pod/a/x was skipped from"
    assert of_exception.note == f"{text} policy rule p/r"
    assert _shown(of_policy) == ("ClusterPolicy", "", "p", *skipped)
    assert of_policy.note == f"{text} rule r due to policy exceptions ns/e"


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        (None, 0),
        (frozenset(), 1),
        (frozenset({"Resource Passed"}), 1),
        (frozenset({"Resource Mutated"}), 0),
    ],
)
def test_success_creates_an_event_if_enabled(
    api: FakeApi, actions: frozenset[str] | None, expected: int
) -> None:
    """One Event for each policy whose rules all passed (generateSuccessEvents)."""
    world = new_cluster(api)
    world.serve(policy("p", labelled("r"), labelled("s")))
    pod(api, team="t")
    with term(api, world) as one:
        one.successes = actions
        one.settle()
        found = _told(one)
    assert len(found) == expected
    for info in found:
        applied = ("ClusterPolicy", "", "p", "PolicyApplied", "Resource Passed")
        assert _shown(info) == applied
        assert info.note == "Pod a/x: pass"


def test_failed_policy_is_no_success(api: FakeApi) -> None:
    """The results of its other rules do not matter."""
    world = new_cluster(api)
    world.serve(policy("p", labelled("r"), labelled("s", label="owner")))
    pod(api, team="t")
    with term(api, world) as one:
        one.successes = frozenset()
        one.settle()
        assert {info.reason for info in _told(one)} == {"PolicyViolation"}


def test_failure_known_only_to_reviews_is_no_success(api: FakeApi) -> None:
    """A mutate rule is not scanned here; its row is from a review."""
    world = new_cluster(api)
    match = {"any": [{"resources": {"kinds": ["Pod"]}}]}
    patch = {"patchStrategicMerge": {"metadata": {"labels": {"a": "b"}}}}
    world.serve(
        policy("p", labelled("r"), {"name": "m", "match": match, "mutate": patch})
    )
    raw = pod(api)
    with term(api, world) as one:
        one.successes = frozenset()
        one.settle()
        subject = Subject(
            api_version="v1",
            kind="Pod",
            name="x",
            namespace="a",
            uid=raw["metadata"]["uid"],
        )
        row = Row(policy="p", rule="m", result="error", source=KYVERNO)
        one.reports.writer.merge(subject, [row], lambda: one.reports.scan.plan)
        assert ("p", "m", "error") in results(report_of(api, raw))
        _told(one)
        pod(api, team="t")
        one.settle()
        assert not _told(one)
        time = Timestamp(NOW_S + 100)
        row = msgspec.structs.replace(row, result="pass", timestamp=time)
        one.reports.writer.merge(subject, [row], lambda: one.reports.scan.plan)
        pod(api)
        one.settle()
        _told(one)
        pod(api, team="t")
        one.settle()
        assert [info.reason for info in _told(one)] == ["PolicyApplied"]


def test_events_are_created_without_stored_reports(api: FakeApi) -> None:
    """Each evaluation writes Events, as upstream's do (policyReports=false)."""
    world = new_cluster(api)
    world.serve(policy())
    raw = pod(api)
    with term(api, world, reports_store=False) as one:
        one.settle()
        assert report_of(api, raw) is None
        assert len(_told(one)) == 2
        one.pass_s(3601)
        assert len(_told(one)) == 2


def test_a_rule_has_a_budget(api: FakeApi) -> None:
    """REPORTS_EVENTS_BURST, REPORTS_EVENTS_PER_S; excess Events are counted."""
    world = new_cluster(api)
    world.serve(policy("p"), policy("q", labelled(label="x", kinds=("Namespace",))))
    for at in range(REPORTS_EVENTS_BURST + 3):
        pod(api, f"x{at}")
    with term(api, world) as one:
        one.settle()
        assert len(_told(one)) == 2 * REPORTS_EVENTS_BURST
        assert one.recorded.total(_DROPPED) == 3
        one.pass_s(2.5 / REPORTS_EVENTS_PER_S)
        for at in range(3):
            pod(api, f"late{at}")
        one.settle()
        assert len(_told(one)) == 2 * 2
        assert one.recorded.total(_DROPPED) == 4


def test_the_budgets_are_bounded(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """REPORTS_EVENTS_RULES_MAX."""
    assert REPORTS_EVENTS_RULES_MAX > 1
    monkeypatch.setattr(scan_events, "REPORTS_EVENTS_RULES_MAX", 1)
    world = new_cluster(api)
    world.serve(policy("p", labelled("r"), labelled("s")))
    pod(api)
    with term(api, world) as one:
        one.settle()
        assert len(one.reports.events._budgets) == 1

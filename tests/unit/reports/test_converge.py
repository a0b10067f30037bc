"""After any fault, the reports equal those of a fresh scan, except for timestamps.

A failure means: an object, a row or a deletion was lost and never recovered, or the
pool rewrites correct reports.
"""

from collections.abc import Callable
from typing import Any

import pytest

from kyverno_mp.errors import StateError
from tests.unit.kube.fake_api import FakeApi
from tests.unit.reports.test_validating_policies import vpol
from tests.unit.reports.world import (
    REPORTS,
    Term,
    World,
    labelled,
    new_cluster,
    pod,
    policy,
    stored_reports,
    term,
    writes,
)

Json = Any
_ANY = r"^(GET|POST|PUT|PATCH|DELETE) "
_WRITES = r"^(POST|PUT|PATCH|DELETE) .*policyreports"
_PODS = 12
_HOUR_S = 3601
_RETRIED_S = 301
"""The longest delay between two attempts."""
Fault = Callable[[FakeApi, Term], None]


def _away(api: FakeApi, one: Term) -> None:
    """The API server is away for a while; then its watches are closed."""
    api.fault(_ANY, *[503] * 8)
    api.drop_watches()
    for _ in range(3):
        one.reports.scan.tick()
        one.reports.dispatch.work_due()
        one.time.now_s += 1


def _conflicts(api: FakeApi, _one: Term) -> None:
    """More conflicts in a row than one attempt handles."""
    api.fault(_WRITES, *[409] * 100)


def _half_written(api: FakeApi, _one: Term) -> None:
    """Responses to writes are lost, although some writes succeeded."""
    api.fault(_WRITES, *["cut", 500, 503] * 3)


def _compacted(api: FakeApi, _one: Term) -> None:
    """410 Gone: the watches have missed changes."""
    api.compact()
    api.drop_watches()


def _evaluators_die(_api: FakeApi, one: Term) -> None:
    """They die on several batches, then on several objects; then they recover."""
    one.evaluators.faults = [StateError("pool.batch", "died")]


def _policies_away(_api: FakeApi, one: Term) -> None:
    """Evaluators first get no policies from the leader, then outdated ones."""
    evaluator = one.evaluators.evaluator
    old = one.world.segment
    evaluator._policies = lambda: None
    one.reports.scan.tick()
    one.reports.dispatch.work_due()
    evaluator._policies = lambda: old
    one.reports.dispatch.work_due()
    evaluator._policies = one.world.policies


_FAULTS: tuple[Fault, ...] = (
    *(_away, _conflicts, _half_written, _compacted),
    *(_evaluators_die, _policies_away),
)


def _begin(api: FakeApi) -> World:
    world = new_cluster(api)
    world.serve(
        policy("p", labelled("r"), labelled("s", label="owner")),
        policy("gone"),
        vpol("c"),
        vpol("c-gone"),
    )
    for at in range(_PODS):
        pod(api, f"x{at}", team="t" if at % 2 else "")
    return world


def _change(api: FakeApi, world: World) -> None:
    """Change, create and delete objects; change and delete policies."""
    pod(api, "x0", team="blue", owner="me")
    pod(api, "x1")
    api.remove("/api/v1/namespaces/a/pods/x2")
    pod(api, "new", owner="me")
    world.serve(
        policy("p", labelled("r")),
        policy("q", labelled(label="owner")),
        vpol("c", "has(object.metadata.labels) && 'owner' in object.metadata.labels"),
        vpol("d"),
    )


def _fresh(api: FakeApi, world: World) -> dict[str, Json]:
    """Return the reports of a scan that starts without reports."""
    for name in stored_reports(api):
        api.remove(f"{REPORTS.format('a')}/{name}")
    with term(api, world) as one:
        one.settle()
    return stored_reports(api)


def _recover(api: FakeApi, one: Term) -> None:
    api.faults.clear()
    one.settle()
    for _ in range(3):
        one.pass_s(_RETRIED_S)


@pytest.mark.parametrize("fault", _FAULTS, ids=lambda one: one.__name__[1:])
@pytest.mark.parametrize("when", ["first scan", "changes"])
def test_reports_converge(api: FakeApi, fault: Fault, when: str) -> None:
    """The fault occurs during the first scan or during changes, between periods."""
    world = _begin(api)
    with term(api, world) as one:
        if when == "changes":
            one.settle()
            _change(api, world)
        fault(api, one)
        one.settle()
        if when == "first scan":
            _change(api, world)
        _recover(api, one)
        if fault is _evaluators_die:
            # An object that kills evaluators is deferred to the next period.
            one.pass_s(_HOUR_S)
        found = stored_reports(api)
        before = writes(api)
        one.pass_s(_HOUR_S)
        assert writes(api) == before, "the periodic scan found a difference"
    assert len(found) == _PODS
    assert _fresh(api, world) == found


@pytest.mark.parametrize("batches", [0, 1, 3])
def test_a_killed_coordinator(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, batches: int
) -> None:
    """Pending writes are lost, and the next coordinator does not know of them."""
    monkeypatch.setattr("kyverno_mp.reports.feed.REPORTS_BATCH_OBJECTS", 2)
    world = _begin(api)
    with term(api, world) as one:
        one.settle()
        _change(api, world)
        one.reports.scan.tick()
        one.catch_up()
        for _ in range(batches):
            one.reports.dispatch._deal_with(one.reports.feed.take(0))
    with term(api, world) as one:
        one.settle()
        found = stored_reports(api)
        before = writes(api)
        one.pass_s(_HOUR_S)
        assert writes(api) == before
    assert len(found) == _PODS
    assert _fresh(api, world) == found


def test_two_holders(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """One holder was suspended and resumes with older policies; leases do not fence."""
    monkeypatch.setattr("kyverno_mp.reports.feed.REPORTS_BATCH_OBJECTS", 2)
    world = _begin(api)
    with term(api, world) as late:
        late.settle()
        pod(api, "x3")
        late.catch_up()
        items = late.reports.feed.take(0)
        assert items
        with term(api, world) as one:
            _change(api, world)
            one.settle()
            # It resumes and finishes its pending writes.
            late.reports.dispatch._deal_with(items)
            late.settle()
            late.holds = False
            one.settle()
            found = stored_reports(api)
            before = writes(api)
            one.pass_s(_HOUR_S)
            assert writes(api) == before
    assert len(found) == _PODS
    assert _fresh(api, world) == found

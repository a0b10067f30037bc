"""Count calls for reports: one write for a change, none for a repetition."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from kyverno_mp.kube.apply import Objects
from kyverno_mp.limits import (
    REPORTS_INTERVAL_S,
    REPORTS_REVIEW_S,
    RESULTS_JOINED_S_MAX,
)
from kyverno_mp.reports import ephemeral
from kyverno_mp.reports.feed import Pace
from kyverno_mp.reports.fingerprints import key_of
from kyverno_mp.reports.objects import POLICY_REPORTS, content_of, report_of
from kyverno_mp.reports.plan import Plan
from kyverno_mp.reports.stored import StoredReports
from kyverno_mp.reports.writer import Writer
from kyverno_mp.results.entries import Row, Subject, Timestamp, place_of
from kyverno_mp.telemetry.families import DEFECTS, REPORTS_SCAN
from tests.unit.kube.fake_api import FakeApi
from tests.unit.reports.test_merging import (
    ONCE,
    PASS,
    holding,
    merge,
    review,
    row,
    waits,
)
from tests.unit.reports.world import (
    NOW_S,
    REPORTS,
    Term,
    new_cluster,
    pod,
    policy,
    results,
    term,
)
from tests.unit.reports.world import report_of as stored_report_of
from tests.waiting import HANG_S, pause, wait_for

_CALLS = r"^(POST|PUT|PATCH|DELETE) .*policyreports|^GET .*policyreports/"
_READS = r"^GET .*policyreports/"
FAIL = ("p", "r", "fail")


def test_results_of_reviews_are_one_call(api: FakeApi) -> None:
    """The report is not read, even if the watch has not received it yet."""
    world = new_cluster(api)
    world.serve(policy("p"), ONCE)
    raw = pod(api)
    with holding(api, world) as one:
        for number, result in enumerate(("pass", "fail", "fail", "pass")):
            before = api.count(_CALLS)
            review(api, raw, row("once", result=result), at_s=number)
            assert merge(one)
            assert api.count(_CALLS) - before == (0 if number == 2 else 1)
            assert results(stored_report_of(api, raw)) == [("once", "r", result), FAIL]
        assert api.count(_READS) == 0


def test_an_older_result_changes_nothing(api: FakeApi) -> None:
    world = new_cluster(api)
    world.serve(policy("p"), ONCE)
    raw = pod(api)
    with holding(api, world) as one:
        review(api, raw, row("once"), at_s=5)
        assert merge(one)
        before = api.count(_CALLS)
        review(api, raw, row("once", result="fail"), at_s=4)
        assert merge(one)
        assert api.count(_CALLS) == before
        assert results(stored_report_of(api, raw)) == [PASS, FAIL]
    # The next holder knows the times from the report.
    with holding(api, world) as one:
        before = api.count(_CALLS)
        review(api, raw, row("once", result="fail"), at_s=4)
        assert merge(one)
        assert api.count(_CALLS) == before


@contextmanager
def merging(one: Term) -> Iterator[threading.Thread]:
    """Merge results of reviews in another thread, like a running pool."""
    with one.api.lock:
        newest = one.api.version
    found = one.reports.merging
    informer = found.results.informer
    wait_for(lambda: int(informer.notified_version or 0) >= newest)

    def work() -> None:
        wait_for(lambda: found.results.step(found.merge, found.join))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield thread
    finally:
        thread.join()


def expecting(one: Term, raw: Any) -> None:
    """Let the pool know that Pods have results of reviews."""
    one.reports.feed._pace = Pace(REPORTS_REVIEW_S, REPORTS_INTERVAL_S)
    review(one.api, raw, row("once"))
    with merging(one):
        pass


def feed(one: Term) -> int:
    """Do the work that is not delayed; return the number of evaluated objects."""
    one.reports.scan.tick()
    one.catch_up()
    return one.reports.dispatch.work_due()


def test_a_new_object_is_one_call_with_the_results_of_its_review(api: FakeApi) -> None:
    world = new_cluster(api)
    world.serve(policy("p"), ONCE)
    raw = pod(api)
    with holding(api, world) as one:
        expecting(one, raw)
        before = api.count(_CALLS)
        new = pod(api, "new")
        assert not feed(one)
        review(api, new, row("once"))
        with merging(one) as thread:
            while thread.is_alive():
                feed(one)
                pause()
        assert results(stored_report_of(api, new)) == [PASS, FAIL]
        assert api.count(_CALLS) - before == 1
        # Both kinds of rows have the times of their evaluations.
        report = stored_report_of(api, new)
        assert report is not None
        assert {one["timestamp"]["seconds"] for one in report["results"]} == {NOW_S}
        one.reports.feed._pace = Pace()
        one.settle()
        assert api.count(_CALLS) - before == 1


def test_a_new_object_whose_review_has_no_results_is_reported(api: FakeApi) -> None:
    """Its scan waits for a limited time only."""
    world = new_cluster(api)
    world.serve(policy("p"), ONCE)
    raw = pod(api)
    with holding(api, world) as one:
        expecting(one, raw)
        new = pod(api, "new")
        assert not feed(one)
        one.time.now_s += REPORTS_REVIEW_S
        assert feed(one) == 1
        assert results(stored_report_of(api, new)) == [FAIL]
        # Without results for a minute, nothing waits.
        one.time.now_s += Pace().expected_s
        other = pod(api, "other")
        assert feed(one) == 1
        assert results(stored_report_of(api, other)) == [FAIL]


def test_a_scan_ends_while_changed_objects_wait(api: FakeApi) -> None:
    """In a busy cluster, some object always waits for its review."""
    world = new_cluster(api)
    world.serve(policy("p"), ONCE)
    raw = pod(api)
    with holding(api, world) as one:
        expecting(one, raw)
        one.recorded.counts.clear()
        world.serve(policy("p"), ONCE, policy("q"))
        pod(api, "new")
        assert feed(one) == 1
        one.reports.scan.tick()
        assert one.reports.feed.pending
        assert (REPORTS_SCAN.name, ("pods",)) in one.recorded.counts


def test_a_changing_object_is_one_write_per_interval(api: FakeApi) -> None:
    world = new_cluster(api)
    world.serve(policy("p"))
    raw = pod(api)
    with term(api, world) as one:
        one.reports.feed._pace = Pace(0, REPORTS_INTERVAL_S)
        assert feed(one) == 1
        before = api.count(_CALLS)
        for number in range(5):
            pod(api, **({} if number % 2 else {"team": "t"}))
            assert not feed(one)
        one.time.now_s += REPORTS_INTERVAL_S
        assert feed(one) == 1
        assert api.count(_CALLS) - before == 1
        assert results(stored_report_of(api, raw)) == [("p", "r", "pass")]


def test_a_scan_that_takes_too_long_is_not_awaited(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results are merged separately; the scan adds its rows later."""
    monkeypatch.setattr(ephemeral, "RESULTS_JOINED_S_MAX", 0)
    world = new_cluster(api)
    world.serve(policy("p"), ONCE)
    raw = pod(api)
    with holding(api, world) as one:
        expecting(one, raw)
        new = pod(api, "new")
        assert not feed(one)
        review(api, new, row("once"))
        with merging(one):
            pass
        assert results(stored_report_of(api, new)) == [PASS]
        assert not waits(api)
        assert feed(one) == 1
        assert results(stored_report_of(api, new)) == [PASS, FAIL]


def test_a_slow_scan_delays_no_results_of_other_objects(api: FakeApi) -> None:
    world = new_cluster(api)
    world.serve(policy("p"), ONCE)
    raw = pod(api)
    with holding(api, world) as one:
        expecting(one, raw)
        found = one.reports.merging
        slow = pod(api, "slow")
        assert not feed(one)
        review(api, slow, row("once"))
        assert not merge(one, found.join)
        # The pending scan of ``slow`` has its results, but does not end.
        review(api, raw, row("once", result="fail"), at_s=1, name="other")
        assert not merge(one, found.join)
        assert results(stored_report_of(api, raw)) == [("once", "r", "fail"), FAIL]
        assert stored_report_of(api, slow) is None
        assert waits(api)
        one.time.now_s += RESULTS_JOINED_S_MAX
        assert merge(one, found.join)
        assert results(stored_report_of(api, slow)) == [PASS]
        assert not waits(api)
        assert feed(one) == 1
        assert results(stored_report_of(api, slow)) == [PASS, FAIL]


def test_newer_results_arrive_while_a_scan_writes_earlier_ones(api: FakeApi) -> None:
    world = new_cluster(api)
    world.serve(policy("p"), ONCE)
    raw = pod(api)
    with holding(api, world) as one:
        expecting(one, raw)
        join = one.reports.merging.join
        before = api.count(_CALLS)
        new = pod(api, "new")
        assert not feed(one)
        review(api, new, row("once"))
        assert not merge(one, join)
        review(api, new, row("once", result="fail"), at_s=1)
        assert not merge(one, join)
        assert feed(one) == 1
        assert results(stored_report_of(api, new)) == [PASS, FAIL]
        assert merge(one, join)
        assert results(stored_report_of(api, new)) == [("once", "r", "fail"), FAIL]
        assert api.count(_CALLS) - before == 2
        assert not waits(api)


def test_a_policy_ends_while_a_scan_writes_results_of_a_review(api: FakeApi) -> None:
    """The sweep of its rows has ended when the scan writes."""
    world = new_cluster(api)
    world.serve(policy("p"), ONCE)
    raw = pod(api)
    with holding(api, world) as one:
        expecting(one, raw)
        join = one.reports.merging.join
        new = pod(api, "new")
        assert not feed(one)
        review(api, new, row("once"))
        assert not merge(one, join)
        writer = one.reports.writer
        apply = writer.apply

        def apply_later(*given: Any) -> Any:
            writer.apply = apply  # type: ignore[method-assign]
            world.serve(policy("p"))
            one.reports.scan.tick()
            return apply(*given)

        writer.apply = apply_later  # type: ignore[method-assign, assignment]
        assert feed(one) == 1
        # The rows are merged separately, which follows the newest plan.
        merge(one, join)
        one.reports.feed._pace = Pace()
        one.pass_s(5)
        assert results(stored_report_of(api, new)) == [FAIL]


def test_the_end_of_a_term_releases_results_that_wait(api: FakeApi) -> None:
    """They stay stored for the next holder, and no error is logged."""
    world = new_cluster(api)
    world.serve(policy("p"), ONCE)
    raw = pod(api)
    with holding(api, world) as one:
        expecting(one, raw)
        new = pod(api, "new")
        assert not feed(one)
        merging_thread = one.reports.merging._thread
        merging_thread.start()
        review(api, new, row("once"))
        # Once the results are attached, the object is no longer delayed.
        wait_for(lambda: one.reports.feed.undelayed == 1)
        one.reports.merging.stop()
        one.reports.feed.close()
        merging_thread.join(HANG_S)
        assert not merging_thread.is_alive()
        assert one.recorded.total(DEFECTS.name) == 0
        assert waits(api)


def test_a_scan_that_fails_leaves_the_results_to_the_merge(api: FakeApi) -> None:
    world = new_cluster(api)
    world.serve(policy("p"), ONCE)
    raw = pod(api)
    with holding(api, world) as one:
        expecting(one, raw)
        new = pod(api, "new")
        assert not feed(one)
        review(api, new, row("once"))
        one.evaluators.faults.append(RuntimeError("no evaluator"))
        with merging(one) as thread:
            while thread.is_alive():
                feed(one)
                pause()
        assert results(stored_report_of(api, new)) == [PASS]
        one.reports.feed._pace = Pace()
        one.pass_s(5)
        assert results(stored_report_of(api, new)) == [PASS, FAIL]


def test_results_wait_for_a_watch_that_is_late(api: FakeApi) -> None:
    """Reading each object would slow a busy API server further."""
    world = new_cluster(api)
    world.serve(policy("p"), ONCE)
    pod(api)
    reads = r"^GET /api/v1/namespaces/a/pods/"
    with holding(api, world) as one:
        watch = next(iter(one.reports.scan.resources.values())).watch
        new = pod(api, "new")
        one.catch_up()
        # As if the watch had not received it.
        watch._known.pop(("a", "new"))
        review(api, new, row("once"))
        assert merge(one)
        assert stored_report_of(api, new) is None
        one.time.now_s += 20
        assert merge(one)
        assert results(stored_report_of(api, new)) == [PASS]
        assert api.count(reads) == 1


_SUBJECT = Subject(api_version="v1", kind="Pod", namespace="a", name="x", uid="u-1")
_NAMES = [(p, r) for p in "abc" for r in "xyz"]


def _rows(chance: random.Random, share: float) -> list[Row]:
    return [
        Row(
            source="kyverno",
            policy=p,
            rule=r,
            result=chance.choice(("pass", "fail")),
            timestamp=Timestamp(NOW_S + chance.randrange(3)),
        )
        for p, r in _NAMES
        if chance.random() < share
    ]


@pytest.mark.parametrize("seed", range(20))
def test_a_patch_merges_like_reading_and_replacing(api: FakeApi, seed: int) -> None:
    """Compare with a plain merge of rows by their names."""
    chance = random.Random(seed)
    known, given = _rows(chance, 0.6), _rows(chance, 0.5)
    live = {one for one in _NAMES if chance.random() < 0.8}
    derived = {one for one in _NAMES if chance.random() < 0.2}
    keys = {(r.policy, r.rule): key_of(r) for r in _rows(random.Random(0), 1.1)}
    plan = Plan(
        generation=1,
        live=frozenset(keys[one] for one in live),
        derived=frozenset(keys[one] for one in derived),
        places={keys[one]: (*one, "kyverno") for one in _NAMES},
    )
    body = report_of(POLICY_REPORTS, _SUBJECT, content_of(known))
    path = f"{REPORTS.format('a')}/{_SUBJECT.uid}"
    api.put(path, **msgspec.to_builtins(body))
    stored = StoredReports(api.client(), POLICY_REPORTS)
    for informer in stored.informers:
        informer.start()
        assert informer.wait_synced(60)
    writer = Writer(Objects(api.client()), POLICY_REPORTS, stored, lambda: NOW_S)
    try:
        writer.merge(_SUBJECT, given, lambda: plan)
    finally:
        for informer in stored.informers:
            informer.stop()

    wanted = {(r.policy, r.rule): r for r in known if (r.policy, r.rule) in live}
    for one in given:
        name = one.policy, one.rule
        before = wanted.get(name)
        if name not in live or name in derived:
            continue
        if before is None or _is_newer(one, before):
            wanted[name] = one
    rows = sorted(wanted.values(), key=place_of)
    report = stored_report_of(api, {"metadata": {"namespace": "a", "uid": "u-1"}})
    if not rows:
        assert report is None
        return
    assert report is not None
    assert report["results"] == msgspec.to_builtins(rows)
    assert report["summary"] == content_of(rows)["summary"]
    assert api.count(_READS) == 0


def _is_newer(one: Row, before: Row) -> bool:
    """Whether a row replaces a stored one; an equal row keeps its time."""
    assert one.timestamp is not None
    assert before.timestamp is not None
    is_newer = one.timestamp.seconds >= before.timestamp.seconds
    return is_newer and one.result != before.result


_WRITES = r"^(POST|PUT|PATCH) .*policyreports"


@pytest.mark.parametrize("fault", [409, 422, 404, 403, 500, "cut"])
def test_results_arrive_despite_faults(api: FakeApi, fault: Any) -> None:
    """The reports equal those without faults; no result is lost or dropped."""
    world = new_cluster(api)
    world.serve(policy("p"), ONCE)
    raws = [pod(api, f"x{at}") for at in range(3)]
    with holding(api, world) as one:
        for at, raw in enumerate(raws):
            result = "fail" if at % 2 else "pass"
            review(api, raw, row("once", result=result))
            api.fault(_WRITES, *[fault] * 2)
            wait_for(lambda: _merged(one))
            report = stored_report_of(api, raw)
            assert results(report) == [("once", "r", result), FAIL]
            assert report is not None
            assert report["summary"] | {"pass": 1 - at % 2} == report["summary"]


def _merged(one: Term) -> bool:
    """Merge what is due; return whether no results wait."""
    one.time.now_s += 6
    merge(one)
    return not waits(one.api)


def test_a_report_that_changes_while_results_are_merged(api: FakeApi) -> None:
    """Another holder adds a row; the patch of the old version changes nothing."""
    world = new_cluster(api)
    world.serve(policy("p"), ONCE, policy("twice", background=False))
    raw = pod(api)
    with holding(api, world) as one:
        uid = raw["metadata"]["uid"]
        theirs = msgspec.to_builtins(
            msgspec.structs.replace(row("twice"), timestamp=Timestamp(NOW_S))
        )

        def disturb(method: str, _target: str) -> None:
            report = stored_report_of(api, raw)
            assert report is not None
            if method == "PATCH" and len(report["results"]) == 1:
                rows = [*report["results"], theirs]
                api.put(f"{REPORTS.format('a')}/{uid}", **{**report, "results": rows})

        api.on_request = disturb
        review(api, raw, row("once"))
        assert merge(one)
    found = [PASS, FAIL, ("twice", "r", "pass")]
    assert results(stored_report_of(api, raw)) == found

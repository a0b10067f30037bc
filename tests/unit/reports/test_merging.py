"""Results of reviews become part of reports, next to results of scans."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from kyverno_mp.reports import objects
from kyverno_mp.reports.ephemeral import Join, _join_nothing
from kyverno_mp.reports.merging import NEW_RULE_S
from kyverno_mp.reports.plan import Plan
from kyverno_mp.results.entries import Row, Subject
from kyverno_mp.results.newest import Results, document_of
from kyverno_mp.results.records import reporting_of
from kyverno_mp.settings.settings import Settings
from tests.unit.kube.fake_api import FakeApi
from tests.unit.reports.world import (
    NOW_S,
    REPORTS,
    Term,
    labelled,
    new_cluster,
    pod,
    policy,
    report_of,
    results,
    term,
)
from tests.waiting import wait_for

EPHEMERAL = "/apis/reports.kyverno.io/v1/namespaces/kyverno/ephemeralreports"
ONCE = policy("once", background=False)
PASS = ("once", "r", "pass")


def row(policy_key: str, rule: str = "r", result: str = "pass") -> Row:
    return Row(source="kyverno", policy=policy_key, rule=rule, result=result)


def review(
    api: FakeApi,
    raw: Any,
    *rows: Row,
    uid: str = "?",
    at_s: float = 0,
    name: str = "x",
) -> None:
    """Store the results of an object's review, as the leader ``name`` does."""
    metadata = raw["metadata"]
    subject = Subject(
        api_version="v1",
        kind="Pod",
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"] if uid == "?" else uid,
    )
    found = Results()
    for one in rows:
        found.add(int((NOW_S + at_s) * 10**9), subject, one)
    document = msgspec.to_builtins(document_of(found, name, "kyverno"))
    api.put(f"{EPHEMERAL}/kyverno-mp-{name}-a", **document)


def waits(api: FakeApi) -> bool:
    return any(key[2] == "ephemeralreports" for key in list(api.objects))


@contextmanager
def holding(api: FakeApi, world: Any, **settings: Any) -> Iterator[Term]:
    """Hold the lease, and follow EphemeralReports."""
    with term(api, world, **settings) as one:
        informer = one.reports.merging.results.informer
        informer.start()
        assert informer.wait_synced(60)
        try:
            one.settle()
            yield one
        finally:
            informer.stop()


def merge(one: Term, join: Join = _join_nothing) -> bool:
    """Merge the EphemeralReports once the watch has received them all."""
    with one.api.lock:
        newest = one.api.version
    merging = one.reports.merging
    informer = merging.results.informer
    wait_for(lambda: int(informer.notified_version or 0) >= newest)
    return merging.results.step(merging.merge, join)


def test_review_results_appear_beside_scan_results(api: FakeApi) -> None:
    world = new_cluster(api)
    world.serve(policy("p"), ONCE)
    raw = pod(api)
    with holding(api, world) as one:
        assert results(report_of(api, raw)) == [("p", "r", "fail")]
        review(api, raw, row("once"))
        assert merge(one)
        assert results(report_of(api, raw)) == [PASS, ("p", "r", "fail")]
        assert not waits(api)
        # A scan keeps the rows.
        pod(api, team="t")
        one.settle()
        assert results(report_of(api, raw)) == [PASS, ("p", "r", "pass")]
        review(api, raw, row("once", result="fail"), at_s=1)
        assert merge(one)
        assert results(report_of(api, raw))[0] == ("once", "r", "fail")
        world.serve(policy("p"))
        one.settle()
        assert results(report_of(api, raw)) == [("p", "r", "pass")]


def test_policy_deleted_before_its_row_is_watched(api: FakeApi) -> None:
    """The row is removed once the watch of reports has received it."""
    world = new_cluster(api)
    world.serve(policy("p"), ONCE)
    raw = pod(api)
    with holding(api, world) as one:
        api.fault(r"^GET .*policyreports\?.*watch", *[503] * 3)
        api.drop_watches()
        review(api, raw, row("once"))
        assert merge(one)
        world.serve(policy("p"))
        one.reports.scan.tick()
        one.settle()
        assert results(report_of(api, raw)) == [("p", "r", "fail")]


def test_rows_derived_by_scans_are_left_to_scans(api: FakeApi) -> None:
    world = new_cluster(api)
    world.serve(policy("p"))
    raw = pod(api)
    with holding(api, world) as one:
        review(api, raw, row("p", result="pass"), at_s=9)
        merge(one)
        one.settle()
        assert results(report_of(api, raw)) == [("p", "r", "fail")]


def test_rule_that_reads_the_operation_keeps_review_results(
    api: FakeApi,
) -> None:
    """The rule does not match in a scan, which is always a CREATE."""
    world = new_cluster(api)
    world.serve(policy("once", labelled(operations=["UPDATE"])))
    raw = pod(api)
    with holding(api, world) as one:
        assert report_of(api, raw) is None
        review(api, raw, row("once"))
        assert merge(one)
        pod(api, other="1")
        one.settle()
        assert results(report_of(api, raw)) == [PASS]


def test_mutation_is_assigned_to_its_object_by_name(api: FakeApi) -> None:
    world = new_cluster(api)
    world.serve(policy("p"), ONCE)
    raw = pod(api)
    with holding(api, world) as one:
        review(api, raw, row("once"), uid="")
        assert merge(one)
        assert PASS in results(report_of(api, raw))


def test_result_waits_until_its_policy_is_known(api: FakeApi) -> None:
    world = new_cluster(api)
    world.serve(policy("p"))
    raw = pod(api)
    with holding(api, world) as one:
        review(api, raw, row("once"))
        assert not merge(one)
        assert waits(api)
        world.serve(policy("p"), ONCE)
        one.pass_s(6)
        assert merge(one)
        assert PASS in results(report_of(api, raw))
        assert not waits(api)


def test_results_that_wait_too_long_are_a_problem(api: FakeApi) -> None:
    """Health, metrics and an alert say so, and the reason."""
    world = new_cluster(api)
    world.serve(policy("p"), ONCE)
    raw = pod(api)
    with holding(api, world) as one:
        api.fault("^DELETE .*/ephemeralreports/", 403, 403)
        review(api, raw, row("once"))
        assert merge(one)
        (problem,) = one.reports.problems()
        assert "cannot be removed from EphemeralReports" in problem
        assert "403" in problem
        one.pass_s(130)
        assert merge(one)
        one.pass_s(130)
        assert merge(one)
        assert one.reports.problems() == []
        review(api, raw, row("unknown-policy"), at_s=260)
        merge(one)
        assert one.reports.problems() == []
        # Without a plan, nothing can be merged.
        world.serve()
        one.reports.merging._plan = Plan
        one.pass_s(61)
        merge(one)
        assert one.reports.problems() == []
        one.pass_s(120)
        merge(one)
        (problem,) = one.reports.problems()
        assert problem == "results of reviews wait for their reports for 3 minutes"


def test_results_of_a_deleted_policy_are_removed_eventually(api: FakeApi) -> None:
    world = new_cluster(api)
    world.serve(policy("p"))
    raw = pod(api)
    with holding(api, world) as one:
        review(api, raw, row("gone"))
        assert not merge(one)
        one.pass_s(NEW_RULE_S + 1)
        assert merge(one)
        assert not waits(api)
        assert results(report_of(api, raw)) == [("p", "r", "fail")]


@pytest.mark.parametrize("setting", ["reports_admission", "reports_aggregate"])
def test_review_results_can_be_disabled(api: FakeApi, setting: str) -> None:
    world = new_cluster(api)
    one = Term(api, world, **{setting: False})
    one.reports.start()
    try:
        watched = one.reports.merging.results.informer
        assert not watched.wait_synced(0.2)
        assert api.count("ephemeralreports") == 0
    finally:
        one.reports.stop()


def test_rows_of_generate_rules_stay_while_the_rule_exists(api: FakeApi) -> None:
    """The background pool adds them; scans never produce them."""
    world = new_cluster(api)
    made = {"apiVersion": "v1", "kind": "ConfigMap", "name": "m", "namespace": "a"}
    generates = {
        "name": "g",
        "match": labelled()["match"],
        "generate": {**made, "synchronize": False, "data": {"data": {"a": "b"}}},
    }
    world.serve(policy("p", labelled(), generates))
    raw = pod(api)
    with holding(api, world) as one:
        review(api, raw, row("p", "g"))
        assert merge(one)
        found = [("p", "g", "pass"), ("p", "r", "fail")]
        assert results(report_of(api, raw)) == found
        one.pass_s(3601)
        assert results(report_of(api, raw)) == found
        world.serve(policy("p", labelled()))
        one.settle()
        assert results(report_of(api, raw)) == [("p", "r", "fail")]


def test_cut_report_stays_marked_when_results_of_reviews_are_added(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report without the mark is taken for whole, and its rows are not completed."""
    monkeypatch.setattr(objects, "REPORT_BYTES_MAX", 900)
    world = new_cluster(api)
    world.serve(policy("p", *[labelled(name, label="no") for name in "abcdef"]), ONCE)
    raw = pod(api)
    with holding(api, world) as one:
        review(api, raw, row("once"))
        assert merge(one)
        report = report_of(api, raw)
        assert report is not None
        missing = report["metadata"]["annotations"]["kyverno-mp.io/results-left-out"]
        assert len(report["results"]) + int(missing) == 7


@pytest.mark.parametrize("mark", ["9" * 5000, "x", "-1", "\u0663"])
def test_mark_that_another_writer_has_set(api: FakeApi, mark: str) -> None:
    """Otherwise, whoever may edit a report could prevent all of its updates."""
    world = new_cluster(api)
    world.serve(policy("p"), ONCE)
    raw = pod(api)
    with holding(api, world) as one:
        review(api, raw, row("once"))
        report = report_of(api, raw)
        assert report is not None
        report["metadata"]["annotations"] = {"kyverno-mp.io/results-left-out": mark}
        api.put(f"{REPORTS.format('a')}/{raw['metadata']['uid']}", **report)
        one.catch_up()
        assert merge(one)
        assert ("once", "r", "pass") in results(report_of(api, raw))


@pytest.mark.parametrize(
    "setting", ["reports_scan", "reports_store", "reports_aggregate"]
)
def test_all_results_travel_if_scans_store_none(setting: str) -> None:
    """aggregateReports=false leaves all results for another program (6.1)."""
    settings: Any = {"reports_workers": 1, setting: False}
    reporting = reporting_of(Settings(namespace="kyverno", **settings))
    assert reporting is not None
    assert not reporting.scans


def test_without_stored_scans_reports_have_results_of_reviews_only(
    api: FakeApi,
) -> None:
    """policyReports=false: scans store nothing, reviews report all rules (6.1)."""
    settings: Any = {"reports_workers": 1, "reports_store": False}
    reporting = reporting_of(Settings(namespace="kyverno", **settings))
    assert reporting is not None
    assert not reporting.scans
    world = new_cluster(api)
    world.serve(policy("p"), ONCE)
    raw = pod(api)
    with holding(api, world, **settings) as one:
        review(api, raw, row("p"), row("once"))
        assert merge(one)
        one.settle()
        both = [PASS, ("p", "r", "pass")]
        assert results(report_of(api, raw)) == both
        world.serve(policy("p"))
        one.settle()
        assert results(report_of(api, raw)) == [("p", "r", "pass")]

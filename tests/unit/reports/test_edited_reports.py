"""Users can write reports in their namespaces. Their rows delay nothing for others."""

from typing import Any

import msgspec
import pytest

from kyverno_mp.limits import RESULTS_FAILED_S_MAX
from kyverno_mp.reports.objects import cut_rows
from kyverno_mp.results.entries import Row, summary_of
from kyverno_mp.telemetry.families import DEFECTS
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
    REPORTS,
    Term,
    labelled,
    new_cluster,
    pod,
    policy,
    report_of,
    results,
    writes,
)

TWICE = policy("twice", background=False)
FAIL = ("p", "r", "fail")
_BARE = {"policy": "twice", "rule": "r", "source": "kyverno"}
_UNDECODABLE = {**_BARE, "result": {}}
"""The API server refuses it today; another version of the CRD may not."""


def _edit(api: FakeApi, raw: Any, *rows: dict[str, Any]) -> None:
    report = report_of(api, raw)
    assert report is not None
    path = f"{REPORTS.format('a')}/{raw['metadata']['uid']}"
    api.put(path, **{**report, "results": [*rows]})


def _review_both(one: Term, edited: Any, other: Any) -> None:
    at_s = one.time.now_s - one.time.start_s
    review(one.api, edited, row("once"), at_s=at_s)
    review(one.api, other, row("once"), at_s=at_s, name="other")


def test_a_row_without_a_result_stays(api: FakeApi) -> None:
    world = new_cluster(api)
    world.serve(policy("p"), ONCE, TWICE)
    edited, other = pod(api), pod(api, "other", namespace="b")
    with holding(api, world) as one:
        _edit(api, edited, _BARE)
        one.catch_up()
        _review_both(one, edited, other)
        assert merge(one)
        assert not waits(api)
        assert results(report_of(api, other)) == [PASS, FAIL]
        report = report_of(api, edited)
        assert report is not None
        assert [one["policy"] for one in report["results"]] == ["once", "twice"]
        assert report["summary"]["pass"] == 1
        # A scan adds its row, and the sweep removes the bare one.
        world.serve(policy("p", labelled(label="x")), ONCE)
        one.settle()
        assert results(report_of(api, edited)) == [PASS, FAIL]
        assert one.recorded.total(DEFECTS.name) == 0


def test_a_report_that_cannot_be_decoded_costs_only_its_object(api: FakeApi) -> None:
    world = new_cluster(api)
    world.serve(policy("p"), ONCE)
    edited, other = pod(api), pod(api, "other", namespace="b")
    with holding(api, world) as one:
        _edit(api, edited, _UNDECODABLE)
        one.catch_up()
        _review_both(one, edited, other)
        assert not merge(one)
        assert results(report_of(api, other)) == [PASS, FAIL]
        assert waits(api)
        assert one.recorded.total(DEFECTS.name) == 1
        # The report is deleted in time.
        path = f"{REPORTS.format('a')}/{edited['metadata']['uid']}"
        api.remove(path)
        one.time.now_s += 6
        one.catch_up()
        assert merge(one)
        assert PASS in results(report_of(api, edited))
        assert not waits(api)


def test_results_are_not_kept_for_ever(api: FakeApi) -> None:
    world = new_cluster(api)
    world.serve(policy("p"), ONCE)
    edited = pod(api)
    with holding(api, world) as one:
        _edit(api, edited, _UNDECODABLE)
        one.catch_up()
        review(api, edited, row("once"))
        assert not merge(one)
        one.time.now_s += RESULTS_FAILED_S_MAX
        assert merge(one)
        assert not waits(api)


@pytest.mark.parametrize("method", ["_write", "prune"])
def test_an_unexpected_error_with_one_report(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The other objects of the batch, and of the sweep, are handled."""
    world = new_cluster(api)
    world.serve(policy("p"), ONCE)
    raws = [pod(api, name) for name in "abcdefgh"]
    broken = raws[0]["metadata"]["uid"]
    with holding(api, world) as one:
        for raw in raws:
            review(api, raw, row("once"))
            assert merge(one)
        one.settle()
        writer = one.reports.writer
        real = getattr(writer, method)

        def fail(subject: Any, *given: Any) -> Any:
            if subject.uid == broken:
                raise KeyError("broken")
            return real(subject, *given)

        monkeypatch.setattr(writer, method, fail)
        if method == "prune":
            world.serve(policy("p"))
            one.reports.scan.tick()
            wanted = [FAIL]
        else:
            world.serve(policy("p", labelled(label="x")), ONCE)
            for raw in raws:
                pod(api, raw["metadata"]["name"], team="t", x="y")
            one.reports.scan.tick()
            one.catch_up()
            # One pass only: failed objects are not retried yet.
            one.reports.dispatch.work_due()
            wanted = [PASS, ("p", "r", "pass")]
        for raw in raws[1:]:
            assert results(report_of(api, raw)) == wanted
        assert one.recorded.total(DEFECTS.name) == 1


def test_an_unexpected_error_ends_no_retries(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_cluster(api)
    world.serve(policy("p"))
    raw = pod(api)
    with holding(api, world) as one:
        one.evaluators.faults.append(RuntimeError("no evaluator"))
        pod(api, team="t")
        lane = one.reports._lanes[0]
        one.catch_up()
        lane.dispatch.work_due()
        with monkeypatch.context() as patched:
            patched.setattr(lane, "_read", lambda _key: 1 / 0)
            one.time.now_s += 5
            assert lane.feed_due()
        one.pass_s(60)
        assert results(report_of(api, raw)) == [("p", "r", "pass")]


@pytest.mark.parametrize("word", ["", "unknown"])
def test_other_words_are_cut_first_and_not_counted(word: str) -> None:
    rows = [
        Row(policy=name, result=result, message="m" * 400_000)
        for name, result in (("a", word), ("b", "pass"), ("c", "fail"))
    ]
    kept, left_out = cut_rows(rows)
    assert [one.policy for one in kept] == ["b", "c"]
    assert left_out == 1
    assert sum(summary_of(rows).values()) == 2
    assert msgspec.to_builtins(cut_rows(rows[:1])[0]) == msgspec.to_builtins(rows[:1])


def test_an_edited_summary_is_corrected_by_a_scan(api: FakeApi) -> None:
    """The rows are right, so that only the summary shows the edit."""
    world = new_cluster(api)
    world.serve(policy("p"))
    raw = pod(api)
    with holding(api, world) as one:
        report = report_of(api, raw)
        assert report is not None
        right = report["summary"]
        assert right["fail"] == 1
        path = f"{REPORTS.format('a')}/{raw['metadata']['uid']}"
        api.put(path, **{**report, "summary": {**right, "fail": 0, "pass": 1}})
        one.catch_up()
        one.pass_s(4000)
        report = report_of(api, raw)
        assert report is not None
        assert report["summary"] == right
        before = writes(api)
        one.pass_s(4000)
        assert writes(api) == before


def test_a_summary_without_zeros_is_left_alone(api: FakeApi) -> None:
    """Other programs omit them; the next holder rewrites no equal report."""
    world = new_cluster(api)
    world.serve(policy("p"))
    raw = pod(api)
    with holding(api, world) as one:
        report = report_of(api, raw)
        assert report is not None
        path = f"{REPORTS.format('a')}/{raw['metadata']['uid']}"
        api.put(path, **{**report, "summary": {"fail": 1}})
        one.catch_up()
        before = writes(api)
        one.pass_s(4000)
        assert writes(api) == before

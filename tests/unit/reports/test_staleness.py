"""The delay from a change to its report, and the findings of the periodic scan."""

from pathlib import Path
from typing import Any

import pytest

from kyverno_mp import limits
from kyverno_mp.kube.resource import core
from kyverno_mp.policy.metrics_configuration import Exposure, MetricsConfiguration
from kyverno_mp.pool import metrics
from kyverno_mp.pool.metrics import PoolMetrics
from kyverno_mp.reports.feed import Feed, Item
from kyverno_mp.reports.scan import lane
from kyverno_mp.telemetry.collect import merge, views
from kyverno_mp.telemetry.expose import render
from kyverno_mp.telemetry.families import REPORTS_STALENESS
from kyverno_mp.telemetry.page import Page
from kyverno_mp.telemetry.record import Recorder
from tests.unit.kube.fake_api import FakeApi
from tests.unit.reports.world import (
    REPORTS,
    labelled,
    new_cluster,
    pod,
    policy,
    report_of,
    stored,
    stored_reports,
    term,
    writes,
)

Json = Any
_NAME = "kyverno_mp_reports_staleness_seconds"
_STAGES = "kyverno_mp_reports_stage_seconds"


def test_only_outdated_reports_are_observed(api: FakeApi) -> None:
    """The delay starts with the change; unchanged reports are not observed."""
    world = new_cluster(api)
    world.serve(policy())
    pod(api)
    with term(api, world) as one:
        one.settle()
        assert one.staleness() == [(_NAME, ("object",), 0.0)]
        one.pass_s(4000)
        assert len(one.staleness()) == 1
        world.serve(policy("p", labelled("s")))
        one.settle()
        assert one.staleness()[1:] == [(_NAME, ("scan",), 0.0)]


def test_time_of_a_failed_write_counts(api: FakeApi) -> None:
    """The report is outdated until the write succeeds."""
    world = new_cluster(api)
    world.serve(policy())
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
        api.fault("^(POST|PUT|PATCH) .*policyreports", 503)
        world.serve(policy("p", labelled("s")))
        one.settle()
        assert len(one.staleness()) == 1
        one.pass_s(2)
        assert report_of(api, raw) is not None
        [(name, labels, seconds)] = one.staleness()[1:]
        assert (name, labels) == (_NAME, ("scan",))
        assert seconds == pytest.approx(2)
        assert not one.reports.lane._outdated


def test_cause_is_kept_while_writes_fail(api: FakeApi) -> None:
    """A new evaluation or a scan in between does not reset the start time."""
    world = new_cluster(api)
    world.serve(policy())
    pod(api)
    with term(api, world) as one:
        one.settle()
        api.fault("^(POST|PUT|PATCH) .*policyreports", *[403] * 5)
        pod(api, team="t")
        one.settle()
        one.pass_s(2)
        world.serve(policy("p", labelled("s")))
        one.settle()
        assert len(one.staleness()) == 1
        one.pass_s(20)
        [(_, labels, seconds)] = one.staleness()[1:]
        assert labels == ("object",)
        assert seconds == pytest.approx(22)


def test_phases_of_the_delay_are_observed(api: FakeApi) -> None:
    """Waiting, evaluation, the turn in its batch and the write add up to the total."""
    world = new_cluster(api)
    world.serve(policy())
    raws = [pod(api, "x"), pod(api, "y")]
    with term(api, world) as one:
        submit = one.evaluators.submit

        def slow(content: bytes) -> Any:
            one.time.now_s += 2
            return submit(content)

        def slower(method: str, _target: str) -> None:
            if method == "POST":
                one.time.now_s += 3

        one.evaluators.submit = slow  # type: ignore[method-assign]
        api.on_request = slower
        one.reports.scan.tick()
        one.catch_up()
        one.time.now_s += 1
        one.settle()
        found = [entry for entry in one.recorded.observed if entry[0] == _STAGES]
        stages = ("waiting", "evaluating", "turn", "writing")
        for turn, parts in enumerate((found[:4], found[4:])):
            assert [labels for _, labels, _ in parts] == [
                ("object", stage) for stage in stages
            ]
            seconds = [seconds for *_, seconds in parts]
            assert seconds == pytest.approx([1, 2, 3 * turn, 3])
        [_, second] = one.staleness()
        assert second[2] == pytest.approx(9)
    assert len(found) == 4 * len(raws)


def test_few_objects_are_shared_among_the_threads() -> None:
    """The reports of a batch are written in turn, so the last one would be late."""
    feed = Feed(sharers=3)
    source = _Source()
    for at in range(7):
        feed.put(Item(source, ("a", f"x{at}"), "u", b"", b"{}", 1.0, True))
    assert [len(feed.take(0)) for _ in range(5)] == [3, 2, 1, 1, 0]


class _Source:
    resource = core("pods")

    def is_current(self, *_: object) -> bool:
        return True


def test_queued_object_is_outdated_since_its_first_event() -> None:
    """A newer version replaces an older one in the feed."""
    feed = Feed()
    source = _Source()
    for since_s, is_change in ((5.0, False), (3.0, True), (7.0, False)):
        feed.put(Item(source, ("a", "x"), "u", b"", b"{}", since_s, is_change))
    [item] = feed.take(0)
    assert (item.since_s, item.is_change) == (3.0, True)


def test_remembered_failures_are_bounded(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REPORTS_RETRIES_MAX applies; deleted objects are forgotten."""
    monkeypatch.setattr(lane, "REPORTS_RETRIES_MAX", 2)
    world = new_cluster(api)
    world.serve(policy())
    for n in range(4):
        pod(api, f"x{n}")
    with term(api, world) as one:
        api.fault("^POST .*policyreports", *[403] * 4)
        one.settle()
        assert len(one.reports.lane._outdated) == 2
        for n in range(4):
            api.remove(f"/api/v1/namespaces/a/pods/x{n}")
        one.pass_s(2)
        assert not one.reports.lane._outdated


def test_buckets_extend_to_ten_minutes(tmp_path: Path) -> None:
    """Failures are retried after up to five minutes; operators can set the buckets."""
    recorder = Recorder(Page.claim(tmp_path, "reports"), 100)
    for seconds in (1.0, 400.0):
        recorder.series(REPORTS_STALENESS).observe(("scan",), seconds)
    text = render(merge(views(tmp_path)), {})
    for bound, count in (("1", 1), ("300", 1), ("600", 2), ("+Inf", 2)):
        assert f'{_NAME}_bucket{{cause="scan",le="{bound}"}} {count}\n' in text
    chosen = MetricsConfiguration(exposure={_NAME: Exposure(bucket_boundaries=(9.0,))})
    text = render(merge(views(tmp_path), chosen), {}, chosen)
    assert f'{_NAME}_bucket{{cause="scan",le="9"}} 1\n' in text
    assert 'le="600"' not in text


def test_uncollected_observations_are_bounded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """POOL_OBSERVATIONS_MAX; a metric counts the dropped observations."""
    assert limits.POOL_OBSERVATIONS_MAX > 1
    monkeypatch.setattr(metrics, "POOL_OBSERVATIONS_MAX", 2)
    found = PoolMetrics()
    for _ in range(5):
        found.observe(REPORTS_STALENESS, ("object",), 1.0)
    assert len(found._observed) == 2
    found.write(Recorder(Page.claim(tmp_path, "reports"), 100))
    text = render(merge(views(tmp_path)), {})
    assert f'{_NAME}_count{{cause="object"}} 2\n' in text
    dropped = "kyverno_mp_observations_dropped_total"
    assert f'{dropped}{{metric="{_NAME}"}} 3\n' in text


def test_periodic_scan_equals_a_fresh_one(api: FakeApi) -> None:
    """After many changes, the scan writes nothing; a fresh scan gives equal reports."""
    world = new_cluster(api)
    world.serve(policy("p", labelled("r"), labelled("s", label="owner")))
    for n in range(8):
        pod(api, f"x{n}", team="t" if n % 2 else "")
    with term(api, world) as one:
        one.settle()
        pod(api, "x0", team="blue")
        pod(api, "x1", owner="me")
        api.remove("/api/v1/namespaces/a/pods/x2")
        one.settle()
        world.serve(policy("p", labelled("r")), policy("q", labelled(label="x")))
        pod(api, "new")
        one.settle()
        world.serve(policy("q", labelled(label="owner")))
        one.settle()
        count = writes(api)
        objects = one.evaluators.objects
        one.pass_s(3601)
        assert one.evaluators.objects == objects + 8
        assert writes(api) == count
        followed = stored_reports(api)
    for name in followed:
        api.remove(f"{REPORTS.format('a')}/{name}")
    with term(api, world) as one:
        one.settle()
    assert stored_reports(api) == followed
    assert len(followed) == 8
    assert stored(api, "/api/v1/namespaces/a/pods/new") is not None

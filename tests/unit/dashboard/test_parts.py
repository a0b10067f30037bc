"""The content of the pages: counts over time, costs, exceptions, reports."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from kyverno_mp.dashboard.activity import About, activity_of
from kyverno_mp.dashboard.entries import RESULTS, Counts
from kyverno_mp.dashboard.exceptions import Exempted, published_of
from kyverno_mp.dashboard.history import History, Point, Series, increases
from kyverno_mp.dashboard.results import Query, Results, Room
from kyverno_mp.dashboard.watch import ReportWatch
from kyverno_mp.leader.loop import PAGES, SNAPSHOT, Leader
from kyverno_mp.limits import (
    DASHBOARD_MESSAGE_CHARACTERS_MAX,
    DASHBOARD_SAMPLES_MAX,
    DASHBOARD_SERIES_MAX,
    DASHBOARD_TEXT_CHARACTERS_MAX,
)
from kyverno_mp.process.roles.dashboard import Sampler
from kyverno_mp.reports.objects import POLICY_REPORTS
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.policies import POLICIES, PolicySegment
from kyverno_mp.snapshot.publish import Publisher, segment_file
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.telemetry.collect import Merged
from kyverno_mp.telemetry.families import ADMISSION
from kyverno_mp.telemetry.families import RESULTS as MEASURED
from kyverno_mp.telemetry.page import Page
from kyverno_mp.telemetry.record import Recorder
from kyverno_mp.values.jsonvalue import Json
from tests.unit.dashboard.world import World, entry
from tests.unit.kube.fake_api import FakeApi, running
from tests.waiting import wait_for


def counts(number: int) -> Counts:
    return Counts({**dict.fromkeys(RESULTS, 0), "pass": number})


def test_published_exceptions_have_their_end(tmp_path: Path) -> None:
    """Read from the snapshot that a leader publishes."""
    for name in ("policies", SNAPSHOT, PAGES):
        (tmp_path / name).mkdir(mode=0o700)
    match = {"any": [{"resources": {"kinds": ["Pod"]}}]}
    rule = {"name": "r", "match": match, "validate": {"message": "m", "deny": {}}}
    documents: list[Json] = [
        {
            "apiVersion": "kyverno.io/v1",
            "kind": "ClusterPolicy",
            "metadata": {"name": "p"},
            "spec": {"rules": [rule]},
        }
    ]
    ends = "2199-01-31T00:00:00Z"
    for name, annotations in (("ends", {"kyverno-mp.io/expires": ends}), ("lasts", {})):
        spec = {
            "match": match,
            "exceptions": [{"policyName": "p", "ruleNames": ["r"]}],
        }
        metadata = {"name": name, "namespace": "ops", "annotations": annotations}
        documents.append(
            {
                "apiVersion": "kyverno.io/v2",
                "kind": "PolicyException",
                "metadata": metadata,
                "spec": spec,
            }
        )
    (tmp_path / "policies" / "all.yaml").write_text(yaml.safe_dump_all(documents))
    leader = Leader(
        Settings(
            standalone=True,
            policies_dir=str(tmp_path / "policies"),
            exception_namespace="*",
        ),
        tmp_path,
        Publisher(tmp_path / SNAPSHOT),
        Recorder(Page.claim(tmp_path / PAGES, "leader"), 100),
    )
    leader.step(force=True)
    path = tmp_path / SNAPSHOT / segment_file(POLICIES)
    published = published_of(PolicySegment(Segment.attach(path, POLICIES)))
    assert published.exceptions == (
        Exempted("ops/ends", ("p: r",), ends),
        Exempted("ops/lasts", ("p: r",)),
    )


def test_chart_begins_at_the_start_however_old() -> None:
    """Memory is bounded: the interval doubles, and the steps stay equal."""
    history, moment = History(60.0), 0.0
    one = Series("reports")
    for number in range(50_000):
        if moment <= number * 60.0:
            history.add(moment, {one: counts(number)})
            moment += history.interval_s
    course = history.course(one)
    assert DASHBOARD_SAMPLES_MAX / 2 <= len(course) < DASHBOARD_SAMPLES_MAX
    assert course[0].time_s == 0
    assert course[-1].time_s > 49_000 * 60
    steps = {b.time_s - a.time_s for a, b in pairwise(course)}
    assert max(steps) <= 2 * min(steps)
    assert [p.counts.of["pass"] for p in course] == [p.time_s / 60 for p in course]


def test_groups_above_the_limit_have_no_chart() -> None:
    history = History(60.0)
    many = [
        Series("reports", "policy", str(n)) for n in range(DASHBOARD_SERIES_MAX + 5)
    ]
    for moment in range(2):
        history.add(moment, {one: counts(1) for one in many})
    found = [len(history.course(one)) for one in many]
    assert found == [2] * DASHBOARD_SERIES_MAX + [0] * 5


def test_later_group_has_no_earlier_values() -> None:
    history, late = History(60.0), Series("reports", "policy", "late")
    history.add(0, {Series("reports"): counts(3)})
    history.add(60, {Series("reports"): counts(4), late: counts(1)})
    assert [one.counts.total for one in history.course(late)] == [0, 1]


def test_decreasing_counter_has_no_increase() -> None:
    """After one of several workers restarts, the remaining sum contains nothing new."""
    numbers = (5000, 9000, 6002, 6002, 6005)
    course = [Point(at, counts(number)) for at, number in enumerate(numbers)]
    assert [one.counts.of["pass"] for one in increases(course)] == [4000, 0, 0, 3]


def test_charts_begin_when_the_reports_were_read() -> None:
    """Charts would begin with zeros; the chart of reviews waits only one minute."""
    world = World()
    read: list[bool] = []
    sampler = Sampler(world.pod, world.results, world.history, lambda: bool(read))
    assert not sampler.take_due(1000, 1)
    assert not sampler.take_due(1059, 2)
    assert sampler.take_due(1060, 3)
    assert not sampler.take_due(1119, 4)
    late = Sampler(world.pod, world.results, world.history, lambda: bool(read))
    assert not late.take_due(2000, 5)
    read.append(True)
    assert late.take_due(2001, 6)


def measured(**labels: str) -> tuple[str, ...]:
    return tuple(labels.get(name, "-") for name in MEASURED.labels)


def test_costs_and_counts_come_from_the_metrics() -> None:
    facts = {"policy_name": "p", "rule_name": "r", "resource_namespace": "team"}
    merged: Merged = {
        ADMISSION: {("Pod", "team", "create", "true", "x"): [3.0, 1.0, 0.5]},
        MEASURED: {
            measured(**facts, rule_result="pass"): [2.0, 1.0, 0.003],
            measured(**facts, rule_result="fail"): [1.0, 0.0, 0.001],
            measured(**facts, policy_namespace="a", rule_result="skip"): [1.0, 0.0, 1],
        },
    }
    found = activity_of(merged, {"p": About("high", "Pods")})
    assert found.reviews == 4
    assert found.totals.of == {"fail": 1, "error": 0, "warn": 0, "pass": 3, "skip": 1}
    cost = found.cost_of("p")
    assert (cost.count, round(cost.mean_us)) == (4, 1000)
    assert {one.name for one in found.groups("policy")} == {"p", "a/p"}
    assert found.by["severity"]["high"].total == 4
    assert found.by["category"][""].total == 1


def report(name: str, *results: str) -> dict[str, object]:
    return {
        "scope": {"kind": "Pod", "namespace": "team", "name": name},
        "results": [{"policy": "p", "rule": "r", "result": one} for one in results],
    }


PATH = "/apis/wgpolicyk8s.io/v1alpha2/namespaces/team/policyreports/"


def test_results_follow_the_stored_reports() -> None:
    """Other programs' reports count; a malformed one is named and hides no other."""
    with running() as api:
        results = Results(lambda: 0.0)
        api.put(f"{PATH}a", **report("a", "pass", "fail"))
        api.put(f"{PATH}odd", **report("odd", "maybe"))
        watch = ReportWatch(api.client(), POLICY_REPORTS, results)
        watch.start()
        try:
            wait_for(lambda: watch.synced and results.totals().total == 2)
            assert watch.problems() == [
                "1 report does not have the structure of its kind"
            ]
            api.put(f"{PATH}b", **report("b", "warn"))
            wait_for(lambda: results.totals().total == 3)
            assert results.listed(Query(result="warn"), 1, 10).count == 1
            # A new list contains known reports again.
            with api.lock:
                api.remove(f"{PATH}a")
                api.compact()
            api.drop_watches()
            wait_for(lambda: results.totals().total == 1)
            assert watch.informers[0].lists == 2
            # The malformed reports arrive again with a list and with a change.
            api.put(f"{PATH}odd", **report("odd", "maybe", "perhaps"))
            api.put(f"{PATH}odder", **report("odder", "maybe"))
            text = "2 reports do not have the structure of their kind"
            wait_for(lambda: watch.problems() == [text])
            api.remove(f"{PATH}odd")
            api.remove(f"{PATH}odder")
            wait_for(lambda: watch.problems() == [])
        finally:
            watch.stop()


@contextmanager
def watching(api: FakeApi, results: Results) -> Iterator[ReportWatch]:
    watch = ReportWatch(api.client(), POLICY_REPORTS, results, refill_s=0.05)
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()


LONG = "x" * 100_000


def test_foreign_texts_are_truncated_and_their_links_work() -> None:
    """A report of 1 MB must not cost 1 MB for each of its names."""
    fields = ("policy", "rule", "severity", "category", "source", "message")
    target = {"kind": LONG, "namespace": LONG, "name": LONG}
    result = {**dict.fromkeys(fields, LONG), "result": "fail", "resources": [target]}
    world = World()
    with running() as api:
        # A namespaced report names only objects of its namespace.
        path = "/apis/wgpolicyk8s.io/v1alpha2/clusterpolicyreports/"
        api.put(f"{path}a", results=[result])
        with watching(api, world.results):
            wait_for(lambda: world.results.totals().total == 1)
    (one,) = world.results.listed(Query(), 1, 10).entries
    assert len(one.message) == DASHBOARD_MESSAGE_CHARACTERS_MAX
    for name in (*fields[:-1], *target):
        text = getattr(one, name)
        assert len(text) == DASHBOARD_TEXT_CHARACTERS_MAX
        assert text.endswith("…")
    for name in ("policy", "severity", "category", "namespace"):
        link_to = f"/results?{name}={getattr(one, name)}"
        assert world.get(link_to)[0] == 200
        assert "1 result," in world.get(link_to)[1]


@pytest.mark.parametrize(
    "room", [Room(results=20), Room(size=20 * 400), Room(reports=20)]
)
def test_cached_data_is_bounded(room: Room) -> None:
    """The limits are for results, bytes and reports; a metric counts omissions."""
    results = Results(lambda: 0.0, room)
    for number in range(50):
        text = f"{number}" * 100
        results.put(("PolicyReport", "", str(number)), [entry(number, message=text)])
    listed = results.listed(Query(), 1, 1000).count
    assert 5 <= listed <= 20
    assert results.left_out == 50 - listed
    assert results.reports <= max(room.reports, 50)


def test_oversized_report_does_not_displace_others() -> None:
    results = Results(lambda: 0.0, Room(results=4))
    for name, number in (("a", 4), ("large", 9), ("b", 2)):
        results.put(("PolicyReport", "", name), [entry()] * number, "1")
    assert results.waiting() == []
    results.remove(("PolicyReport", "", "a"))
    assert results.waiting() == [(("PolicyReport", "", "b"), "1")]
    results.fill(("PolicyReport", "", "b"), [entry()], "older")
    assert results.left_out == 11
    results.fill(("PolicyReport", "", "b"), [entry()] * 2, "1")
    assert results.left_out == 9


def test_dropped_report_is_listed_when_space_is_free() -> None:
    results = Results(lambda: 0.0, Room(results=2))
    with running() as api, watching(api, results):
        api.put(f"{PATH}a", **report("a", "pass", "fail"))
        wait_for(lambda: results.totals().total == 2)
        api.put(f"{PATH}b", **report("b", "warn", "warn"))
        wait_for(lambda: results.left_out == 2)
        api.remove(f"{PATH}a")
        wait_for(lambda: results.totals().total == 2 and results.left_out == 0)
        assert results.listed(Query(result="warn"), 1, 10).count == 2


def test_failed_list_takes_no_space() -> None:
    """A failed list takes no memory after any number of failures.

    Objects that only the failed list contained are dropped.
    """
    results = Results(lambda: 0.0, Room(results=600, reports=600))
    with running() as api:
        for number in range(510):  # two pages
            api.put(f"{PATH}r{number:03}", **report(str(number), "pass"))
        api.fault(r"GET .*continue=", "expire", "expire", 403, 403, 403)
        with watching(api, results) as watch:
            wait_for(lambda: watch.informers[0].failures > 0)
            api.remove(f"{PATH}r000")
            wait_for(lambda: watch.synced and results.totals().total == 509)
            assert results.left_out == 0
            assert results.listed(Query(), 1, 1).count == 509


def test_reports_above_the_limit_are_recounted_by_each_list() -> None:
    results = Results(lambda: 0.0, Room(reports=3))
    with running() as api:
        for number in range(5):
            api.put(f"{PATH}r{number}", **report(str(number), "pass", "fail"))
        with watching(api, results) as watch:
            wait_for(lambda: watch.synced and results.left_out == 4)
            with api.lock:
                api.remove(f"{PATH}r0")
                api.compact()
            api.drop_watches()
            wait_for(lambda: watch.informers[0].lists == 2)
            wait_for(lambda: results.left_out == 2)

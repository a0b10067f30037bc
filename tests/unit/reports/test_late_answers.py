"""Other writers change a report before the answer to our write arrives.

The informer then never receives our version as the newest one. Later scans must not
rely on the data of our last write.
"""

from collections.abc import Callable
from typing import Any

from tests.unit.kube.fake_api import FakeApi
from tests.unit.reports.test_merging import ONCE, PASS, holding, merge, review, row
from tests.unit.reports.world import (
    PODS,
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

_WRITES = frozenset({"post", "patch", "create", "replace", "delete"})
_SCAN_S = 4000
FAIL = ("p", "r", "fail")


class _LateAnswer:
    """Objects whose next write is answered after ``then`` and the informers."""

    def __init__(self, one: Term, then: Callable[[], None]) -> None:
        self._one, self._then = one, then
        self._objects = one.reports.writer._objects

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._objects, name)
        if name not in _WRITES:
            return real

        def call(*given: Any, **named: Any) -> Any:
            answer = real(*given, **named)
            self._one.reports.writer._objects = self._objects
            self._then()
            self._one.catch_up()
            return answer

        return call


def _answer_late(one: Term, then: Callable[[], None]) -> None:
    late: Any = _LateAnswer(one, then)
    one.reports.writer._objects = late


def _path(raw: Any) -> str:
    return f"{REPORTS.format('a')}/{raw['metadata']['uid']}"


def _edit(api: FakeApi, raw: Any, *rows: dict[str, Any]) -> None:
    """Change the rows of a report, as another program would."""
    report = report_of(api, raw)
    assert report is not None
    first = report["results"][0]
    edited = [first | one for one in rows]
    api.put(_path(raw), **{**report, "results": edited})


def test_a_report_that_was_deleted_meanwhile_is_created_again(api: FakeApi) -> None:
    world = new_cluster(api)
    world.serve(policy("p"))
    raw = pod(api)
    with term(api, world) as one:
        _answer_late(one, lambda: api.remove(_path(raw)))
        one.settle()
        one.pass_s(_SCAN_S)
        assert results(report_of(api, raw)) == [FAIL]


def test_a_report_that_was_edited_meanwhile_is_corrected(api: FakeApi) -> None:
    world = new_cluster(api)
    world.serve(policy("p"))
    raw = pod(api)
    with term(api, world) as one:
        _answer_late(one, lambda: _edit(api, raw, {"result": "pass"}))
        one.settle()
        one.pass_s(_SCAN_S)
        assert results(report_of(api, raw)) == [FAIL]
        assert not one.reports.stored.unseen()


def test_a_list_that_skips_our_version(api: FakeApi) -> None:
    """After 410 Gone, the informer lists the report with a later change."""
    world = new_cluster(api)
    world.serve(policy("p"))
    with term(api, world) as one:
        one.settle()
        raw = pod(api)
        api.fault(r"^GET .*policyreports\?.*watch", *[503] * 2)
        api.drop_watches()
        wait_for(lambda: one.reports.stored.informers[0].failures)
        dispatch = one.reports.dispatch
        wait_for(lambda: dispatch.work_due() > 0 or report_of(api, raw) is not None)
        _edit(api, raw, {"result": "pass"})
        api.compact()
        one.settle()
        one.pass_s(_SCAN_S)
        assert results(report_of(api, raw)) == [FAIL]


def test_a_policy_that_ends_leaves_no_row(api: FakeApi) -> None:
    """The answer to a scan's write arrives after a merge of the same report."""
    world = new_cluster(api)
    world.serve(policy("p"), ONCE)
    raw = pod(api)
    with holding(api, world) as one:

        def merge_meanwhile() -> None:
            review(api, raw, row("once"))
            assert merge(one)

        pod(api, team="t")
        _answer_late(one, merge_meanwhile)
        one.settle()
        assert PASS in results(report_of(api, raw))
        world.serve(policy("p"))
        one.settle()
        assert results(report_of(api, raw)) == [("p", "r", "pass")]


def test_results_of_a_review_return_to_an_edited_report(api: FakeApi) -> None:
    world = new_cluster(api)
    world.serve(policy("p"), ONCE)
    raw = pod(api)
    with holding(api, world) as one:
        review(api, raw, row("once"))
        edits = {"policy": "p", "rule": "r", "result": "fail"}
        _answer_late(one, lambda: _edit(api, raw, edits))
        assert merge(one)
        review(api, raw, row("once"), at_s=1)
        assert merge(one)
        assert results(report_of(api, raw)) == [PASS, FAIL]


def test_a_report_that_we_deleted_is_deleted_again(api: FakeApi) -> None:
    world = new_cluster(api)
    only_x = labelled(selector={"matchLabels": {"x": "1"}})
    world.serve(policy("p", only_x))
    raw = pod(api, x="1")
    with term(api, world) as one:
        one.settle()
        report = report_of(api, raw)
        assert report is not None
        _answer_late(one, lambda: api.put(_path(raw), **report))
        raw = pod(api)
        one.settle()
        assert report_of(api, raw) is not None
        one.pass_s(_SCAN_S)
        assert report_of(api, raw) is None


def test_a_list_that_skips_a_report_that_was_deleted(api: FakeApi) -> None:
    """Its version never arrives; otherwise each such report would cost memory."""
    world = new_cluster(api)
    world.serve(policy("p"))
    with term(api, world) as one:
        one.settle()
        raw = pod(api)
        api.fault(r"^GET .*policyreports\?.*watch", *[503] * 2)
        api.drop_watches()
        wait_for(lambda: one.reports.stored.informers[0].failures)
        dispatch = one.reports.dispatch
        wait_for(lambda: dispatch.work_due() > 0 or report_of(api, raw) is not None)
        assert one.reports.stored.unseen()
        api.remove(f"{PODS.format('a')}/x")
        api.remove(_path(raw))
        api.compact()
        one.settle()
        assert not one.reports.stored.unseen()

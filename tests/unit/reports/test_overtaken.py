"""An evaluation that another one has overtaken does not write its older results.

Several threads write: a later evaluation of an object can be faster than an earlier
one. A failure means: a report stays wrong until the next periodic scan.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from tests.unit.kube.fake_api import FakeApi
from tests.unit.reports.world import (
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


def _answer_late(one: Term, meanwhile: Callable[[], None]) -> None:
    """Evaluate the next batch, and answer it after ``meanwhile``."""
    dispatch, evaluators = one.reports.dispatch, one.evaluators

    class Late:
        def submit(self, content: bytes) -> "Future[bytes]":
            dispatch._evaluators = evaluators
            answer = evaluators.submit(content)
            meanwhile()
            return answer

    dispatch._evaluators = Late()


def test_labels_of_the_namespace_change_during_an_evaluation(api: FakeApi) -> None:
    world = new_cluster(api)
    selector = {"matchLabels": {"checked": "yes"}}
    world.serve(policy("p", labelled(namespaceSelector=selector)))
    with term(api, world) as one:
        one.settle()
        raw = pod(api)

        def check() -> None:
            world.label("a", checked="yes")
            one.reports.scan.tick()
            assert one.reports.dispatch.work_due() == 1

        one.catch_up()
        _answer_late(one, check)
        one.reports.dispatch.work_due()
        one.settle()
        one.pass_s(2)
        assert results(report_of(api, raw)) == [("p", "r", "fail")]


def test_kind_is_watched_again_during_an_evaluation(api: FakeApi) -> None:
    """The first watch has ended, so it does not notice the change of the object."""
    world = new_cluster(api)
    scanned = policy("p", labelled())
    world.serve(scanned)
    with term(api, world) as one:
        one.settle()
        raw = pod(api, team="t")

        def change() -> None:
            world.serve(policy("p", labelled(kinds=("ConfigMap",))))
            one.reports.scan.tick()
            pod(api)
            world.serve(scanned)
            one.reports.scan.tick()
            one.catch_up()
            assert one.reports.dispatch.work_due() == 1

        one.catch_up()
        _answer_late(one, change)
        one.reports.dispatch.work_due()
        one.settle()
        one.pass_s(2)
        assert results(report_of(api, raw)) == [("p", "r", "fail")]


def test_object_changes_back_while_a_write_is_on_its_way(api: FakeApi) -> None:
    """The scan of the second change needs no write: the stored rows are equal."""
    world = new_cluster(api)
    world.serve(policy("p"))
    raw = pod(api, team="t")
    with term(api, world) as one:
        one.settle()
        pod(api)
        one.catch_up()

        def change_back(method: str, target: str) -> None:
            if method == "PATCH" and "policyreports" in target:
                api.on_request = lambda _method, _target: None
                pod(api, team="t", more="1")
                one.catch_up()
                assert one.reports.dispatch.work_due() == 1

        api.on_request = change_back
        one.reports.dispatch.work_due()
        one.settle()
        one.pass_s(2)
        assert results(report_of(api, raw)) == [("p", "r", "pass")]

"""After failures, reports equal those of a fresh scan; limits hold."""

import threading
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from kyverno_mp.errors import (
    DeadlinePassed,
    KubeRefused,
    KubeUnavailable,
    SnapshotUnusable,
    StateError,
)
from kyverno_mp.kube.resource import core
from kyverno_mp.kube.watch import list_pages
from kyverno_mp.program import engine
from kyverno_mp.reports import feed as feed_module
from kyverno_mp.reports import objects
from kyverno_mp.reports.feed import Feed, Item
from kyverno_mp.reports.scan import evaluator, found, lane, linking, resources
from kyverno_mp.reports.scan.dispatch import Dispatch
from kyverno_mp.reports.scan.due import Scanned
from kyverno_mp.results import entries
from tests.unit.cleanup.cluster import resource, serve_kinds
from tests.unit.kube.fake_api import FakeApi
from tests.unit.reports.world import (
    REPORTS,
    Term,
    labelled,
    new_cluster,
    pod,
    policy,
    report_of,
    results,
    term,
    writes,
)
from tests.waiting import HANG_S, wait_for

Json = Any
FAILS = [("p", "r", "fail")]
_SECRET_LISTS = r"^GET .*/secrets\?limit"


@pytest.mark.parametrize("fault", [500, 409, 403, "cut"])
def test_failed_write_is_retried(api: FakeApi, fault: Any) -> None:
    """The API server is away, another holder wrote, or a namespace is terminating."""
    world = new_cluster(api)
    world.serve(policy())
    raws = [pod(api, f"x{at}") for at in range(5)]
    with term(api, world) as one:
        api.fault("^POST .*policyreports", *[fault] * 3)
        one.settle()
        one.pass_s(2)
        one.pass_s(10)
        assert [results(report_of(api, raw)) for raw in raws] == [FAILS] * 5


def test_reports_are_written_at_once_when_their_kind_is_back(api: FakeApi) -> None:
    """Otherwise a report is up to five minutes late after a long outage."""
    world = new_cluster(api)
    world.serve(policy())
    raws = [pod(api, f"x{at}") for at in range(5)]
    with term(api, world) as one:
        api.fault("^(POST|GET) .*policyreports", *[404] * 1000)
        one.settle()
        for _ in range(10):
            one.pass_s(300)
        assert report_of(api, raws[0]) is None
        api.faults.clear()
        informer, _ = one.reports.stored.informers
        lists = informer.lists
        with api.lock:
            raws.append(pod(api, "later"))
            api.compact()
        api.drop_watches()
        wait_for(lambda: informer.lists > lists)
        wait_for(lambda: one.reports.lane.retries.depth)
        one.settle()
        assert [results(report_of(api, raw)) for raw in raws] == [FAILS] * 6


def test_conflict_causes_a_read(api: FakeApi) -> None:
    """Another writer changes the report between our read and our write."""
    world = new_cluster(api)
    world.serve(policy())
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
        api.fault("^PUT .*policyreports", 409, 409)
        raw = pod(api, team="t")
        one.settle()
        assert results(report_of(api, raw)) == [("p", "r", "pass")]


def test_new_kind_is_scanned_after_a_failed_step(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, its objects have no reports until a policy or a kind changes."""
    world = new_cluster(api)
    world.serve(policy("p", labelled(kinds=("Pod", "Deployment"))))
    with term(api, world) as one:
        one.settle()
        deployments = resource("deployments", "Deployment")
        deployments["responseKind"].update(group="apps")
        serve_kinds(api, ("apps", "v1", [deployments]))

        def fail(_segment: str) -> None:
            monkeypatch.undo()
            raise SnapshotUnusable("snapshot.record", "the file was replaced")

        monkeypatch.setattr(world, "cel_policies", fail)
        one.time.now_s += 31
        one.reports.scan.tick()
        assert one.reports.scan.problem
        one.settle()
        assert ("apps", "deployments") in one.reports.scan.resources


def test_deleted_report_is_restored_by_the_next_scan(api: FakeApi) -> None:
    """The period checks everything."""
    world = new_cluster(api)
    world.serve(policy())
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
        api.remove(f"{REPORTS.format('a')}/{raw['metadata']['uid']}")
        one.pass_s(3601)
        assert results(report_of(api, raw)) == FAILS


def test_nothing_is_written_without_the_lease(api: FakeApi) -> None:
    """With two holders, the one that lost the lease stops writing."""
    world = new_cluster(api)
    world.serve(policy())
    raw = pod(api)
    with term(api, world) as one:
        one.holds = False
        one.settle()
        assert writes(api) == 0
    with term(api, world) as other:
        other.settle()
        assert results(report_of(api, raw)) == FAILS


def test_expired_watches_lose_nothing(api: FakeApi) -> None:
    """After an etcd compaction, a new list returns only the missed changes."""
    world = new_cluster(api)
    world.serve(policy())
    raw, other = pod(api), pod(api, "y")
    with term(api, world) as one:
        one.settle()
        before = one.evaluators.objects
        with api.lock:
            raw = pod(api, team="t")
            api.remove(f"/api/v1/namespaces/a/pods/{other['metadata']['name']}")
            api.compact()
        api.drop_watches()
        one.settle()
        assert results(report_of(api, raw)) == [("p", "r", "pass")]
        assert one.evaluators.objects == before + 1
        watch = one.reports.scan.resources["", "pods"].watch
        assert len(watch) == 1


def test_batch_that_crashes_evaluators_affects_only_its_object(api: FakeApi) -> None:
    """The objects of the batch are evaluated one by one; the faulty one is skipped."""
    world = new_cluster(api)
    world.serve(policy())
    raws = [pod(api, f"x{at}") for at in range(3)]
    with term(api, world) as one:
        one.evaluators.faults = [StateError("pool.batch", "died")] * 2
        one.settle()
        assert [report_of(api, raw) is None for raw in raws] == [True, False, False]
        assert one.reports.dispatch.abandoned == 1
        failed = ("kyverno_mp_reports_evaluated_total", ("failed",))
        assert one.recorded.counts[failed] == 1


def test_failing_rule_is_an_error_and_the_others_have_results(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An internal error is never 'no result'."""
    world = new_cluster(api)
    world.serve(policy("p"), policy("q"))
    raw = pod(api)
    with term(api, world) as one:
        engine = one.evaluators.evaluator._engine
        explain = type(engine).explain

        def broken(self: Any, linked: Any, context: Any) -> Any:
            if linked.ir.name == "p":
                raise RuntimeError("secret text")
            return explain(self, linked, context)

        monkeypatch.setattr(type(engine), "explain", broken)
        one.settle()
    report = report_of(api, raw)
    assert results(report) == [("p", "r", "error"), ("q", "r", "fail")]
    assert "secret text" not in str(report)


@pytest.mark.parametrize("broken", ["link_policy", "link_match"])
def test_unlinkable_policy_affects_only_its_rows(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """It is an error for matching objects; its next version is linked again."""
    world = new_cluster(api)
    other = policy("c", labelled(kinds=("ConfigMap",)))
    world.serve(policy("p"), policy("q"), other)
    raw = pod(api)
    works = engine.link_policy

    def fails(compiled: Any) -> Any:
        if compiled.policy.name in ("p", "c"):
            raise RuntimeError("secret text")
        return works(compiled)

    def unknown(*_given: Any, **_named: Any) -> Any:
        raise RuntimeError("secret text")

    monkeypatch.setattr(linking, "link_policy", fails)
    if broken == "link_match":
        monkeypatch.setattr(linking, "link_match", unknown)
    with term(api, world) as one:
        one.settle()
        report = report_of(api, raw)
        assert results(report) == [("p", "r", "error"), ("q", "r", "fail")]
        assert "secret text" not in str(report)
        before = writes(api)
        one.pass_s(3601)
        assert writes(api) == before
        monkeypatch.setattr(linking, "link_policy", works)
        world.serve(policy("p"), policy("q"), other)
        one.pass_s(3601)
        assert results(report_of(api, raw)) == [("p", "r", "fail"), ("q", "r", "fail")]


def test_unavailable_dependency_delays_no_other_policy(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows stay unchanged, even rows that only a scan derives."""
    world = new_cluster(api)
    world.serve(policy("p"), policy("q"))
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
        explain = engine.Engine.explain

        def away(self: Any, linked: Any, context: Any) -> Any:
            if linked.ir.name == "p":
                raise KubeUnavailable("kube.server", "HTTP 503")
            return explain(self, linked, context)

        monkeypatch.setattr(engine.Engine, "explain", away)
        raw = pod(api, team="t")
        new = pod(api, "new")
        one.settle()
        assert results(report_of(api, raw)) == [("p", "r", "fail"), ("q", "r", "pass")]
        assert results(report_of(api, new)) == [("q", "r", "fail")]
        before = writes(api)
        one.pass_s(2)
        assert writes(api) == before
        monkeypatch.setattr(engine.Engine, "explain", explain)
        one.pass_s(10)
        assert results(report_of(api, raw)) == [("p", "r", "pass"), ("q", "r", "pass")]
        assert results(report_of(api, new)) == [("p", "r", "fail"), ("q", "r", "fail")]


def test_failing_row_delays_no_other(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, a text that is not valid Unicode."""
    world = new_cluster(api)
    world.serve(policy("p"), policy("q"))
    raw = pod(api)
    works = entries.public_row_of

    def fails(ir: Any, *given: Any) -> Any:
        if ir.name == "p":
            raise RuntimeError("secret text")
        return works(ir, *given)

    monkeypatch.setattr(found, "public_row_of", fails)
    with term(api, world) as one:
        one.settle()
        assert results(report_of(api, raw)) == [("q", "r", "fail")]
        monkeypatch.setattr(found, "public_row_of", works)
        one.pass_s(2)
        assert results(report_of(api, raw)) == [("p", "r", "fail"), ("q", "r", "fail")]


@pytest.mark.parametrize(
    ("module", "broken"), [(evaluator, "link"), (found, "public_row_of")]
)
def test_unexpected_error_ends_no_evaluator(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, module: Any, broken: str
) -> None:
    """The object is evaluated once more; until then its report stays unchanged."""
    world = new_cluster(api)
    world.serve(policy())
    raw = pod(api)
    works = getattr(module, broken)
    faults = [RuntimeError("secret text")]

    def fails_once(*given: Any) -> Any:
        if faults:
            raise faults.pop()
        return works(*given)

    monkeypatch.setattr(module, broken, fails_once)
    with term(api, world) as one:
        one.settle()
        assert report_of(api, raw) is None
        assert not one.recorded.total("kyverno_mp_controller_defects_total")
        one.pass_s(2)
        assert results(report_of(api, raw)) == FAILS


def test_outdated_evaluator_is_asked_again(api: FakeApi) -> None:
    """Its answer would restore rows of a deleted rule."""
    world = new_cluster(api)
    world.serve(policy())
    raw = pod(api)
    old = world.segment
    world.serve(policy("p", labelled("s")))
    with term(api, world) as one:
        evaluator = one.evaluators.evaluator
        evaluator._policies = lambda: old
        one.settle()
        assert report_of(api, raw) is None
        evaluator._policies = world.policies
        one.pass_s(2)
        assert results(report_of(api, raw)) == [("p", "s", "fail")]


def test_unreadable_kind_blocks_no_other(api: FakeApi) -> None:
    """The health of the pool names it."""
    world = new_cluster(api)
    world.serve(policy("p", labelled(kinds=("Secret", "Pod"))))
    raw = pod(api)
    with term(api, world) as one:
        api.fault("^GET .*secrets", *[403] * 50)
        one.reports.scan.tick()
        secrets = one.reports.scan.resources["", "secrets"].watch.informer
        pods = one.reports.scan.resources["", "pods"].watch.informer
        assert pods.wait_synced(20)

        def has_failed() -> bool:
            secrets.retry_now()
            return secrets.failures >= 3

        wait_for(has_failed)
        one.reports.dispatch.work_due()
        assert results(report_of(api, raw)) == FAILS
        [problem] = one.reports.problems()
        assert problem.startswith("watch of secrets: ")


def test_kind_of_an_unavailable_server_blocks_no_other(api: FakeApi) -> None:
    """Otherwise no other kind would be scanned until that server is back."""
    world = new_cluster(api)
    world.serve(policy("p", labelled(kinds=("Secret", "Pod"))))
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
        secrets, pods = one.reports.scan.resources.values()
        if secrets.resource.plural != "secrets":
            secrets, pods = pods, secrets
            one.reports.scan.resources = {
                ("", "secrets"): secrets,
                ("", "pods"): pods,
            }
        api.remove(f"{REPORTS.format('a')}/{raw['metadata']['uid']}")
        one.catch_up()
        api.fault(_SECRET_LISTS, *[503] * 100)
        for each in (secrets, pods):
            each.mark([""], one.time.now_s)
        one.reports.scan.tick()
        one.reports.dispatch.work_due()
        assert results(report_of(api, raw)) == FAILS
        assert "HTTP 503" in one.reports.scan.problem
        assert (secrets.due, pods.due) == ({"": None}, {})
        lists = api.count(_SECRET_LISTS)
        one.reports.scan.tick()
        assert api.count(_SECRET_LISTS) == lists
        assert "HTTP 503" in one.reports.scan.problem
        api.faults.clear()
        one.time.now_s += 1
        one.reports.scan.tick()
        assert not secrets.due
        assert not one.reports.scan.problem


def test_resource_is_listed_at_once_when_its_kind_is_back() -> None:
    """Its watch knows; the pause after failed lists grows to five minutes."""
    informer = SimpleNamespace(synced=True, lists=1)
    watch: Any = SimpleNamespace(informer=informer)
    scanned = Scanned(watch, [])
    scanned.mark([""], 0.0)
    for _ in range(10):
        scanned.failed(0.0)
    assert not scanned.is_to_list(60.0)
    informer.lists += 1
    assert scanned.is_to_list(60.0)
    scanned.failed(60.0)
    assert not scanned.is_to_list(61.0)


def _due(api: FakeApi, one: Term) -> tuple[Scanned, Scanned]:
    """Make Secrets due, and then Pods whose report is deleted; return both."""
    resources = one.reports.scan.resources
    secrets, pods = resources["", "secrets"], resources["", "pods"]
    one.reports.scan.resources = {("", "secrets"): secrets, ("", "pods"): pods}
    for each in (secrets, pods):
        each.mark([""], one.time.now_s)
    return secrets, pods


@pytest.mark.parametrize(
    "fault",
    [
        DeadlinePassed("kube.deadline", "too slow"),
        KubeRefused("kube.forbidden", "forbidden"),
        KubeUnavailable("kube.server", "HTTP 503"),
        KubeUnavailable("kube.answer", "not a list"),
    ],
    ids=lambda error: str(error.code),
)
def test_failed_list_blocks_no_other_and_is_retried(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    """It is retried after a growing delay of up to five minutes."""
    world = new_cluster(api)
    world.serve(policy("p", labelled(kinds=("Secret", "Pod"))))
    raw = pod(api)
    tries: list[float] = []

    def failing(client: Any, scope: Any) -> Any:
        if scope.resource.plural == "secrets":
            tries.append(one.time.now_s - one.time.start_s)
            raise fault
        return list_pages(client, scope)

    with term(api, world) as one:
        one.settle()
        api.remove(f"{REPORTS.format('a')}/{raw['metadata']['uid']}")
        one.catch_up()
        monkeypatch.setattr(resources, "list_pages", failing)
        secrets, pods = _due(api, one)
        one.settle()
        assert results(report_of(api, raw)) == FAILS
        assert (secrets.due, pods.due) == ({"": None}, {})
        for _ in range(1200):
            one.time.now_s += 1
            one.reports.scan.tick()
        pauses = [round(b - a) for a, b in pairwise(tries)]
        assert pauses[:9] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
        assert set(pauses[9:]) == {300}
        monkeypatch.setattr(resources, "list_pages", list_pages)
        one.pass_s(300)
        assert not secrets.due
        assert not one.reports.scan.problem


def test_unreadable_object_hides_no_other(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the list is evaluated."""
    world = new_cluster(api)
    world.serve(policy())
    pod(api, "a")
    raw = pod(api, "b")
    with term(api, world) as one:
        one.settle()
        api.remove(f"{REPORTS.format('a')}/{raw['metadata']['uid']}")
        one.catch_up()
        [pods] = one.reports.scan.resources.values()
        works = pods.watch.evaluate

        def evaluate(found: Any, *others: Any) -> None:
            if b'"name":"a"' in bytes(found).replace(b" ", b""):
                raise msgspec.DecodeError("broken")
            works(found, *others)

        monkeypatch.setattr(pods.watch, "evaluate", evaluate)
        pods.mark([""], one.time.now_s)
        one.settle()
        assert results(report_of(api, raw)) == FAILS
        assert not pods.due


def test_kinds_beyond_the_limit_are_named(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REPORTS_WATCHES_MAX."""
    monkeypatch.setattr(resources, "REPORTS_WATCHES_MAX", 1)
    world = new_cluster(api)
    world.serve(policy("p", labelled(kinds=("Pod", "ConfigMap"))))
    with term(api, world) as one:
        one.settle()
        assert len(one.reports.scan.resources) == 1
        assert any("kinds above the limit" in text for text in one.reports.problems())


def test_oversized_report_is_truncated_with_a_note(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REPORT_BYTES_MAX: failures are kept first."""
    monkeypatch.setattr(objects, "REPORT_BYTES_MAX", 600)
    world = new_cluster(api)
    rules = [labelled(f"r{at}", label="a") for at in range(3)]
    world.serve(policy("p", *rules, labelled("s", label="b")))
    raw = pod(api, a="1")
    with term(api, world) as one:
        one.settle()
        report = report_of(api, raw)
        assert ("p", "s", "fail") in results(report)
        assert report is not None
        left_out = 4 - len(report["results"])
        assert left_out > 0
        marker = {"kyverno-mp.io/results-left-out": str(left_out)}
        assert report["metadata"]["annotations"] == marker
        before = writes(api)
        one.pass_s(3601)
        assert writes(api) == before
        assert one.recorded.total("kyverno_mp_reports_cut_total") == 1


def test_long_message_is_truncated(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REPORT_MESSAGE_CHARACTERS_MAX."""
    monkeypatch.setattr(found, "REPORT_MESSAGE_CHARACTERS_MAX", 10)
    world = new_cluster(api)
    world.serve(policy())
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
    report = report_of(api, raw)
    assert report is not None
    assert report["results"][0]["message"] == "validation..."


def test_failing_objects_above_the_limit_are_counted(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REPORTS_RETRIES_MAX; the next scan evaluates them."""
    monkeypatch.setattr(lane, "REPORTS_RETRIES_MAX", 2)
    world = new_cluster(api)
    world.serve(policy())
    raws = [pod(api, f"x{at}") for at in range(4)]
    with term(api, world) as one:
        api.fault("^POST .*policyreports", *[403] * 4)
        one.settle()
        assert one.recorded.total("kyverno_mp_reports_dropped_total") == 2
        one.pass_s(3601)
        assert [results(report_of(api, raw)) for raw in raws] == [FAILS] * 4


def test_slow_object_is_an_error(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """REPORTS_OBJECT_S_MAX: its rules have errors instead of missing rows."""
    monkeypatch.setattr(evaluator, "REPORTS_OBJECT_S_MAX", -1)
    world = new_cluster(api)
    deny = {
        "conditions": {
            "any": [
                {
                    "key": "{{ request.object.metadata.name }}",
                    "operator": "Equals",
                    "value": "none",
                }
            ]
        }
    }
    rule = {**labelled(), "validate": {"message": "m", "deny": deny}}
    world.serve(policy("p", rule))
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
    assert results(report_of(api, raw)) == [("p", "r", "error")]


class _Source:
    resource = core("pods")

    def is_current(self, *_: object) -> bool:
        return True


def _item(name: str, size: int = 2, source: _Source = _Source()) -> Item:  # noqa: B008
    return Item(source, ("a", name), name, b"", b"x" * size, 0.0, True)


@pytest.mark.parametrize(
    ("limit", "value"), [("REPORTS_WAITING_MAX", 2), ("REPORTS_WAITING_BYTES_MAX", 4)]
)
def test_large_input_waits(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    """The list or watch continues when there is room; nothing is dropped."""
    monkeypatch.setattr(feed_module, limit, value)
    feed = Feed()
    assert feed.put(_item("x"))
    assert feed.put(_item("y"))
    putting = threading.Thread(target=feed.put, args=(_item("z"),), daemon=True)
    putting.start()
    putting.join(0.1)
    assert putting.is_alive()
    assert len(feed.take()) == 2
    putting.join(HANG_S)
    assert [item.uid for item in feed.take()] == ["z"]


@pytest.mark.parametrize(
    ("limit", "value"),
    [("REPORTS_BATCH_OBJECTS", 2), ("REPORTS_BATCH_BYTES_MAX", 5)],
)
def test_batches_are_bounded_and_of_one_kind(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    """Kinds take turns; a newer version replaces a pending one."""
    monkeypatch.setattr(feed_module, limit, value)
    feed, other = Feed(), _Source()
    for name in ("a", "b", "a", "c"):
        feed.put(_item(name))
    feed.put(_item("d", source=other))
    assert feed.pending == 4
    batches = [feed.take(0) for _ in range(4)]
    taken = [[item.uid for item in batch] for batch in batches]
    assert taken == [["a", "b"], ["d"], ["c"], []]
    assert feed.pending == 4
    for batch in batches:
        feed.done(batch)
    assert not feed.pending


def test_closed_feed_blocks_no_thread() -> None:
    feed = Feed()
    feed.close()
    assert not feed.put(_item("x"))
    assert feed.take() == []


def test_unexpected_answer_does_not_end_the_thread(api: FakeApi) -> None:
    """The objects are evaluated again."""
    world = new_cluster(api)
    world.serve(policy())
    raw = pod(api)
    with term(api, world) as one:
        one.evaluators.faults = [msgspec.DecodeError("broken")]
        assert isinstance(one.reports.dispatch, Dispatch)
        one.settle()
        assert report_of(api, raw) is None
        one.pass_s(2)
        assert results(report_of(api, raw)) == FAILS
        assert one.recorded.total("kyverno_mp_controller_defects_total") == 1

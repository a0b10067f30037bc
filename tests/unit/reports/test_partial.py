"""A changed policy is evaluated alone, and rows of other policies stay untouched."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from kyverno_mp.kube.resource import core
from kyverno_mp.program.engine import Engine
from kyverno_mp.reports import objects
from kyverno_mp.reports.feed import Feed, Item
from kyverno_mp.reports.scan.due import Scanned
from tests.unit.kube.fake_api import FakeApi
from tests.unit.reports.test_mutating_policies import mpol
from tests.unit.reports.test_validating_policies import vpol
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
    stored_reports,
    term,
    writes,
)

Json = Any


def _mutating(name: str) -> Json:
    raw = mpol()
    return {**raw, "metadata": {**raw["metadata"], "name": name}}


_HOUR_S = 3601
_READS = r"^GET .*policyreports/"


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count evaluations of rules by policy."""
    found: Counter[str] = Counter()
    explain = Engine.explain

    def counting(engine: Engine, linked: Any, context: Any) -> Any:
        found[linked.ir.key] += len(linked.rules)
        return explain(engine, linked, context)

    monkeypatch.setattr(Engine, "explain", counting)
    return found


def test_changed_rule_evaluates_only_its_policy(
    api: FakeApi, evaluated: Counter[str]
) -> None:
    """Once for each object; the other rows and their timestamps stay unchanged."""
    world = new_cluster(api)
    others = [policy("a"), policy("z", labelled(), labelled("s"))]
    world.serve(*others, policy("p", labelled("r"), labelled("s")))
    raws = [pod(api, f"x{at}") for at in range(5)]
    with term(api, world) as one:
        one.settle()
        assert evaluated == {"a": 5, "p": 10, "z": 10}
        before = [_rows(api, raw) for raw in raws]
        evaluated.clear()
        one.time.now_s += 10
        changed = policy("p", labelled("r"), labelled("s", label="app"))
        world.serve(*others, changed)
        one.settle()
        assert evaluated == {"p": len(raws) * 2}
        for raw, rows in zip(raws, before, strict=True):
            after = _rows(api, raw)
            differ = [at for at in range(5) if rows[at] != after[at]]
            assert [after[at]["rule"] for at in differ] == ["s"]
            assert after[differ[0]]["timestamp"]["seconds"] == NOW_S + 10
        evaluated.clear()
        count = writes(api)
        one.pass_s(_HOUR_S)
        assert evaluated == {"a": 5, "p": 10, "z": 10}
        assert writes(api) == count
    assert (count, api.count(_READS)) == (len(raws) * 2, 0)


def test_new_policy_is_evaluated_alone(api: FakeApi, evaluated: Counter[str]) -> None:
    """Its row is inserted in order; a deleted policy needs no evaluation."""
    world = new_cluster(api)
    world.serve(policy("a"), policy("c"))
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
        evaluated.clear()
        world.serve(policy("a"), policy("b"), policy("c"))
        one.settle()
        assert evaluated == {"b": 1}
        assert [name for name, _, _ in results(report_of(api, raw))] == [*"abc"]
        evaluated.clear()
        objects_before = one.evaluators.objects
        world.serve(policy("b"), policy("c"))
        one.settle()
        assert [name for name, _, _ in results(report_of(api, raw))] == [*"bc"]
        assert not evaluated
        assert one.evaluators.objects == objects_before
    assert api.count(_READS) == 0


@pytest.mark.parametrize("kind", [vpol, _mutating])
def test_cel_policies_are_evaluated_alone(
    api: FakeApi, evaluated: Counter[str], kind: Any
) -> None:
    """A row whose position the policies in force do not determine costs a read."""
    world = new_cluster(api)
    given = [policy("a"), kind("b"), vpol("d")]
    world.serve(*given)
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
        evaluated.clear()
        world.serve(*given, kind("c"))
        one.settle()
        assert not evaluated
        assert [name for name, _, _ in results(report_of(api, raw))] == [*"abcd"]
        count = writes(api)
        one.pass_s(_HOUR_S)
        assert writes(api) == count


def test_missing_report_gets_all_rows(api: FakeApi, evaluated: Counter[str]) -> None:
    """The report was deleted, before the scan or during its evaluation."""
    world = new_cluster(api)
    world.serve(policy("a"), policy("p"))
    raws = [pod(api, "x"), pod(api, "y")]
    gone = [f"{REPORTS.format('a')}/{raw['metadata']['uid']}" for raw in raws]
    with term(api, world) as one:
        one.settle()
        api.remove(gone[0])
        one.catch_up()
        evaluated.clear()
        world.serve(policy("a"), policy("p", labelled(label="app")))
        one.reports.scan.tick()
        assert evaluated == {}
        api.remove(gone[1])
        one.settle()
        one.pass_s(2)
        for raw in raws:
            names = [name for name, _, _ in results(report_of(api, raw))]
            assert names == ["a", "p"]
        assert evaluated["a"] == len(raws)


def test_truncated_report_gets_all_rows(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows that were cut are unknown."""
    monkeypatch.setattr(objects, "REPORT_BYTES_MAX", 900)
    world = new_cluster(api)
    rules = [labelled(name, label="app") for name in "abcdef"]
    world.serve(policy("p", *rules), policy("q"))
    raw = pod(api, app="x")
    with term(api, world) as one:
        one.settle()
        world.serve(policy("p", rules[0]), policy("q", labelled(label="app")))
        one.settle()
    assert results(report_of(api, raw)) == [("p", "a", "pass"), ("q", "r", "pass")]
    report = report_of(api, raw)
    assert report is not None
    assert not report["metadata"].get("annotations")


@pytest.mark.parametrize("stays", [(), ("e",)])
def test_truncated_report_gets_all_rows_without_a_policy(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, stays: Sequence[str]
) -> None:
    """A removed policy has no rows to evaluate, but leaves room for cut rows."""
    monkeypatch.setattr(objects, "REPORT_BYTES_MAX", 900)
    world = new_cluster(api)
    other = policy("q", labelled("q", label="app"))
    others = [policy(name, labelled(name, label="team")) for name in stays]
    rules = [labelled(name, label="team") for name in "abcdef"]
    world.serve(policy("p", *rules), other, *others)
    raw = pod(api, app="x")
    with term(api, world) as one:
        one.settle()
        assert ("q", "q", "pass") not in results(report_of(api, raw))
        world.serve(other, *others)
        one.settle()
    expected = [(name, name, "fail") for name in stays] + [("q", "q", "pass")]
    assert results(report_of(api, raw)) == expected
    report = report_of(api, raw)
    assert report is not None
    assert not report["metadata"].get("annotations")


def test_policies_changed_while_a_batch_is_written(api: FakeApi) -> None:
    """Results of the old policies do not overwrite results of the new ones."""
    world = new_cluster(api)
    world.serve(policy("a"), policy("p"))
    raws = [pod(api, "x"), pod(api, "y")]
    with term(api, world) as one:
        one.reports.scan.tick()
        one.catch_up()
        items = one.reports.feed.take(0)
        assert len(items) == len(raws)

        def change(method: str, _target: str) -> None:
            if method == "POST":
                api.on_request = lambda _method, _target: None
                world.serve(policy("a"), policy("p", labelled(label="app")))
                one.reports.scan.tick()
                one.reports.dispatch.work_due()

        api.on_request = change
        one.reports.dispatch._deal_with(items)
        one.settle()
        for _ in range(2):
            one.pass_s(2)
        for raw in raws:
            assert "label app" in _rows(api, raw)[1]["message"]
        count = writes(api)
        one.pass_s(_HOUR_S)
        assert writes(api) == count


def test_object_changed_while_its_report_is_written(api: FakeApi) -> None:
    """Results for the older object do not overwrite results for the newer one."""
    world = new_cluster(api)
    world.serve(policy())
    raw = pod(api)
    with term(api, world) as one:
        one.reports.scan.tick()
        one.catch_up()
        items = one.reports.feed.take(0)

        def change(method: str, _target: str) -> None:
            if method == "POST":
                api.on_request = lambda _method, _target: None
                pod(api, team="t")
                one.catch_up()
                one.reports.dispatch.work_due()

        api.on_request = change
        one.reports.dispatch._deal_with(items)
        one.settle()
        assert results(report_of(api, raw)) == [("p", "r", "pass")]
        one.pass_s(2)
    assert results(report_of(api, raw)) == [("p", "r", "pass")]


class _Source:
    resource = core("pods")

    def is_current(self, *_: object) -> bool:
        return True


def _item(name: str, only: frozenset[bytes] | None) -> Item:
    return Item(_Source(), ("a", name), "u", b"", b"{}", 1.0, False, only)


def test_queued_object_is_evaluated_by_all_pending_rules() -> None:
    """A batch has objects for the same rules; all rules include each single rule."""
    feed = Feed()
    source = _Source()
    one, other = frozenset({b"1"}), frozenset({b"2"})
    given = [("x", one), ("y", one), ("z", None), ("x", other), ("y", None), ("z", one)]
    for name, only in given:
        feed.put(Item(source, ("a", name), "u", b"", b"{}", 1.0, False, only))
    taken = [feed.take(0), feed.take(0)]
    found = [[(item.key[1], item.only) for item in batch] for batch in taken]
    assert found == [[("x", one | other)], [("y", None), ("z", None)]]


def test_pending_rules_are_merged() -> None:
    """Rules of one namespace and of all; "all rules everywhere" includes the rest."""
    one = Scanned(None, [])  # type: ignore[arg-type]
    few, more = frozenset({b"1"}), frozenset({b"2"})
    one.mark(["a"], 1.0)
    one.mark(["", "a"], 1.0, few)
    one.mark([""], 1.0, more)
    assert one.lists() == [("", few | more), ("a", None)]
    one.listed("")
    assert one.due == {"a": None}
    one.mark([""], 1.0)
    assert one.lists() == [("", None)]
    one.listed("")
    assert not one.due


@pytest.mark.parametrize("seed", range(12))
def test_any_changes_converge(api: FakeApi, seed: int) -> None:
    """After each of many changes, a full check confirms the partial evaluations."""
    chance = random.Random(seed)
    world = new_cluster(api)
    with term(api, world, reports_of="validate,mutate") as one:
        for at in range(6):
            pod(api, f"x{at}", **_labels(chance))
        for _ in range(8):
            _change_something(chance, api, one)
            one.settle()
        count = writes(api)
        one.pass_s(_HOUR_S)
        assert writes(api) == count, "the periodic scan found a difference"
        found = stored_reports(api)
    for name in found:
        api.remove(f"{REPORTS.format('a')}/{name}")
    with term(api, world, reports_of="validate,mutate") as other:
        other.settle()
    assert stored_reports(api) == found


def _change_something(chance: random.Random, api: FakeApi, one: Term) -> None:
    if chance.random() < 0.3:
        pod(api, f"x{chance.randrange(6)}", **_labels(chance))
    if chance.random() < 0.2:
        one.world.label("a", stage=chance.choice("ab"))
    given: list[Json] = [_policy(chance, name) for name in "pqrs"]
    given += [kind(name) for name, kind in (("c", vpol), ("d", _mutating))]
    given.append(vpol("e", f"{chance.choice(['true', 'false'])} || has(object.x)"))
    kept = chance.sample(given, chance.randrange(1, len(given)))
    one.world.serve(*kept)


def _policy(chance: random.Random, name: str) -> Json:
    rules = [
        labelled(
            rule,
            label=chance.choice(["team", "app"]),
            kinds=chance.choice([("Pod",), ("Pod",), ("ConfigMap",)]),
            **chance.choice([{}, {"names": ["x[0-3]"]}, _IN_STAGE]),
        )
        for rule in chance.sample("abc", chance.randrange(1, 4))
    ]
    fields: Json = {"applyRules": chance.choice(["One", "All"])}
    if chance.random() < 0.15:
        fields["background"] = False
    return policy(name, *rules, **fields)


_IN_STAGE: Json = {"namespaceSelector": {"matchLabels": {"stage": "a"}}}


def _labels(chance: random.Random) -> dict[str, str]:
    return {name: "x" for name in ("team", "app") if chance.random() < 0.5}


def _rows(api: FakeApi, raw: Json) -> list[Json]:
    report = report_of(api, raw)
    assert report is not None
    found: list[Json] = report["results"]
    return found

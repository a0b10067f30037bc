"""Reports are changed row by row, and read only if the fingerprints do not suffice."""

import random
import threading
from typing import Any

import msgspec
import pytest

from kyverno_mp.reports import objects
from kyverno_mp.reports.batches import Evaluated
from kyverno_mp.reports.changes import Times, change_of
from kyverno_mp.reports.fingerprints import fingerprint_of, key_of, plain_row
from kyverno_mp.reports.objects import KYVERNO, MANAGED_BY, stored_report
from kyverno_mp.results.entries import (
    WORDS,
    Row,
    Timestamp,
    sorted_rows,
    summary_of,
)
from tests.unit.kube.fake_api import FakeApi, patched
from tests.unit.reports.test_merging import ONCE, PASS, holding, merge, review, row
from tests.unit.reports.world import (
    NOW_S,
    REPORTS,
    labelled,
    new_cluster,
    pod,
    policy,
    report_of,
    results,
    term,
    writes,
)
from tests.waiting import HANG_S

Json = Any
_READS = r"^GET .*policyreports/"
_PATCHES = r"^PATCH .*policyreports/"


def test_one_changed_rule_takes_one_call(api: FakeApi) -> None:
    """The report is not read, and the other rows keep their timestamps."""
    world = new_cluster(api)
    world.serve(policy("p", labelled("r"), labelled("s"), labelled("t")))
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
        one.time.now_s += 10
        world.serve(
            policy("p", labelled("r"), labelled("s", label="app"), labelled("t"))
        )
        one.settle()
    report = report_of(api, raw)
    assert report is not None
    assert [row["timestamp"]["seconds"] for row in report["results"]] == [
        NOW_S,
        NOW_S + 10,
        NOW_S,
    ]
    assert "label app" in report["results"][1]["message"]
    assert report["summary"]["fail"] == 3
    assert (api.count(_PATCHES), api.count(_READS), writes(api)) == (1, 0, 2)


def test_added_and_removed_rules_need_no_read(api: FakeApi) -> None:
    """A row is inserted in name order; the report is deleted with its last row."""
    world = new_cluster(api)
    world.serve(policy("p", labelled("b"), labelled("d")))
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
        rules = [labelled(name) for name in "abce"]
        world.serve(policy("p", *rules))
        one.settle()
        names = [name for _, name, _ in results(report_of(api, raw))]
        assert names == ["a", "b", "c", "e"]
        world.serve(policy("p", labelled(kinds=("ConfigMap",))))
        one.settle()
        assert report_of(api, raw) is None
    assert api.count(_READS) == 0


def test_rows_of_a_deleted_policy_are_removed_concurrently(api: FakeApi) -> None:
    """Thousands of reports may have such a row, so writes run in parallel."""
    world = new_cluster(api)
    world.serve(policy("p"), policy("q"))
    raws = [pod(api, f"x{at}") for at in range(4)]
    with term(api, world) as one:
        one.settle()
        together = threading.Barrier(len(raws))

        def meet(method: str, _target: str) -> None:
            if method == "PATCH":
                together.wait(HANG_S)

        api.on_request = meet
        world.serve(policy("q"))
        one.settle()
        assert not together.broken
    assert [results(report_of(api, raw)) for raw in raws] == [[("q", "r", "fail")]] * 4


@pytest.mark.parametrize("fault", [409, 422, 404, 403])
def test_rejected_patch_causes_a_read(api: FakeApi, fault: int) -> None:
    """The report has changed, or the account lacks the permission to patch."""
    world = new_cluster(api)
    world.serve(policy())
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
        api.fault(_PATCHES, fault)
        raw = pod(api, team="t")
        one.settle()
        assert results(report_of(api, raw)) == [("p", "r", "pass")]
    assert (api.count(_READS), writes(api)) == (1, 3)


def test_report_changed_during_a_write(api: FakeApi) -> None:
    """Another writer removes a row; the patch of the old version changes nothing."""
    world = new_cluster(api)
    world.serve(policy("p", labelled("r"), labelled("s", label="app")))
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
        uid = raw["metadata"]["uid"]

        def disturb(method: str, _target: str) -> None:
            if method == "PATCH":
                report = report_of(api, raw)
                assert report is not None
                rows = report["results"][1:]
                api.put(f"{REPORTS.format('a')}/{uid}", **{**report, "results": rows})

        api.on_request = disturb
        pod(api, app="x")
        one.settle()
    assert results(report_of(api, raw)) == [("p", "r", "fail"), ("p", "s", "pass")]


def test_rows_of_reviews_need_no_read(api: FakeApi) -> None:
    """The policies in force determine the position of a new row."""
    world = new_cluster(api)
    world.serve(policy("p"), ONCE)
    raw = pod(api)
    with holding(api, world) as one:
        review(api, raw, row("once"))
        assert merge(one)
        one.settle()
        reads = api.count(_READS)
        pod(api, team="t")
        one.settle()
        assert results(report_of(api, raw)) == [PASS, ("p", "r", "pass")]
        assert api.count(_READS) == reads
        world.serve(policy("p"), ONCE, policy("a"))
        one.settle()
        first = ("a", "r", "pass")
        assert results(report_of(api, raw)) == [first, PASS, ("p", "r", "pass")]
        assert api.count(_READS) == reads


def test_oversized_report_is_truncated(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cut like a report that is read first: failures are kept."""
    monkeypatch.setattr(objects, "REPORT_BYTES_MAX", 900)
    world = new_cluster(api)
    rules = [labelled(name, label="app") for name in "abcdef"]
    world.serve(policy("p", *rules))
    raw, other = pod(api, app="x"), pod(api, "y", app="x")
    with term(api, world) as one:
        one.settle()
        cut = report_of(api, raw)
        assert cut is not None
        assert len(cut["results"]) < len(rules)
        world.serve(policy("p", rules[0], labelled("z")))
        one.settle()
        found = [("p", "a", "pass"), ("p", "z", "fail")]
        assert results(report_of(api, other)) == found


@pytest.mark.parametrize("is_placed", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_patch_equals_read_and_replace(seed: int, *, is_placed: bool) -> None:
    """Compare with a plain merge of rows by their names.

    ``is_placed``: the positions of these rows are known.
    """
    chance = random.Random(seed)
    names = [(p, r) for p in "abc" for r in "xyz"]
    stored = _some(chance, names)
    found = sorted_rows(_some(chance, names))
    staying = {one for one in names if chance.random() < seed % 3 / 2}
    live = {
        "metadata": {"resourceVersion": "7", "labels": {MANAGED_BY: KYVERNO}},
        "summary": summary_of(stored),
        "results": msgspec.to_builtins(_timed(sorted_rows(stored), 1)),
    }
    known = stored_report(msgspec.Raw(msgspec.json.encode(live)))
    assert known is not None
    evaluated = Evaluated(
        b"".join(fingerprint_of(one, plain_row(one)) for one in found),
        tuple(plain_row(one) for one in found),
    )
    keys = {key_of(Row(source="kyverno", policy=p, rule=r)) for p, r in staying}
    places = {
        key_of(Row(source="kyverno", policy=p, rule=r)): (p, r, "kyverno")
        for p, r in (names if is_placed else ())
    }
    change = change_of(known, "7", keys.__contains__, Times(2), evaluated, places)

    given = {(one.policy, one.rule) for one in found}
    kept = [
        one
        for one in stored
        if (one.policy, one.rule) in staying and (one.policy, one.rule) not in given
    ]
    there = {(one.policy, one.rule) for one in stored}
    if change is None:
        assert not is_placed
        assert kept
        assert given - there
        return
    same = [one for one in found if one in stored]
    new = [one for one in found if one not in stored]
    rows = sorted_rows((*_timed((*kept, *same), 1), *_timed(new, 2)))
    if not rows:
        assert not change.body
        return
    after = patched(live, msgspec.json.decode(change.body))
    assert after is not None
    assert after["results"] == msgspec.to_builtins(rows)
    assert after["summary"] == summary_of(rows)
    again = stored_report(msgspec.Raw(msgspec.json.encode(after)))
    assert again is not None
    assert change.after.fingerprints == again.fingerprints
    assert change.after.size_bytes >= sum(len(plain_row(one)) for one in rows)


def _some(chance: random.Random, names: list[tuple[str, str]]) -> list[Row]:
    return [
        Row(source="kyverno", policy=p, rule=r, result=chance.choice(WORDS))
        for p, r in names
        if chance.random() < 0.6
    ]


def _timed(rows: Any, seconds: int) -> list[Row]:
    time = Timestamp(seconds)
    return [msgspec.structs.replace(one, timestamp=time) for one in rows]

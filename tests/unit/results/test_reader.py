"""The lease holder's reader hands over results of reviews and removes merged ones.

A failure means: a result is lost between a review and its report, or counted twice.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kyverno_mp.errors import KubeRefused
from kyverno_mp.limits import RESULTS_MERGED_AT_ONCE_MAX, RESULTS_READ_AGES_S
from kyverno_mp.reports.claims import FORBIDDEN, UNCLAIMED
from kyverno_mp.reports.ephemeral import MERGED
from kyverno_mp.results.entries import Subject
from tests.unit.kube.fake_api import FakeApi
from tests.unit.results.world import REPORTS, World, chance, pod, row


@pytest.fixture
def world(api: FakeApi, tmp_path: Path) -> Iterator[World]:
    one = World(api, tmp_path)
    yield one
    one.close()


def test_merged_results_are_deleted_with_a_version_precondition(world: World) -> None:
    world.answer("x", row(), row("s", "n"))
    world.answer("y")
    assert world.write()
    (stored,) = world.stored()
    assert world.merge()
    assert world.merged == {("x", "r"): "m", ("x", "s"): "n", ("y", "r"): "m"}
    assert world.stored() == []
    ((_, options),) = world.api.deletions
    metadata = stored["metadata"]
    assert options["preconditions"] == {
        "uid": metadata["uid"],
        "resourceVersion": metadata["resourceVersion"],
    }
    assert world.merge()
    assert len(world.merges) == 3
    assert world.outcomes == [MERGED, MERGED]


def test_rows_have_whole_seconds_and_no_subjects(world: World) -> None:
    world.answer("x")
    assert world.write()
    world.catch_up()
    found: list[Any] = []

    def take(subject: Subject, rows: Any) -> bool:
        found.append((subject, rows))
        return True

    world.results.step(take)
    ((subject, rows),) = found
    assert subject == pod("x")
    (one,) = rows
    assert msgspec.to_builtins(one) == {
        **msgspec.to_builtins(row()),
        "timestamp": {"seconds": 1_700_000_000, "nanos": 0},
    }


def test_concurrent_write_is_kept(world: World) -> None:
    world.answer("x", row(message="one"))
    assert world.write()
    world.catch_up()

    def meanwhile(subject: Subject, _rows: Any) -> bool:
        if subject.name == "x" and not world.merged:
            world.merged["x", "r"] = "one"
            world.answer("x", row(message="two"))
            world.answer("y")
            assert world.write()
        return True

    world.results.step(meanwhile)
    assert len(world.stored()) == 1
    assert world.merge()
    assert world.merged == {("x", "r"): "two", ("y", "r"): "m"}
    assert world.stored() == []


def test_merged_results_are_removed_while_new_ones_arrive(world: World) -> None:
    """Otherwise a leader that writes every second would fill its report."""
    world.answer("x")
    assert world.write()
    world.catch_up()

    def meanwhile(_subject: Subject, _rows: Any) -> bool:
        world.answer("y")
        assert world.write()
        return True

    world.results.step(meanwhile)
    assert set(world.told()) == {("y", "r")}
    # The leader's next results neither restore nor lose one.
    world.answer("z")
    assert world.write()
    assert set(world.told()) == {("y", "r"), ("z", "r")}
    assert world.merge()
    assert world.merged == {("y", "r"): "m", ("z", "r"): "m"}
    assert world.stored() == []


def test_unmergeable_results_wait(world: World) -> None:
    world.answer("x")
    world.answer("y", row(message="n"))
    assert world.write()
    world.refuses = "x"
    assert not world.merge()
    assert world.merged == {("y", "r"): "n"}
    assert set(world.told()) == {("x", "r")}
    world.refuses = ""
    world.now_ns += 6 * 10**9
    assert world.merge()
    assert world.merged == {("x", "r"): "m", ("y", "r"): "n"}
    assert world.stored() == []


def test_merge_can_request_the_rows_again(world: World) -> None:
    """Its policy is not known yet to the process that writes reports."""
    world.answer("x")
    world.answer("y", row(message="n"))
    assert world.write()
    world.catch_up()
    assert not world.results.step(lambda subject, _rows: subject.name == "y")
    assert set(world.told()) == {("x", "r")}
    world.now_ns += 6 * 10**9
    assert world.merge()
    assert world.merged == {("x", "r"): "m"}
    assert world.stored() == []


def test_results_wait_for_their_object(world: World) -> None:
    """The object may not be stored yet, or another webhook rejected it."""
    world.existing = lambda subject: subject if subject.name == "x" else None
    world.answer("x")
    world.answer("y", row(message="n"))
    assert world.write()
    world.merge()
    assert set(world.told()) == {("y", "r")}
    world.existing = lambda subject: subject
    world.merge()
    assert world.merged == {("x", "r"): "m", ("y", "r"): "n"}
    assert world.stored() == []


def test_results_without_an_object_are_dropped_eventually(world: World) -> None:
    world.existing = lambda _subject: None
    world.answer("x")
    assert world.write()
    world.now_ns += (RESULTS_READ_AGES_S[-1] - 1) * 10**9
    world.merge()
    assert len(world.told()) == 1
    world.now_ns += 10**10
    world.merge()
    assert world.stored() == []
    assert world.merged == {}
    assert world.outcomes == [UNCLAIMED]


def test_leader_does_not_restore_removed_results(world: World) -> None:
    world.existing = lambda subject: subject if subject.name == "x" else None
    world.answer("x")
    world.answer("y", row(message="n"))
    assert world.write()
    world.merge()
    world.answer("z", row(message="o"))
    assert world.write()
    assert set(world.told()) == {("y", "r"), ("z", "r")}


def test_object_can_have_two_names(world: World) -> None:
    """A mutate rule ran before the object had a uid."""
    world.existing = lambda _subject: pod("x")
    world.answer("x", row("mutate"), uid="")
    world.answer("x", row("validate"))
    assert world.write()
    world.catch_up()
    found: list[Any] = []

    def take(subject: Subject, rows: Any) -> bool:
        found.append((subject, {one.rule for one in rows}))
        return True

    world.results.step(take)
    assert found == [(pod("x"), {"mutate", "validate"})]


def test_newest_result_of_all_replicas_wins(world: World) -> None:
    world.answer("x", row(message="old"))
    assert world.write()
    (first,) = world.stored()
    world.api.remove(f"{REPORTS}/{first['metadata']['name']}")
    world.now_ns += 10**9
    world.answer("x", row(message="new"))
    world.start_leader()
    assert world.write()
    world.api.put(f"{REPORTS}/another-replica", **first)
    assert world.merge()
    assert world.merged == {("x", "r"): "new"}
    assert world.merges == [("x", "r", "new")]
    assert world.stored() == []


def test_results_for_unreadable_kinds_are_dropped(world: World) -> None:
    def refuse(_subject: Subject) -> Subject | None:
        raise KubeRefused("kube.forbidden", "no")

    world.existing = refuse
    world.answer("x")
    assert world.write()
    assert world.merge()
    assert world.stored() == []
    assert world.outcomes == [FORBIDDEN]


def test_foreign_reports_are_not_changed(world: World) -> None:
    labels = {"audit.kyverno.io/source": "admission"}
    world.api.put(
        f"{REPORTS}/upstream",
        metadata={"labels": labels},
        spec={"results": [{"policy": "p", "resources": [{"name": "x"}]}]},
    )
    world.answer("x")
    assert world.write()
    assert world.results.informer.wait_synced(60)
    while not len(world.results.informer):
        pass
    assert world.results.step(world._merge)
    (left,) = world.stored()
    assert left["metadata"]["name"] == "upstream"
    assert world.merged == {("x", "r"): "m"}


def test_a_rejected_removal_is_repeated_alone(world: World) -> None:
    """The results count as merged, are merged once, and nothing is read."""
    world.existing = lambda subject: subject if subject.name == "x" else None
    world.api.fault("^PUT .*/ephemeralreports/", 403, 403)
    world.answer("x")
    world.answer("y")
    assert world.write()
    world.merge()
    assert "403" in world.results.problem
    calls = len(world.api.requests)
    for _ in range(20):
        world.merge()
    assert len(world.api.requests) == calls
    assert world.results.backlog.results == 1
    for _ in range(2):
        world.now_ns += 20 * 10**9
        world.merge()
    assert world.results.problem == ""
    assert set(world.told()) == {("y", "r")}
    assert world.merges == [("x", "r", "m")]


def test_waiting_results_cost_no_calls(world: World) -> None:
    world.existing = lambda _subject: None
    world.answer("x")
    assert world.write()
    world.merge()
    calls = len(world.api.requests)
    for _ in range(50):
        world.now_ns += 10**9
        world.merge()
    assert len(world.api.requests) == calls


def test_merged_results_are_removed_as_merging_goes_on(world: World) -> None:
    """Otherwise a full report has no room until its last result is merged."""
    for number in range(RESULTS_MERGED_AT_ONCE_MAX + 5):
        world.answer(f"x{number}")
    assert world.write()
    world.merge()
    assert [len(world.told()), world.results.has_more] == [5, True]
    # The watch need not have received the smaller report.
    world.results.step(world._merge)
    assert [len(world.told()), world.results.has_more] == [0, False]
    assert len(world.merges) == RESULTS_MERGED_AT_ONCE_MAX + 5
    assert world.stored() == []


def test_results_of_gone_replicas_are_merged_first(world: World) -> None:
    world.answer("old")
    assert world.write()
    (first,) = world.stored()
    world.api.remove(f"{REPORTS}/{first['metadata']['name']}")
    world.start_leader()
    world.now_ns += 10**9
    for number in range(RESULTS_MERGED_AT_ONCE_MAX):
        world.answer(f"x{number}")
    assert world.write()
    world.api.put(f"{REPORTS}/of-a-gone-replica", **first)
    world.merge()
    assert ("old", "r") in world.merged
    assert len(world.stored()) == 1
    assert world.results.backlog.reports == 1


@pytest.mark.parametrize("seed", range(6))
def test_reports_converge_despite_any_failure(
    api: FakeApi, tmp_path: Path, seed: int
) -> None:
    """Despite kills, conflicts and outages, each newest result is reported once."""
    source = random.Random(seed)
    world = World(api, tmp_path)
    happens = chance(seed, 0.15)
    truth: dict[tuple[str, str], str] = {}
    for number in range(150):
        # Times differ by more than a tenth of a second where order matters.
        world.now_ns += 200_000_000
        name, rule = f"x{source.randrange(12)}", source.choice(["r", "s"])
        worker = source.randrange(2)
        world.answer(name, row(rule, f"m{number}"), worker=worker)
        truth[name, rule] = f"m{number}"
        if happens():
            method = source.choice(["POST", "PUT", "DELETE", "GET"])
            world.api.fault(f"{method} .*/ephemeralreports/?[^?]*$", 500, "cut", 409)
        if source.random() < 0.5:
            world.write()
        if happens():
            world.start_leader()
        world.fails = happens
        if source.random() < 0.4:
            world.merge()
        if happens():
            world.results.stop()
            world.start_holder()
    world.fails = lambda: False
    world.api.faults.clear()
    for _ in range(5):
        world.write(after_s=20)
        world.now_ns += 10**10
        world.merge()
    assert world.merged == truth
    assert world.stored() == []
    world.close()

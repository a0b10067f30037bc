"""The leader's writer puts the results of workers into two EphemeralReports.

A failure means: a report never gets results that only a review can find, or results
flood the API server.
"""

import multiprocessing
import os
import random
import signal
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from kyverno_mp.leader.results.reports import EphemeralPair
from kyverno_mp.leader.results.writer import GIVEN_UP, OVERWRITTEN, STORED
from kyverno_mp.limits import (
    EPHEMERAL_REPORT_BYTES_MAX,
    EPHEMERAL_REPORT_PAIRS,
    EPHEMERAL_REPORT_PAUSE_S_MAX,
    RESULTS_AT_ONCE_MAX,
)
from kyverno_mp.queues.journal import RESULTS, Journal, JournalReader
from kyverno_mp.results.newest import Results
from kyverno_mp.results.records import encode_results, encode_row
from tests.schemas import validate
from tests.unit.kube.fake_api import FakeApi
from tests.unit.results.world import REPORTS, START_NS, World, pod, row
from tests.waiting import HANG_S

ROOT = Path(__file__).parents[3]
WRITES = "(POST|PUT) .*/ephemeralreports"


@pytest.fixture
def world(api: FakeApi, tmp_path: Path) -> Iterator[World]:
    one = World(api, tmp_path)
    yield one
    one.close()


@pytest.fixture
def small(api: FakeApi, tmp_path: Path) -> Iterator[World]:
    """A world whose reports have room for about ten objects."""
    one = World(api, tmp_path, 4000)
    yield one
    one.close()


def test_reviews_of_a_second_take_one_write(world: World) -> None:
    for number in range(300):
        world.answer(f"x{number}", worker=number % 2)
    assert world.write()
    assert len(world.told()) == 300
    assert world.api.count(WRITES) == 1
    for number in range(300):
        world.answer(f"y{number}")
        assert world.write(after_s=0.001)
    assert world.api.count(WRITES) == 1
    assert world.write(after_s=5)
    assert len(world.told()) == 600
    assert world.api.count(WRITES) == 2
    assert world.writer.outcomes.drain() == {(STORED,): 600}


def test_no_calls_without_results(world: World) -> None:
    for _ in range(10):
        assert world.write()
    assert world.api.count(WRITES) == 0
    assert world.api.count("GET .*/ephemeralreports/") == 0


def test_report_is_valid_against_the_schema(world: World) -> None:
    world.answer("x", row(), row("s", result="pass"))
    world.answer("y", uid="")
    assert world.write()
    text = (ROOT / "config/crds/reports.kyverno.io_ephemeralreports.yaml").read_text()
    (version,) = yaml.safe_load(text)["spec"]["versions"]
    (found,) = world.stored()
    validate(found, version["schema"]["openAPIV3Schema"])
    assert found["spec"]["summary"] == {
        "pass": 1, "fail": 2, "warn": 0, "error": 0, "skip": 0,
    }  # fmt: skip


def test_equal_results_share_an_entry(world: World) -> None:
    for number in range(50):
        world.answer(f"x{number}", at_ns=world.now_ns + 1)
    assert world.write()
    (found,) = world.stored()
    (entry,) = found["spec"]["results"]
    assert len(entry["resources"]) == 50


def test_the_newest_result_of_a_rule_counts(world: World) -> None:
    world.answer("x", row(message="old"), worker=1)
    world.answer("x", row(message="new"), worker=0)
    assert world.write()
    world.answer("x", row(message="older"), worker=0, at_ns=world.now_ns - 10**9)
    assert world.write()
    assert world.told() == {("x", "r"): "new"}


def test_merged_results_do_not_return(world: World) -> None:
    world.answer("x")
    assert world.write()
    name = world.stored()[0]["metadata"]["name"]
    world.api.remove(f"{REPORTS}/{name}")
    world.answer("y")
    assert world.write()
    assert set(world.told()) == {("y", "r")}
    # The holder deferred one of two, and we know only the previous version.
    world.answer("z", row(message="n"))
    assert world.write()
    (found,) = world.stored()
    kept = [one for one in found["spec"]["results"] if "z" in str(one["resources"])]
    world.api.put(f"{REPORTS}/{name}", **{**found, "spec": {"results": kept}})
    world.answer("w")
    assert world.write()
    assert set(world.told()) == {("z", "r"), ("w", "r")}


def test_a_merged_report_is_not_read_again(world: World) -> None:
    """It costs one rejected update, which nothing but the API server could avoid."""
    world.answer("x")
    assert world.write()
    (report,) = world.stored()
    for number in range(3):
        world.api.remove(f"{REPORTS}/{report['metadata']['name']}")
        before = world.api.calls()
        world.answer(f"y{number}")
        assert world.write()
        assert world.api.calls() - before == 2
        assert set(world.told()) == {(f"y{number}", "r")}


def test_a_report_in_which_results_wait_costs_three_calls(world: World) -> None:
    """It is read because the holder has changed it; the other one does not exist."""
    world.answer("x")
    assert world.write()
    (report,) = world.stored()
    name = report["metadata"]["name"]
    for number in range(3):
        (report,) = world.stored()
        world.api.put(f"{REPORTS}/{name}", **report)
        before = world.api.calls()
        world.answer(f"y{number}")
        assert world.write()
        assert world.api.calls() - before == 3
    assert set(world.told()) == {(name, "r") for name in ("x", "y0", "y1", "y2")}


def test_killed_leader_resumes(world: World) -> None:
    world.answer("x")
    assert world.write()
    world.start_leader()
    world.answer("y")
    assert world.write()
    assert set(world.told()) == {("x", "r"), ("y", "r")}
    assert len(world.stored()) == 1


def test_leader_killed_between_write_and_acknowledgement(
    world: World, monkeypatch: Any
) -> None:
    world.answer("x", row(message="one"))
    world.answer("y")
    monkeypatch.setattr("kyverno_mp.queues.journal.Record.done", _dies)
    with pytest.raises(SystemExit):
        world.write()
    monkeypatch.undo()
    world.start_leader()
    world.answer("x", row(message="two"))
    assert world.write()
    assert world.told() == {("x", "r"): "two", ("y", "r"): "m"}
    assert world.reader.waiting == 0


def _dies(_record: object) -> None:
    raise SystemExit


@pytest.mark.parametrize(
    "fault",
    [
        [500] * 5,
        ["cut"] * 12,
        [("retry", 429, 0)] * 3,
        [403],
        [404],
    ],
)
def test_results_wait_while_the_api_server_is_unavailable(
    world: World, fault: Any
) -> None:
    world.api.fault("(GET|POST) .*/ephemeralreports(?!.*watch)", *fault)
    for number in range(3):
        world.answer(f"x{number}")
    for _ in range(20):
        if world.write():
            break
    world.write()
    assert len(world.told()) == 3
    assert world.reader.waiting == 0
    assert dict(world.writer.outcomes.drain()) == {(STORED,): 3}


def test_rejected_results_are_dropped(world: World) -> None:
    world.api.fault("POST .*/ephemeralreports", 422)
    world.answer("x")
    assert world.write()
    world.answer("y")
    assert world.write()
    assert set(world.told()) == {("y", "r")}
    assert dict(world.writer.outcomes.drain()) == {(GIVEN_UP,): 1, (STORED,): 1}


def test_corrupt_record_blocks_no_other(world: World) -> None:
    assert world.journals[0].append(b"nonsense")
    world.answer("x")
    assert world.write()
    assert set(world.told()) == {("x", "r")}
    assert dict(world.writer.outcomes.drain()) == {(GIVEN_UP,): 1, (STORED,): 1}


def test_two_reports_keep_the_newest_until_merged(small: World) -> None:
    told = []
    for number in range(200):
        small.answer(f"x{number}", row(message=f"m{number}"))
        told.append((f"x{number}", "r"))
        assert small.write(after_s=20)
        found = small.told()
        assert found.keys() >= set(told[-5:])
        assert set(told[-len(found) :]) == found.keys()
        assert len(small.stored()) <= 2
    lost = small.writer.outcomes.drain()[OVERWRITTEN,]
    assert lost == 200 - len(small.told())


def test_killed_leader_drops_the_older_report(small: World) -> None:
    for number in range(60):
        small.answer(f"x{number}", row(message=f"m{number}"))
        small.start_leader()
        assert small.write()
        assert (f"x{number}", "r") in small.told()
        assert len(small.stored()) <= 2
    newest = sorted(int(name[1:]) for name, _ in small.told())
    assert newest == list(range(newest[0], 60))


def test_results_that_were_merged_are_not_counted_as_lost(small: World) -> None:
    for number in range(100):
        small.answer(f"x{number}", row(message=f"m{number}"))
        assert small.write()
        if number % 8 == 0:
            for found in small.stored():
                small.api.remove(f"{REPORTS}/{found['metadata']['name']}")
    assert (OVERWRITTEN,) not in small.writer.outcomes.drain()


def test_large_report_is_written_less_often(world: World) -> None:
    for number in range(RESULTS_AT_ONCE_MAX):
        world.answer(f"x{number}", row(message="m" * 500 + str(number)))
    assert world.write()
    before = world.api.count(WRITES)
    for number in range(EPHEMERAL_REPORT_PAUSE_S_MAX):
        world.answer(f"y{number}")
        assert world.write(after_s=0.9)
    assert world.api.count(WRITES) <= before + 2
    assert world.write(after_s=float(EPHEMERAL_REPORT_PAUSE_S_MAX))
    assert (f"y{EPHEMERAL_REPORT_PAUSE_S_MAX - 1}", "r") in world.told()


def test_burst_is_split_into_writes_that_etcd_accepts(world: World) -> None:
    big = "m" * 4000
    for number in range(700):
        world.answer(f"x{number}", row(message=f"{number}{big}"), worker=number % 2)
    for _ in range(10):
        assert world.write(after_s=20)
    assert world.reader.waiting == 0
    sizes = [len(str(found)) for found in world.stored()]
    assert len(sizes) == 2
    assert max(sizes) < EPHEMERAL_REPORT_BYTES_MAX * 1.2
    assert ("x699", "r") in world.told()


def _answer_and_die(folder: Path) -> None:
    journal = Journal.claim(folder, 1000, RESULTS.ring_bytes)
    for number in range(50):
        journal.append(encode_results(number, pod(f"x{number}"), [encode_row(row())]))
    os.kill(os.getpid(), signal.SIGKILL)


def test_killed_worker_loses_no_result(world: World) -> None:
    context = multiprocessing.get_context("fork")
    worker = context.Process(target=_answer_and_die, args=(world.folder,))
    worker.start()
    worker.join(HANG_S)
    assert worker.exitcode == -signal.SIGKILL
    world.start_leader()
    assert world.write()
    assert len(world.told()) == 50


def test_results_survive_a_restart_of_the_container(tmp_path: Path) -> None:
    """The folder of journals outlives all processes."""
    journal = Journal.claim(tmp_path, 1000, RESULTS.ring_bytes)
    journal.append(b"one")
    journal.close()
    again = Journal.claim(tmp_path, 1000, RESULTS.ring_bytes)
    again.append(b"two")
    reader = JournalReader(tmp_path)
    contents = []
    for record in reader.records():
        contents.append(record.content)
        record.done()
    assert contents == [b"one", b"two"]


def _results(name: str, at_ns: int) -> Results:
    found = Results()
    found.add(at_ns, pod(name), row())
    return found


def _names(api: FakeApi) -> dict[str, list[str]]:
    """Return the subjects of each EphemeralReport."""
    with api.lock:
        return {
            key[3]: [
                subject["name"]
                for entry in raw["spec"]["results"]
                for subject in entry["resources"]
            ]
            for key, raw in api.objects.items()
            if key[2] == "ephemeralreports"
        }


def test_results_of_gone_replicas_are_bounded(api: FakeApi) -> None:
    """Without a pool, each new pod would leave two more reports in etcd for ever."""
    client, replicas = api.client(), range(6 * EPHEMERAL_REPORT_PAIRS)
    for replica in replicas:
        pair = EphemeralPair(client, "kyverno", f"pod-{replica}")
        assert pair.store(_results(f"x{replica}", START_NS + replica)) == 0
    names = _names(api)
    assert len(names) <= EPHEMERAL_REPORT_PAIRS
    assert sorted(chain(*names.values())) == sorted(f"x{one}" for one in replicas)


@pytest.mark.parametrize("seed", range(5))
def test_replicas_that_share_a_pair_drop_only_the_oldest(
    seed: int, api: FakeApi
) -> None:
    """A failure means: one replica drops the other's newest results."""
    dice = random.Random(seed)
    pairs = [EphemeralPair(api.client(), "kyverno", "same", 4_000) for _ in range(2)]
    lost = merged = 0
    for turn in range(300):
        lost += dice.choice(pairs).store(_results(f"x{turn}", START_NS + turn))
        names = _names(api)
        assert f"x{turn}" in chain(*names.values())
        assert len(names) <= 2
        if dice.random() < 0.02:
            # The pool merges a report and deletes it.
            name = dice.choice(sorted(names))
            merged += len(names[name])
            api.remove(f"{REPORTS}/{name}")
    left = sorted(int(one[1:]) for one in chain(*_names(api).values()))
    assert lost
    assert lost + merged + len(left) == 300

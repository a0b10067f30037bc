"""A record leaves its journal only after the leader has written its events.

A failure means: an API server outage, or one bad record, loses or blocks events.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kyverno_mp.controllers.admission_events import AdmissionEvents
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.events import EventFilter, Events
from kyverno_mp.queues.journal import Journal, JournalReader
from kyverno_mp.queues.records import (
    ObjectRecord,
    PolicyRecord,
    ReviewRecord,
    RuleRecord,
    encode_policies,
    encode_record,
)
from tests.unit.kube.fake_api import FakeApi, running
from tests.waiting import wait_for


class Bench:
    def __init__(self, api: FakeApi, folder: Path) -> None:
        self.api = api
        self.journal = Journal.claim(folder, 100)
        self.reader = JournalReader(folder)
        self.clock = 0
        self.events = Events(
            Objects(api.client()),
            "host",
            event_filter=EventFilter(frozenset({"PolicySkipped"}), lambda: None),
            clock_ns=lambda: self.clock,
        )
        self.writing = AdmissionEvents(self.reader, self.events)

    def tell(
        self, name: str, *rules: str, status: str = "fail", blocked: bool = True
    ) -> None:
        told = tuple(RuleRecord(rule, status, "m", ("x/y",)) for rule in rules)
        policy = PolicyRecord("ClusterPolicy", "p", "", "1", mutates=False, rules=told)
        about = ObjectRecord("v1", "Pod", name, "a")
        record = ReviewRecord(
            1_767_225_600 * 10**9, name, about, blocked, encode_policies((policy,))
        )
        assert self.journal.append(encode_record(record))

    def told(self) -> list[str]:
        return sorted(
            raw["note"].partition(" fail")[0] for raw in self.api.objects.values()
        )


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with running() as api:
        one = Bench(api, tmp_path)
        yield one
        one.reader.close()
        one.journal.close()


def test_record_is_acknowledged_after_all_its_events(bench: Bench) -> None:
    """Events that were written before the outage are not counted twice."""
    bench.tell("a", "r", blocked=False)
    bench.tell("b", "r")
    bench.api.fault("POST .*/namespaces/a/", 500, 500)
    for _ in range(2):
        assert not bench.writing.step()
        assert bench.told() == ["Pod a/a: [r]"]
        assert bench.journal.waiting == 2
    assert bench.writing.step()
    assert bench.told() == ["Pod a/a: [r]", "Pod a/b: [r]", "policy p/r"]
    assert bench.journal.waiting == 0
    bench.clock = 40 * 10**9
    bench.events.flush()
    assert bench.api.count("PATCH") == 0, "nothing happened twice"


def test_unwanted_events_are_acknowledged_unwritten(bench: Bench) -> None:
    bench.tell("a", "r", status="skip")
    bench.tell("b")
    assert bench.writing.step()
    assert (bench.told(), bench.journal.waiting, bench.events.dropped) == ([], 0, 0)


def test_invalid_record_blocks_no_other(bench: Bench) -> None:
    assert bench.journal.append(b"nonsense")
    bench.tell("a", "r")
    assert bench.writing.step()
    assert bench.told() == ["Pod a/a: [r]"]
    assert bench.journal.dropped == 1


def test_event_that_keeps_failing_is_dropped(bench: Bench) -> None:
    bench.api.fault("POST", *[500] * 12)
    bench.tell("a", "r")
    bench.tell("b", "r")
    done = [bench.writing.step() for _ in range(13)]
    assert done == [*[False] * 12, True]
    assert bench.told() == ["Pod a/b: [r]"]
    assert bench.journal.dropped == 1


def test_thread_writes_and_stops(bench: Bench) -> None:
    bench.writing.start()
    bench.tell("a", "r")
    wait_for(lambda: bench.told() == ["Pod a/a: [r]"])
    bench.tell("b", "r")
    bench.writing.stop()
    assert bench.told() == ["Pod a/a: [r]", "Pod a/b: [r]"]

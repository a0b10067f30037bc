"""Policies that lost triggers: one record each until the leader reads it.

A failure means: triggers that did not fit into a journal are lost permanently.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kyverno_mp.leader.triggers.writer import TriggerWriter
from kyverno_mp.queues.journal import LOST, Journal, JournalReader
from kyverno_mp.queues.triggers import decode_trigger
from kyverno_mp.queues.update_requests import LOST_SINCE
from kyverno_mp.webhook.triggers.lost import NOT_REMEMBERED, LostPolicies
from tests.fuzz.bench import Recorded
from tests.unit.kube.fake_api import FakeApi

_PAUSE_NS = 11 * 10**9


class Setup:
    def __init__(self, folder: Path, most: int = 100) -> None:
        self.now_ns = 1
        self.records = Recorded()
        self.journal = Journal.claim(folder, most, LOST.ring_bytes)
        self.reader = JournalReader(folder)
        self.lost = LostPolicies(self.journal, self.records, lambda: self.now_ns)

    def take(self) -> list[tuple[str, int]]:
        found = []
        for record in self.reader.records():
            told = decode_trigger(record.content)
            found.append((told.wanted[0].policy, told.at_ns))
            record.done()
        return found


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    one = Setup(tmp_path)
    yield one
    one.reader.close()


def test_one_record_until_it_is_acknowledged(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    """One log line is written, too, although many reviews may meet a full journal."""
    for _ in range(1000):
        setup.now_ns += _PAUSE_NS
        setup.lost.add([("generate", "p"), ("generate", "q")])
    assert setup.journal.waiting == 2
    assert len(caplog.records) == 2
    assert [policy for policy, _ in setup.take()] == ["p", "q"]


def test_another_record_after_a_pause(setup: Setup) -> None:
    """The pool waits for longer than the pause before it syncs."""
    setup.lost.add([("generate", "p")])
    assert setup.take() == [("p", 1)]
    setup.lost.add([("generate", "p")])
    assert setup.take() == []
    setup.now_ns += _PAUSE_NS
    setup.lost.add([("generate", "p")])
    assert setup.take() == [("p", 1 + _PAUSE_NS)]


def test_full_journal_is_an_error(tmp_path: Path) -> None:
    setup = Setup(tmp_path, most=1)
    setup.lost.add([("generate", "p"), ("generate", "q")])
    assert setup.records.errors == [NOT_REMEMBERED]
    assert setup.take() == [("p", 1)]
    # A loss that was not recorded is recorded with the next loss.
    setup.lost.add([("generate", "q")])
    assert setup.take() == [("q", 1)]
    setup.reader.close()


def test_earliest_loss_counts(setup: Setup, api: FakeApi) -> None:
    """Records of several workers, in any order, become one request per policy."""
    writer = TriggerWriter(
        [setup.reader], api.client(), "kyverno", lambda: 1000, lambda: 0.0
    )
    for at_ns in (5 * _PAUSE_NS, 3 * _PAUSE_NS, 7 * _PAUSE_NS):
        setup.now_ns = at_ns
        setup.lost.add([("generate", "p")])
        assert writer.step()
    (found,) = [raw for key, raw in api.objects.items() if key[2] == "updaterequests"]
    assert found["metadata"]["annotations"][LOST_SINCE] == str(3 * _PAUSE_NS)
    assert found["spec"]["policy"] == "p"
    assert found["spec"]["ruleContext"] == []

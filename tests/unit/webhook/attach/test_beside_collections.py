"""Rules are linked and reviewed in threads beside collections that never pause.

A failure means: the collector gives other code references to objects that a thread is
building. CPython then cannot resize a tuple, and a policy denies every request.
"""

import gc
import sys
import threading
from collections.abc import Iterator

import pytest

from kyverno_mp.expr.conditions.link import link_conditions
from kyverno_mp.program.engine import link_rule
from kyverno_mp.program.unlinked_rule import RelinkedRule
from kyverno_mp.webhook.collector import Collector
from tests.fuzz.bench import Bench, pod, segment_of
from tests.unit.webhook.attach.test_garbage import cluster_policy, validate

ROUNDS = 10_000
KEYS = "".join(f"{{key: a, operator: NotEquals, value: x{n}}}," for n in range(8))
POLICY = cluster_policy(f"preconditions: {{all: [{KEYS}]}}, {validate('deny: {}')}")


@pytest.fixture(autouse=True)
def _threads_take_turns_often() -> Iterator[None]:
    # A collection visits the objects of all tests.
    gc.collect()
    gc.freeze()
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before_s)
    gc.unfreeze()


class Worker:
    """Links and reviews until the rounds are over."""

    def __init__(self) -> None:
        segment = segment_of(POLICY)
        self.policy, self.rule = segment.policy(0), segment.rule(0, 0)
        self.bench = Bench(POLICY)
        self.left = ROUNDS
        self.errors: list[str] = []

    def run(self) -> None:
        """Link conditions in each round, and a rule or a review in some."""
        try:
            while self.left > 0 and not self.errors:
                self.left -= 1
                assert self.rule.preconditions is not None
                link_conditions(self.rule.preconditions)
                if self.left % 10 == 0:
                    linked = link_rule(self.policy, self.rule)
                    assert not isinstance(linked, RelinkedRule)
                if self.left % 100 == 0:
                    self.bench.ask(pod())
        except Exception as error:  # noqa: BLE001 - the test reports it
            self.errors.append(repr(error))
        self.errors += self.bench.records.errors


def test_collector_that_always_runs_disturbs_no_thread() -> None:
    worker = Worker()
    threads = [threading.Thread(target=worker.run) for _ in range(2)]
    for thread in threads:
        thread.start()
    collector = Collector(lambda: None)
    now_s, collections = 100.0, 0
    while any(thread.is_alive() for thread in threads):
        now_s += 10
        collector.note()
        collections += collector.tick(now_s, linked=collections // 100)
    for thread in threads:
        thread.join()
    assert not worker.errors
    assert worker.left <= 0
    assert collections

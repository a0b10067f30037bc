"""Concurrent reviews that need the same rules link each new rule once.

A failure means: eight reviews link a large policy eight times at once. This takes eight
times as long and creates eight times the objects that a garbage collection visits.
"""

import json
import threading
from datetime import UTC, datetime

import pytest

from kyverno_mp.admission.decode import decode
from kyverno_mp.errors import Preempted
from kyverno_mp.expr.scope import Pace
from kyverno_mp.ir.rules import PolicyIR, RuleIR
from kyverno_mp.program.engine import Clock, Engine, link_rule
from kyverno_mp.program.matching.candidates import SegmentSource
from kyverno_mp.program.plans.plan import ValidationPlanner
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.program.rule import LinkedRule
from tests.fuzz.bench import pod, review, segment_of
from tests.waiting import HANG_S

NAMES = ["r0", "r1", "r2"]


def policy() -> str:
    rules = [
        {
            "name": name,
            "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
            "validate": {"message": "m", "pattern": {"spec": {"x": name}}},
        }
        for name in NAMES
    ]
    return json.dumps(
        {
            "apiVersion": "kyverno.io/v1",
            "kind": "ClusterPolicy",
            "metadata": {
                "name": "p",
                "annotations": {"pod-policies.kyverno.io/autogen-controllers": "none"},
            },
            "spec": {"validationFailureAction": "Enforce", "rules": rules},
        }
    )


class Workshop:
    """A linker that blocks on the first rule until it is released."""

    def __init__(self) -> None:
        self.linked: list[str] = []
        self.begun, self.may_go_on = threading.Event(), threading.Event()
        clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=lambda: 0)
        engine = Engine(ClusterData(), clock, threading.Lock())
        source = SegmentSource(segment_of(policy()), self._link)
        self._planner = ValidationPlanner(engine, source)

    def _link(self, owner: PolicyIR, rule: RuleIR) -> LinkedRule:
        self.linked.append(rule.name)
        self.begun.set()
        assert self.may_go_on.wait(HANG_S)
        return link_rule(owner, rule)

    def plan(self, pace: Pace) -> None:
        request = decode(json.dumps(review(pod())).encode())
        assert self._planner.plan(request, frozenset({"Fail"}), "", pace) is not None


class Patient:
    """The pace of a thread; it records its requests to wait."""

    slice_ends_ns = 1 << 60

    def __init__(self) -> None:
        self.asked = threading.Event()

    def next_slice(self, now_ns: int) -> None:
        assert now_ns < self.slice_ends_ns

    def make_room(self) -> None:
        self.asked.set()


class Hasty:
    """The pace of the event loop."""

    slice_ends_ns = 1 << 60

    def next_slice(self, now_ns: int) -> None:
        assert now_ns < self.slice_ends_ns

    def make_room(self) -> None:
        raise Preempted("test.preempted", "not here")


def test_two_reviews_link_each_rule_once() -> None:
    workshop, paces = Workshop(), [Patient(), Patient()]
    threads = [threading.Thread(target=workshop.plan, args=(p,)) for p in paces]
    threads[0].start()
    assert workshop.begun.wait(HANG_S)
    threads[1].start()
    # The second review waits for the first one; otherwise it would link the same rule
    # now.
    while not paces[1].asked.wait(0.01) and len(workshop.linked) < 2:
        assert threads[1].is_alive()
    workshop.may_go_on.set()
    for thread in threads:
        thread.join(HANG_S)
    assert sorted(workshop.linked) == NAMES


def test_event_loop_never_waits_for_a_linking_thread() -> None:
    workshop = Workshop()
    thread = threading.Thread(target=workshop.plan, args=(Patient(),))
    thread.start()
    assert workshop.begun.wait(HANG_S)
    with pytest.raises(Preempted):
        workshop.plan(Hasty())
    workshop.may_go_on.set()
    thread.join(HANG_S)
    workshop.plan(Hasty())
    assert sorted(workshop.linked) == NAMES

"""A slice of work costs a thread one turn, whichever code does the work.

A failure means: code that remembers the end of its slice, or that asks for room before
each step, sleeps once per step. Then reviews that link hundreds of policies take
minutes while the core is idle.
"""

import json
import os
import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

import kyverno_mp
from kyverno_mp.expr.scope import Pace, Runtime
from kyverno_mp.ir.index import EncodedPolicy, IndexEntryIR, pack_parts
from kyverno_mp.ir.match import KindIR
from kyverno_mp.ir.validating_policy import ValidatingPolicyIR
from kyverno_mp.limits import HEAVY_STEPS, INLINE_LINK_BYTES_MAX, THREAD_SLICE_NS
from kyverno_mp.program.cel_policies.generating_plan import GeneratingPlan
from kyverno_mp.program.engine import Clock, Engine, link_rule
from kyverno_mp.program.matching.candidates import SegmentSource
from kyverno_mp.program.plans.plan import ValidationPlanner
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.program.request import Request
from kyverno_mp.program.validating_policy.constraints import MatchingCost, make_room
from kyverno_mp.program.validating_policy.source import CelSource
from kyverno_mp.snapshot.cel_segments import CelSegment
from kyverno_mp.snapshot.policies import PoliciesWriter
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.values.kubernetes.policy_kinds import VALIDATING_POLICY
from kyverno_mp.webhook.review.pace import LongEvaluations
from tests.fuzz.bench import segment_of
from tests.unit.webhook.review.test_linking import FAIL, REQUEST

STEPS = 100
SLICES = 20
STEP_NS = SLICES * THREAD_SLICE_NS // STEPS
OTHERS = 2
PODS = IndexEntryIR(KindIR("", "*", "pods", ""), "CREATE", 0, "")


class Bench:
    """A clock that advances by a step's time for each step, and while a thread sleeps.

    ``turns`` counts the sleeps.
    """

    def __init__(self) -> None:
        self.now_ns = 1_000
        self.turns = 0
        self.ran = 0
        self._long = LongEvaluations(self.monotonic_ns, self._sleep)
        for _ in range(OTHERS):
            self._long.join()
        clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=self.monotonic_ns)
        self.engine = Engine(ClusterData(), clock, threading.Lock())

    def monotonic_ns(self) -> int:
        return self.now_ns

    def _sleep(self, seconds: float) -> None:
        self.turns += 1
        self.now_ns += round(seconds * 1e9)

    def step(self, *_: object) -> None:
        self.ran += 1
        self.now_ns += STEP_NS

    def run(self, work: "Callable[[Bench, Pace], None]") -> None:
        with self._long.pace() as pace:
            work(self, pace)

    def runtime(self, pace: Pace) -> Runtime:
        return Runtime(
            now=lambda: datetime.now(UTC), monotonic_ns=self.monotonic_ns, pace=pace
        )


def _link_rules(bench: Bench, pace: Pace, padding: str = "x") -> None:
    rules = [
        {
            "name": f"r{number}",
            "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
            "validate": {"message": padding, "pattern": {"metadata": {"name": "?*"}}},
        }
        for number in range(STEPS)
    ]
    policy = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p"},
        "spec": {"background": False, "rules": rules},
    }

    def link(*given: Any) -> Any:
        bench.step()
        return link_rule(*given)

    source = SegmentSource(segment_of(json.dumps(policy)), link)
    planner = ValidationPlanner(bench.engine, source)
    assert planner.plan(REQUEST, FAIL, "", pace) is not None


def _link_large_rules(bench: Bench, pace: Pace) -> None:
    _link_rules(bench, pace, "x" * INLINE_LINK_BYTES_MAX)


def _link_policies(bench: Bench, pace: Pace, padding: bytes = b"") -> None:
    encoded = [
        EncodedPolicy(f"p{n}", pack_parts([b"%d" % n + padding]), ((PODS,),))
        for n in range(STEPS)
    ]
    content = PoliciesWriter().encode(
        encoded, generation=1, salt=os.urandom(16), segment=VALIDATING_POLICY.segment
    )
    index = CelSegment(
        Segment.from_bytes(content, VALIDATING_POLICY.segment), ValidatingPolicyIR
    )

    def link(position: int) -> tuple[int]:
        bench.step()
        return (position,)

    source = CelSource(bench.engine, index, link, lambda at, _: (at,))
    assert len(source.candidates(REQUEST, "", pace)) == STEPS


def _link_large_policies(bench: Bench, pace: Pace) -> None:
    _link_policies(bench, pace, b"x" * INLINE_LINK_BYTES_MAX)


def _charge(bench: Bench, pace: Pace) -> None:
    runtime = bench.runtime(pace)
    for _ in range(STEPS):
        bench.step()
        runtime.check_clock()


def _charge_in_two_budgets(bench: Bench, pace: Pace) -> None:
    first, second = bench.runtime(pace), bench.runtime(pace)
    for _ in range(STEPS // 2):
        for runtime in (first, second):
            bench.step()
            runtime.check_clock()


def _wait_for_calls(bench: Bench, pace: Pace) -> None:
    runtime = bench.runtime(pace)
    for _ in range(STEPS):
        runtime.before_waiting()
        bench.step()


class _Heavy:
    """A trigger, or a policy, whose matching is heavy."""

    def __init__(self, bench: Bench) -> None:
        self.matching = cast("MatchingCost", self)
        self.triggered = bench.step
        self.reads_namespace = False

    def steps(self, _request: Request) -> int:
        return HEAVY_STEPS + 1


def _match_triggers(bench: Bench, pace: Pace) -> None:
    policies: list[Any] = [_Heavy(bench) for _ in range(STEPS)]
    assert GeneratingPlan(REQUEST, policies).triggered(pace) == []


def _match_constraints(bench: Bench, pace: Pace) -> None:
    for _ in range(STEPS):
        make_room([_Heavy(bench).matching], REQUEST, pace)
        bench.step()


WORK = [
    _link_rules,
    _link_large_rules,
    _link_policies,
    _link_large_policies,
    _charge,
    _charge_in_two_budgets,
    _wait_for_calls,
    _match_triggers,
    _match_constraints,
]


@pytest.mark.parametrize("work", WORK)
def test_slice_of_work_costs_one_turn(work: Callable[[Bench, Pace], None]) -> None:
    bench = Bench()
    bench.run(work)
    assert bench.ran == STEPS
    # At least a turn for each slice, except the last: others must get the core, too.
    assert SLICES - SLICES // 4 <= bench.turns <= SLICES


def test_each_module_that_yields_is_tested() -> None:
    """A new caller belongs into WORK."""
    root = Path(kyverno_mp.__file__).parent
    callers = {
        path.stem
        for path in root.rglob("*.py")
        if re.search(r"pace\.(next_slice|make_room)\(", path.read_text())
    }
    assert callers == {
        "constraints",
        "generating_plan",
        "planner",
        "scope",
        "source",
    }

"""Guard the cost of a mutation, in counts of calls; the policies are those of perf/.

A failure means: mutating reviews became slower. No wall time is measured; perf/ does
that.
"""

import copy
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import FrameType
from typing import Any
from unittest.mock import patch

import pytest

from kyverno_mp.admission.decode import decode
from kyverno_mp.program.engine import Clock, Engine
from kyverno_mp.program.matching.candidates import SegmentSource
from kyverno_mp.program.mutation import Mutations
from kyverno_mp.program.plans.mutation_plan import (
    Changing,
    MutationPlanner,
    link_mutation,
)
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.program.recall import mutations as mutation_recall
from kyverno_mp.program.result import PASS
from perf.language import (
    Rule,
    merging,
    merging_each,
    patching,
    patching_each,
    policy,
)
from perf.reviews import REVIEWS
from tests.fuzz.bench import segment_of
from tests.waiting import FAR_NS, still_ns

BODY = json.dumps(REVIEWS["allowed"][0]).encode()
FAIL = frozenset({"Fail"})


def _planner(rule: Rule, count: int) -> MutationPlanner:
    texts = [json.dumps(policy(n, rule(n))) for n in range(count)]
    source: SegmentSource[Changing] = SegmentSource(
        segment_of("\n---\n".join(texts)), link_mutation
    )
    clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=still_ns)
    return MutationPlanner(Engine(ClusterData(), clock), source)


def _mutate(planner: MutationPlanner, body: bytes = BODY) -> Mutations:
    plan = planner.plan(decode(body), FAIL, "")
    assert plan is not None
    return plan.run(FAR_NS)


@contextmanager
def _counted_calls() -> Iterator[Callable[[], int]]:
    count = 0

    def profile(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        yield lambda: count
    finally:
        sys.setprofile(None)


# Python function calls in one review by ten policies: the measured count plus 10 %.
@pytest.mark.parametrize(
    ("rule", "calls_max"),
    [(merging, 525), (patching, 443), (merging_each, 776), (patching_each, 590)],
)
def test_calls_of_ten_policies(rule: Rule, calls_max: int) -> None:
    with patch.object(mutation_recall, "_WORTH_LEAST", 1 << 30):
        planner = _planner(rule, 10)
        done = _mutate(planner)
    assert [r.status for p in done.responses for r in p.results] == [PASS] * 10
    with _counted_calls() as calls:
        _mutate(planner)
        found = calls()
    assert found <= calls_max


# A cache hit: the calls of ten matches and results. The measured count plus 10 %.
@pytest.mark.parametrize("rule", [merging, patching, merging_each, patching_each])
def test_calls_of_ten_policies_for_equal_objects(rule: Rule) -> None:
    """From the third Pod of a ReplicaSet on, Pods get the patch of the second."""
    planner = _planner(rule, 10)
    first, second = _mutate(planner), _mutate(planner)
    with _counted_calls() as calls:
        third = _mutate(planner)
        found = calls()
    assert first.patch == second.patch
    assert sorted(map(str, third.patch)) == sorted(map(str, first.patch))
    assert [p.results for p in third.responses] == [p.results for p in first.responses]
    assert found <= 131


@pytest.mark.parametrize("rule", [merging, patching, merging_each, patching_each])
def test_answers_are_equal_from_the_first(rule: Rule) -> None:
    """Cached data of one request does not change the next request."""
    planner = _planner(rule, 10)
    first, second = _mutate(planner), _mutate(planner)
    assert first.patch == second.patch
    assert first.responses == second.responses


def _pod(containers: int) -> bytes:
    """Return the review of a Pod with this many containers."""
    review: dict[str, Any] = copy.deepcopy(REVIEWS["allowed"][0])
    spec = review["request"]["object"]["spec"]
    first = spec["containers"][0]
    spec["containers"] = [{**first, "name": f"app-{n}"} for n in range(containers)]
    return json.dumps(review).encode()


# Python function calls per additional element: the measured count plus 20 %.
@pytest.mark.parametrize(
    ("rule", "calls_max"), [(merging_each, 32), (patching_each, 21)]
)
def test_element_cost_does_not_depend_on_the_list_length(
    rule: Rule, calls_max: int
) -> None:
    """A failure means: the data around an element is visited again for each element."""
    planner = _planner(rule, 1)
    found = []
    for containers in (10, 60):
        body = _pod(containers)
        assert len(_mutate(planner, body).patch) == containers
        with _counted_calls() as calls:
            _mutate(planner, body)
            found.append(calls())
    assert (found[1] - found[0]) / 50 <= calls_max

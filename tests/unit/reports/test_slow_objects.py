"""Objects whose rules take long do not delay the objects of other namespaces.

A failure means: a user who may create policies in one namespace stops the reports of
the whole cluster, with calls to a server that does not answer.
"""

from typing import Any

import msgspec

from kyverno_mp.errors import DeadlinePassed
from kyverno_mp.limits import REPORTS_BATCH_S_MAX
from kyverno_mp.program.engine import Clock, Engine
from kyverno_mp.program.ports import ApiRequest, ClusterData
from kyverno_mp.reports.batches import Batch, Evaluated
from kyverno_mp.reports.scan.evaluator import BatchEvaluator
from tests.unit.reports.world import Time, World, labelled, policy
from tests.waiting import real_ns

Json = Any


class _Slow:
    """A server that never answers; only the fake clock passes."""

    def __init__(self) -> None:
        self.now_ns = self.start_ns = real_ns()

    def call(self, _request: ApiRequest, deadline_ns: int) -> Json:
        self.now_ns = max(self.now_ns, deadline_ns) + 1
        raise DeadlinePassed("egress.deadline", "the server does not answer")

    @property
    def passed_s(self) -> float:
        return (self.now_ns - self.start_ns) / 1e9


def _calling(**fields: Json) -> Json:
    rule = labelled(label="slow") | {
        "context": [
            {
                "name": "answer",
                "apiCall": {"urlPath": "/apis/slow.example/v1/namespaces/tenant/x"},
            }
        ],
        "preconditions": {
            "all": [{"key": "{{ answer }}", "operator": "Equals", "value": "x"}]
        },
    }
    return policy("slow", rule, **fields)


def _pod(namespace: str, name: str) -> bytes:
    spec = {"containers": [{"name": "c", "image": "i"}]}
    return msgspec.json.encode(
        {"metadata": {"name": name, "namespace": namespace, "uid": name}, "spec": spec}
    )


def _evaluated(world: World, slow: _Slow, *objects: bytes) -> list[Evaluated]:
    evaluator = BatchEvaluator(
        world.policies,
        Engine(ClusterData(api_calls=slow), Clock(Time().now, lambda: slow.now_ns)),
        types=frozenset({"validate"}),
        results=frozenset({"pass", "fail", "warn", "error", "skip"}),
    )
    batch = Batch(world.generation, "", "v1", "Pod", objects, "pods")
    return list(evaluator.evaluate(batch).objects)


def test_slow_namespace_leaves_time_for_others() -> None:
    world = World()
    world.serve(policy("p"), _calling(namespace="tenant"))
    objects = [_pod("tenant", f"t{number}") for number in range(40)]
    slow = _Slow()
    found = _evaluated(world, slow, *objects, _pod("b", "x"))
    assert slow.passed_s < REPORTS_BATCH_S_MAX / 2
    assert len(found) == 41
    # The first of its objects is evaluated in each batch, so that all have their turn.
    assert found[0].rows
    assert not found[0].problem
    assert not found[39].rows
    assert "take too long" in found[39].problem
    assert found[40].rows
    assert not found[40].problem


def test_batch_ends_before_the_evaluator_counts_as_dead() -> None:
    """Otherwise no evaluator answers a batch, and all its objects are abandoned."""
    world = World()
    world.serve(_calling())
    slow = _Slow()
    objects = [_pod(f"n{number}", f"x{number}") for number in range(40)]
    found = _evaluated(world, slow, *objects)
    assert slow.passed_s < REPORTS_BATCH_S_MAX
    assert found[0].rows
    assert "take too long" in found[-1].problem

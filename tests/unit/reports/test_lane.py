"""Objects that are gone do not stay in the memory of a lane.

A failure means: the pool's memory grows with each object that once failed.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from kyverno_mp.errors import KubeNotFound
from kyverno_mp.queues.work_queue import WorkQueue
from kyverno_mp.reports.scan.lane import Lane, _Failed


@pytest.mark.parametrize("is_scanned", [True, False], ids=["object", "kind"])
def test_gone_objects_are_forgotten(*, is_scanned: bool) -> None:
    def gone(_call: object) -> None:
        raise KubeNotFound("kube.not_found", "gone")

    now_s = 0.0
    key = _Failed("", "configmaps", "a", "x")
    resource = SimpleNamespace(resource=SimpleNamespace(object=lambda _key: "/x"))
    lane: Any = Lane.__new__(Lane)
    lane.retries = WorkQueue(depth_max=10, clock_s=lambda: now_s)
    lane.scan = SimpleNamespace(
        resources={("", "configmaps"): resource} if is_scanned else {}
    )
    lane._dependencies = SimpleNamespace(client=SimpleNamespace(call=gone))
    lane._outdated = {key: (0.0, True)}
    lane.retries.retry(key)
    assert lane.retries.failures(key) == 1
    now_s += 1e6
    assert lane.feed_due(0)
    assert lane.retries.failures(key) == 0
    assert not lane._outdated

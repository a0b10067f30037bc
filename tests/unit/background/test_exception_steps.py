"""The background pool also limits the compile steps of each PolicyException.

A failure means: a tenant's exception blocks the pool, or exempts objects from a
generate rule although the leader ignores it (limits.COMPILE_EXCEPTION_STEPS_MAX).
"""

from typing import Any

import msgspec

from kyverno_mp.background.policies import StoredPolicy, ready_policy
from tests.unit.background.world import rule
from tests.unit.leader.test_exception_steps import exception


def _exempting(conditions: int) -> int:
    raw: dict[str, Any] = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "team"},
        "spec": {"rules": [rule()]},
    }
    policy = StoredPolicy(
        kind="ClusterPolicy",
        key=("", "team"),
        uid="u",
        metadata_generation=1,
        raw=msgspec.json.encode(raw),
    )
    given = msgspec.json.encode(exception("x", conditions))
    (one,) = ready_policy(policy, [given]).generates.values()
    return len(one.linked.ir.exceptions)


def test_an_exception_of_too_many_steps_exempts_nothing() -> None:
    assert _exempting(1) == 1
    assert _exempting(2_500) == 0

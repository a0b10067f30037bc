"""The background pool also limits the steps and the memory of PolicyExceptions.

A failure means: a tenant's exception blocks the pool, or exempts objects from a
generate rule although the leader ignores it (limits.COMPILE_EXCEPTION_STEPS_MAX).
"""

from typing import Any

import msgspec
import pytest

from kyverno_mp.background.policies import StoredPolicy, ready_policy
from kyverno_mp.compiler import linked_size
from kyverno_mp.expr import compile_budget
from tests.unit.background.world import rule
from tests.unit.leader.test_exception_steps import exception, new_store
from tests.unit.leader.test_linked_exceptions import in_records, limit

KIB = 1024
POLICY: dict[str, Any] = {
    "apiVersion": "kyverno.io/v1",
    "kind": "ClusterPolicy",
    "metadata": {"name": "team"},
    "spec": {"rules": [rule()]},
}


def _exempting(*exceptions: dict[str, Any]) -> set[str]:
    """Return the keys of the exceptions that the pool uses."""
    policy = StoredPolicy(
        kind="ClusterPolicy",
        key=("", "team"),
        uid="u",
        metadata_generation=1,
        raw=msgspec.json.encode(POLICY),
    )
    given = [msgspec.json.encode(one) for one in exceptions]
    (one,) = ready_policy(policy, given).generates.values()
    return {found.key for found in one.linked.ir.exceptions}


def test_exception_over_its_step_budget_exempts_nothing() -> None:
    assert _exempting(exception("x", 1)) == {"tenant/x"}
    assert _exempting(exception("x", 2_500)) == set()


@pytest.mark.parametrize("is_reversed", [False, True])
def test_exceptions_over_their_memory_budget_exempt_nothing(
    monkeypatch: pytest.MonkeyPatch, *, is_reversed: bool
) -> None:
    """Small exceptions first, each namespace alone, as in the leader."""
    most = 300 * KIB
    limit(monkeypatch, most, 100 * most)
    monkeypatch.setattr(linked_size, "LINKED_EXCEPTIONS_OF_POLICY_BYTES_MAX", most)
    other = exception("other", 10)
    other["metadata"]["namespace"] = "modest"
    given = [
        exception("large", 25),
        exception("w0", 10),
        exception("w1", 10),
        exception("small", 1),
        other,
    ]
    if is_reversed:
        given.reverse()
    kept = {"tenant/small", "tenant/w0", "modest/other"}
    assert _exempting(*given) == kept
    (encoded,) = new_store(POLICY, *given).encoded
    assert in_records(encoded) == kept


def test_list_order_is_irrelevant(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same exceptions get steps after each restart of the pool."""
    monkeypatch.setattr(compile_budget, "COMPILE_EXCEPTIONS_STEPS_MAX", 2_000)
    given = [exception(f"x{at:03}", 5) for at in range(200)]
    kept = _exempting(*given)
    assert 0 < len(kept) < len(given)
    assert kept == {f"tenant/x{at:03}" for at in range(len(kept))}
    assert _exempting(*reversed(given)) == kept

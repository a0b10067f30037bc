"""Each mutating policy has its own budget and its own matchConditions.

A failure means: a policy that must change an object is skipped silently, because an
object makes a condition expensive or because another policy spent the budget.
"""

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from kyverno_mp.admission.decode import decode
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.program.engine import Clock, Engine
from kyverno_mp.program.matching.candidates import SegmentSource
from kyverno_mp.program.mutation import Mutations
from kyverno_mp.program.plans.mutation_plan import MutationPlanner, link_mutation
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.program.result import PASS
from tests.fuzz.bench import Bench, pod, review, segment_of

COSTLY = "object.spec.xs.all(x, object.spec.xs.all(y, y != 'q'))"
BURN = "length(request.object.spec.xs[?@ == 'b'])"
LONG = ["a"] * 60_000


def policy(
    name: str,
    *conditions: str,
    fails: bool = False,
    namespace: str = "",
    **match: Any,
) -> dict[str, Any]:
    """Return a policy that adds the label ``name`` to Pods if its conditions hold."""
    hooks = {"matchConditions": [{"name": "c", "expression": e} for e in conditions]}
    labels = {"metadata": {"labels": {name: "1"}}}
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "Policy" if namespace else "ClusterPolicy",
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
        "spec": {
            "background": False,
            "failurePolicy": "Fail" if fails else "Ignore",
            **({"webhookConfiguration": hooks} if conditions else {}),
            "rules": [
                {
                    "name": "r",
                    "match": {"any": [{"resources": {"kinds": ["Pod"], **match}}]},
                    "mutate": {"patchStrategicMerge": labels},
                }
            ],
        },
    }


def burning(name: str, **parts: Any) -> dict[str, Any]:
    """Return a policy with failurePolicy Ignore that spends its whole budget."""
    raw = policy(name, **parts)
    condition = {"key": "{{ " + BURN + " }}", "operator": "NotEquals", "value": 1}
    raw["spec"]["rules"][0]["preconditions"] = {"all": [condition] * 40}
    return raw


def ask(
    *policies: dict[str, Any], path: bytes = b"/mutate/ignore", **parts: Any
) -> Any:
    """Return the response to the creation of a Pod."""
    created = pod(**parts)
    created["metadata"]["annotations"] = {"owner": "me"}
    body = json.dumps(review(created)).encode()
    return Bench("\n---\n".join(map(json.dumps, policies))).post(body, path)


def labels(response: Any) -> set[str]:
    """Return the labels that the answer adds."""
    found: set[str] = set()
    for operation in json.loads(base64.b64decode(response.get("patch", "W10="))):
        value = operation["value"]
        found |= set(value) if type(value) is dict else {operation["path"][17:]}
    return found


@pytest.mark.parametrize("first", ["a", "z"])
def test_condition_applies_only_to_its_policy(first: str) -> None:
    response = ask(policy(first, "object.metadata.name == 'no'"), policy("plain"))
    assert response["allowed"]
    assert labels(response) == {"plain"}


def test_costly_condition_is_reported() -> None:
    xs = ["abcdefgh"] * 3000
    response = ask(policy("costly", COSTLY), policy("next"), xs=xs)
    assert response["allowed"]
    assert labels(response) == {"next"}
    (warning,) = response["warnings"]
    assert "costly" in warning
    assert "(cel.cost)" in warning


def test_costly_condition_denies_with_failure_policy_fail() -> None:
    xs = ["abcdefgh"] * 3000
    costly = policy("costly", COSTLY, fails=True)
    response = ask(costly, path=b"/mutate/fail", xs=xs)
    assert not response["allowed"]
    assert "cel.cost" in response["status"]["message"]


@pytest.mark.parametrize("match", [{}, {"annotations": {"owner*": "?*"}}])
def test_policies_have_separate_budgets(match: dict[str, Any]) -> None:
    """Otherwise a user could disable another mutation by spending its budget."""
    response = ask(burning("burns"), policy("next", **match), xs=LONG)
    assert labels(response) == {"next"}
    (warning,) = response["warnings"]
    assert "burns" in warning


def test_condition_is_charged_to_its_policy() -> None:
    response = ask(burning("burns"), policy("next", "1 == 1"), xs=LONG)
    assert labels(response) == {"next"}


def test_each_policy_is_charged_for_its_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a patch without variables uses the budget of another policy."""
    charged: dict[str, int] = {}
    charge = Runtime.charge

    def note(runtime: Runtime, steps: int = 1) -> None:
        name = getattr(runtime.policy, "name", "")
        charged[name] = charged.get(name, 0) + steps
        charge(runtime, steps)

    monkeypatch.setattr(Runtime, "charge", note)
    raw = policy("lists")
    raw["spec"]["rules"][0]["mutate"] = {
        "patchStrategicMerge": {
            "spec": {"containers": [{"(name)": "*", "imagePullPolicy": "Always"}]}
        }
    }
    ask(burning("burns"), raw, xs=LONG)
    assert charged["lists"] > 0
    assert charged["burns"] > 0


class _SlowClock:
    """A clock that advances by half a second on each read."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        self.now_ns += 500_000_000
        return self.now_ns


def _mutate(*policies: dict[str, Any], seconds: int) -> Mutations:
    clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=_SlowClock())
    segment = segment_of("\n---\n".join(map(json.dumps, policies)))
    engine = Engine(ClusterData(), clock)
    planner = MutationPlanner(engine, SegmentSource(segment, link_mutation))
    request = decode(json.dumps(review(pod(xs=["a"] * 9000))).encode())
    plan = planner.plan(request, frozenset({"Ignore"}), "")
    assert plan is not None
    return plan.run(seconds * 10**9)


def test_namespaced_policies_have_a_separate_time_budget() -> None:
    """Otherwise a user who can create a Policy could disable other mutations."""
    slow = burning("slow", namespace="default")
    done = _mutate(slow, policy("zz"), policy("b", "1 == 1"), seconds=20)
    found = {each.policy.name: each for each in done.responses}
    assert not done.left_out
    assert "exceeded their time" in found.pop("slow").results[0].message
    assert [each.results[0].status for each in found.values()] == [PASS, PASS]
    assert sorted(done.patch[0]["value"]) == ["b", "zz"]

"""matchConditions apply only to their own policy and cannot bypass another one.

A failure means: a condition of one policy disables another policy, or an object that
makes a condition expensive is admitted without evaluation.
"""

import json
from datetime import UTC, datetime
from typing import Any, NoReturn
from unittest.mock import patch

import pytest

from kyverno_mp.admission.decode import decode
from kyverno_mp.errors import DeadlinePassed, Preempted
from kyverno_mp.expr.cel.linking.program import Program
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.limits import POLICY_STEPS_MAX
from kyverno_mp.program.context.rule_context import RequestContext
from kyverno_mp.program.engine import Clock, Engine, LinkedPolicy, link_rule
from kyverno_mp.program.matching.candidates import SegmentSource
from kyverno_mp.program.mutation import Mutations
from kyverno_mp.program.plans.mutation_plan import MutationPlanner, link_mutation
from kyverno_mp.program.plans.plan import ValidationPlanner
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.program.result import ERROR, PASS, PolicyResponse
from kyverno_mp.program.rule import LinkedRule
from tests.fuzz.bench import Bench, pod, review, segment_of
from tests.waiting import HANG_S


def policy(name: str, *conditions: str) -> str:
    """Return a policy that denies every Pod for which its conditions hold."""
    hooks = {"matchConditions": [{"name": "c", "expression": e} for e in conditions]}
    return json.dumps(
        {
            "apiVersion": "kyverno.io/v1",
            "kind": "ClusterPolicy",
            "metadata": {"name": name},
            "spec": {
                "background": False,
                **({"webhookConfiguration": hooks} if conditions else {}),
                "rules": [
                    {
                        "name": "r",
                        "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
                        "validate": {
                            "failureAction": "Enforce",
                            "message": f"{name} says no",
                            "deny": {},
                        },
                    }
                ],
            },
        }
    )


def refused_by(*policies: str, **parts: Any) -> str:
    """Return the message of the denial, "" if the Pod is admitted."""
    body = json.dumps(review(pod(**parts))).encode()
    response = Bench("\n---\n".join(policies)).post(body)
    return "" if response["allowed"] else response["status"]["message"]


@pytest.mark.parametrize("first", [True, False])
def test_condition_applies_only_to_its_policy(first: bool) -> None:  # noqa: FBT001 - a parameter
    gated, plain = policy("gated", "object.metadata.name == 'no'"), policy("plain")
    message = refused_by(*((gated, plain) if first else (plain, gated)))
    assert "plain says no" in message
    assert "gated says no" not in message


def test_conditions_of_two_policies_are_independent() -> None:
    yes, no = policy("yes", "1 == 1"), policy("no", "1 == 2")
    for order in ((yes, no), (no, yes)):
        message = refused_by(*order)
        assert "yes says no" in message
        assert "no says no" not in message


def test_costly_condition_does_not_admit() -> None:
    costly = "object.spec.xs.all(x, object.spec.xs.all(y, y != 'q'))"
    message = refused_by(policy("p", costly), xs=["abcdefgh"] * 3000)
    assert "not evaluated (cel.cost)" in message


BURN = "request.object.spec.xs[].join('', [@, @, @, @])"


def burning() -> str:
    """Return a policy with failurePolicy Ignore that spends its whole budget."""
    raw = json.loads(policy("burns"))
    raw["spec"]["failurePolicy"] = "Ignore"
    condition = {"key": "{{ " + BURN + " }}", "operator": "Equals", "value": "x"}
    raw["spec"]["rules"][0]["validate"]["deny"] = {"conditions": {"all": [condition]}}
    return json.dumps(raw)


def test_match_is_charged_to_its_policy() -> None:
    """Otherwise a user could disable another policy's denial by spending the budget."""
    raw = json.loads(policy("next"))
    resources = raw["spec"]["rules"][0]["match"]["any"][0]["resources"]
    resources["annotations"] = {"owner*": "?*"}
    raw["spec"]["failurePolicy"] = "Ignore"
    pods = {"kind": "Pod", "metadata": {"name": "x", "annotations": {"owner": "me"}}}
    body = json.dumps(review({**pods, "spec": {"xs": ["a"] * 60_000}})).encode()
    bench = Bench(f"{burning()}\n---\n{json.dumps(raw)}")
    response = bench.post(body, path=b"/validate/ignore")
    assert "next says no" in response.get("status", {}).get("message", "")


def many_rules(condition: str, count: int) -> str:
    """Return a policy with many rules, none of which share a match test."""
    raw = json.loads(policy("p", condition))
    (rule,) = raw["spec"]["rules"]
    raw["spec"]["rules"] = [
        {
            **rule,
            "name": f"r{number}",
            "match": {
                "any": [
                    {"resources": {"kinds": ["Pod"], "names": [f"x*{'*' * number}"]}}
                ]
            },
        }
        for number in range(count)
    ]
    return json.dumps(raw)


COSTLY = "object.spec.xs.all(x, object.spec.xs.all(y, y != 'q'))"


def test_many_rules_evaluate_a_costly_condition_once() -> None:
    """A failure means: each rule evaluates the condition, without any benefit."""
    body = json.dumps(review(pod(xs=["abcdefgh"] * 400))).encode()
    evaluations = steps = 0
    evaluate, charge = Program.evaluate, Runtime.charge

    def evaluated(self: Program, values: Any, meter: Any) -> Any:
        nonlocal evaluations
        evaluations += 1
        return evaluate(self, values, meter)

    def charged(self: Runtime, count: int = 1) -> None:
        nonlocal steps
        steps += count
        charge(self, count)

    # The step limit applies, however slow the machine is.
    bench = Bench(many_rules(COSTLY, 200), timeout_s=HANG_S)
    with (
        patch.object(Program, "evaluate", evaluated),
        patch.object(Runtime, "charge", charged),
    ):
        response = bench.post(body)
        once = steps / evaluations
    assert "not evaluated (expr.steps)" in response["status"]["message"]
    # An evaluation takes about 30 ms: more than a fiftieth of all steps.
    assert once > POLICY_STEPS_MAX / 50
    # The steps of this policy, and the steps counted before any policy has begun.
    assert steps <= 2.1 * POLICY_STEPS_MAX
    assert evaluations <= 2.1 * POLICY_STEPS_MAX / once


class Stopping:
    """A pace that grants no second slice."""

    slice_ends_ns = 1

    def next_slice(self, now_ns: int) -> None:
        if now_ns >= self.slice_ends_ns:
            self.make_room()

    def make_room(self) -> NoReturn:
        raise Preempted("test.preempted", "no more")


def context_of(raw: dict[str, Any], **runtime: Any) -> tuple[Engine, RequestContext]:
    clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=lambda: 2)
    engine = Engine(ClusterData(), clock)
    request = decode(json.dumps(review(raw)).encode())
    return engine, engine.open(request, **runtime)


def linked_rules(text: str) -> list[LinkedRule]:
    source = SegmentSource(segment_of(text), link_rule)
    request = decode(json.dumps(review(pod())).encode())
    (candidate,) = source.candidates(request)
    return [ref.linked for ref in candidate.rules]


def test_evaluation_yields_to_other_reviews() -> None:
    """A failure means: a condition blocks the event loop until it is evaluated."""
    engine, context = context_of(pod(xs=["abcdefgh"] * 400), pace=Stopping())
    (rule,) = linked_rules(policy("p", COSTLY))
    with pytest.raises(Preempted):
        engine.matches(rule, context)


def test_short_evaluation_is_charged_too() -> None:
    """Otherwise a thousand rules could evaluate a cheap condition for free."""
    condition = "object.spec.xs.all(x, x != 'q')"
    (rule,) = linked_rules(policy("p", condition))

    def steps(count: int) -> int:
        engine, context = context_of(pod(xs=["a"] * count))
        before = context.runtime.steps_left
        assert engine.matches(rule, context)
        return before - context.runtime.steps_left

    assert steps(100) >= steps(10) + 30


def test_evaluation_ends_with_its_review() -> None:
    engine, context = context_of(pod(xs=["abcdefgh"] * 400), deadline_ns=1)
    (rule,) = linked_rules(policy("p", COSTLY))
    with pytest.raises(DeadlinePassed):
        engine.matches(rule, context)


@pytest.mark.parametrize("apply_rules", ["All", "One"])
def test_costly_condition_is_an_error_in_the_messages_too(apply_rules: str) -> None:
    raw = json.loads(many_rules(COSTLY, 2))
    raw["spec"]["applyRules"] = apply_rules
    engine, context = context_of(pod(xs=["abcdefgh"] * 3000))
    rules = linked_rules(json.dumps(raw))
    response = engine.explain(LinkedPolicy(rules[0].policy, rules), context)
    found = [(r.rule, r.status, r.message) for r in response.results]
    text = "not evaluated (cel.cost): operation cancelled: actual cost limit exceeded"
    # The first rule might have decided the result.
    count = 2 if apply_rules == "All" else 1
    assert found == [(f"r{number}", ERROR, text) for number in range(count)]


def test_costly_match_in_the_explanation_is_an_error() -> None:
    """A failure means: a rule that passed is missing from the record of a failure."""
    source = SegmentSource(segment_of(policy("p", COSTLY)), link_rule)
    engine, context = context_of(pod(xs=["abcdefgh"] * 3000))
    planner = ValidationPlanner(engine, source)
    plan = planner.plan(context.request, frozenset({"Fail"}), "")
    assert plan is not None
    (rule,) = linked_rules(policy("p", COSTLY))
    ((entry, _),) = [(c.policy, c) for c in source.candidates(context.request)]
    assert entry == rule.policy
    asked = PolicyResponse(entry, passed=("r",))
    (found,) = plan.with_messages(asked, 0).results
    assert (found.rule, found.status) == ("r", ERROR)
    assert "cel.cost" in found.message


def mutating(name: str, condition: str = "", **mutate: Any) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(policy(name, *([condition] if condition else [])))
    (rule,) = raw["spec"]["rules"]
    del rule["validate"]
    rule["mutate"] = mutate or {
        "patchStrategicMerge": {"metadata": {"labels": {name: "1"}}}
    }
    raw["spec"]["failurePolicy"] = "Ignore"
    return raw


def mutated_by(*policies: dict[str, Any], xs: list[str]) -> Mutations:
    text = "\n---\n".join(map(json.dumps, policies))
    engine, context = context_of(pod(xs=xs))
    planner = MutationPlanner(engine, SegmentSource(segment_of(text), link_mutation))
    plan = planner.plan(context.request, frozenset({"Ignore"}), "")
    assert plan is not None
    return plan.run(0)


def test_mutation_with_a_costly_condition_is_an_error() -> None:
    """Otherwise a change that an administrator requires is skipped silently."""
    done = mutated_by(mutating("p", COSTLY), xs=["abcdefgh"] * 3000)
    ((found,),) = [response.results for response in done.responses]
    assert (found.status, found.rule_type) == (ERROR, "Mutation")
    assert "cel.cost" in found.message


IMAGE = {"spec": {"containers": [{"(name)": "*", "image": "r.io/c:1"}]}}


@pytest.mark.parametrize(
    "following",
    [
        mutating("next", patchStrategicMerge=IMAGE),
        mutating("next", "object.metadata.name == 'x'"),
    ],
    ids=["its patch", "its condition"],
)
def test_mutation_is_charged_to_its_policy(following: dict[str, Any]) -> None:
    """Otherwise a user could disable another mutation by spending its budget."""
    all_of_it = f"[{', '.join([BURN] * 4)}]"
    burns = mutating(
        "burns",
        patchStrategicMerge={"metadata": {"labels": {"b": f"{{{{ {all_of_it} }}}}"}}},
    )
    done = mutated_by(burns, following, xs=["a"] * 60_000)
    statuses = {r.policy.name: r.results[0].status for r in done.responses}
    assert statuses == {"burns": ERROR, "next": PASS}

"""Test that compiling any policy is bounded: each step is charged before it runs."""

import functools
import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import pytest

from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.compiler.index import encode_policy
from kyverno_mp.errors import InputError, PolicyInvalid
from kyverno_mp.expr.compile_budget import TOO_COSTLY, CompileBudget, bounded, spend
from kyverno_mp.limits import (
    COMPILE_STEPS_BETWEEN_CLOCK_CHECKS,
    COMPILE_STEPS_MAX,
    SUBSTITUTION_DEPTH_MAX,
)
from kyverno_mp.policy.check import read
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy
from perf.scale import other

STEPS_MAX: Final = 20_000
CALLS_PER_STEP: Final = 80
"""About eight microseconds; most attacks need fewer than twenty calls per step."""
CALLS_PER_BYTE: Final = 1
"""A document is copied and walked outside the parsers that charge steps."""
MATCH: Final = {"any": [{"resources": {"kinds": ["Pod"]}}]}


def rule(name: str = "r", **parts: Any) -> dict[str, Any]:
    return {"name": name, "match": MATCH, **parts}


def cel(*texts: str, variables: list[dict[str, str]] | None = None) -> dict[str, Any]:
    block: dict[str, Any] = {"expressions": [{"expression": text} for text in texts]}
    if variables:
        block["variables"] = variables
    return rule(validate={"cel": block})


def pattern(tree: Any) -> dict[str, Any]:
    return rule(validate={"pattern": tree})


def resources(**of: Any) -> dict[str, Any]:
    match = {"any": [{"resources": {"kinds": ["Pod"], **of}}]}
    return {"name": "r", "match": match, "validate": {"pattern": {"a": 1}}}


def chained(first: str, other: str, count: int) -> list[dict[str, str]]:
    found = [{"name": "v0", "expression": first}]
    found += [
        {"name": f"v{at}", "expression": other.format(f"variables.v{at - 1}")}
        for at in range(1, count)
    ]
    return found


CONDITION: Final = {"key": "{{ request.name }}", "operator": "Equals", "value": "a"}
INNERMOST: Final[list[dict[str, Any]]] = [
    {"list": "request.object.a", "pattern": {"a": "b"}}
]
ATTACKS: Final[dict[str, Callable[[], list[dict[str, Any]]]]] = {
    "cel, one long expression": lambda: [cel(" || ".join(["object.a.b == 1"] * 3000))],
    "cel, one long list": lambda: [cel(f"[{','.join(['1'] * 25_000)}].size() > 0")],
    "cel, many expressions": lambda: [cel(*(f"object.a{i} == 1" for i in range(5000)))],
    "cel, brackets": lambda: [cel("==".join(["(" * 90 + "1" + ")" * 90] * 300))],
    "cel, macros": lambda: [cel(*["object.l.all(x, x.all(y, y > 1))"] * 2000)],
    "cel, lists of lists": lambda: [
        cel("true", variables=chained("[1]", "[{0}, {0}]", 900))
    ],
    "cel, maps of maps": lambda: [
        cel("true", variables=chained("{'a': 1}", "{{'a': {0}}}", 900))
    ],
    "cel, sums": lambda: [cel("true", variables=chained("1", "{0} + 1", 2500))],
    "cel, expressions of regexes": lambda: [
        cel(*(f"object.a.matches('{'a?' * 4000}{i}')" for i in range(12)))
    ],
    "rules": lambda: [
        rule(
            f"r{i}", validate={"pattern": {"spec": {"containers": [{"image": "*:*"}]}}}
        )
        for i in range(900)
    ],
    "rules in cel": lambda: [
        {**cel("object.spec.containers.all(c, c.image != 'x')"), "name": f"r{i}"}
        for i in range(900)
    ],
    "pattern, wide": lambda: [pattern({f"k{i}": "?*|a|>1" for i in range(9000)})],
    "pattern, one leaf": lambda: [pattern({"a": "|".join(["a*"] * 60_000)})],
    "pattern, any": lambda: [
        rule(validate={"anyPattern": [{"metadata": {"name": "a*"}}] * 6000})
    ],
    "message": lambda: [
        rule(validate={"message": "{{ request.name }}" * 9000, "deny": {}})
    ],
    "message, one query": lambda: [
        rule(
            validate={"message": "{{ " + " || ".join(["a"] * 9000) + " }}", "deny": {}}
        )
    ],
    "conditions": lambda: [
        rule(validate={"deny": {"conditions": {"any": [CONDITION] * 5000}}})
    ],
    "preconditions": lambda: [
        rule(preconditions={"any": [CONDITION] * 5000}, validate={"deny": {}})
    ],
    "context": lambda: [
        rule(
            context=[
                {"name": f"c{i}", "variable": {"jmesPath": "request.object.a[?b=='c']"}}
                for i in range(5000)
            ],
            validate={"deny": {}},
        )
    ],
    "context, one value": lambda: [
        rule(
            context=[
                {
                    "name": "c",
                    "variable": {"value": {f"k{i}": "{{ a.b }}" for i in range(9000)}},
                }
            ],
            validate={"deny": {}},
        )
    ],
    "assert": lambda: [
        rule(validate={"assert": {f"(length(a{i}) > `1`)": True for i in range(9000)}})
    ],
    "filters": lambda: [
        {
            "name": "r",
            "match": {
                "any": [
                    {"resources": {"kinds": ["Pod"], "names": [f"n{i}"]}}
                    for i in range(5000)
                ]
            },
            "validate": {"pattern": {"a": 1}},
        }
    ],
    "kinds": lambda: [resources(kinds=[f"K{i}" for i in range(25_000)])],
    "names": lambda: [resources(names=[f"n{i}" for i in range(25_000)])],
    "selector": lambda: [
        resources(
            selector={
                "matchExpressions": [
                    {"key": f"k{i}", "operator": "In", "values": ["a"] * 9}
                    for i in range(5000)
                ]
            }
        )
    ],
    "patches": lambda: [
        rule(
            mutate={
                "patchesJson6902": "\n".join(
                    f"- {{op: add, path: /a/b{i}, value: 1}}" for i in range(5000)
                )
            }
        )
    ],
    "foreach": lambda: [
        rule(
            validate={
                "foreach": [{"list": "request.object.a", "pattern": {"a": "b"}}] * 4000
            }
        )
    ],
    "nested foreach": lambda: [
        rule(
            validate={
                "foreach": functools.reduce(
                    lambda inner, _: [{"list": "request.object.a", "foreach": inner}],
                    range(60),
                    INNERMOST * 2000,
                )
            }
        )
    ],
}
"""Well-formed policies, each with an excess of one element."""


def document_of(rules: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "attack"},
        "spec": {"rules": rules},
    }


def build(raw: dict[str, Any], budget: CompileBudget) -> str:
    """Compile like the leader; return the error code, "" if the policy is accepted."""
    try:
        with bounded(budget):
            document, _ = read(raw)
            assert isinstance(document, ClusterPolicy)
            encode_policy(compile_policy(document))
    except InputError as error:
        return error.code
    return ""


def calls_of(work: Callable[[], object]) -> int:
    """Count the calls of functions, including C functions."""
    count = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        if event in ("call", "c_call"):
            count += 1

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", ATTACKS)
def test_work_is_charged_before_it_is_done(name: str) -> None:
    """Steps and bytes limit the work for a policy; a larger policy is rejected."""
    raw = document_of(ATTACKS[name]())
    budget = CompileBudget(steps_max=STEPS_MAX)
    codes = []
    calls = calls_of(lambda: codes.append(build(raw, budget)))
    size = len(json.dumps(raw))
    assert codes == [TOO_COSTLY]
    assert calls <= CALLS_PER_STEP * STEPS_MAX + CALLS_PER_BYTE * size, calls


@pytest.mark.parametrize(
    ("variant", "calls_max"), [("kinds", 1850), ("namespaces", 5200)]
)
def test_what_a_policy_costs(variant: str, calls_max: int) -> None:
    """The first policies of a leader: otherwise a pod with thousands is ready late."""
    build(other(0, variant), CompileBudget())
    codes = []
    calls = calls_of(lambda: codes.append(build(other(1, variant), CompileBudget())))
    assert codes == [""]
    assert calls <= calls_max


def test_a_rule_without_variables_is_not_too_deep_to_search() -> None:
    """References are searched in it although it has none, as upstream does."""
    tree: Any = "a"
    for _ in range(SUBSTITUTION_DEPTH_MAX + 1):
        tree = {"a": tree}
    raw = document_of([rule(mutate={"patchStrategicMerge": tree})])
    assert build(raw, CompileBudget()) == "template.depth"


@pytest.mark.parametrize("name", ["cel, macros", "conditions", "rules", "patches"])
def test_the_same_policy_takes_the_same_steps(name: str) -> None:
    """The result does not depend on previously compiled policies."""
    raw = document_of(ATTACKS[name]()[:1])
    first, second = CompileBudget(), CompileBudget()
    assert build(raw, first) == build(raw, second)
    assert first.steps == second.steps > 0


def test_policy_with_many_rules_is_accepted() -> None:
    """Large policies are allowed: a thousand plain rules, each for all controllers."""
    budget = CompileBudget()
    assert build(document_of(ATTACKS["rules"]()), budget) == ""
    assert COMPILE_STEPS_MAX / 10 < budget.steps < COMPILE_STEPS_MAX


def test_exhausted_budget_raises_on_every_call() -> None:
    looks: list[int] = []
    budget = CompileBudget(lambda: looks.append(1), steps_max=5000)
    with bounded(budget):
        spend(5000)
        for _ in range(3):
            with pytest.raises(PolicyInvalid) as refused:
                spend()
            assert refused.value.code == TOO_COSTLY
    spend(10_000)
    assert budget.steps == 5003
    assert len(looks) == 1


def test_clock_is_checked_at_intervals() -> None:
    looks: list[int] = []
    with bounded(CompileBudget(lambda: looks.append(1))):
        for _ in range(10 * COMPILE_STEPS_BETWEEN_CLOCK_CHECKS):
            spend()
    assert len(looks) == 10

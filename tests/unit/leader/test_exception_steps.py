"""PolicyExceptions have separate compile steps, so they disable no policy.

A failure means: a user who can create a PolicyException in one namespace causes cluster
policies to be rejected, and a new pod allows requests that they deny.
"""

import cProfile
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from kyverno_mp.compiler.cel_kinds.policies import (
    EXCEPTION_NAMES_OF_DELETING,
    compile_deleting_policy,
)
from kyverno_mp.controllers.admission_policies.exceptions import KnownExceptions
from kyverno_mp.errors import PolicyInvalid
from kyverno_mp.expr import compile_budget
from kyverno_mp.expr.compile_budget import CompileBudget, bounded, for_exception, spend
from kyverno_mp.leader.folder import Changes
from kyverno_mp.leader.policy_set import PolicySet
from kyverno_mp.leader.policy_store import PolicyStore
from kyverno_mp.limits import COMPILE_EXCEPTION_STEPS_MAX
from kyverno_mp.policy.cel_kinds.policies import DeletingPolicy, decode_cel_policy
from kyverno_mp.policy.cel_kinds.validating_policy import (
    CelPolicyException,
    ValidatingPolicy,
    decode_validating_policy,
)
from kyverno_mp.policy.problems import DocumentInvalid

GROUP = "policies.kyverno.io/v1"
PODS = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "operations": ["CREATE"],
    "resources": ["pods"],
}
PATCH = "[JSONPatch{op: 'add', path: '/metadata/labels', value: {'a': 'b'}}]"
KINDS: dict[str, dict[str, Any]] = {
    "ValidatingPolicy": {"validations": [{"expression": "false"}]},
    "MutatingPolicy": {
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": PATCH}}]
    },
    "GeneratingPolicy": {"generate": [{"expression": "generator.Apply('a', [])"}]},
    "ImageValidatingPolicy": {
        "attestors": [{"name": "k", "cosign": {"key": {"data": "x"}}}],
        "validations": [{"expression": "false"}],
    },
}
COSTLY = " || ".join(["object.a == 'b'"] * 2_500)
"""More than the steps of one exception, but less than the steps of a policy."""


def of_cel(kind: str) -> dict[str, Any]:
    spec = {"matchConstraints": {"resourceRules": [PODS]}, **KINDS[kind]}
    return {
        "apiVersion": GROUP,
        "kind": kind,
        "metadata": {"name": "team"},
        "spec": spec,
    }


def cel_exception(kind: str, name: str, *conditions: str) -> dict[str, Any]:
    given = [
        {"name": f"c{at}", "expression": text} for at, text in enumerate(conditions)
    ]
    refs = [{"name": "team", "kind": kind}]
    return {
        "apiVersion": GROUP,
        "kind": "PolicyException",
        "metadata": {"name": name, "namespace": "tenant"},
        "spec": {"policyRefs": refs, "matchConditions": given},
    }


RULE = {
    "name": "r",
    "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
    "validate": {"failureAction": "Enforce", "pattern": {"metadata": {"name": "x"}}},
}
CLUSTER_POLICY = {
    "apiVersion": "kyverno.io/v1",
    "kind": "ClusterPolicy",
    "metadata": {"name": "team"},
    "spec": {"rules": [RULE]},
}


def exception(name: str, conditions: int) -> dict[str, Any]:
    key = "{{ request.object.metadata.labels.a || 'x' }}"
    entries = [
        {"key": key, "operator": "Equals", "value": str(at)} for at in range(conditions)
    ]
    return {
        "apiVersion": "kyverno.io/v2",
        "kind": "PolicyException",
        "metadata": {"name": name, "namespace": "tenant"},
        "spec": {
            "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
            "conditions": {"any": entries},
            "exceptions": [{"policyName": "team", "ruleNames": ["r"]}],
        },
    }


def new_store(*documents: dict[str, Any]) -> PolicySet:
    """Return the policy store of a leader that starts without stored results."""
    files = {f"{at}": json.dumps(one).encode() for at, one in enumerate(documents)}
    store = PolicyStore(lambda _namespace: True, has_background=True)
    return store.update(Changes(files, ()))


@pytest.mark.parametrize("kind", KINDS)
def test_costly_exception_rejects_no_cel_policy(kind: str) -> None:
    # Together, they exceed the steps of a policy, which are ten times an exception's.
    found = new_store(
        of_cel(kind),
        cel_exception(kind, "costly", *[COSTLY] * 10),
        cel_exception(kind, "small", "object.a == 'b'"),
    )
    (status,) = found.policies
    assert (status.ready, status.code) == (True, "")
    assert "tenant/costly is ignored" in status.message
    assert f"{COMPILE_EXCEPTION_STEPS_MAX} steps" in status.message
    assert "tenant/small" not in status.message
    assert [len(one) for one in found.cel.values()] == [1]


def test_costly_exception_rejects_no_cluster_policy() -> None:
    costly = [exception(f"costly{at}", 2_500) for at in range(5)]
    found = new_store(CLUSTER_POLICY, exception("zz", 1), *costly)
    (status,) = found.policies
    assert (status.ready, status.code) == (True, "")
    assert "tenant/costly0 is ignored" in status.message
    assert "tenant/zz" not in status.message
    assert len(found.encoded) == 1


@pytest.mark.parametrize("kind", [*KINDS, "ClusterPolicy"])
def test_many_exceptions_reject_no_policy(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the steps of all exceptions are used up, further ones have no effect."""
    monkeypatch.setattr(compile_budget, "COMPILE_EXCEPTIONS_STEPS_MAX", 2_000)
    if kind == "ClusterPolicy":
        given = [CLUSTER_POLICY, *(exception(f"x{at:03}", 5) for at in range(200))]
    else:
        text = " || ".join(["object.a == 'b'"] * 20)
        given = [
            of_cel(kind),
            *(cel_exception(kind, f"x{at:03}", text) for at in range(200)),
        ]
    (status,) = new_store(*given).policies
    assert (status.ready, status.code) == (True, "")
    assert "tenant/x000" not in status.message
    assert "the exceptions from the policy take more than 2000 steps" in status.message


@pytest.mark.parametrize("kind", ["ValidatingPolicy", "ClusterPolicy"])
def test_exceptions_of_a_namespace_share_the_steps(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant whose exceptions are near the limit leaves none to others' otherwise."""
    monkeypatch.setattr(compile_budget, "COMPILE_EXCEPTIONS_STEPS_MAX", 6_000)
    text = " || ".join(["object.a == 'b'"] * 20)
    given = []
    for namespace, count in (("a-greedy", 200), ("modest", 1), ("other", 2)):
        for at in range(count):
            if kind == "ClusterPolicy":
                one = exception(f"x{at:03}", 5)
            else:
                one = cel_exception(kind, f"x{at:03}", text)
            one["metadata"]["namespace"] = namespace
            given.append(one)
    policy = CLUSTER_POLICY if kind == "ClusterPolicy" else of_cel(kind)
    (status,) = new_store(policy, *given).policies
    assert "a-greedy/" in status.message
    assert "modest/" not in status.message
    assert "other/" not in status.message


def test_exception_for_many_rules_is_charged_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each rule's record has a copy of it."""
    monkeypatch.setattr(compile_budget, "COMPILE_EXCEPTIONS_STEPS_MAX", 2_000)
    wide = exception("wide", 20)
    wide["spec"]["exceptions"][0]["ruleNames"] = ["*"]
    rules = [{**RULE, "name": f"r{at}"} for at in range(100)]
    policy = {**CLUSTER_POLICY, "spec": {"rules": rules}}
    narrow = exception("zz", 1)
    narrow["spec"]["exceptions"][0]["ruleNames"] = ["r1"]
    found = new_store(policy, wide, narrow)
    (status,) = found.policies
    assert "tenant/wide is ignored" in status.message
    assert "tenant/zz" not in status.message
    published = b"".join(bytes(one.content) for one in found.encoded)
    assert b"tenant/zz" in published
    assert b"tenant/wide" not in published, "it would exempt all the same"


def test_deleting_policy_is_rejected_only_for_the_exception() -> None:
    """Objects that the exception's author wants to keep are not deleted."""
    kind = "DeletingPolicy"
    policy = decode_cel_policy(
        {
            "apiVersion": GROUP,
            "kind": kind,
            "metadata": {"name": "team"},
            "spec": {
                "matchConstraints": {"resourceRules": [PODS]},
                "conditions": [{"name": "c", "expression": "true"}],
                "schedule": "* * * * *",
            },
        }
    )
    assert isinstance(policy, DeletingPolicy)
    costly = decode_validating_policy(cel_exception(kind, "costly", *[COSTLY] * 10))
    assert isinstance(costly, CelPolicyException)
    with bounded(CompileBudget()), pytest.raises(DocumentInvalid) as refused:
        compile_deleting_policy(
            policy, [costly], exception_names=EXCEPTION_NAMES_OF_DELETING
        )
    assert [one.code for one in refused.value.problems] == ["exception.too_costly"]


def test_exception_uses_no_steps_of_its_policy() -> None:
    with bounded(CompileBudget()) as budget:
        spend(7)
        with for_exception():
            spend(COMPILE_EXCEPTION_STEPS_MAX - 1)
        with pytest.raises(PolicyInvalid) as refused, for_exception():
            spend(COMPILE_EXCEPTION_STEPS_MAX)
        spend()
    assert refused.value.code == "exception.too_costly"
    assert budget.steps == 8
    assert budget.exception_steps == 2 * COMPILE_EXCEPTION_STEPS_MAX + 1


def test_exceptions_are_limited_like_policies() -> None:
    """The command line compiles without limits, as upstream does."""
    with for_exception():
        spend(2 * COMPILE_EXCEPTION_STEPS_MAX)


def test_a_costly_exception_is_not_in_a_generated_policy() -> None:
    policy = decode_validating_policy(of_cel("ValidatingPolicy"))
    assert isinstance(policy, ValidatingPolicy)
    known = KnownExceptions(lambda _namespace: True)
    given = [
        cel_exception("ValidatingPolicy", "costly", *[COSTLY] * 10),
        cel_exception("ValidatingPolicy", "light", "object.a == 'b'"),
    ]
    known.read(json.dumps(one).encode() for one in given)
    found = known.of(policy, datetime.now(UTC))
    assert [one.key for one in found] == ["tenant/light"]


def exempting(name: str, policy: str) -> bytes:
    spec = {
        "exceptions": [{"policyName": policy, "ruleNames": ["r"]}],
        "match": {"any": [{"resources": {"kinds": ["Secret"]}}]},
    }
    meta = {"name": name, "namespace": "a"}
    raw = {"apiVersion": "kyverno.io/v2", "kind": "PolicyException", "spec": spec}
    return json.dumps({**raw, "metadata": meta}).encode()


def of_secrets(name: str) -> bytes:
    rule = {
        "name": "r",
        "match": {"any": [{"resources": {"kinds": ["Secret"]}}]},
        "validate": {"message": "m", "pattern": {"metadata": {"name": "?*"}}},
    }
    raw = {"apiVersion": "kyverno.io/v1", "kind": "ClusterPolicy"}
    document = {**raw, "metadata": {"name": name}, "spec": {"rules": [rule]}}
    return json.dumps(document).encode()


@pytest.mark.parametrize("of_kind", ["kyverno.io", "policies.kyverno.io"])
def test_exceptions_of_other_policies_cost_a_policy_nothing(of_kind: str) -> None:
    """A pass over all of them for each policy took 36 ms with 5,000 of them."""

    def exception(number: int) -> bytes:
        if of_kind == "kyverno.io":
            return exempting(f"e{number}", "other")
        return json.dumps(cel_exception("MutatingPolicy", f"e{number}")).encode()

    def policy(number: int) -> bytes:
        if of_kind == "kyverno.io":
            return of_secrets(f"p{number}")
        document = of_cel("ValidatingPolicy")
        return json.dumps({**document, "metadata": {"name": f"p{number}"}}).encode()

    def calls(exceptions: int) -> int:
        store = PolicyStore(lambda _namespace: True)
        files = {f"e{number}.yaml": exception(number) for number in range(exceptions)}
        store.update(Changes(files, ()))
        passes = cProfile.Profile()
        passes.runcall(store.update, Changes({}, ()))
        work = cProfile.Profile()
        files = {f"p{number}.yaml": policy(number) for number in range(20)}
        policies = work.runcall(store.update, Changes(files, ())).policies
        assert all(status.ready for status in policies)
        return _calls(work) - _calls(passes)

    calls(1)  # types of built-in kinds are read once
    assert calls(300) < calls(1) * 1.05


def _calls(profile: cProfile.Profile) -> int:
    return sum(entry.callcount for entry in profile.getstats())

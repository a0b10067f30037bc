"""The linked PolicyExceptions of a namespace fit into a budget of memory of their own.

A failure means: whoever may write exceptions in one namespace takes the memory of every
worker, makes policies of other namespaces errors, or exempts from a policy although the
leader says that it does not.
"""

import json
from typing import Any

import msgspec
import pytest

from kyverno_mp.ir.index import EncodedPolicy, count_of, part_of
from kyverno_mp.ir.rules import RuleIR
from kyverno_mp.leader.documents import linked_exceptions, linked_memory
from kyverno_mp.leader.folder import Changes
from kyverno_mp.leader.policy_set import PolicySet
from kyverno_mp.leader.policy_store import PolicyStore
from kyverno_mp.leader.status import Status
from kyverno_mp.process.gauges import Pod, measure
from kyverno_mp.telemetry.families import LARGE_EXCEPTIONS
from tests.unit.leader.test_exception_steps import (
    CLUSTER_POLICY,
    KINDS,
    RULE,
    cel_exception,
    exception,
    new_store,
    of_cel,
)
from tests.unit.leader.test_linked_memory import asked

KIB = 1024
LARGE = 60
"""Conditions of an exception that takes a MiB linked."""
SERVED = [*(kind for kind in KINDS if kind != "GeneratingPolicy"), "ClusterPolicy"]
"""Exceptions from GeneratingPolicies are not linked in the webhook."""


def limit(monkeypatch: pytest.MonkeyPatch, policy: int, namespace: int) -> None:
    monkeypatch.setattr(
        linked_exceptions, "LINKED_EXCEPTIONS_OF_POLICY_BYTES_MAX", policy
    )
    monkeypatch.setattr(linked_exceptions, "LINKED_EXCEPTIONS_BYTES_MAX", namespace)


def of_namespace(one: dict[str, Any], namespace: str) -> dict[str, Any]:
    return {**one, "metadata": {**one["metadata"], "namespace": namespace}}


def sizes(found: PolicySet) -> dict[str, int]:
    """Return the memory of the exceptions that are published, by key."""
    total: dict[str, int] = {}
    for encoded in (*found.encoded, *(p for all_ in found.cel.values() for p in all_)):
        for key, size in encoded.exceptions:
            total[key] = total.get(key, 0) + size
    return total


def in_records(encoded: EncodedPolicy) -> set[str]:
    content = memoryview(encoded.content)
    records = (
        msgspec.msgpack.decode(part_of(content, number), type=RuleIR)
        for number in range(1, count_of(content))
    )
    return {one.key for record in records for one in record.exceptions}


@pytest.mark.parametrize("kind", SERVED)
def test_large_exceptions_exempt_nothing(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, 100 * KIB, 200 * KIB)
    if kind == "ClusterPolicy":
        given = [CLUSTER_POLICY, exception("large", LARGE), exception("small", 1)]
    else:
        large = " || ".join(["object.a == 'b'"] * 100)
        given = [
            of_cel(kind),
            cel_exception(kind, "large", *[large] * 4),
            cel_exception(kind, "small", "object.a == 'b'"),
        ]
    found = new_store(*given)
    (status,) = found.policies
    assert (status.ready, status.large_exceptions) == (True, 1)
    assert "PolicyException tenant/large is ignored" in status.message
    assert "[exception.too_large]" in status.message
    assert sizes(found).keys() == {"tenant/small"}
    gauges = measure(
        [],
        Status(policies=found.policies),
        Pod(supervisor=None, is_ready=True, certificate_ends_s=0, policies_heard_ns=0),
        now_ns=0,
        rule_series_max=1,
        queues={},
    )
    assert gauges[LARGE_EXCEPTIONS] == {(): 1}


def test_the_exceptions_of_a_namespace_share_a_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of many policies together, and of no other namespace."""
    limit(monkeypatch, 500 * KIB, 1000 * KIB)
    policies, exceptions = [], []
    for number in range(10):
        name = f"p{number}"
        policies.append({**CLUSTER_POLICY, "metadata": {"name": name}})
        for namespace, count in (("greedy", 15), ("modest", 1)):
            one = of_namespace(exception(f"x{number}", count), namespace)
            one["spec"]["exceptions"] = [{"policyName": name, "ruleNames": ["r"]}]
            exceptions.append(one)
    found = new_store(*policies, *exceptions)
    kept = sizes(found)
    assert {f"modest/x{number}" for number in range(10)} <= kept.keys()
    greedy = sum(size for key, size in kept.items() if key.startswith("greedy/"))
    assert 500 * KIB < greedy <= 1000 * KIB
    # In the order of names, as they are equally large.
    kept_of_greedy = sorted(key for key in kept if key.startswith("greedy/"))
    assert kept_of_greedy == [f"greedy/x{n}" for n in range(len(kept_of_greedy))]
    assert all(
        in_records(encoded) == {key for key, _ in encoded.exceptions}
        for encoded in found.encoded
    )


def test_each_rule_named_by_an_exception_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wide = exception("wide", 1)
    wide["spec"]["exceptions"][0]["ruleNames"] = ["*"]
    rules = [{**RULE, "name": f"r{at}"} for at in range(20)]
    policy = {**CLUSTER_POLICY, "spec": {"rules": rules}}
    one, many = (
        sizes(new_store(policy, document))["tenant/wide"]
        for document in (
            {
                **wide,
                "spec": {
                    **wide["spec"],
                    "exceptions": [{"policyName": "team", "ruleNames": ["r1"]}],
                },
            },
            wide,
        )
    )
    # Rules of Pods are also rules of Pod controllers and of CronJobs.
    assert many == 3 * 20 * one


def test_exception_of_another_namespace_causes_no_rule_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The policy of a tenant is as large as its author wrote it."""
    monkeypatch.setattr(linked_memory, "LINKED_POLICY_BYTES_MAX", 500 * KIB)
    policy = {
        **CLUSTER_POLICY,
        "kind": "Policy",
        "metadata": {"name": "team", "namespace": "default"},
    }
    large = exception("large", LARGE)
    large["spec"]["exceptions"][0]["policyName"] = "default/team"
    found = new_store(policy, large)
    (status,) = found.policies
    assert (status.ready, status.code) == (True, "")
    assert sizes(found)["tenant/large"] > 500 * KIB


def test_dropped_exception_admits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    one = exception("large", 1)
    del one["spec"]["conditions"]
    pattern = {"metadata": {"name": "no"}}
    body = {"failureAction": "Enforce", "pattern": pattern}
    policy = {**CLUSTER_POLICY, "spec": {"rules": [{**RULE, "validate": body}]}}
    assert asked(new_store(policy, one), monkeypatch)["allowed"]
    limit(monkeypatch, 1 * KIB, 1 * KIB)
    assert not asked(new_store(policy, one), monkeypatch)["allowed"]


def test_freed_budget_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 400 * KIB, 400 * KIB)
    store = PolicyStore(lambda _namespace: True)
    documents = [CLUSTER_POLICY, exception("a", 15), exception("b", 16)]
    files = {f"{at}": json.dumps(one).encode() for at, one in enumerate(documents)}
    (status,) = store.update(Changes(files, ())).policies
    assert status.large_exceptions == 1
    found = store.update(Changes({}, ("1",)))
    assert (found.policies[0].large_exceptions, *sizes(found)) == (0, "tenant/b")

"""The linked policies of a namespace fit into its memory budget.

A failure means: a tenant uses up the memory of every worker; or a policy beyond the
budget allows requests that it denied, or disables other users' policies.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from kyverno_mp.compiler.linked_size import linked_bytes
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.ir.cel_policies import MutatingPolicyIR
from kyverno_mp.ir.image_policies import ImageValidatingPolicyIR
from kyverno_mp.ir.index import EncodedPolicy, part_of
from kyverno_mp.ir.validating_policy import ValidatingPolicyIR
from kyverno_mp.leader.documents import linked_memory
from kyverno_mp.leader.folder import Changes
from kyverno_mp.leader.policy_segments import names_of
from kyverno_mp.leader.policy_set import PolicySet
from kyverno_mp.leader.policy_store import PolicyStore
from kyverno_mp.leader.status import PolicyStatus
from kyverno_mp.limits import (
    LINKED_NAMESPACE_BYTES_MAX,
    LINKED_POLICY_BYTES_MAX,
    UNLINKED_POLICY_BYTES_MAX,
)
from kyverno_mp.program.cel_policies.mutate import LinkedMutatingPolicy
from kyverno_mp.program.context.cel_scope import Shared
from kyverno_mp.program.image_policies.evaluate import LinkedImagePolicy
from kyverno_mp.program.image_policies.scope import Images
from kyverno_mp.program.ports import CelPorts
from kyverno_mp.program.request import Request
from kyverno_mp.program.validating_policy.evaluate import LinkedValidatingPolicy
from kyverno_mp.program.validating_policy.scope import Facts
from kyverno_mp.snapshot.policies import POLICIES, PoliciesWriter, PolicySegment
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.webhook.attach.followed import knows
from tests.fuzz import bench
from tests.fuzz.bench import Bench
from tests.waiting import still_ns

CODE = "leader.linked_memory"
HALF = 6
"""The number of rules in LEAVES: four times as many exceed the budget of a policy."""
LEAVES = 200
ANY_POD = {"any": [{"resources": {"kinds": ["Pod"]}}]}


def leaves(count: int) -> dict[str, str]:
    return {f"k{number}": f">{number}" for number in range(count)}


def policy(
    name: str,
    namespace: str = "default",
    *,
    rules: int = 1,
    body: Any = None,
    **spec: Any,
) -> Any:
    if body is None:
        pattern = {"metadata": {"=(annotations)": leaves(LEAVES)}}
        body = {"validate": {"message": "m", "pattern": pattern}}
    given = [{"name": f"r{n}", "match": ANY_POD, **body} for n in range(rules)]
    autogen = {"pod-policies.kyverno.io/autogen-controllers": "none"}
    metadata = {"name": name, "annotations": autogen}
    if namespace:
        metadata["namespace"] = namespace
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "Policy" if namespace else "ClusterPolicy",
        "metadata": metadata,
        "spec": {"validationFailureAction": "Enforce", "rules": given, **spec},
    }


def stored(*documents: Any) -> PolicySet:
    text = "\n---\n".join(map(json.dumps, documents))
    store = PolicyStore(lambda _: True, has_background=True)
    return store.update(Changes({"x": text.encode()}, ()))


def codes(found: PolicySet) -> dict[str, str]:
    return {one.name: one.code for one in found.policies}


def asked(
    found: PolicySet,
    monkeypatch: pytest.MonkeyPatch,
    path: bytes = b"/validate/fail",
    namespace: str = "default",
) -> dict[str, Any]:
    """Review a Pod with the published policies."""
    content = PoliciesWriter().encode(found.encoded, generation=1, salt=bench.SALT)
    segment = PolicySegment(Segment.from_bytes(content, POLICIES))
    monkeypatch.setattr(bench, "segment_of", lambda _: segment)
    pod = bench.pod()
    pod["metadata"]["namespace"] = namespace
    return Bench("").ask(pod, path, namespace=namespace)


def test_policy_over_its_budget_is_an_error_where_it_matches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = {"validate": {"message": "m", "pattern": {"metadata": {"name": "x"}}}}
    found = stored(
        policy("large", rules=HALF * 4), policy("small", "other", body=small)
    )
    large, kept = found.policies
    assert (large.ready, large.code) == (False, CODE)
    assert "32 MiB; its rules are errors where they match" in large.message
    assert (kept.ready, kept.code) == (True, "")
    answer = asked(found, monkeypatch)
    assert not answer["allowed"]
    assert "is not evaluated" in answer["status"]["message"]
    assert asked(found, monkeypatch, namespace="other")["allowed"]


@pytest.mark.parametrize(
    ("failure_policy", "path"),
    [("Fail", b"/validate/fail"), ("Ignore", b"/validate/ignore")],
)
def test_failure_policy_applies(
    failure_policy: str, path: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, large = [
        asked(stored(one), monkeypatch, path)["allowed"]
        for one in (
            # This rule fails to evaluate, for comparison.
            policy(
                "p",
                body={
                    "validate": {
                        "message": "m",
                        "deny": {
                            "conditions": {
                                "all": [
                                    {
                                        "key": "{{ request.object.none }}",
                                        "operator": "Equals",
                                        "value": "x",
                                    }
                                ]
                            }
                        },
                    }
                },
                failurePolicy=failure_policy,
            ),
            policy("p", rules=HALF * 4, failurePolicy=failure_policy),
        )
    ]
    assert wanted == large


def test_policies_of_a_namespace_share_a_budget() -> None:
    given = [policy(f"p{n}", "a", rules=HALF * 2 + n) for n in range(6)]
    others = [policy("q", "b", rules=HALF * 2), policy("c", "", rules=HALF * 4)]
    found = stored(*given, *others)
    # The namespace's largest policies are rejected; cluster policies are kept.
    refused = {name for name, code in codes(found).items() if code == CODE}
    assert refused
    assert refused < {"p3", "p4", "p5"}
    assert "p5" in refused
    assert len(found.encoded) == len(given) + len(others)
    sizes = [linked_bytes(one) for one in found.encoded if one.key.startswith("a/")]
    most = LINKED_NAMESPACE_BYTES_MAX + len(given) * UNLINKED_POLICY_BYTES_MAX
    assert sum(sizes) <= most
    assert sum(sizes) > LINKED_NAMESPACE_BYTES_MAX - LINKED_POLICY_BYTES_MAX


def test_stubs_of_many_small_policies_share_a_budget_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(linked_memory, "LINKED_NAMESPACE_BYTES_MAX", 0)
    small = {"validate": {"message": "m", "pattern": {"metadata": {"name": "?*"}}}}
    given = [policy(f"p{n}", body=small) for n in range(20)]
    # The first of those beyond the budget denies nothing when it fails.
    ignored = policy("p04", body=small, failurePolicy="Ignore")
    elsewhere = policy("p", "other", body=small)
    size = linked_bytes(stored(given[0]).encoded[0])
    monkeypatch.setattr(linked_memory, "UNLINKED_NAMESPACE_BYTES_MAX", 4 * size)
    found = stored(*given, ignored, elsewhere)
    assert set(codes(found).values()) == {CODE}
    assert len(found.encoded) == 4 + 1 + 1
    assert "too many such policies" in found.policies[-2].message
    for path in (b"/validate/fail", b"/mutate/fail"):
        answer = asked(found, monkeypatch, path)
        assert not answer["allowed"]
        assert "is not evaluated" in answer["status"]["message"]
    assert asked(found, monkeypatch, namespace="third")["allowed"]
    # An object of a kind that only policies beyond the budget match is not admitted.
    for one in given:
        one["spec"]["rules"][0]["match"] = {
            "any": [{"resources": {"kinds": ["Secret"]}}]
        }
    late = policy("z", rules=2, body=small)
    found = stored(*given, late)
    assert len(found.encoded) <= 4 + 1
    assert not asked(found, monkeypatch)["allowed"]


OWN_PATH = {"matchConditions": [{"name": "x", "expression": "true"}]}
OWN: dict[str, Any] = {"webhookConfiguration": OWN_PATH}
GENERATE = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "name": "c",
    "namespace": "default",
    "data": {"data": leaves(LEAVES)},
}
NEVER = {"validate": {"message": "m", "pattern": {"metadata": {"name": "never"}}}}
OF_NAMESPACE = [{"action": "Audit", "namespaces": ["default"]}]


@pytest.mark.parametrize(
    "spec",
    [
        {"validationFailureAction": "Audit"},
        {"validationFailureActionOverrides": OF_NAMESPACE},
        {"admission": False},
        {"applyRules": "One"},
        {"webhookConfiguration": OWN_PATH},
        {"body": {"validate": {**NEVER["validate"], "failureAction": "Audit"}}},
    ],
    ids=lambda spec: next(iter(spec)),
)
@pytest.mark.parametrize("rules", [1, 3])
def test_settings_of_one_policy_do_not_weaken_the_stub_of_all(
    spec: dict[str, Any], rules: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linked_memory, "LINKED_NAMESPACE_BYTES_MAX", 0)
    monkeypatch.setattr(linked_memory, "UNLINKED_NAMESPACE_BYTES_MAX", -1)
    # Policies are sorted by size, then by name.
    first = policy("a0", **{"body": NEVER, **spec})
    others = [policy(f"p{n}", rules=rules, body=NEVER) for n in range(3)]
    found = stored(first, *others)
    assert len(found.encoded) == 1
    for path in (b"/validate/fail", b"/mutate/fail"):
        answer = asked(found, monkeypatch, path)
        assert not answer["allowed"]
        assert "is not evaluated" in answer["status"]["message"]


def test_policies_that_only_audit_have_no_stub_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(linked_memory, "LINKED_NAMESPACE_BYTES_MAX", 0)
    monkeypatch.setattr(linked_memory, "UNLINKED_NAMESPACE_BYTES_MAX", -1)
    audits: dict[str, Any] = {"body": NEVER, "validationFailureAction": "Audit"}
    found = stored(policy("p", **audits), policy("own", **audits, **OWN))
    assert not found.encoded
    assert names_of(found) == ["default/own", "default/p"]


@pytest.mark.parametrize(
    ("body", "is_missed"),
    [(NEVER, True), ({"generate": GENERATE}, False)],
    ids=["validate", "generate"],
)
def test_paths_of_policies_beyond_the_memory_of_stubs_fail(
    body: Any, *, is_missed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [policy("p", body=NEVER), policy("own", rules=2, body=body, **OWN)]
    asked_for: set[str] = set()

    def is_known() -> bool:
        found = stored(*given)
        content = PoliciesWriter().encode(
            found.encoded, generation=1, salt=bench.SALT, names=names_of(found)
        )
        segment = PolicySegment(Segment.from_bytes(content, POLICIES))
        return knows(segment, asked_for, "default/own")

    assert is_known()
    monkeypatch.setattr(linked_memory, "LINKED_NAMESPACE_BYTES_MAX", 0)
    assert is_known()
    monkeypatch.setattr(linked_memory, "UNLINKED_NAMESPACE_BYTES_MAX", -1)
    # The worker asked for it before.
    assert is_known() is not is_missed


@pytest.mark.parametrize("failing", [0, 1])
def test_merged_rules_deny_if_one_of_them_would(
    failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = policy("p", rules=HALF * 4, validationFailureAction="Audit")
    for number, rule in enumerate(given["spec"]["rules"]):
        names = [f"n{number}-{n}*?" for n in range(400)] + ["*"]
        rule["match"] = {"any": [{"resources": {"kinds": ["Pod"], "names": names}}]}
        enforces = number == 0 and failing
        action = "Enforce" if enforces else "Audit"
        rule["validate"] = {**rule["validate"], "failureAction": action}
    found = stored(given)
    assert codes(found) == {"p": CODE}
    assert asked(found, monkeypatch)["allowed"] is not bool(failing)


def test_freed_budget_is_used() -> None:
    store = PolicyStore(lambda _: True)
    files = {
        f"p{n}": json.dumps(policy(f"p{n}", "a", rules=HALF * 2)).encode()
        for n in range(7)
    }
    assert CODE in codes(store.update(Changes(files, ()))).values()
    assert set(codes(store.update(Changes({}, ("p0", "p1")))).values()) == {""}


def test_match_blocks_over_the_budget_match_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = policy("p", rules=HALF * 4)
    for number, rule in enumerate(given["spec"]["rules"]):
        names = [f"n{number}-{n}*?" for n in range(400)]
        rule["match"] = {"any": [{"resources": {"kinds": ["Pod"], "names": names}}]}
    found = stored(given)
    assert codes(found) == {"p": CODE}
    assert linked_bytes(found.encoded[0]) <= UNLINKED_POLICY_BYTES_MAX
    assert not asked(found, monkeypatch)["allowed"]


MUTATION = {"patchStrategicMerge": {"metadata": {"annotations": leaves(LEAVES)}}}
KEYS = {"entries": [{"keys": {"kms": "k"}}] * 40}
IMAGES = [
    {"imageReferences": [f"a{n}/{m}*" for m in range(100)], "attestors": [KEYS]}
    for n in range(8)
]


@pytest.mark.parametrize(
    ("body", "rules", "path"),
    [
        ({"mutate": MUTATION}, 80, b"/mutate/fail"),
        ({"verifyImages": IMAGES}, 40, b"/mutate/fail"),
    ],
)
def test_mutate_rules_are_errors_too(
    body: Any, rules: int, path: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = stored(policy("p", rules=rules, body=body))
    assert codes(found) == {"p": CODE}
    answer = asked(found, monkeypatch, path)
    assert not answer["allowed"]
    assert "is not evaluated" in answer["status"]["message"]


RULES = {
    "resourceRules": [
        {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE"],
            "resources": ["configmaps"],
        }
    ]
}


def in_cel(kind: str, namespace: str = "default", **spec: Any) -> Any:
    return {
        "apiVersion": "policies.kyverno.io/v1beta1",
        "kind": kind,
        "metadata": {"name": "p", "namespace": namespace},
        "spec": {"matchConstraints": RULES, **spec},
    }


def many(count: int) -> Sequence[str]:
    """Return expressions that are true for all objects."""
    given = ", ".join(map(str, range(100)))
    return [f"{number} in [{given}] || has(object.a)" for number in range(count)]


PATCHES = [
    {
        "patchType": "JSONPatch",
        "jsonPatch": {
            "expression": f"{text} ? [JSONPatch{{op: 'remove', path: '/x'}}] : []"
        },
    }
    for text in many(8)
]
OF_CEL = [
    in_cel(
        "NamespacedValidatingPolicy", validations=[{"expression": t} for t in many(8)]
    ),
    in_cel("NamespacedMutatingPolicy", mutations=PATCHES),
    in_cel(
        "NamespacedImageValidatingPolicy",
        attestors=[],
        matchImageReferences=[{"glob": "*"}],
        validations=[{"expression": t} for t in many(8)],
    ),
]


@pytest.mark.parametrize("document", OF_CEL, ids=lambda one: str(one["kind"]))
def test_cel_policies_are_errors_too(
    document: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An expression for the real budget would be too costly to compile.
    monkeypatch.setattr(linked_memory, "LINKED_POLICY_BYTES_MAX", 512 * 1024)
    found = stored(document)
    assert codes(found) == {"p": CODE}
    ((encoded,),) = found.cel.values()
    assert linked_bytes(encoded) <= UNLINKED_POLICY_BYTES_MAX
    (status, text), *_ = results(document["kind"], encoded)
    assert status == "error"
    assert "is not evaluated" in text


def results(kind: str, encoded: EncodedPolicy) -> list[tuple[str, str]]:
    raw = part_of(memoryview(encoded.content), 0)
    place = {"group": "", "version": "v1", "resource": "configmaps"}
    request = Request(
        version="v1",
        kind="ConfigMap",
        namespace="default",
        name="x",
        object={"metadata": {"name": "x", "namespace": "default"}},
        review_request={"resource": place},
    )
    runtime = Runtime(now=lambda: datetime.now(UTC), monotonic_ns=still_ns)
    facts = Facts(request, runtime, CelPorts())
    answers: Any
    if "Mutating" in kind:
        mutating = LinkedMutatingPolicy(
            msgspec.msgpack.decode(raw, type=MutatingPolicyIR)
        )
        answers = mutating.evaluate(facts, Shared(request))
    elif "Image" in kind:
        images = LinkedImagePolicy(
            msgspec.msgpack.decode(raw, type=ImageValidatingPolicyIR)
        )
        answers = images.evaluate(facts, Shared(request), Images(None))
    else:
        validating = LinkedValidatingPolicy(
            msgspec.msgpack.decode(raw, type=ValidatingPolicyIR)
        )
        answers = validating.evaluate(facts, Shared(request))
    return [(one.result.status, one.result.message) for one in answers if one.result]


def test_oversized_policy_without_admission_rules_is_omitted() -> None:
    found = stored(policy("p", rules=200, body={"generate": GENERATE}))
    assert codes(found) == {"p": CODE}
    assert found.encoded == ()


def test_status_of_an_earlier_version_is_kept() -> None:
    store = PolicyStore(lambda _: True)
    large = json.dumps(policy("p", rules=HALF * 4)).encode()
    store.update(Changes({"x": large}, ()))
    broken = policy("p", body={"validate": {"patern": {}}})
    (status,) = store.update(Changes({"x": json.dumps(broken).encode()}, ())).policies
    assert isinstance(status, PolicyStatus)
    assert status.code == CODE
    assert "patern" in status.message

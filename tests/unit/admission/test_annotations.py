"""The API server's audit log says which policies decided, and never what an object has.

A failure means: an audit log cannot say why a request was denied, or holds values that
its readers may not see.
"""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kyverno_mp.admission.annotations import ALL, DECISIONS, OFF, annotations_of
from kyverno_mp.admission.encode import allowed, denied, patched
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.limits import AUDIT_ANNOTATION_CHARACTERS_MAX
from kyverno_mp.program.result import PolicyResponse, RuleResult, SharedResponses
from tests.unit.webhook.cel.test_cel_worker import Service

SECRET = "a value of the object"


def response(
    name: str, *results: tuple[str, str], namespace: str = "", **more: Any
) -> PolicyResponse:
    policy = PolicyIR(kind="ClusterPolicy", name=name, namespace=namespace)
    found = [
        RuleResult(rule, "Validation", status, SECRET, **more)
        for rule, status in results
    ]
    return PolicyResponse(policy, found, "Enforce", passed=("fast",))


RESPONSES = [
    response("labels", ("team", "fail"), ("cost", "pass"), ("old", "skip")),
    response("own", ("image", "error"), namespace="shop"),
    response("cel", ("", "fail"), properties={"key": SECRET}),
    response("excused", ("r", "skip"), exceptions=("shop/legacy",)),
    response("excused-too", ("r", "skip"), exceptions=("shop/legacy", "ops/night")),
]
FAILED = "labels/team=fail, shop/own/image=error, cel=fail"


@pytest.mark.parametrize(
    ("amount", "code", "expected"),
    [
        (OFF, "webhook.deadline", {}),
        (
            DECISIONS,
            "",
            {"policies": FAILED, "exceptions": "shop/legacy, ops/night"},
        ),
        (
            DECISIONS,
            "webhook.deadline",
            {
                "policies": FAILED,
                "exceptions": "shop/legacy, ops/night",
                "error": "webhook.deadline",
            },
        ),
    ],
)
@pytest.mark.parametrize("shared", [False, True])
def test_failures_exceptions_and_errors_are_named(
    amount: str, code: str, expected: dict[str, str], *, shared: bool
) -> None:
    responses = SharedResponses(RESPONSES) if shared else RESPONSES
    for _ in range(2):
        assert annotations_of(responses, amount, code) == expected


def test_passes_are_named_on_request() -> None:
    found = annotations_of(RESPONSES[:1], ALL)
    assert found == {"policies": "labels/fast=pass, labels/team=fail, labels/cost=pass"}
    assert annotations_of([response("p", ("r", "pass"))], DECISIONS) == {}


@given(
    st.lists(st.text(max_size=80), max_size=60),
    st.sampled_from([DECISIONS, ALL]),
)
def test_values_are_bounded_printable_and_without_messages(
    rules: list[str], amount: str
) -> None:
    found = annotations_of([response("p", *((rule, "fail") for rule in rules))], amount)
    for value in found.values():
        assert len(value) <= AUDIT_ANNOTATION_CHARACTERS_MAX
        assert value.isprintable()
    if not any(SECRET in rule for rule in rules):
        assert SECRET not in str(found)


def test_all_answers_carry_them() -> None:
    told = {"policies": "p/r=fail"}
    for answer in (
        allowed("u", (), told),
        allowed("u", ["careful"], told),
        denied("u", "no", ["careful"], told),
        patched("u", [{"op": "remove", "path": "/a"}], (), told),
    ):
        assert json.loads(answer)["response"]["auditAnnotations"] == told
    for answer in (allowed("u"), denied("u", "no"), patched("u", [])):
        assert "auditAnnotations" not in json.loads(answer)["response"]


@pytest.fixture
def service(tmp_path: Any) -> Any:
    made = Service(tmp_path)
    yield made
    made.close()


def test_a_service_tells_unless_it_is_turned_off(service: Service) -> None:
    """By default, a denial names its policy."""
    service.put(CEL, LEGACY)
    service.start()
    for path, named in (("/vpol/cel", "cel=fail"), ("/validate/fail", "legacy/r=fail")):
        answer = service.answer(path)
        assert not answer["allowed"]
        assert answer["auditAnnotations"] == {"policies": named}


CEL = {
    "apiVersion": "policies.kyverno.io/v1",
    "kind": "ValidatingPolicy",
    "metadata": {"name": "cel"},
    "spec": {
        "matchConstraints": {
            "resourceRules": [
                {
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "operations": ["CREATE"],
                    "resources": ["pods"],
                }
            ]
        },
        "validations": [{"expression": "false", "message": "no"}],
    },
}
LEGACY = {
    "apiVersion": "kyverno.io/v1",
    "kind": "ClusterPolicy",
    "metadata": {"name": "legacy"},
    "spec": {
        "rules": [
            {
                "name": "r",
                "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
                "validate": {"failureAction": "Enforce", "message": "no", "deny": {}},
            }
        ]
    },
}

"""Answers and denial messages equal Kyverno's (docs/behaviour/controllers 2.2, 2.8)."""

import json

import pytest

from kyverno_mp.admission.denial import (
    blocks,
    denial,
    resource_name,
    verdict_of,
    warnings,
)
from kyverno_mp.admission.encode import allowed, denied
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse, RuleResult, SharedResponses

POD = Request(
    kind="Pod", namespace="default", object={"metadata": {"name": "web"}}, uid="u"
)


def response(
    name: str = "p",
    *statuses: str,
    action: str = "Enforce",
    failure_policy: str = "Fail",
    namespace: str = "",
) -> PolicyResponse:
    policy = PolicyIR(
        kind="ClusterPolicy",
        name=name,
        namespace=namespace,
        failure_policy=failure_policy,
    )
    results = [
        RuleResult(f"r{number}", "Validation", status, f"message: {number}")
        for number, status in enumerate(statuses)
    ]
    return PolicyResponse(policy, results, action=action)


def test_allowed_answer_has_only_required_fields() -> None:
    assert json.loads(allowed('u"1')) == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": 'u"1', "allowed": True},
    }


def test_warnings_are_returned() -> None:
    answer = json.loads(allowed("u", ["one", "zwei ü"]))["response"]
    assert answer == {"uid": "u", "allowed": True, "warnings": ["one", "zwei ü"]}


def test_denial_has_a_message_and_no_code() -> None:
    """A kubectl user is shown the message in this place, as in the recorded webhook."""
    assert json.loads(denied("u", "\n\nno"))["response"] == {
        "uid": "u",
        "allowed": False,
        "status": {"metadata": {}, "status": "Failure", "message": "\n\nno"},
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (response("p"), False),
        (response("p", "fail"), True),
        (response("p", "fail", action="Audit"), False),
        (response("p", "error"), True),
        (response("p", "error", action="Audit"), True),
        (response("p", "error", failure_policy="Ignore"), False),
        (response("p", "fail", failure_policy="Ignore"), True),
        (response("p", "skip", "pass", "warning"), False),
    ],
)
def test_block_decision(given: PolicyResponse, expected: bool) -> None:  # noqa: FBT001 - a table
    assert blocks(given) is expected


def test_denial_text() -> None:
    """Passed and skipped rules are not named; audit failures are (2.8)."""
    given = [
        response("b", "pass", "fail", "skip", "error"),
        response("a", "fail", action="Audit"),
        response("c", "pass"),
    ]
    text = denial(POD, verdict_of(given).denied)
    assert text == (
        "\n\nresource Pod/default/web was blocked due to the following policies \n\n"
        "a:\n  r0: 'message: 0'\nb:\n  r1: 'message: 1'\n  r3: 'message: 3'\n"
    )


def test_verdicts_on_shared_responses() -> None:
    """Shared responses have a verdict of their own, which is computed once."""
    passed = SharedResponses([response("p", "pass")])
    failed = SharedResponses([response("p", "fail")])
    assert not verdict_of(passed).denied
    assert verdict_of(failed).denied == "p:\n  r0: 'message: 0'\n"
    assert verdict_of(failed) is verdict_of(failed)


def test_policies_with_the_same_name_share_an_entry() -> None:
    """KYVERNO: the later policy's entry is kept (docs/behaviour/controllers 14.10)."""
    given = [response("p", "fail"), response("p", "pass", "fail", namespace="default")]
    text = denial(POD, verdict_of(given).denied)
    assert text.endswith("\n\np:\n  r1: 'message: 1'\n")


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (POD, "Pod/default/web"),
        (
            Request(
                kind="Namespace", namespace="x", object={"metadata": {"name": "x"}}
            ),
            "Namespace//x",
        ),
        (
            Request(
                kind="Pod",
                namespace="d",
                operation="DELETE",
                old_object={"metadata": {"name": "old"}},
            ),
            "Pod/d/old",
        ),
        (
            Request(
                kind="Pod", namespace="d", object={"metadata": {"generateName": "g-"}}
            ),
            "Pod/d/",
        ),
        (Request(kind="Pod", namespace="d", object={"metadata": 5}), "Pod/d/"),
    ],
)
def test_resource_name(request_: Request, expected: str) -> None:
    assert expected == resource_name(request_)


def test_warning_texts() -> None:
    assert warnings([response("p", "pass", "fail", "skip", "error", "warning")]) == [
        "policy p.r1: message: 1",
        "policy p.r3: message: 3",
        "policy p.r4: message: 4",
    ]

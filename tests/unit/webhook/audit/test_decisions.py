"""The log line of a decision: user, kind and policies, but no data of the object."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.telemetry.denials import DenialFile, last_denials
from kyverno_mp.webhook.decisions import on_policy_review, with_decisions
from kyverno_mp.webhook.http_errors import HttpError
from kyverno_mp.webhook.policy_review import PolicyReview, ReviewOptions
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.service import Service
from kyverno_mp.webhook.route import SHARED
from tests.unit.webhook.stub import (
    StubEvaluate,
    StubPlan,
    StubRecords,
    response,
    review,
)

SECRET_VALUE = "c2VjcmV0"


def service(which: str, plan: StubPlan | None) -> tuple[Service, StubRecords]:
    records = StubRecords()
    dependencies = Dependencies(
        records=with_decisions(records, which), monotonic_ns=lambda: 1
    )
    return Service(dependencies, handlers_of(StubEvaluate(plan))), records


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, Any]]]:
    return [
        (one.getMessage(), one.__dict__["fields"])
        for one in caplog.records
        if one.name == "kyverno_mp.webhook.decisions"
    ]


def test_disabled_decision_log_adds_nothing_to_a_review() -> None:
    """This guards the cost: the reviews get the record itself, without a wrapper."""
    records = StubRecords()
    assert with_decisions(records, "off") is records
    assert on_policy_review("off") is None


@pytest.mark.parametrize(
    ("which", "logged"),
    [
        ("off", []),
        ("denied", ["review denied"]),
        ("all", ["review allowed", "review denied"]),
    ],
)
def test_logged_decisions_are_configurable(
    which: str, logged: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for plan in (None, StubPlan(enforce=[response()])):
        asked, records = service(which, plan)
        asked.answer(SHARED[b"/validate/fail"], b"", review())
        assert len(records.reviews) == 1, "metrics count all the same"
    assert [text for text, _ in lines(caplog)] == logged


def test_line_has_user_object_policies_and_duration(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    asked, _ = service("denied", StubPlan(enforce=[response(message=SECRET_VALUE)]))
    body = review(
        kind={"group": "", "version": "v1", "kind": "Secret"},
        userInfo={"username": "ann", "groups": ["team"]},
        object={"metadata": {"name": "web"}, "data": {"password": SECRET_VALUE}},
    )
    asked.answer(SHARED[b"/validate/fail"], b"", body)
    ((_, found),) = lines(caplog)
    assert found["user"] == "ann"
    assert found["uid"] == "u-1"
    assert found["kind"] == "Secret"
    assert found["object"] == "default/web"
    assert found["operation"] == "CREATE"
    assert found["policies"] == found["failed"] == "p"
    assert found["ms"] >= 0
    assert SECRET_VALUE not in json.dumps(found)


def test_unreadable_review_is_logged_with_its_code(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    asked, _ = service("denied", None)
    with pytest.raises(HttpError):
        asked.answer(SHARED[b"/validate/fail"], b"", b"no review")
    ((text, found),) = lines(caplog)
    assert text == "unreadable review rejected"
    assert found["code"].startswith("admission.")


@pytest.mark.parametrize(("which", "count"), [("denied", 1), ("all", 2)])
def test_decisions_about_policies_are_logged(
    which: str, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    reviewer = PolicyReview(ReviewOptions(decided=on_policy_review(which)), lambda: 0.0)
    for raw in (
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "no-policy"}},
        {
            "apiVersion": "kyverno.io/v2",
            "kind": "PolicyException",
            "metadata": {"name": "e", "namespace": "ns"},
            "spec": {
                "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
                "exceptions": [{"policyName": "p", "ruleNames": ["r"]}],
            },
        },
    ):
        group, _, version = str(raw["apiVersion"]).rpartition("/")
        request = {
            "uid": "u",
            "operation": "CREATE",
            "kind": {"group": group, "version": version, "kind": raw["kind"]},
            "userInfo": {"username": "ann"},
            "object": raw,
        }
        path = "/exceptionvalidate"
        reviewer.answer(path, json.dumps({"request": request}).encode())
        # Anyone could have sent this one: its user is invented.
        request["userInfo"] = {"username": "eve"}
        body = json.dumps({"request": request}).encode()
        reviewer.answer(path, body, is_proved=False)
    found = lines(caplog)
    assert [text for text, _ in found] == ["review denied", "review allowed"][:count]
    assert {line["user"] for _, line in found} == {"ann"}
    assert {line["webhook"] for _, line in found} == {"exceptionvalidate"}


@pytest.mark.parametrize(("kind", "shown"), [("Pod", SECRET_VALUE), ("Secret", "")])
def test_the_dashboard_gets_denials_with_messages_of_other_kinds_than_secrets(
    tmp_path: Path, kind: str, shown: str
) -> None:
    denials = DenialFile(tmp_path / "webhook-0.page")
    records = StubRecords()
    dependencies = Dependencies(
        records=with_decisions(records, "off", denials), monotonic_ns=lambda: 1
    )
    plan = StubPlan(enforce=[response(message=SECRET_VALUE)])
    body = review(
        kind={"group": "", "version": "v1", "kind": kind},
        userInfo={"username": "ann"},
        object={"metadata": {"name": "web"}},
    )
    for evaluate in (StubEvaluate(None), StubEvaluate(plan)):
        asked = Service(dependencies, handlers_of(evaluate))
        asked.answer(SHARED[b"/validate/fail"], b"", body)
    assert len(records.reviews) == 2
    (denial,) = last_denials(tmp_path)
    assert (denial.kind, denial.user, denial.message) == (kind, "ann", shown)
    assert denial.rule == response().results[0].rule

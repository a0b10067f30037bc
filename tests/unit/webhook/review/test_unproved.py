"""A review without proof of its caller has the same answer, and no other effect."""

import json
from dataclasses import fields
from typing import Any

import pytest

from kyverno_mp.webhook.review.dependencies import Dependencies, without_effects
from tests.unit.webhook.review.test_service import FAIL, Bench
from tests.unit.webhook.stub import StubPlan, StubRecords, response, review

HARMLESS = {
    "monotonic_ns",
    "timeout_ns",
    "filters",
    "protection",
    "roles",
    "namespaces",
    "live_namespaces",
    "audit_annotations",
    "gradual",
    "background_user",
    "unproved_triggers",
    "slow_lane",
    "image_lane",
    "registries",
    "dry_run_lane",
    "long_lane",
    "long_evaluations",
    "top_kind",
}
"""What an evaluation needs, and what such reviews may have. Classify each new
dependency: here, or as an effect."""


def test_no_handler_can_reach_an_effect() -> None:
    everything: dict[str, Any] = {one.name: object() for one in fields(Dependencies)}
    dependencies = Dependencies(**everything)
    found = without_effects(dependencies)
    for one in fields(Dependencies):
        before, after = getattr(dependencies, one.name), getattr(found, one.name)
        if one.name in HARMLESS:
            assert after is before
        elif one.name == "triggers":
            assert after is dependencies.unproved_triggers
        elif one.name != "records":
            assert after is None, one.name


class Forbidden:
    """A port whose use fails the test."""

    records_successes = True

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was used")


@pytest.mark.parametrize(
    "plan",
    [
        None,
        StubPlan(),
        StubPlan(enforce=[response()]),
        StubPlan(enforce=[response("error", failure_policy="Ignore")]),
        StubPlan(audit=[response(action="Audit")]),
        StubPlan(warn=[response(action="Audit")]),
        RuntimeError("defect"),
    ],
)
def test_same_answer_and_no_effect(plan: StubPlan | Exception | None) -> None:
    proved = Bench(plan).ask()
    bench = Bench(
        plan, triggers=Forbidden(), results=Forbidden(), recording=Forbidden()
    )
    answer = bench.service.answer(FAIL, b"", review(), is_proved=False)
    assert isinstance(answer, bytes)
    assert json.loads(answer)["response"] == proved
    assert bench.records.reviews == []
    assert bench.records.errors[-1] == "webhook.unproved"
    assert bench.sink.told == []
    assert bench.audited() == []


def test_its_labels_reach_no_series() -> None:
    records = StubRecords()
    found = without_effects(Dependencies(records=records, monotonic_ns=lambda: 0))
    found.records.http("POST", "/invented", 1.0)
    assert records.errors == []

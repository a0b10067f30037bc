"""What a worker counts of a review: Kyverno's labels, one series an outcome."""

import json
from pathlib import Path

import pytest

from kyverno_mp.admission.decode import decode
from kyverno_mp.program.result import PolicyResponse
from kyverno_mp.telemetry.collect import merge, views
from kyverno_mp.telemetry.families import ADMISSION, HTTP, RESULTS
from kyverno_mp.telemetry.page import Page
from kyverno_mp.telemetry.record import Recorder
from kyverno_mp.webhook.records import PageRecords
from kyverno_mp.webhook.route import MUTATE, VALIDATE
from tests.unit.webhook.stub import response

REQUEST = {
    "uid": "u",
    "kind": {"group": "", "version": "v1", "kind": "Pod"},
    "resource": {"group": "", "version": "v1", "resource": "pods"},
    "namespace": "a",
    "operation": "CREATE",
    "userInfo": {"username": "me"},
    "object": {"metadata": {"name": "x"}},
}


@pytest.mark.parametrize(
    ("webhook", "configuration"),
    [
        (VALIDATE, "ValidatingWebhookConfiguration"),
        (MUTATE, "MutatingWebhookConfiguration"),
    ],
)
def test_labels_are_kyvernos(tmp_path: Path, webhook: str, configuration: str) -> None:
    records = PageRecords(Recorder(Page.claim(tmp_path, "webhook"), 100))
    request = decode(json.dumps({"request": REQUEST}).encode())
    both = PolicyResponse(response().policy, response().results, passed=("q",))
    for _ in range(2):
        records.review(request, webhook, [both], allowed=False, seconds=0.01)
    found = merge(views(tmp_path))
    assert set(found[ADMISSION]) == {("Pod", "a", "create", "false", configuration)}
    assert set(found[HTTP]) == {("POST", f"/{webhook}")}
    start = ("audit", "cluster", "true", "-", "p", "Pod", "a", "create")
    end = (webhook, "admission_request", "false")
    assert set(found[RESULTS]) == {
        (*start, "q", "pass", *end),
        (*start, "r", "fail", *end),
    }
    for family in (ADMISSION, HTTP, RESULTS):
        for cells in found[family].values():
            assert sum(cells[:-1]) == 2.0

"""The counts of a review: Kyverno's labels, one series per outcome."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kyverno_mp.admission.decode import decode
from kyverno_mp.program.result import (
    IMAGE_VERIFY,
    MUTATION,
    PolicyResponse,
    RuleResult,
)
from kyverno_mp.telemetry.collect import merge, views
from kyverno_mp.telemetry.families import ADMISSION, ERRORS, HTTP, RESULTS
from kyverno_mp.telemetry.page import Page
from kyverno_mp.telemetry.record import Recorder
from kyverno_mp.webhook.audit.metrics import PageRecords
from kyverno_mp.webhook.route import CEL_WEBHOOKS, MUTATE, VALIDATE
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


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("webhook", "configuration"),
    [
        (VALIDATE, "ValidatingWebhookConfiguration"),
        (MUTATE, "MutatingWebhookConfiguration"),
    ],
)
def test_labels_equal_kyvernos(
    tmp_path: Path, loop: asyncio.AbstractEventLoop, webhook: str, configuration: str
) -> None:
    recorder = Recorder(Page.claim(tmp_path, "webhook"), 100)
    records = PageRecords(recorder, loop)
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


def test_results_about_images_have_upstreams_type(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    """This includes the mutating webhook, which verifies them."""
    recorder = Recorder(Page.claim(tmp_path, "webhook"), 100)
    records = PageRecords(recorder, loop)
    request = decode(json.dumps({"request": REQUEST}).encode())
    policy = response().policy
    images = PolicyResponse(policy, [RuleResult("v", IMAGE_VERIFY, "pass", "")])
    changes = PolicyResponse(policy, [RuleResult("v", MUTATION, "pass", "")])
    for one in (images, changes):
        records.review(request, MUTATE, [one], allowed=True, seconds=0.01)
    types = {labels[10] for labels in merge(views(tmp_path))[RESULTS]}
    assert types == {"imageVerify", "mutate"}


def test_counts_of_threads_are_added_by_the_owner(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    """Two writers would share the cells of their series, and lose counts."""
    records = PageRecords(Recorder(Page.claim(tmp_path, "webhook"), 100), loop)
    request = decode(json.dumps({"request": REQUEST}).encode())

    def slow_review() -> None:
        records.review(request, VALIDATE, [response()], allowed=False, seconds=0.01)
        records.error("kube.deadline")

    thread = threading.Thread(target=slow_review)
    thread.start()
    thread.join()
    before = merge(views(tmp_path))
    assert not before.get(ADMISSION)
    assert not before.get(ERRORS)
    loop.call_soon(loop.stop)
    loop.run_forever()
    found = merge(views(tmp_path))
    assert len(found[ADMISSION]) == len(found[RESULTS]) == len(found[ERRORS]) == 1
    loop.close()
    records.review(request, VALIDATE, [], allowed=True, seconds=0.01)
    late = threading.Thread(target=slow_review)
    late.start()
    late.join()


@pytest.mark.parametrize("webhook", sorted({VALIDATE, MUTATE, *CEL_WEBHOOKS}))
def test_reviews_of_every_webhook_are_counted(
    tmp_path: Path, loop: asyncio.AbstractEventLoop, webhook: str
) -> None:
    """A webhook without counters answers every review with an internal error."""
    records = PageRecords(Recorder(Page.claim(tmp_path, "webhook"), 100), loop)
    request = decode(json.dumps({"request": REQUEST}).encode())
    records.review(request, webhook, [], allowed=True, seconds=0.01)
    assert len(merge(views(tmp_path))[ADMISSION]) == 1

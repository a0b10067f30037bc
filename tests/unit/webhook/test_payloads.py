"""``POST /json`` judges payloads by the policies in evaluation mode JSON.

A failure means: a pipeline takes the lack of a failure for a pass, although a policy
was not evaluated, or whoever reaches the port can hold a worker. Expected:
docs/behaviour/cli 8 (only policies in mode JSON get a payload), docs/authorizer.md.
"""

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.errors import DeadlinePassed
from kyverno_mp.leader.loop import PAGES, SNAPSHOT, Leader
from kyverno_mp.limits import JSON_DEPTH_MAX
from kyverno_mp.process.startup.certificate import make
from kyverno_mp.program.payloads import Judged
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.control import ControlPage
from kyverno_mp.snapshot.policies import POLICIES
from kyverno_mp.snapshot.publish import Publisher
from kyverno_mp.telemetry.collect import merge, views
from kyverno_mp.telemetry.families import JSON_PAYLOADS
from kyverno_mp.telemetry.page import Page
from kyverno_mp.telemetry.record import Recorder
from kyverno_mp.webhook.attach.places import Places
from kyverno_mp.webhook.authz import attach as authz
from kyverno_mp.webhook.authz import start as authz_start
from kyverno_mp.webhook.http.asgi import call_app
from kyverno_mp.webhook.payloads import JsonPayloads, Judge
from kyverno_mp.webhook.rest import make_app
from kyverno_mp.webhook.review.lanes import Lane
from kyverno_mp.webhook.start import make_start
from kyverno_mp.webhook.worker import Served
from tests.waiting import HANG_S, wait_on_loop

BIG = {"expression": "object.size < 10", "message": "too big"}
DENY = {"expression": 'http.Denied("no").Response()'}


def policy(
    name: str, *validations: dict[str, Any], mode: str = "JSON", **more: Any
) -> dict[str, Any]:
    return {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": more.pop("kind", "ValidatingPolicy"),
        "metadata": {"name": name},
        "spec": {
            "evaluation": {"mode": mode},
            "validations": list(validations or (BIG,)),
            **more,
        },
    }


class Worker:
    """A leader of a folder, and one worker of the webhook or of an authorizer."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        folder.chmod(0o700)
        self.policies = folder / "policies"
        for name in (self.policies, folder / SNAPSHOT, folder / PAGES, folder / "tls"):
            name.mkdir(mode=0o700)
        given = {"json_payloads": True, "webhook_timeout_s": HANG_S, **settings}
        self.settings = Settings(
            standalone=True, policies_dir=str(self.policies), **given
        )
        self.folder = folder
        recorder = Recorder(Page.claim(folder / PAGES, "leader"), 100)
        publisher = Publisher(folder / SNAPSHOT)
        self.leader = Leader(self.settings, folder, publisher, recorder)
        self.loop = asyncio.new_event_loop()
        self.served: Served | None = None

    def put(self, *documents: dict[str, Any]) -> None:
        text = "\n---\n".join(map(json.dumps, documents))
        (self.policies / "p.yaml").write_text(text)
        self.leader.step(force=True)
        while self.leader.has_pending:
            self.leader.step()

    def _start(self) -> Served:
        snapshot, pages = self.folder / SNAPSHOT, self.folder / PAGES
        if self.settings.authz_mode:
            places = authz.Places(snapshot, pages)
            return authz_start.make_start(self.settings, places, None)(self.loop)
        files = make(self.folder / "tls", "kyverno")
        webhook = Places(snapshot, pages, files.cert, files.key)
        return make_start(self.settings, webhook)(self.loop)

    def send(
        self, body: bytes, method: bytes = b"POST", path: bytes = b"/json"
    ) -> tuple[int, bytes]:
        if self.served is None:
            self.served = self._start()
        app = self.served.connections.app
        call = call_app(app, method, path, b"", [], body, is_proved=True)
        status, _, answer = self.loop.run_until_complete(asyncio.wait_for(call, HANG_S))
        return status, answer

    def report(self, payload: Any) -> dict[str, Any]:
        status, answer = self.send(json.dumps(payload).encode())
        report: dict[str, Any] = json.loads(answer)
        assert (status, report["kind"]) == (200, "ClusterReport")
        return report

    def results(self, payload: Any) -> dict[str, tuple[str, str]]:
        return {
            row["policy"]: (row["result"], row.get("message", ""))
            for row in self.report(payload)["results"]
        }

    def until(self, payload: Any, results: dict[str, tuple[str, str]]) -> None:
        """Wait until the worker has the newest policies."""
        self.wait(lambda: self.results(payload) == results)

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so, while the worker's event loop runs."""
        newest = self.leader.generation
        self.loop.run_until_complete(wait_on_loop(lambda: self._serves(newest)))
        assert condition()

    def _serves(self, generation: int) -> bool:
        (worker,) = ControlPage.open(self.folder / SNAPSHOT).workers()
        return worker.generations[POLICIES] == generation

    def close(self) -> None:
        if self.served is not None:
            self.served.stop(0)
        self.loop.close()


@pytest.fixture(params=["", "http"], ids=["webhook", "authorizer"])
def worker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Worker]:
    started = Worker(tmp_path, authz_mode=request.param)
    yield started
    started.close()


def test_a_report_has_the_result_of_each_policy(worker: Worker) -> None:
    named = {"expression": "has(object.name)", "message": "no name"}
    worker.put(policy("big"), policy("named", named))
    assert worker.results({"size": 10}) == {
        "big": ("fail", "too big"),
        "named": ("fail", "no name"),
    }
    assert worker.results({"size": 9, "name": "a"}) == {
        "big": ("pass", "success"),
        "named": ("pass", "success"),
    }


def test_summary_and_rows_are_upstreams(worker: Worker) -> None:
    """As ``apply --json --policy-report`` prints them."""
    worker.put(policy("big"), policy("unset", {"expression": "object.gone == 1"}))
    report = worker.report({"size": 10, "kind": "Plan"})
    assert report["apiVersion"] == "openreports.io/v1alpha1"
    assert report["metadata"] == {"name": "merged"}
    assert report["summary"] == {"pass": 0, "fail": 1, "warn": 0, "error": 1, "skip": 0}
    row = report["results"][0]
    assert row["source"] == "KyvernoValidatingPolicy"
    assert row["resources"] == [{"kind": "Plan"}]


def test_an_error_of_a_policy_is_in_the_report(worker: Worker) -> None:
    worker.put(policy("big"))
    message = "failed to load context: no such key: size"
    assert worker.results({}) == {"big": ("error", message)}


def test_a_policy_that_never_compiled_is_an_error(worker: Worker) -> None:
    worker.put(policy("big"), policy("broken", {"expression": "object.("}))
    results = worker.results({"size": 1})
    assert results["big"][0] == "pass"
    word, message = results["broken"]
    assert word == "error"
    assert "the policy broken does not compile" in message


def test_a_version_that_does_not_compile_leaves_the_last_one(worker: Worker) -> None:
    worker.put(policy("big"))
    assert worker.results({"size": 10})["big"][0] == "fail"
    worker.put(policy("big", {"expression": "object.("}), policy("other"))
    failed = ("fail", "too big")
    worker.until({"size": 10}, {"big": failed, "other": failed})


def test_changed_policies_are_followed(worker: Worker) -> None:
    worker.put(policy("big"))
    assert worker.results({"size": 10}) == {"big": ("fail", "too big")}
    worker.put(policy("small", {"expression": "object.size > 10", "message": "less"}))
    worker.until({"size": 10}, {"small": ("fail", "less")})


def test_policies_in_other_modes_judge_no_payload(worker: Worker) -> None:
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
    }
    constraints = {"resourceRules": [rule]}
    worker.put(
        policy("big"),
        policy("proxy", DENY, mode="HTTP"),
        policy("cluster", mode="Kubernetes", matchConstraints=constraints),
    )
    assert [*worker.results({"size": 1})] == ["big"]


def test_policies_on_payloads_authorize_nothing(tmp_path: Path) -> None:
    """Neither do they hide the policies that do."""
    worker = Worker(tmp_path, authz_mode="http", authz_nested_request=True)
    try:
        worker.put(policy("a"), policy("b", DENY, mode="HTTP"), policy("c"))
        wire = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
        assert worker.send(wire, path=b"/") == (403, b"no")
    finally:
        worker.close()


def test_the_webhook_also_judges_the_images_of_a_payload(tmp_path: Path) -> None:
    def images(name: str, expression: str) -> dict[str, Any]:
        return policy(
            name,
            {"expression": expression, "message": "has images"},
            kind="ImageValidatingPolicy",
            images=[{"name": "all", "expression": "object.images"}],
            matchImageReferences=[{"glob": "*"}],
            attestors=[{"name": "key", "cosign": {"key": {"data": "none"}}}],
        )

    worker = Worker(tmp_path)
    try:
        worker.put(images("empty", "size(images.all) == 0"), images("broken", "a.("))
        results = worker.results({"images": []})
        assert results["empty"][0] == "pass"
        assert results["broken"][0] == "error"
        assert "the policy broken does not compile" in results["broken"][1]
    finally:
        worker.close()


def test_a_file_that_was_never_read_is_an_error(worker: Worker) -> None:
    """Its policies are unknown, so their lack must not look like a pass."""
    broken = worker.policies / "broken.yaml"
    broken.write_text("{")
    worker.put(policy("big"))
    results = worker.results({"size": 1})
    assert results["big"][0] == "pass"
    word, message = results[str(broken)]
    assert word == "error"
    assert "a file with policies cannot be read" in message
    broken.unlink()
    worker.put(policy("big"))
    worker.until({"size": 1}, {"big": ("pass", "success")})


@pytest.mark.parametrize("mode", ["", "http"])
def test_it_is_off_by_default(tmp_path: Path, mode: str) -> None:
    assert not Settings().json_payloads
    worker = Worker(tmp_path, authz_mode=mode, json_payloads=False)
    try:
        worker.put(policy("big"))
        assert worker.send(b"{}")[0] == 404
    finally:
        worker.close()


def test_there_is_no_report_before_the_policies_are_loaded(worker: Worker) -> None:
    status, answer = worker.send(b"{}")
    assert (status, json.loads(answer)["code"]) == (503, "webhook.no_snapshot")


@pytest.mark.parametrize("method", [b"OPTIONS", b"GET", b"PUT"])
def test_other_methods_have_no_report(worker: Worker, method: bytes) -> None:
    worker.put(policy("big"))
    assert worker.send(b"{}", method)[0] == 405


_TOO_DEEP = JSON_DEPTH_MAX + 1


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "admission.empty"),
        (b"{", 400, "admission.not_json"),
        (b"[]", 400, "admission.not_json"),
        (b"[" * _TOO_DEEP + b"]" * _TOO_DEEP, 400, "admission.too_deep"),
        (b'{"a":[' + b"{}," * 4_000_000 + b"{}]}", 413, "admission.too_large"),
    ],
    ids=["empty", "cut", "list", "deep", "heavy"],
)
def test_the_limits_of_a_review_apply(
    worker: Worker, body: bytes, status: int, code: str
) -> None:
    worker.put(policy("big"))
    answered, answer = worker.send(body)
    assert (answered, json.loads(answer)["code"]) == (status, code)


def test_outcomes_are_counted(worker: Worker) -> None:
    worker.put(policy("big"))
    for body in (b'{"size": 1}', b'{"size": 10}', b"{}", b"[]"):
        worker.send(body)
    counted = merge(views(worker.folder / PAGES))[JSON_PAYLOADS]
    outcomes = sorted(outcome for (outcome,) in counted)
    assert outcomes == ["error", "fail", "pass", "refused"]


class Rig:
    """The resource with a judge of the test, one thread and one place to wait."""

    def __init__(self, judge: Judge, now_ns: int = 0) -> None:
        """``now_ns``: the lane's time; late enough, it is past every deadline."""
        self.judge = judge
        self.now_ns = now_ns
        self.outcomes: list[str] = []
        self.codes: list[str] = []

    async def send(self, count: int, then: Callable[[], None]) -> list[tuple[int, Any]]:
        """Send payloads, and call ``then`` after the first answer."""
        lane = Lane(asyncio.get_running_loop(), 1, 1, lambda: self.now_ns)
        resource = JsonPayloads(
            lane,
            self.judge,
            int(HANG_S * 1e9),
            lambda outcome, _seconds: self.outcomes.append(outcome),
            self.codes.append,
        )
        app = make_app(lambda: True, payloads=resource)
        calls = [
            asyncio.ensure_future(
                call_app(app, b"POST", b"/json", b"", [], b"{}", is_proved=True)
            )
            for _ in range(count)
        ]
        await asyncio.wait(calls, return_when="FIRST_COMPLETED", timeout=HANG_S)
        then()
        answers = await asyncio.wait_for(asyncio.gather(*calls), HANG_S)
        lane.stop()
        return [(status, json.loads(body)) for status, _, body in answers]


class Slow:
    """A judge that ends when it is told to."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def judge(self, *_facts: Any) -> list[Judged]:
        assert self.released.wait(HANG_S)
        return []


def test_too_many_payloads_are_refused() -> None:
    """One runs, one waits; the third has an answer while the first still runs."""
    slow = Slow()
    rig = Rig(slow.judge)
    answers = asyncio.run(rig.send(3, slow.released.set))
    assert sorted(status for status, _ in answers) == [200, 200, 503]
    assert rig.codes == ["webhook.slow_lane_full"]


def test_a_late_payload_has_no_report() -> None:
    slow = Slow()
    rig = Rig(slow.judge, now_ns=1 << 62)
    ((status, answer),) = asyncio.run(rig.send(1, slow.released.set))
    assert (status, answer["code"]) == (503, "webhook.deadline")
    assert rig.outcomes == ["refused"]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (DeadlinePassed("webhook.deadline", "late"), 503, "webhook.deadline"),
        (ValueError("the secret"), 500, "webhook.defect"),
    ],
)
def test_an_error_is_no_report(error: Exception, status: int, code: str) -> None:
    """The text of an internal error could quote the payload."""

    def judge(*_facts: Any) -> list[Judged]:
        raise error

    ((answered, answer),) = asyncio.run(Rig(judge).send(1, lambda: None))
    assert (answered, answer["code"]) == (status, code)
    assert "secret" not in answer["message"]


class TestUnreadableFiles:
    """The policies in such a file could deny every request."""

    @pytest.fixture
    def worker(self, tmp_path: Path) -> Iterator[Worker]:
        started = Worker(
            tmp_path, authz_mode="http", authz_nested_request=True, json_payloads=False
        )
        yield started
        started.close()

    @staticmethod
    def status(worker: Worker) -> int:
        wire = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
        return worker.send(wire, path=b"/")[0]

    @staticmethod
    def until(worker: Worker, status: int) -> None:
        worker.wait(lambda: TestUnreadableFiles.status(worker) == status)

    def test_every_request_is_an_error_until_it_is_repaired(
        self, worker: Worker
    ) -> None:
        allow = {"expression": "http.Allowed().Response()"}
        broken = worker.policies / "z.yaml"
        broken.write_text("{")
        worker.put(policy("a", allow, mode="HTTP"))
        assert self.status(worker) == 500
        broken.write_text(json.dumps(policy("z", allow, mode="HTTP")))
        worker.put(policy("a", allow, mode="HTTP"))
        self.until(worker, 200)
        # A later version that cannot be read leaves the last one in force.
        broken.write_text("{")
        worker.put(policy("a", DENY, mode="HTTP"))
        self.until(worker, 403)

    def test_an_input_that_cannot_be_opened_counts_too(self, worker: Worker) -> None:
        """As a file without permission does; and although no other file changes."""
        allow = {"expression": "http.Allowed().Response()"}
        worker.put(policy("a", allow, mode="HTTP"))
        assert self.status(worker) == 200
        pipe = worker.policies / "pipe.yaml"
        os.mkfifo(pipe)
        worker.leader.step()
        self.until(worker, 500)
        pipe.unlink()
        worker.leader.step()
        self.until(worker, 200)

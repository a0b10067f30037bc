"""Ctrl-C and SIGTERM end the service in order: exit code 0, and no false alarm."""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.faults.service import Service, pod, require_label, write_whole
from tests.faults.started import ROOT
from tests.waiting import HANG_S, wait_for

pytestmark = pytest.mark.slow


def started(
    tmp_path: Path, *flags: str, variables: Mapping[str, str] | None = None
) -> Service:
    (tmp_path / "policies").mkdir()
    write_whole(tmp_path / "policies" / "a.yaml", require_label("a", "app"))
    # The end of its interpreter is tested too.
    return Service(tmp_path, *flags, variables=variables, tree=ROOT)


def _ctrl_c(service: Service) -> None:
    """A terminal sends SIGINT to every process of its foreground group."""
    os.killpg(service.process.pid, signal.SIGINT)


def _term_all(service: Service) -> None:
    os.killpg(service.process.pid, signal.SIGTERM)


def _term(service: Service) -> None:
    service.process.send_signal(signal.SIGTERM)


@pytest.mark.parametrize("end", [_ctrl_c, _term_all, _term])
@pytest.mark.parametrize("form", ["json", "text"])
def test_shutdown_is_orderly(
    tmp_path: Path, end: Callable[[Service], None], form: str
) -> None:
    service = started(tmp_path, "--log-format", form)
    with contextlib.closing(service.connect()) as link:
        service.review_on(link, pod())
        end(service)
        assert service.process.wait(HANG_S) == 0
    log = service.errors()
    service.close()
    assert "Traceback" not in log
    levels = (
        {json.loads(line)["level"] for line in log.splitlines()}
        if form == "json"
        else {line.split()[1] for line in log.splitlines()}
    )
    assert levels == {"info"}


def test_ctrl_c_finishes_accepted_reviews(tmp_path: Path) -> None:
    """Half of a request has arrived; the rest arrives after Ctrl-C."""
    service = started(tmp_path)
    with contextlib.closing(service.connect()) as link:
        body = json.dumps({"request": {"uid": "u"}}).encode()
        link.putrequest("POST", "/validate/fail")
        link.putheader("Content-Type", "application/json")
        link.putheader("Content-Length", str(len(body)))
        link.endheaders(body[:5])
        service.wait(service.ready)
        _ctrl_c(service)
        threading.Timer(1.0, link.send, [body[5:]]).start()
        answer = link.getresponse()
        assert b'"uid":"u"' in answer.read()
        assert service.process.wait(HANG_S) == 0
    service.close()


def test_startup_output_lists_loaded_and_rejected_policies(tmp_path: Path) -> None:
    """It also names the file of a rejected policy."""
    (tmp_path / "policies").mkdir()
    write_whole(tmp_path / "policies" / "a.yaml", require_label("a", "app"))
    (tmp_path / "policies" / "bad.yaml").write_text("kind: [")
    refused = require_label("refused", "app").replace("validate", "verifyImages")
    write_whole(tmp_path / "policies" / "c.yaml", refused)
    service = Service(tmp_path, "--log-decisions", "denied")
    service.review(pod())
    service.review(pod(app="x"))
    banner = (tmp_path / "stdout").read_text()
    code = service.stop()
    assert code == 0
    assert "1 policy in force with " in banner
    assert "omitted: 1 policy (refused), 1 problem (reasons in /policies)" in banner
    lines = [json.loads(line) for line in service.errors().splitlines()]
    (refusal,) = [line for line in lines if line["message"] == "policy rejected"]
    assert refusal["file"] == f"{tmp_path}/policies/c.yaml, line 1"
    (problem,) = [line for line in lines if line["message"] == "unusable input"]
    assert f"{tmp_path}/policies/bad.yaml" in problem["problem"]
    (denied,) = [line for line in lines if line["message"].startswith("review ")]
    assert (denied["message"], denied["policies"]) == ("review denied", "a")


def test_answers_before_the_drain_end_their_connections(tmp_path: Path) -> None:
    """An ending pod still answers, and sends its clients to the others."""
    service = started(tmp_path, variables={"KYVERNO_MP_DRAIN_DELAY_S": "300"})

    def ends_connection() -> bool:
        with contextlib.closing(service.connect()) as link:
            answer = service.answer_on(link, pod())
            assert answer.status == 200
            return answer.getheader("connection") == "close"

    assert not ends_connection()
    _term(service)
    wait_for(ends_connection)
    for pid in service.pids("worker"):
        os.kill(pid, signal.SIGKILL)
    service.wait(ends_connection)
    _term(service)
    assert service.process.wait(HANG_S) == 0
    service.close()

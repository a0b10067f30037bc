"""The dashboard of a running service shows correct numbers and disturbs nothing.

A failure means: pages show other numbers than the metrics, do not return after their
process died, or are available although they are switched off.
"""

import http.client
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.service import Service, pod, require_label, write_whole
from tests.waiting import HANG_S

pytestmark = pytest.mark.slow
TOKEN = "a-token-of-some-length"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    (tmp_path / "policies").mkdir()
    write_whole(tmp_path / "policies" / "a.yaml", require_label("a", "app"))
    (tmp_path / "token").write_text(TOKEN)
    running = Service(
        tmp_path,
        variables={
            "KYVERNO_MP_DASHBOARD": "true",
            "KYVERNO_MP_DASHBOARD_PORT": "0",
            "KYVERNO_MP_DASHBOARD_TOKEN_FILE": str(tmp_path / "token"),
        },
    )
    yield running
    running.close()


def page(service: Service, path: str, token: str = TOKEN) -> tuple[int, str]:
    link = http.client.HTTPConnection(
        "127.0.0.1", service.dashboard_port(), timeout=HANG_S
    )
    with closing(link):
        link.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        answer = link.getresponse()
        return answer.status, answer.read().decode()


def test_pages_show_recent_results(service: Service) -> None:
    for labels in ({"app": "x"}, {}, {}):
        service.review(pod(**labels))
    service.wait(lambda: "3 reviews answered" in page(service, "/")[1])
    overview = page(service, "/")[1]
    assert overview.count("CREATE Pod ") == 2, "both denials, and nothing else"
    assert "<dt>Policies in force</dt><dd>1</dd>" in overview
    status, text = page(service, "/policies")
    assert status == 200
    assert "1 policy, 1 ready" in text
    assert "no stored reports without a cluster" in page(service, "/results")[1]
    names = page(service, "/processes")[1]
    for name in ("supervisor", "leader-0", "webhook-0", "webhook-1", "dashboard-0"):
        assert f">{name}<" in names
    assert page(service, "/", "another-token-of-length")[0] == 401
    metric = 'kyverno_mp_dashboard_requests_total{outcome="refused"} 1'
    service.wait(lambda: metric in service.get("/metrics")[1])
    assert TOKEN not in service.errors()


def test_killed_dashboard_restarts_and_reviews_continue(service: Service) -> None:
    before = service.pids("dashboard")
    os.kill(before[0], signal.SIGKILL)
    assert service.review(pod())["allowed"] is False
    assert service.ready()
    service.wait(lambda: page(service, "/")[0] == 200)
    service.wait(lambda: service.pids("dashboard") != before)


def test_hanging_dashboard_process_delays_no_other(service: Service) -> None:
    (held,) = service.pids("dashboard")
    os.kill(held, signal.SIGSTOP)
    try:
        assert service.review(pod())["allowed"] is False
        assert service.get("/metrics")[0] == 200
        assert service.ready()
    finally:
        os.kill(held, signal.SIGCONT)
    service.wait(lambda: page(service, "/")[0] == 200)


def test_dashboard_is_off_by_default(tmp_path: Path) -> None:
    running = Service(tmp_path)
    try:
        assert "dashboard" not in running.get("/healthz")[1]
        lines = (tmp_path / "stdout").read_text().splitlines()
        assert not any(line.lstrip().startswith("dashboard") for line in lines)
    finally:
        running.close()

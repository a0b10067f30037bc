"""A coordinator is a process: it works, sleeps, wakes and exits cleanly."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.pool.health import read_pool_health
from kyverno_mp.telemetry.collect import views
from tests.unit.kube.fake_api import FakeApi, running
from tests.waiting import HANG_S, wait_for

ROOT = Path(__file__).resolve().parents[3]
LEASE = ("/apis/coordination.k8s.io/v1", "default", "leases", "kyverno-e2e")
CONFIG = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "{url}"}}}}]
users: [{{name: u, user: {{}}}}]
"""


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with running() as server:
        yield server


@pytest.fixture
def process(api: FakeApi, tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    (tmp_path / "kubeconfig").write_text(CONFIG.format(url=api.url))
    arguments = [str(tmp_path / "kubeconfig"), str(tmp_path), "one"]
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.pool_program", *arguments], cwd=ROOT
    )
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def holder(api: FakeApi) -> Any:
    lease = dict(api.objects).get(LEASE)
    return lease["spec"]["holderIdentity"] if lease else None


def put_job(api: FakeApi, name: str) -> None:
    api.put(f"/api/v1/namespaces/default/configmaps/{name}", metadata={})


def jobs(api: FakeApi) -> int:
    return sum(key[2] == "configmaps" for key in dict(api.objects))


def test_process_starts_idles_wakes_and_stops(
    api: FakeApi, tmp_path: Path, process: "subprocess.Popen[bytes]"
) -> None:
    wait_for(lambda: holder(api) == "one")
    put_job(api, "first")
    wait_for(lambda: jobs(api) == 0)
    process.send_signal(signal.SIGSTOP)
    put_job(api, "second")
    # Longer than the lease lasts: it must not write before it holds the lease again.
    time.sleep(3.5)
    assert jobs(api) == 1
    process.send_signal(signal.SIGCONT)
    wait_for(lambda: jobs(api) == 0)
    assert process.poll() is None
    (page,) = views(tmp_path)
    assert page.role == "e2e"
    assert page.gauge("heartbeat_ns") > 0
    health = read_pool_health(tmp_path, "e2e")
    assert health is not None
    assert health.holds_lease
    process.send_signal(signal.SIGTERM)
    assert process.wait(HANG_S) == 0
    assert holder(api) == "", "another replica need not wait"


def test_process_whose_work_fails_exits(
    api: FakeApi, process: "subprocess.Popen[bytes]"
) -> None:
    """The supervisor restarts it.

    If it stayed alive without working, it would look healthy.
    """
    wait_for(lambda: holder(api) == "one")
    # No object from the API server has this shape.
    api.put("/api/v1/namespaces/default/configmaps/odd")
    api.objects["/api/v1", "default", "configmaps", "odd"] = {"metadata": {}}
    assert process.wait(HANG_S) == 70

"""The leader as a process: it leads, deregisters on request, and ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.kube.lease import LEASES
from kyverno_mp.leader.control import shutdown
from kyverno_mp.leader.control.health import read_leader_health
from kyverno_mp.queues.journal import EVENTS
from kyverno_mp.settings.machine import start_ticks
from kyverno_mp.snapshot.control import ControlPage
from kyverno_mp.snapshot.policies import POLICIES
from tests.unit.kube.fake_api import FakeApi, running
from tests.unit.kube.test_discovery import serve_aggregated
from tests.waiting import HANG_S, wait_for

LEASE = "/apis/coordination.k8s.io/v1", "kyverno", LEASES.plural, "kyverno"
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "{url}"}}}}]
users: [{{name: u, user: {{}}}}]
"""
PROGRAM = """
import sys
from pathlib import Path
from kyverno_mp.leader.control.run import run_leader
from kyverno_mp.process.startup.certificate import Files
from kyverno_mp.settings.settings import Settings
from kyverno_mp.telemetry.log import set_up

folder = Path(sys.argv[1])
set_up("leader", "info")
settings = Settings(
    kubeconfig=str(folder / "kubeconfig"),
    pod_name="one",
    lease_retry_s=0.5,
    policies_poll_ms=100,
    webhook_workers=int(sys.argv[2]),
)
files = Files(folder / "tls.crt", folder / "tls.key")
run_leader(
    settings,
    folder / "run",
    lambda secrets: files.replace(secrets.certificate, secrets.key),
)
"""


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with running() as server:
        serve_aggregated(server)
        yield server


@pytest.fixture
def webhook_workers() -> int:
    return 1


@pytest.fixture
def process(
    api: FakeApi, tmp_path: Path, webhook_workers: int
) -> Iterator["subprocess.Popen[bytes]"]:
    run = tmp_path / "run"
    for folder in (run, run / "snapshot", run / "pages", EVENTS.folder(run)):
        folder.mkdir(mode=0o700, parents=True)
    page = ControlPage.create(run / "snapshot")
    # This process acts as the worker and attaches every publication.
    worker = page.claim(os.getpid(), start_ticks(os.getpid()))
    worker.serve(POLICIES, 2**40)
    text = KUBECONFIG.format(url=api.url)
    (tmp_path / "kubeconfig").write_text(text)
    with (tmp_path / "log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path), str(webhook_workers)],
            stderr=log,
            stdout=log,
        )
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def holder(api: FakeApi) -> Any:
    lease = dict(api.objects).get(LEASE)
    return lease["spec"]["holderIdentity"] if lease else None


def configurations(api: FakeApi) -> int:
    return sum(key[2].endswith("webhookconfigurations") for key in dict(api.objects))


@pytest.mark.parametrize("asked", [True, False])
def test_leader_starts_and_stops_in_order(
    api: FakeApi, tmp_path: Path, process: "subprocess.Popen[bytes]", *, asked: bool
) -> None:
    """After the handshake, the leader deregisters first and publishes until it ends."""
    wait_for(lambda: holder(api) == "one")
    wait_for(lambda: configurations(api) >= 2)
    assert b"BEGIN CERTIFICATE" in (tmp_path / "tls.crt").read_bytes()

    def is_trusted() -> bool:
        health = read_leader_health(tmp_path / "run")
        return health is not None and health.trusted

    wait_for(is_trusted)
    if asked:
        process.send_signal(shutdown.SIGNAL)
        wait_for(lambda: shutdown.is_marked(tmp_path / "run", "leader"))
        assert holder(api) == ""
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(HANG_S) == 0
    assert holder(api) == "", "another replica need not wait"


def test_defect_in_a_controller_does_not_stop_the_others(
    api: FakeApi, tmp_path: Path, process: "subprocess.Popen[bytes]"
) -> None:
    """The leader keeps the lease, publishes policies, and logs the traceback."""
    wait_for(lambda: holder(api) == "one")
    secrets = "/api/v1/namespaces/kyverno/secrets"
    # No object of a real API server has this structure.
    api.put(f"{secrets}/kyverno-svc.kyverno.svc.kyverno-tls-ca", data=5)
    log = tmp_path / "log"
    wait_for(lambda: "unexpected error with key all" in log.read_text())
    # The traceback follows its line, which may be in the file first.
    wait_for(lambda: "Traceback" in log.read_text())
    before = api.objects[LEASE]["spec"]["renewTime"]
    wait_for(lambda: api.objects[LEASE]["spec"]["renewTime"] != before)
    assert process.poll() is None


@pytest.mark.parametrize("webhook_workers", [0])
def test_leader_without_a_webhook_publishes_and_writes_nothing(
    api: FakeApi, tmp_path: Path, process: "subprocess.Popen[bytes]"
) -> None:
    """A leader without a webhook needs no lease, certificate, or watch for reviews."""
    api.put("/api/v1/namespaces/labelled", metadata={"labels": {"a": "b"}})
    page = ControlPage.open(tmp_path / "run" / "snapshot")
    wait_for(lambda: page.generation("namespaces") > 0)
    wait_for(lambda: page.generation(POLICIES) > 0)
    wait_for(lambda: read_leader_health(tmp_path / "run") is not None)
    process.send_signal(shutdown.SIGNAL)
    wait_for(lambda: shutdown.is_marked(tmp_path / "run", "leader"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(HANG_S) == 0
    assert {method for method, _, _ in api.requests} == {"GET"}
    paths = " ".join(path for _, path, _ in api.requests)
    for absent in ("policies", "secrets", "leases", "clusterrolebindings"):
        assert absent not in paths

"""The health server, tested with well-behaved and misbehaving clients."""

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from kyverno_mp import __version__
from kyverno_mp.kube.rights import Right
from kyverno_mp.kube.shared_rights import SharedRights
from kyverno_mp.leader.control.health import (
    FailingResource,
    LeaderHealth,
    write_leader_health,
)
from kyverno_mp.leader.loop import SNAPSHOT
from kyverno_mp.leader.status import PolicyStatus, Status, write_status
from kyverno_mp.process.roles import health
from kyverno_mp.process.roles.table import QUEUES
from kyverno_mp.process.startup.certificate import Files, make
from kyverno_mp.process.startup.certificate_expiry import CertificateExpiry
from kyverno_mp.process.startup.listen import listen, port_of
from kyverno_mp.process.supervision.status import (
    SupervisorStatus,
    write_supervisor_status,
)
from kyverno_mp.settings.machine import start_ticks
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.control import ControlPage
from tests.waiting import HANG_S, real_ns


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    # Without a policy in force, a standalone server is ready only if that is allowed.
    settings = Settings(webhook_workers=1, standalone=True, allow_empty=True)
    yield from serving(tmp_path, settings)


@pytest.fixture
def cluster_port(tmp_path: Path) -> Iterator[int]:
    yield from serving(tmp_path, Settings(webhook_workers=1))


@pytest.fixture
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return make(tmp_path_factory.mktemp("tls"), "kyverno")


@pytest.fixture
def tls_port(tmp_path: Path, files: Files) -> Iterator[int]:
    settings = Settings(
        webhook_workers=1, standalone=True, allow_empty=True, metrics_tls=True
    )
    yield from serving(tmp_path, settings, files)


def serving(
    tmp_path: Path, settings: Settings, files: Files | None = None
) -> Iterator[int]:
    (tmp_path / "pages").mkdir()
    (tmp_path / SNAPSHOT).mkdir(mode=0o700)
    page = ControlPage.create(tmp_path / SNAPSHOT)
    page.claim(os.getpid(), start_ticks(os.getpid())).serve("policies", 3)
    refused = PolicyStatus(
        "Policy", "a", "b", ready=False, message="no", rule_count=0, code="x.y"
    )
    write_status(tmp_path, Status(generation=3, policies=(refused,)))
    write_supervisor_status(tmp_path, SupervisorStatus(pid=os.getpid()))
    listener = listen("127.0.0.1", 0, 16)
    child = os.fork()
    if child == 0:
        try:
            health.run(settings, tmp_path, listener, QUEUES, (), files)
        finally:
            os._exit(0)
    yield port_of(listener)
    listener.close()
    os.kill(child, signal.SIGTERM)
    assert os.waitpid(child, 0)[1] == 0


def ask_by_tls(port: int, path: str, ca: Path) -> tuple[int, str]:
    """Return status and text, if the certificate is of this authority."""
    context = ssl.create_default_context(cafile=ca)
    link = http.client.HTTPSConnection(
        "localhost", port, timeout=HANG_S, context=context
    )
    link.request("GET", path)
    answer = link.getresponse()
    text = answer.read().decode()
    link.close()
    return answer.status, text


def ask(
    port: int, method: str, path: str, accept: str = "", wants: str = ""
) -> tuple[int, str]:
    """Return status and text.

    ``wants`` is the expected beginning of the content type.
    """
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_S)
    link.request(method, path, headers={"accept": accept} if accept else {})
    answer = link.getresponse()
    text = answer.read().decode()
    link.close()
    assert (answer.getheader("Content-Type") or "").startswith(wants)
    return answer.status, text


def send(port: int, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 60) as link:
        found = b""
        try:
            link.sendall(data)
            while chunk := link.recv(4096):
                found += chunk
        except (ConnectionResetError, BrokenPipeError):
            pass
        return found


def test_every_path_answers(port: int) -> None:
    assert ask(port, "GET", "/health/liveness")[0] == 200
    assert ask(port, "GET", "/health/readiness?verbose=1")[0] == 200
    assert ask(port, "GET", "/healthz")[0] == 200
    assert ask(port, "GET", "/nothing")[0] == 404
    assert ask(port, "POST", "/metrics")[0] == 405
    assert ask(port, "HEAD", "/metrics") == (200, "")
    assert "kyverno_mp_snapshot_generation 3" in ask(port, "GET", "/metrics")[1]


def test_rejected_policies_are_listed(port: int) -> None:
    status, text = ask(port, "GET", "/policies")
    assert status == 200
    assert '"generation": 3' in text
    assert (
        '{"kind": "Policy", "namespace": "a", "name": "b", "ready": false,'
        ' "code": "x.y", "message": "no", "ruleCount": 0}'
    ) in text


BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


def test_start_page_lists_every_endpoint(port: int) -> None:
    """HTML for a browser, text for curl; each endpoint on it answers."""
    _, page = ask(port, "GET", "/", BROWSER, wants="text/html")
    status, text = ask(port, "GET", "/", "*/*", wants="text/plain")
    assert status == 200
    paths = re.findall(r'href="([^"]+)"', page)
    assert len(paths) == 5
    for path in paths:
        assert path in text
        assert ask(port, "GET", path)[0] == 200
    for shown in (page, text):
        assert f"kyverno-mp {__version__} is ready" in shown
        assert "0 policies in force" in shown
        assert "omitted: 1 policy (a/b)" in shown


def test_start_page_states_why_the_pod_is_not_ready(port: int, tmp_path: Path) -> None:
    draining = SupervisorStatus(pid=os.getpid(), draining=True)
    write_supervisor_status(tmp_path, draining)
    assert "is not ready: draining" in ask(port, "GET", "/")[1]
    assert "kyverno_mp_ready 0\n" in ask(port, "GET", "/metrics")[1]


def test_policy_names_are_escaped(port: int, tmp_path: Path) -> None:
    """Names are escaped because nothing validates them without a cluster."""
    hostile = PolicyStatus(
        "Policy", "a", "<script>", ready=False, message="no", rule_count=0
    )
    write_status(tmp_path, Status(generation=3, policies=(hostile,)))
    page = ask(port, "GET", "/", BROWSER)[1]
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize("path", ["/policies", "/healthz"])
def test_json_is_indented_for_a_browser(port: int, path: str) -> None:
    _, text = ask(port, "GET", path, BROWSER, wants="application/json")
    _, line = ask(port, "GET", path, "application/json", wants="application/json")
    assert len(text.splitlines()) > 3
    assert len(line.splitlines()) == 1
    assert json.loads(text) == json.loads(line)


def test_openmetrics_is_served_on_request(port: int) -> None:
    kind = "application/openmetrics-text"
    _, text = ask(port, "GET", "/metrics", kind, wants=kind + "; version=1.0.0")
    found = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    families = {one.name: one for one in found}
    assert families["kyverno_mp_ready"].samples[0].value == 1
    _, text = ask(port, "GET", "/metrics", BROWSER, wants="text/plain; version=0.0.4")
    assert "# EOF" not in text


def test_unusable_files_are_reported_everywhere(port: int, tmp_path: Path) -> None:
    """An unreadable file degrades the service; other types of files are only listed."""
    status = Status(
        generation=3,
        problems=("a.yaml: Permission denied", "b.yaml, line 1: Pod is not a policy"),
        unread=("a.yaml: Permission denied",),
    )
    write_status(tmp_path, status)
    code, text = ask(port, "GET", "/healthz")
    health_body = json.loads(text)
    assert code == 503
    assert health_body["reasons"] == ["a.yaml: Permission denied"]
    assert health_body["problems"] == list(status.problems)
    assert json.loads(ask(port, "GET", "/policies")[1])["problems"] == list(
        status.problems
    )
    assert "kyverno_mp_problems 2\n" in ask(port, "GET", "/metrics")[1]
    assert ask(port, "GET", "/health/readiness")[0] == 200
    assert ask(port, "GET", "/health/liveness")[0] == 200


def test_expiry_of_the_served_certificate_is_a_metric(tmp_path: Path) -> None:
    """The metric follows the file, which the leader replaces on renewal."""
    now = datetime(2030, 1, 1, tzinfo=UTC)
    cert = make(tmp_path, "kyverno", now).cert
    found = CertificateExpiry(cert)
    assert found.ends_s() == (now + timedelta(days=365)).timestamp()
    later = now + timedelta(days=10)
    cert.unlink()
    assert found.ends_s() == 0.0
    make(tmp_path, "kyverno", later)
    assert found.ends_s() == (later + timedelta(days=365)).timestamp()


@pytest.mark.parametrize(
    "garbage",
    [b"\x16\x03\x01\r\n\r\n", b"GET\r\n\r\n", b"x" * 9000, b"GET / FTP/1\r\n\r\n"],
)
def test_malformed_requests_are_rejected_harmlessly(port: int, garbage: bytes) -> None:
    answer = send(port, garbage)
    assert answer == b"" or b" 400 " in answer
    assert ask(port, "GET", "/health/liveness")[0] == 200


def test_silent_clients_do_not_block_others(port: int) -> None:
    silent = [socket.create_connection(("127.0.0.1", port), 60) for _ in range(200)]
    assert ask(port, "GET", "/health/liveness")[0] == 200
    for link in silent:
        link.close()


def test_not_ready_before_the_first_report(tmp_path: Path) -> None:
    (tmp_path / SNAPSHOT).mkdir(mode=0o700)
    ControlPage.create(tmp_path / SNAPSHOT)
    server = health.Server(health.Reporter(Settings(), tmp_path, QUEUES))
    answer = asyncio.run(server._answer("GET", "/health/readiness"))
    assert answer[0] == 503


def test_unreadable_parts_degrade_and_stop_no_reviews(
    cluster_port: int, tmp_path: Path
) -> None:
    now_ns = real_ns()
    write_leader_health(tmp_path, LeaderHealth(trusted=True, confirmed_ns=now_ns))
    assert ask(cluster_port, "GET", "/healthz")[0] == 200
    failing = FailingResource(
        "policies", now_ns - 3600 * 10**9, "policies is forbidden"
    )
    write_leader_health(
        tmp_path, LeaderHealth(trusted=True, confirmed_ns=now_ns, failing=(failing,))
    )
    status, text = ask(cluster_port, "GET", "/healthz")
    told = json.loads(text)
    assert (status, told["status"]) == (503, "degraded")
    (reason,) = told["reasons"]
    assert reason.startswith("policies could not be read for 36")
    assert reason.endswith("s (policies is forbidden): policies may be old")
    assert ask(cluster_port, "GET", "/health/readiness")[0] == 200
    assert ask(cluster_port, "GET", "/health/liveness")[0] == 200


def held(port: int, count: int, data: bytes) -> list[socket.socket]:
    """Open connections that send something and never read the response."""
    links = []
    for _ in range(count):
        link = socket.create_connection(("127.0.0.1", port), 60)
        link.sendall(data)
        links.append(link)
    return links


def server_cpu_s() -> float:
    """Return the CPU time of the server, which is independent of the machine's load."""
    return sum(sum(one.cpu_times()[:2]) for one in psutil.Process().children())


def test_missing_permissions_of_workers_are_named(port: int, tmp_path: Path) -> None:
    """In /healthz with the command that grants them, and as a metric; still ready."""
    shared = SharedRights(tmp_path / "pages", "kyverno-admission-controller")
    shared.rights.hold("x", {Right("list", "pods", "a"): ""})
    shared.write()
    status, text = ask(port, "GET", "/healthz")
    (reason,) = json.loads(text)["reasons"]
    assert status == 503
    assert reason.startswith("kyverno-admission-controller may not list pods in a; to")
    line = (
        'kyverno_mp_missing_permissions{account="kyverno-admission-controller",'
        'verb="list",resource="pods"} 1'
    )
    assert line in ask(port, "GET", "/metrics")[1]
    assert ask(port, "GET", "/health/readiness")[0] == 200
    assert ask(port, "GET", "/health/liveness")[0] == 200
    shared.rights.hold("x", {})
    shared.write()
    assert ask(port, "GET", "/healthz")[0] == 200
    assert line not in ask(port, "GET", "/metrics")[1]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET /health/liveness HTTP/1.1\r\n",
        b"GET /policies HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n\r\n",
    ],
)
def test_held_connections_block_no_probe(port: int, data: bytes) -> None:
    """A failure means: any pod that reaches the port can get ours restarted."""
    links = held(port, 480, data)
    try:
        for _ in range(5):
            began_s = server_cpu_s()
            assert ask(port, "GET", "/health/liveness")[0] in (200, 503)
            assert server_cpu_s() - began_s < 2
    finally:
        for link in links:
            link.close()


def test_oldest_held_connection_is_closed_first(port: int) -> None:
    """The newest connection may be a probe that is about to send its request."""
    oldest, *_, newest = links = held(port, 300, b"GET /health")
    try:
        with contextlib.suppress(ConnectionResetError):
            assert oldest.recv(1) == b""
        newest.sendall(b"/liveness HTTP/1.1\r\n\r\n")
        assert newest.recv(12).startswith(b"HTTP/1.1 ")
    finally:
        for link in links:
            link.close()


TLS_START = b"\x16\x03"
"""The beginning of a handshake that never goes on."""


def test_metrics_need_tls_and_probes_do_not(tls_port: int, files: Files) -> None:
    """Otherwise anybody on the network reads names of policies and namespaces."""
    assert files.ca is not None
    status, text = ask_by_tls(tls_port, "/metrics", files.ca)
    assert status == 200
    assert "kyverno_mp_snapshot_generation 3" in text
    for path in ("/metrics", "/policies", "/healthz", "/", "/nothing"):
        assert ask(tls_port, "GET", path) == (403, "https only\n")
    for path in ("/health/liveness", "/health/readiness", "/livez", "/readyz"):
        assert ask(tls_port, "GET", path)[0] == 200
        assert ask_by_tls(tls_port, path, files.ca)[0] == 200


def test_renewed_certificate_of_metrics_is_served(
    tls_port: int, files: Files, tmp_path_factory: pytest.TempPathFactory
) -> None:
    new = make(tmp_path_factory.mktemp("new"), "kyverno")
    assert new.ca is not None
    with pytest.raises(ssl.SSLCertVerificationError):
        ask_by_tls(tls_port, "/metrics", new.ca)
    files.replace(new.cert.read_bytes(), new.key.read_bytes())
    assert ask_by_tls(tls_port, "/metrics", new.ca)[0] == 200


@pytest.mark.parametrize("data", [b"", TLS_START, b"GET / HTTP/1.1\r\n"])
def test_held_handshakes_block_no_probe(
    tls_port: int, files: Files, data: bytes
) -> None:
    assert files.ca is not None
    links = held(tls_port, 300, data)
    try:
        assert ask(tls_port, "GET", "/health/liveness")[0] == 200
        assert ask_by_tls(tls_port, "/metrics", files.ca)[0] == 200
    finally:
        for link in links:
            link.close()


@pytest.mark.parametrize("garbage", [b"\x16garbage\r\n\r\n", b"\x00", b"\x16"])
def test_garbage_instead_of_a_handshake_is_harmless(
    tls_port: int, garbage: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", tls_port), HANG_S) as link:
        link.sendall(garbage)
    assert ask(tls_port, "GET", "/health/liveness")[0] == 200


def test_metrics_can_be_off(tmp_path: Path) -> None:
    settings = Settings(webhook_workers=1, metrics=False)
    for port in serving(tmp_path, settings):
        assert ask(port, "GET", "/metrics")[0] == 404
        assert ask(port, "GET", "/health/liveness")[0] == 200

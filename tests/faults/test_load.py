"""Faults while reviews arrive on many connections: lost reviews are counted."""

import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Self

import pytest

from kyverno_mp.telemetry.collect import views
from tests.faults.service import Service, pod, require_label, review_of, write_whole
from tests.waiting import HANG_S, pause, receive_message

pytestmark = pytest.mark.slow
CONNECTIONS = 8
IDLE_CONNECTIONS = 200


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    (tmp_path / "policies").mkdir()
    write_whole(tmp_path / "policies" / "a.yaml", require_label("a", "app"))
    running = Service(tmp_path)
    yield running
    running.close()


class Load:
    """Connections that send requests repeatedly and reconnect, as API servers do."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._ending = threading.Event()
        self.answered = 0
        self.lost = 0
        self.wrong: list[object] = []
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run) for _ in range(CONNECTIONS)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        self._service.wait(lambda: self.answered > 50)
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(HANG_S)

    def _run(self) -> None:
        link = self._service.connect()
        while not self._ending.is_set():
            try:
                response = self._service.review_on(link, pod())
            except (OSError, http.client.HTTPException):
                link.close()
                link = self._service.connect()
                with self._lock:
                    self.lost += 1
                continue
            with self._lock:
                self.answered += 1
                if response["allowed"] is not False:
                    self.wrong.append(response)
        link.close()


@pytest.mark.parametrize(
    ("name", "lost_max"),
    # A worker loses the requests in flight on its connections, but no others are lost.
    [("worker", CONNECTIONS), ("leader", 0), ("health", 0)],
)
def test_kill_loses_only_requests_in_flight(
    service: Service, name: str, lost_max: int
) -> None:
    with Load(service) as load:
        victim = service.pids(name)[0]
        os.kill(victim, signal.SIGKILL)
        service.wait(lambda: victim not in service.pids(name))
        service.wait(service.ready)
        before = load.answered
        service.wait(lambda: load.answered > before + 100)
    assert load.wrong == []
    assert load.lost <= lost_max


def test_connections_spread_over_workers_again(service: Service) -> None:
    """Connections of a killed worker move to the other; its successor gets its share.

    No other review fails: an answer announces that its connection ends. A worker may
    keep one connection more than its share: two closed-loop workers on one core take
    turns.
    """
    part = CONNECTIONS // 2

    def counts() -> list[int]:
        pages = views(service.runtime_dir / "pages")
        workers = [page for page in pages if page.role == "webhook" and page.alive()]
        return sorted(page.gauge("connections") for page in workers)

    def is_spread() -> bool:
        few, *many = counts()
        return few >= part - 1 and len(many) == 1 and many[0] <= part + 1

    with Load(service) as load:
        service.wait(is_spread)
        os.kill(service.pids("worker")[0], signal.SIGKILL)
        service.wait(is_spread)
    assert load.wrong == []
    assert load.lost <= CONNECTIONS


def test_killed_arbiter_is_replaced(service: Service) -> None:
    """Workers exit by themselves when the arbiter is gone."""
    with Load(service) as load:
        victim = service.pids("webhook")[0]
        os.kill(victim, signal.SIGKILL)
        service.wait(lambda: victim not in service.pids("webhook"))
        service.wait(service.ready)
        before = load.answered
        service.wait(lambda: load.answered > before + 100)
    assert load.wrong == []


def test_policy_change_under_load_loses_no_review(service: Service) -> None:
    with Load(service) as load:
        for number in range(10):
            write_whole(
                service.policies / "b.yaml", require_label("b", f"team{number}")
            )
            label = f"team{number}"
            service.wait(partial(_says, service, label))
    assert (load.wrong, load.lost) == ([], 0)


def test_sigterm_completes_requests_in_flight(service: Service) -> None:
    """A request whose body is still in transit is answered before the exit."""
    body = json.dumps(review_of(pod())).encode()
    head = (
        b"POST /validate/fail HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    )
    with open_tls(service) as link:
        link.sendall(head + body[:50])
        time.sleep(0.3)
        service.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        link.sendall(body[50:])
        assert b'"allowed":false' in receive_message(link)
    assert service.process.wait(HANG_S) == 0


def test_sigterm_loses_no_request_on_an_idle_connection(service: Service) -> None:
    """A connection ends between two requests only if its client can notice at once.

    As an API server does, each client repeats a request elsewhere if the kernel has
    rejected its first byte, and otherwise does not.
    """
    body = json.dumps(review_of(pod())).encode()
    request = (
        b"POST /validate/fail HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (len(body), body)
    )
    links = [open_tls(service) for _ in range(IDLE_CONNECTIONS)]
    for link in links:
        link.sendall(request)
        assert b'"allowed":false' in receive_message(link)
    service.process.send_signal(signal.SIGTERM)
    ends: list[str] = []
    # The drain ends idle connections somewhere in the middle.
    for link in links:
        pause()
        with link:
            try:
                link.sendall(request)
            except OSError:
                ends.append("not written")
                continue
            is_answered = b'"allowed":false' in receive_message(link)
            ends.append("answered" if is_answered else "lost")
    assert "lost" not in ends
    assert service.process.wait(HANG_S) == 0


@pytest.mark.parametrize("spoil", ["cut", "cut in place", "garbage", "foreign", "gone"])
def test_corrupt_snapshot_changes_nothing(service: Service, spoil: str) -> None:
    """Running workers keep their policies; new ones wait until the leader fixes it."""
    path = service.runtime_dir / "snapshot" / "policies.segment"
    whole = path.read_bytes()
    content = {
        "cut": whole[: len(whole) // 2],
        "garbage": os.urandom(4096),
        "foreign": (path.parent / "namespaces.segment").read_bytes(),
    }
    if spoil == "gone":
        path.unlink()
    elif spoil == "cut in place":
        os.truncate(path, 100)
    else:
        aside = path.with_suffix(".corrupt")
        aside.write_bytes(content[spoil])
        aside.chmod(0o600)
        aside.rename(path)
    os.kill(service.pids("worker")[0], signal.SIGKILL)
    allowed = []
    for _ in range(20):
        # A waiting worker answers 503, a dead one nothing; neither is an allow.
        with contextlib.suppress(OSError, AssertionError, http.client.HTTPException):
            allowed.append(service.review(pod())["allowed"])
        time.sleep(0.05)
    assert True not in allowed
    service.wait(service.ready)
    assert service.review(pod())["allowed"] is False
    assert path.read_bytes()[:8] == whole[:8]
    service.wait(lambda: "snapshot corrupt" in service.errors())


def open_tls(service: Service) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=service.trust)
    plain = socket.create_connection(("localhost", service.port), 10)
    return context.wrap_socket(plain, server_hostname="localhost")


def answer_to(service: Service, data: bytes) -> bytes:
    """Send bytes and return the first answer, b"" for a closed connection."""
    with open_tls(service) as link:
        try:
            link.sendall(data)
            return link.recv(65536)
        except OSError:
            return b""


def test_malformed_requests_affect_only_themselves(service: Service) -> None:
    body = json.dumps(review_of(pod())).encode()
    post = (
        b"POST /validate/fail HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\n"
    )
    length = b"Content-Length: %d\r\n\r\n" % len(body)
    chunked = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"
    denied = answer_to(service, post + chunked % (len(body), body))
    assert b'"allowed":false' in denied
    strange = {
        "header flood": post + b"X-A: b\r\n" * 100_000 + length + body,
        "long header": post + b"X-A: " + b"b" * 1_000_000 + b"\r\n" + length + body,
        "long path": b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\n\r\n",
        "two lengths": post + b"Content-Length: 5\r\n" + length + body,
        "length and chunks": post + b"Content-Length: 5\r\n" + chunked % (1, b"a"),
        "negative length": post + b"Content-Length: -1\r\n\r\n" + body,
        "huge length": post + b"Content-Length: 99999999999999\r\n\r\n" + body,
        "bad chunk": post + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        "no HTTP": b"\x00\xff" * 1000,
        "bare newlines": b"\n\n\n\nGET / HTTP/0.1\n\n",
        "deep JSON": post
        + b"Content-Length: 20000\r\n\r\n"
        + b"[" * 10_000
        + b"]" * 10_000,
    }
    for name, data in strange.items():
        answer = answer_to(service, data)
        assert b'"allowed":true' not in answer, name
        # A review that cannot be read is denied; failurePolicy does not decide it.
        is_denied = b'"allowed":false' in answer
        is_refused = answer == b"" or answer.startswith(b"HTTP/1.1 4")
        assert is_refused or is_denied, (name, answer[:80])
        assert service.review(pod())["allowed"] is False
    pipelined = (post + length + body) * 3
    with open_tls(service) as link:
        link.sendall(pipelined)
        got = b""
        while got.count(b'"allowed":false') < 3:
            more = link.recv(65536)
            assert more
            got += more


def test_slow_and_half_closed_peers_delay_no_other(service: Service) -> None:
    """Hundreds of nearly idle connections leave room for active clients."""
    with contextlib.ExitStack() as stack:
        for number in range(200):
            plain = stack.enter_context(
                socket.create_connection(("localhost", service.port), 10)
            )
            if number % 2:
                plain.sendall(b"\x16\x03\x01")
        for _ in range(50):
            link = stack.enter_context(open_tls(service))
            link.sendall(b"POST /validate/fail HTTP/1.1\r\nX-A: ")
        half = stack.enter_context(open_tls(service))
        half.sendall(b"POST /validate/fail HTTP/1.1\r\nContent-Length: 50\r\n\r\n{")
        half.shutdown(socket.SHUT_WR)
        for _ in range(20):
            assert service.review(pod())["allowed"] is False


def _says(service: Service, label: str) -> bool:
    return label in str(service.review(pod(app="x")))

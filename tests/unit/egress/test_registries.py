"""Calls to registries: checked addresses, limited concurrency, open connections."""

import http.server
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import pytest

from kyverno_mp import limits
from kyverno_mp.egress.addresses import read_rules
from kyverno_mp.egress.lookups import Lookups
from kyverno_mp.egress.registries import RegistryTransport
from kyverno_mp.errors import (
    DeadlinePassed,
    ExpressionFailed,
    KubeUnavailable,
    RegistryUnavailable,
    RequestInvalid,
)
from kyverno_mp.kube.connection import ReadPace
from kyverno_mp.registry.client import Client
from kyverno_mp.registry.credentials import ANONYMOUS, Credentials
from kyverno_mp.registry.exchange import RegistryCall
from kyverno_mp.registry.reference import Reference
from tests.image_rig import answering
from tests.waiting import HANG_S, far_ns, soon_ns, wait_for

_OPEN = read_rules("*,127.0.0.0/8", "")


def to_loopback(_host: str) -> list[str]:
    return ["127.0.0.1"]


class _Registry(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    connections: ClassVar[set[int]] = set()
    paths: ClassVar[list[str]] = []
    at_once: ClassVar[list[int]] = []
    running: ClassVar[int] = 0
    lock: ClassVar[threading.Lock] = threading.Lock()
    gate: ClassVar[threading.Event] = threading.Event()

    def do_GET(self) -> None:
        own = type(self)
        with own.lock:
            own.connections.add(self.client_address[1])
            own.paths.append(self.path)
            own.running += 1
            own.at_once.append(own.running)
        if self.path.startswith("/slow"):
            own.gate.wait(HANG_S)
        with own.lock:
            own.running -= 1
        status, headers = 200, {}
        if self.path.endswith("/moved"):
            status, headers = 307, {"Location": "http://169.254.169.254/secret"}
        if self.path.endswith("/manifests/private"):
            realm = 'Bearer realm="http://10.1.2.3/token",service="s"'
            status, headers = 401, {"WWW-Authenticate": realm}
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
        if self.path == "/then-close":
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Suppress the server's log."""


@pytest.fixture
def registry() -> type[_Registry]:
    own = {
        "connections": set(),
        "paths": [],
        "at_once": [],
        "gate": threading.Event(),
        "lock": threading.Lock(),
    }
    return type("Registry", (_Registry,), own)


@pytest.fixture
def host(registry: type[_Registry]) -> Iterator[str]:
    with answering(registry) as found:
        yield found
        registry.gate.set()


def call(host: str, path: str = "/v2/") -> RegistryCall:
    return RegistryCall(
        method="GET", url=f"http://{host}{path}", headers={}, bytes_max=100
    )


def test_connection_is_reused(registry: type[_Registry], host: str) -> None:
    outcomes: list[tuple[str, str]] = []
    transport = RegistryTransport(
        _OPEN, to_loopback, lambda *call: outcomes.append(call)
    )
    for _ in range(5):
        assert transport(call(host), far_ns()).body == b"{}"
    assert len(registry.connections) == 1
    assert outcomes == [("127.0.0.1", "200")] * 5
    # The registry sends no response and closes the connection.
    transport(call(host, "/then-close"), far_ns())
    assert transport(call(host), far_ns()).status == 200
    transport.close()


def test_concurrent_calls_are_bounded(
    registry: type[_Registry], host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kyverno_mp.egress.registries.REGISTRY_PLACE_WAIT_S", HANG_S)
    transport = RegistryTransport(_OPEN, to_loopback)
    number = 2 * limits.REGISTRY_CALLS_PER_HOST_MAX
    done: list[int] = []

    def ask() -> None:
        done.append(transport(call(host, "/slow"), far_ns()).status)

    threads = [threading.Thread(target=ask) for _ in range(number)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(registry.at_once) >= limits.REGISTRY_CALLS_PER_HOST_MAX)
    with pytest.raises(DeadlinePassed):
        transport(call(host, "/slow"), soon_ns())
    registry.gate.set()
    for thread in threads:
        thread.join(HANG_S)
    assert done == [200] * number
    assert max(registry.at_once) == limits.REGISTRY_CALLS_PER_HOST_MAX
    transport.close()


def test_hanging_registry_takes_at_most_half_the_threads(
    registry: type[_Registry], host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call without a free slot fails quickly, and its thread becomes free."""
    monkeypatch.setattr("kyverno_mp.egress.registries.REGISTRY_PLACE_WAIT_S", 0.01)
    transport = RegistryTransport(_OPEN, to_loopback, threads=4)
    threads = [
        threading.Thread(target=transport, args=(call(host, "/slow"), far_ns()))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(registry.at_once) >= len(threads))
    with pytest.raises(RegistryUnavailable, match="too many calls wait"):
        transport(call(host), far_ns())
    port = host.rpartition(":")[2]
    assert transport(call(f"other.example:{port}"), far_ns()).status == 200
    registry.gate.set()
    for thread in threads:
        thread.join(HANG_S)
    assert transport(call(host), far_ns()).status == 200
    transport.close()


def test_helpers_use_no_other_slots(registry: type[_Registry], host: str) -> None:
    """A review waits for its helpers: a hanging registry takes only one slot."""
    own = threading.local()
    transport = RegistryTransport(
        _OPEN, to_loopback, threads=2, is_helper=lambda: getattr(own, "helps", False)
    )

    def help_out() -> None:
        own.helps = True
        transport(call(host, "/slow"), far_ns())

    threads = [threading.Thread(target=help_out) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(registry.at_once) >= len(threads))
    assert transport(call(host), far_ns()).status == 200
    registry.gate.set()
    for thread in threads:
        thread.join(HANG_S)
    transport.close()


def test_name_lookups_of_expressions_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kyverno_mp.egress.lookups.LOOKUP_S_MAX", 0)
    gate = threading.Event()

    def resolve(_name: str) -> list[str]:
        gate.wait(HANG_S)
        return ["127.0.0.1"]

    with pytest.raises(KubeUnavailable) as raised:
        Lookups(resolve).soon("a.example")
    assert raised.value.code == "egress.dns"
    gate.set()
    monkeypatch.undo()
    assert Lookups(resolve).soon("a.example") == ["127.0.0.1"]


def test_lookup_without_a_thread_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, the name could not be looked up until a restart."""

    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    lookups = Lookups(to_loopback)
    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(OSError, match="no thread"):
        lookups("a.example", far_ns())
    monkeypatch.undo()
    assert lookups("a.example", far_ns()) == ["127.0.0.1"]


def test_slow_name_server_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The resolver of the C library has no deadline."""
    monkeypatch.setattr("kyverno_mp.egress.lookups.REGISTRY_LOOKUPS_MAX", 2)
    gate, asked = threading.Event(), []

    def resolve(name: str) -> list[str]:
        asked.append(name)
        gate.wait(HANG_S)
        return ["127.0.0.1"]

    transport = RegistryTransport(_OPEN, resolve)
    for name in ("a.example", "b.example", "a.example", "c.example"):
        with pytest.raises(DeadlinePassed, match="lookup"):
            transport(call(name), soon_ns())
    # Each name is looked up once, and the third name finds no free slot.
    assert sorted(asked) == ["a.example", "b.example"]
    gate.set()
    lookups = Lookups(resolve)
    assert lookups("c.example", far_ns()) == ["127.0.0.1"]
    with pytest.raises(RegistryUnavailable):
        transport(call("c.example:1"), far_ns())
    transport.close()


def test_remembered_registries_are_bounded(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kyverno_mp.egress.registries.REGISTRY_HOSTS_MAX", 3)
    transport = RegistryTransport(_OPEN, to_loopback)
    port = host.rpartition(":")[2]
    for number in range(10):
        transport(call(f"r{number}.example:{port}"), far_ns())
    assert transport.host_count <= 3
    # A registry that was closed is called again.
    assert transport(call(f"r0.example:{port}"), far_ns()).status
    assert transport.host_count <= 3
    transport.close()


@pytest.mark.parametrize(
    ("allowed", "address", "is_open"),
    [
        ("*", "127.0.0.1", False),
        ("*", "169.254.169.254", False),
        ("", "10.0.0.1", False),
        ("*,127.0.0.0/8", "127.0.0.1", True),
    ],
)
def test_addresses_are_checked(
    host: str,
    allowed: str,
    address: str,
    is_open: bool,  # noqa: FBT001 - a parameter
) -> None:
    port = host.rpartition(":")[2]
    transport = RegistryTransport(read_rules(allowed, ""), lambda _host: [address])
    if is_open:
        assert transport(call(f"r.example:{port}"), far_ns()).status == 200
    else:
        with pytest.raises(ExpressionFailed, match="not allowed"):
            transport(call(f"r.example:{port}"), far_ns())
    transport.close()


@pytest.mark.parametrize("tag", ["moved", "private"])
def test_registry_cannot_redirect_elsewhere(
    registry: type[_Registry], host: str, tag: str
) -> None:
    """Neither a redirect nor a token service can lead to a closed address."""
    transport = RegistryTransport(read_rules("127.0.0.0/8", ""), lambda name: [name])
    client = Client(
        lambda _host: Credentials("u", "p"),
        user_agent="t",
        insecure=True,
        send=transport,
    )
    reference = Reference(host, "a/b", tag, "")
    with pytest.raises(ExpressionFailed, match="not allowed"):
        client.manifest(reference, far_ns())
    transport.close()


@pytest.mark.parametrize(
    ("allow", "is_followed"),
    [("*", False), ("*.*", False), ("*,*.example", True), ("*,10.0.0.0/8", True)],
)
def test_redirect_into_a_private_network_needs_its_name(
    registry: type[_Registry],
    host: str,
    monkeypatch: pytest.MonkeyPatch,
    allow: str,
    is_followed: bool,  # noqa: FBT001 - a parameter
) -> None:
    """By default, private registries are open, but not their redirects' targets."""
    place = host.partition(":")[0], int(host.rpartition(":")[2])
    monkeypatch.setattr(
        "kyverno_mp.egress.registries._dial",
        lambda _addresses, _port, timeout_s: socket.create_connection(place, timeout_s),
    )
    transport = RegistryTransport(read_rules(allow, ""), lambda _host: ["10.0.0.1"])
    first = call("admin.example")
    # The connection of the first call must not bypass the check.
    assert transport(first, far_ns()).status == 200
    redirected = replace(first, url=f"{first.url}debug", is_redirected=True)
    if is_followed:
        assert transport(redirected, far_ns()).status == 200
    else:
        with pytest.raises(ExpressionFailed, match="not allowed"):
            transport(redirected, far_ns())
    assert registry.paths == ["/v2/", "/v2/debug"][: 1 + is_followed]
    transport.close()


@pytest.mark.parametrize(
    ("allow", "own", "realm", "is_asked"),
    [
        ("*", ["8.8.8.8"], "vault.corp.example", False),
        ("*", ["10.0.0.2", "8.8.8.8"], "vault.corp.example", False),
        ("*,registry.example", ["8.8.8.8"], "vault.corp.example", False),
        ("*,vault.corp.example", ["8.8.8.8"], "vault.corp.example", True),
        ("*,*.corp.example", ["8.8.8.8"], "vault.corp.example", True),
        ("*,10.0.0.0/8", ["8.8.8.8"], "vault.corp.example", True),
        ("*", ["10.0.0.2"], "vault.corp.example", True),
        ("*", ["10.0.0.2"], "registry.example:5001", True),
        ("*", ["10.0.0.2"], "registry.example.", True),
    ],
)
def test_token_service_in_a_private_network_needs_its_name(
    allow: str,
    own: list[str],
    realm: str,
    is_asked: bool,  # noqa: FBT001 - a parameter
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A registry in a private network often has its token service on another host."""
    found = {"registry.example": own}
    seen: list[str] = []

    class Guarded(_Registry):
        def do_GET(self) -> None:
            seen.append(f"{self.headers['Host']}{self.path.partition('?')[0]}")
            body, status, headers = b'{"token": "t"}', 200, {}
            if self.path.startswith("/v2/a/") and "Authorization" not in self.headers:
                status = 401
                headers["WWW-Authenticate"] = f'Bearer realm="http://{realm}/token"'
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with answering(Guarded) as place:
        target = place.partition(":")[0], int(place.rpartition(":")[2])

        def dial(_addresses: object, port: int, timeout_s: float) -> socket.socket:
            if port == 443:
                raise ConnectionRefusedError
            return socket.create_connection(target, timeout_s)

        monkeypatch.setattr("kyverno_mp.egress.registries._dial", dial)
        transport = RegistryTransport(
            read_rules(allow, ""), lambda host: found.get(host, ["10.0.0.1"])
        )
        client = Client(
            lambda _host: ANONYMOUS, user_agent="t", insecure=True, send=transport
        )
        reference = Reference("registry.example", "a/b", "v1", "")
        if is_asked:
            assert client.manifest(reference, far_ns()).body == b'{"token": "t"}'
        else:
            with pytest.raises(ExpressionFailed) as raised:
                client.manifest(reference, far_ns())
            assert raised.value.code == "egress.denied"
            assert "KYVERNO_MP_REGISTRY_ALLOWLIST" in raised.value.message
        transport.close()
    assert (f"{realm}/token" in seen) is is_asked


def test_unavailable_registry(host: str) -> None:
    outcomes: list[tuple[str, str]] = []
    transport = RegistryTransport(
        _OPEN, to_loopback, lambda *call: outcomes.append(call)
    )
    with pytest.raises(RegistryUnavailable):
        transport(call("r.example:1"), far_ns())
    with pytest.raises(RequestInvalid):
        transport(call("user@r.example"), far_ns())
    with pytest.raises(DeadlinePassed):
        transport(call(host), 1)
    assert outcomes == [
        ("r.example", "network"),
        ("", "refused"),
        ("127.0.0.1", "deadline"),
    ]
    assert ANONYMOUS.basic() == ""
    transport.close()


class _Dripping(http.server.BaseHTTPRequestHandler):
    """Sends a part of a response, then nothing until the test ends."""

    protocol_version = "HTTP/1.1"
    gate: ClassVar[threading.Event] = threading.Event()
    parts: ClassVar[dict[str, bytes]] = {
        "/nothing": b"",
        "/head": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n",
        "/body": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
    }

    def do_GET(self) -> None:
        self.wfile.write(self.parts[self.path])
        self.wfile.flush()
        self.gate.wait(HANG_S)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Suppress the server's log."""


@pytest.mark.parametrize("path", ["/nothing", "/head", "/body"])
def test_server_that_is_too_slow_is_given_up(path: str) -> None:
    """Long before the deadline, so it holds a thread only briefly."""
    outcomes: list[str] = []
    gate = threading.Event()
    server = type("Server", (_Dripping,), {"gate": gate})
    with answering(server) as host:
        transport = RegistryTransport(
            _OPEN,
            to_loopback,
            lambda _host, outcome: outcomes.append(outcome),
            pace=ReadPace(0.05, 1 << 20),
        )
        with pytest.raises(RegistryUnavailable) as raised:
            transport(call(host, path), far_ns())
        gate.set()
        transport.close()
    assert raised.value.code == "registry.slow"
    assert outcomes == ["slow"]


def test_past_the_deadline_the_pace_does_not_matter(host: str) -> None:
    transport = RegistryTransport(_OPEN, to_loopback, pace=ReadPace(HANG_S))
    with pytest.raises(DeadlinePassed):
        transport(call(host), 1)
    assert transport(call(host), far_ns()).status == 200
    transport.close()


def test_pace_of_a_response() -> None:
    """The first byte in three seconds, and after three more a number per second."""
    second = 10**9
    pace = ReadPace(3.0, 1000)
    assert pace.until_ns(5 * second, 0, 0) == 8 * second
    assert pace.until_ns(5 * second, 6 * second, 0) == 9 * second
    assert pace.until_ns(5 * second, 6 * second, 10_000) == 19 * second
    assert ReadPace(3.0).until_ns(0, second, 1) == float("inf")

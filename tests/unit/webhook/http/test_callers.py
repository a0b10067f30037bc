"""A review that the API server did not send starts nothing, or gets no answer.

Whoever reaches the port can post any review. The proof is a secret segment of the path,
or a client certificate.
"""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID

from kyverno_mp.controllers.certificates.make import (
    certificate_pem,
    key_pem,
    make_ca,
    make_key,
)
from kyverno_mp.controllers.certificates.rules import CertificateRules
from kyverno_mp.limits import CALLER_TARGETS_KEPT_MAX
from kyverno_mp.process.startup.certificate import make
from kyverno_mp.snapshot.callers import Callers
from kyverno_mp.webhook.http.callers import CallerCheck
from kyverno_mp.webhook.http.connections import ANSWERING, READING, Connections
from kyverno_mp.webhook.http.protocol import Protocol
from kyverno_mp.webhook.http.tls import Certificates
from kyverno_mp.webhook.rest import make_app
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.service import Service
from tests.unit.webhook.http.test_protocol import Client, post, talk
from tests.unit.webhook.http.test_tls import client_context
from tests.unit.webhook.stub import StubEvaluate, StubPlan, StubRecords

OLD, NEW = "caller-" + "0a" * 20, "caller-" + "0b" * 20
PATHS = (
    "/validate/fail",
    "/mutate/ignore",
    "/vpol/a/b",
    "/nvpol-keys/ns/p",
    "/gpol/p",
    "/ivpol/validate/p",
    "/policyvalidate",
    "/policymutate",
    "/verifymutate",
    "/verifyttl",
    "/exceptionvalidate",
    "/celexception/validate",
    "/globalcontextvalidate",
    "/cleanuppolicyvalidate",
)
UNPROVED, UNKNOWN = "webhook.unproved", "webhook.caller_unknown"


def check(*segments: str, required: bool = True) -> CallerCheck:
    callers = CallerCheck(requires_segments=True)
    callers.take(Callers(segments, len(segments), required))
    return callers


async def until(holds: Callable[[], bool]) -> None:
    """Let the event loop run until a condition holds."""
    while not holds():  # noqa: ASYNC110 - the server has no event for it
        await asyncio.sleep(0)


def waits(left: threading.Event, _deadline_ns: int) -> None:
    left.wait(60)


def errors_of(client: Client) -> list[str]:
    service = client.connections.service
    assert isinstance(service, Service)
    records = service._dependencies.records
    assert isinstance(records, StubRecords)
    return list(records.errors)


def statuses(callers: CallerCheck, *paths: str) -> list[int]:
    """Return the status of a review on each path, each on a new connection."""
    found: list[int] = []

    async def story(client: Client) -> None:
        found.append((await client.ask(request))[0])

    for path in paths:
        request = post(path=path)
        talk(story, callers=callers)
    return found


def test_every_path_needs_a_proof_once_every_caller_has_one() -> None:
    callers = check(OLD, NEW)
    assert statuses(callers, *PATHS) == [404] * len(PATHS)
    for segment in (OLD, NEW):
        proved = [f"/{segment}{path}" for path in PATHS]
        assert statuses(callers, *proved) == [200] * len(PATHS)


@pytest.mark.parametrize(
    "path",
    [
        "/caller-" + "0c" * 20 + "/validate/fail",
        f"/{OLD[:-1]}/validate/fail",
        f"/{OLD}0/validate/fail",
        f"/{OLD.upper()}/validate/fail",
        f"//{OLD}/validate/fail",
        f"/validate/fail/{OLD}",
        f"/validate/fail?x=/{OLD}/",
        f"/{OLD}",
        f"/{OLD}/{NEW}/validate/fail",
        f"/%63{OLD[1:]}/validate/fail",
        "/caller-",
        "/",
    ],
)
def test_no_other_path_proves_anything(path: str) -> None:
    assert statuses(check(OLD), path) == [404]


def test_removed_segment_proves_nothing() -> None:
    callers = check(OLD, NEW)
    callers.take(Callers((NEW,), 2, required=True))
    paths = [f"/{one}/validate/fail" for one in (OLD, NEW)]
    assert statuses(callers, *paths) == [404, 200]


def test_kept_targets_are_bounded_and_never_outlive_their_segment() -> None:
    callers = check(OLD)
    for number in range(CALLER_TARGETS_KEPT_MAX + 10):
        target = f"/{OLD}/vpol/{number}".encode()
        assert callers.read(target) == (f"/vpol/{number}".encode(), b"", True)
        assert callers.read(target[:-1] + b"?a=b")[1:] == (b"a=b", True)
    assert len(callers._proved) <= CALLER_TARGETS_KEPT_MAX
    callers.take(Callers((NEW,), 2, required=True))
    assert callers.read(f"/{OLD}/vpol/1".encode()) == (b"/vpol/1", b"", False)


def test_rejected_before_the_body_is_read_and_counted() -> None:
    async def story(client: Client) -> None:
        head, _, _ = post(b"x" * 9000).partition(b"\r\n\r\n")
        # The body never arrives, so that only the head can cause the answer.
        status, _, body = await client.ask(head + b"\r\n\r\n")
        assert status == 404
        assert OLD.encode() not in body
        assert errors_of(client) == [UNKNOWN]

    talk(story, callers=check(OLD))


def test_health_needs_no_proof() -> None:
    async def story(client: Client) -> None:
        for path in ("liveness", "readiness"):
            request = f"GET /health/{path} HTTP/1.1\r\nHost: k\r\n\r\n"
            assert (await client.ask(request.encode()))[0] == 200

    talk(story, callers=check(OLD))


def test_judged_without_proof_while_a_caller_may_have_none() -> None:
    async def story(client: Client) -> None:
        assert (await client.ask(post()))[0] == 200
        assert errors_of(client) == [UNPROVED]
        assert (await client.ask(post(path=f"/{OLD}/validate/fail")))[0] == 200
        assert errors_of(client) == [UNPROVED]

    talk(story, callers=check(OLD, required=False))


def test_policies_are_judged_without_proof_and_counted() -> None:
    async def story(client: Client) -> None:
        for proof, counted in (("", [UNPROVED]), (f"/{OLD}", [UNPROVED])):
            path = f"{proof}/policyvalidate"
            assert (await client.ask(post(path=path)))[0] == 200
            assert errors_of(client) == counted

    talk(story, callers=check(OLD, required=False))


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH"])
@pytest.mark.parametrize("body", ["Content-Length: 9000", "Transfer-Encoding: chunked"])
def test_no_body_is_read_without_proof(method: str, body: str) -> None:
    """Probes have none; stored bodies would displace those of the API server."""

    async def story(client: Client) -> None:
        lines = f"{method} /health/liveness HTTP/1.1", "Host: k", body, "", ""
        assert (await client.ask("\r\n".join(lines).encode()))[0] == 404
        assert errors_of(client) == [UNKNOWN]

    talk(story, callers=check(OLD))


def test_segment_is_understood_where_it_is_not_required() -> None:
    """Replicas whose setting differs get the calls of the same configuration."""
    assert statuses(CallerCheck(), f"/{OLD}/validate/fail", "/validate/fail") == [
        200,
        200,
    ]


class CountedPeers:
    """Counts the calls that failed."""

    exposed = 0

    def report(self, connections: int) -> None: ...

    def others(self) -> list[int]:
        return []

    def expose(self) -> None:
        self.exposed += 1


@pytest.mark.parametrize("proof", [f"/{OLD}", ""])
def test_caller_that_leaves_before_the_answer_is_reported(proof: str) -> None:
    """The API server shows the path of such a call to the requester."""
    peers, left = CountedPeers(), threading.Event()
    plan = StubPlan(needs_io=True, work=partial(waits, left))

    async def story(client: Client) -> None:
        ended = client.connections.ended
        client.writer.write(post(path=f"{proof}/validate/fail"))
        await client.writer.drain()
        await until(
            lambda: any(one.state == ANSWERING for one in client.connections.open)
        )
        client.writer.transport.abort()
        await until(lambda: client.connections.ended > ended)
        left.set()

    talk(story, plan=plan, callers=check(OLD, required=False), peers=peers)
    assert peers.exposed == bool(proof)


@pytest.mark.parametrize("proof", [f"/{OLD}", ""])
def test_call_that_fails_while_it_arrives_is_reported(proof: str) -> None:
    peers = CountedPeers()

    async def story(client: Client) -> None:
        ended = client.connections.ended
        client.writer.write(post(path=f"{proof}/validate/fail")[:-1])
        await client.writer.drain()
        await until(
            lambda: any(one.state == READING for one in client.connections.open)
        )
        client.writer.transport.abort()
        await until(lambda: client.connections.ended > ended)

    talk(story, callers=check(OLD, required=False), peers=peers)
    assert peers.exposed == bool(proof)


@pytest.mark.parametrize("proof", [f"/{OLD}", ""])
def test_call_that_is_rejected_while_it_arrives_is_reported(proof: str) -> None:
    """Its client may fail to send the rest instead of reading the answer."""
    peers = CountedPeers()

    async def story(client: Client) -> None:
        head = post(b"", f"{proof}/policyvalidate")
        status, _, _ = await client.ask(head.replace(b": 0", b": 999999999"))
        assert status == 413

    talk(story, callers=check(OLD, required=False), peers=peers)
    assert peers.exposed == bool(proof)


class Authority:
    """An authority of client certificates, its file, and the files of its clients."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = make_key("ECDSA")
        self._ca = make_ca(self._key, datetime.now(UTC), CertificateRules())
        self.file = folder / "clients-ca.crt"
        self.file.write_bytes(certificate_pem(self._ca))

    def client(self, *names: str) -> ssl.SSLContext:
        """Return the context of a client whose certificate has these common names."""
        key, now = make_key("ECDSA"), datetime.now(UTC)
        leaf = (
            x509.CertificateBuilder()
            .subject_name(
                x509.Name(
                    [x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names]
                )
            )
            .issuer_name(self._ca.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .sign(self._key, hashes.SHA256())
        )
        files = self._folder / "client.crt", self._folder / "client.key"
        files[0].write_bytes(certificate_pem(leaf))
        files[1].write_bytes(key_pem(key))
        context = client_context()
        context.load_cert_chain(*files)
        return context


def asked(
    callers: CallerCheck, authority: Authority, context: ssl.SSLContext, request: bytes
) -> int:
    """Return the status of one request over TLS, 0 if the handshake fails."""
    folder = authority.file.parent
    files = make(folder, "kyverno")
    certificates = Certificates(files.cert, files.key, authority.file)

    async def story() -> int:
        loop = asyncio.get_running_loop()
        service = Service(
            Dependencies(
                records=StubRecords(), monotonic_ns=lambda: int(loop.time() * 1e9)
            ),
            handlers_of(StubEvaluate(None)),
        )
        connections = Connections(
            loop,
            service,
            make_app(lambda: True),
            body_bytes_max=10_000,
            keepalive_s=300.0,
            time_s=lambda: 0.0,
            linger_s=0.0,
            callers=callers,
        )
        ours, theirs = socket.socketpair()
        accepted = loop.create_task(
            loop.connect_accepted_socket(
                lambda: Protocol(connections), ours, ssl=certificates.context
            )
        )
        try:
            reader, writer = await asyncio.open_connection(
                sock=theirs, ssl=context, server_hostname="k"
            )
            writer.write(request)
            line = await reader.readline()
            writer.transport.abort()
        except (ssl.SSLError, ConnectionError):
            line = b""
        await asyncio.wait([accepted])
        accepted.exception()
        await until(lambda: not connections.open)
        return int(line.split()[1]) if line else 0

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(story())


def test_certificate_proves_the_caller(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, other = authority.client("kube-apiserver"), authority.client("other")
    nameless, both = client_context(), authority.client("kube-apiserver", "other")
    health = b"GET /health/liveness HTTP/1.1\r\nHost: k\r\n\r\n"

    def alone() -> CallerCheck:
        return CallerCheck(subjects=["kube-apiserver"])

    assert asked(alone(), authority, server, post()) == 200
    for context in (other, nameless, both):
        assert asked(alone(), authority, context, post()) == 403
        assert asked(alone(), authority, context, health) == 200


def test_certificate_or_segment_suffices_but_not_a_foreign_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, other = authority.client("kube-apiserver"), authority.client("other")
    proved = post(path=f"/{OLD}/validate/fail")

    def either() -> CallerCheck:
        callers = CallerCheck(requires_segments=True, subjects=["kube-apiserver"])
        callers.take(Callers((OLD,), 1, required=True))
        return callers

    assert asked(either(), authority, server, post()) == 200
    assert asked(either(), authority, client_context(), proved) == 200
    assert asked(either(), authority, client_context(), post()) == 404
    assert asked(either(), authority, other, proved) == 403


def test_certificate_of_another_authority_fails_the_handshake(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    ours, theirs = Authority(tmp_path), Authority(tmp_path / "theirs")
    callers = CallerCheck(subjects=["kube-apiserver"])
    assert asked(callers, ours, theirs.client("kube-apiserver"), post()) == 0


def test_new_authority_comes_into_force(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = make(tmp_path, "kyverno")
    certificates = Certificates(files.cert, files.key, authority.file)
    assert not certificates.refresh()
    Authority(tmp_path)
    assert certificates.refresh()

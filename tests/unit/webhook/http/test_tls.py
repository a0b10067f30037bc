"""Versions, cipher suites, and a certificate that changes during connections."""

import asyncio
import socket
import ssl
from pathlib import Path

import pytest
import uvloop
from cryptography import x509

from kyverno_mp.process.startup.certificate import make
from kyverno_mp.webhook.http.tls import Certificates


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined]


def client_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def connect(
    certificates: Certificates, context: ssl.SSLContext, name: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    accepted = loop.create_task(
        loop.connect_accepted_socket(Echo, ours, ssl=certificates.context)
    )
    try:
        found = await asyncio.open_connection(
            sock=theirs, ssl=context, server_hostname=name
        )
    finally:
        await asyncio.wait([accepted])
        # If it fails, the client fails, too.
        accepted.exception()
    return found


def serial(writer: asyncio.StreamWriter) -> int:
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return x509.load_der_x509_certificate(der).serial_number


def run(story: object) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(story)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["localhost", ""])
def test_new_certificate_is_used_for_new_connections(tmp_path: Path, name: str) -> None:
    """This includes clients without SNI; old connections continue."""
    files = make(tmp_path, "kyverno")
    certificates = Certificates(files.cert, files.key)

    async def story() -> None:
        reader, writer = await connect(certificates, client_context(), name)
        first = serial(writer)
        assert not certificates.refresh()
        make(tmp_path, "kyverno")
        assert certificates.refresh()
        _reader, second = await connect(certificates, client_context(), name)
        assert serial(second) != first
        writer.write(b"still here")
        assert await reader.readexactly(10) == b"still here"
        second.close()
        writer.close()

    run(story())


def test_new_certificate_is_served_before_a_worker_looks_for_it(
    tmp_path: Path,
) -> None:
    """A busy worker looks late, and the API server may already trust only this one."""
    files = make(tmp_path, "kyverno")
    certificates = Certificates(files.cert, files.key)

    serials: list[int] = []

    async def visit() -> None:
        _reader, writer = await connect(certificates, client_context(), "localhost")
        serials.append(serial(writer))
        writer.close()

    async def story() -> None:
        await visit()
        make(tmp_path, "kyverno")
        await visit()
        files.cert.unlink()
        await visit()

    run(story())
    first, second, third = serials
    assert first != second == third


@pytest.mark.parametrize("damage", ["other key", "cut", "gone"])
def test_mismatched_key_pair_is_not_served(tmp_path: Path, damage: str) -> None:
    files = make(tmp_path, "kyverno")
    certificates = Certificates(files.cert, files.key)
    if damage == "other key":
        other = tmp_path / "other"
        other.mkdir()
        files.key.write_bytes(make(other, "kyverno").key.read_bytes())
    elif damage == "cut":
        files.cert.write_bytes(files.cert.read_bytes()[:100])
    else:
        files.cert.unlink()
    assert not certificates.refresh()

    async def story() -> None:
        _reader, writer = await connect(certificates, client_context(), "localhost")
        assert serial(writer)
        writer.close()

    run(story())
    make(tmp_path, "kyverno")
    assert certificates.refresh(), "it recovers"


def test_six_tls_1_2_suites_are_offered(tmp_path: Path) -> None:
    """GHSA-hgv6-w7r3-w4qw: 3DES was accepted."""
    files = make(tmp_path, "kyverno")
    context = Certificates(files.cert, files.key).context
    offered = {c["name"] for c in context.get_ciphers() if c["protocol"] == "TLSv1.2"}
    assert offered == {
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        "ECDHE-RSA-AES128-GCM-SHA256",
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        "ECDHE-RSA-AES256-GCM-SHA384",
        "ECDHE-ECDSA-CHACHA20-POLY1305",
        "ECDHE-RSA-CHACHA20-POLY1305",
    }
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("suites", "accepted"),
    [
        ("ECDHE-ECDSA-AES128-GCM-SHA256", True),
        ("ECDHE-ECDSA-AES256-SHA384", False),
        ("ECDHE-ECDSA-AES128-SHA", False),
        ("AES128-GCM-SHA256", False),
    ],
)
def test_other_suites_are_rejected(tmp_path: Path, suites: str, accepted: bool) -> None:  # noqa: FBT001 - a table
    files = make(tmp_path, "kyverno")
    certificates = Certificates(files.cert, files.key)
    context = client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(suites)

    async def story() -> None:
        if not accepted:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await connect(certificates, context, "localhost")
            return
        _reader, writer = await connect(certificates, context, "localhost")
        assert writer.get_extra_info("cipher")[0] == suites
        writer.close()

    run(story())

"""A registry must not be able to lie, flood, stall, or collect secrets."""

import http.server
import json
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import ClassVar

import pytest

from kyverno_mp.errors import DeadlinePassed, RegistryUnavailable, RequestInvalid
from kyverno_mp.limits import REGISTRY_BLOB_BYTES_MAX, REGISTRY_MANIFEST_BYTES_MAX
from kyverno_mp.registry.client import OCI_MANIFEST, Client, digest_of
from kyverno_mp.registry.credentials import Credentials
from kyverno_mp.registry.image import image_data
from kyverno_mp.registry.reference import Reference, parse_reference
from tests.image_rig import answering
from tests.registry.conftest import PASSWORD, USER
from tests.waiting import drip, far_ns, soon_ns

BLOB = b"content"
_SENT_BYTES_MAX = 64 * 1024 * 1024
"""Far more than the buffers of two sockets."""
_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_ENDLESS = {
    "interim": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "trailers": (_CHUNKED + b"1\r\n \r\n0\r\n", b"x: y\r\n"),
    "chunks": (_CHUNKED, b"1\r\n \r\n"),
    "extensions": (_CHUNKED + b"1;", b"x"),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"),
    "header": (b"HTTP/1.1 200 OK\r\nx: ", b"y"),
    "status": (b"", b"H"),
}
"""Names of repositories: how a response begins, and what it repeats."""


class _Hostile(http.server.BaseHTTPRequestHandler):
    """A registry that answers by the last part of the path."""

    elsewhere: ClassVar[str] = ""
    seen: ClassVar[list[tuple[str, str]]] = []
    """Host and Authorization of all requests."""
    ended: ClassVar[list[str]] = []
    """Paths of responses that the client has read to their end."""

    def do_GET(self) -> None:
        authorization = self.headers.get("Authorization", "")
        self.seen.append((self.headers["Host"], authorization))
        name = self.path.split("/")[-3] if "/v2/" in self.path else ""
        if name == "guarded" and not authorization:
            self._answer(401, b"", {"WWW-Authenticate": 'Basic realm="r"'})
        elif name == "guarded":
            target = f"http://{self.elsewhere}/storage"
            self._answer(307, b"", {"Location": target})
        elif name == "loop":
            self._answer(307, b"", {"Location": self.path})
        elif name == "schemes":
            self._answer(307, b"", {"Location": "file:///etc/hostname"})
        elif name == "flood":
            self._answer(200, b" " * (REGISTRY_BLOB_BYTES_MAX + 1), {})
        elif name == "stall":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            # Until the client closes the connection.
            drip(self.connection)
        elif name in _ENDLESS:
            self._repeat(*_ENDLESS[name])
        elif name == "deep":
            self._answer(200, b"[" * 100_000, {"Content-Type": OCI_MANIFEST})
        elif name == "descriptor":
            manifest = {"config": {"digest": "sha256:../../../secret"}}
            body = json.dumps(manifest).encode()
            self._answer(200, body, {"Content-Type": OCI_MANIFEST})
        elif name == "words":
            said = {"errors": [{"code": "DENIED", "message": "x" * 9000}]}
            self._answer(403, json.dumps(said).encode(), {})
        else:
            self._answer(200, BLOB, {"Content-Type": OCI_MANIFEST})

    def _repeat(self, begin: bytes, again: bytes) -> None:
        """Send something again and again, until the client leaves."""
        self.close_connection = True
        with suppress(OSError):
            self.wfile.write(begin)
            for _ in range(_SENT_BYTES_MAX // (len(again) * 1000)):
                self.wfile.write(again * 1000)
            self.ended.append(self.path)

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for header, value in headers.items():
            self.send_header(header, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def host() -> Iterator[str]:
    _Hostile.seen.clear()
    _Hostile.ended.clear()
    with ExitStack() as stack:
        _Hostile.elsewhere = stack.enter_context(answering(_Hostile))
        yield stack.enter_context(answering(_Hostile))


@pytest.fixture
def client() -> Client:
    return Client(lambda _: Credentials(USER, PASSWORD), user_agent="test")


def _at(host: str, name: str) -> Reference:
    return parse_reference(f"{host}/{name}:v1")


def test_ghsa_3hfq_cx9j_923w_content_differs_from_its_digest(
    host: str, client: Client
) -> None:
    named = _at(host, "lie").at(digest_of(b"other"))
    with pytest.raises(RequestInvalid) as caught:
        client.manifest(named, far_ns())
    assert caught.value.code == "registry.digest"
    with pytest.raises(RequestInvalid, match="has the digest"):
        client.blob(named, named.digest, far_ns())
    assert client.blob(named, digest_of(BLOB), far_ns()) == BLOB


def test_ghsa_wc3x_4mp4_reads_are_bounded(host: str, client: Client) -> None:
    with pytest.raises(RequestInvalid, match=str(REGISTRY_MANIFEST_BYTES_MAX)):
        client.manifest(_at(host, "flood"), far_ns())
    with pytest.raises(RequestInvalid, match=str(REGISTRY_BLOB_BYTES_MAX)):
        client.blob(_at(host, "flood"), digest_of(BLOB), far_ns())


@pytest.mark.parametrize("name", _ENDLESS)
def test_a_response_without_an_end_is_refused_long_before_its_deadline(
    host: str, client: Client, name: str
) -> None:
    deadline_ns = far_ns()
    with pytest.raises((RegistryUnavailable, RequestInvalid)):
        client.blob(_at(host, name), digest_of(BLOB), deadline_ns)
    with pytest.raises((RegistryUnavailable, RequestInvalid)):
        client.manifest(_at(host, name), deadline_ns)
    assert not _Hostile.ended


def test_chunks_of_a_few_bytes_take_no_core(host: str, client: Client) -> None:
    deadline_ns = far_ns()
    with pytest.raises(RegistryUnavailable, match="ResponseTooLong"):
        client.blob(_at(host, "chunks"), digest_of(BLOB), deadline_ns)


def test_slow_answer_ends_at_its_deadline(host: str, client: Client) -> None:
    client.blob(_at(host, "warm"), digest_of(BLOB), far_ns())
    with pytest.raises(DeadlinePassed):
        client.manifest(_at(host, "stall"), soon_ns())


def test_password_is_sent_to_no_other_server(host: str, client: Client) -> None:
    data = client.blob(_at(host, "guarded"), digest_of(BLOB), far_ns())
    assert data == BLOB
    ours = {authorization for name, authorization in _Hostile.seen if name == host}
    assert any(ours)
    others = [found for name, found in _Hostile.seen if name == _Hostile.elsewhere]
    assert others == [""]


@pytest.mark.parametrize("name", ["loop", "schemes"])
def test_redirects_are_bounded(host: str, client: Client, name: str) -> None:
    with pytest.raises((RegistryUnavailable, RequestInvalid)):
        client.manifest(_at(host, name), far_ns())


@pytest.mark.parametrize("name", ["deep", "descriptor", "plain"])
def test_invalid_manifests(host: str, client: Client, name: str) -> None:
    with pytest.raises(RequestInvalid):
        image_data(client, str(_at(host, name)), far_ns())


def test_texts_of_registries_are_truncated(host: str, client: Client) -> None:
    with pytest.raises(RegistryUnavailable, match="DENIED") as caught:
        client.manifest(_at(host, "words"), far_ns())
    assert len(caught.value.message) < 700

"""Connections use the kubeconfig's proxy, with end-to-end TLS."""

import base64
import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kyverno_mp.errors import KubeUnavailable
from kyverno_mp.kube.access import Access, at_url
from kyverno_mp.kube.pool import Pool
from kyverno_mp.kube.rest import Call, Client
from kyverno_mp.process.startup.certificate import make

NAME = "kyverno-svc.kyverno.svc"


@contextmanager
def proxying(status: str, context: ssl.SSLContext) -> Iterator[tuple[int, list[str]]]:
    """Serve one connection, first as the proxy and then as the API server."""
    heads: list[str] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            raw, _ = listener.accept()
            with raw:
                heads.append(head_of(raw))
                raw.sendall(f"HTTP/1.1 {status}\r\n\r\n".encode())
                if not status.startswith("200"):
                    return
                with context.wrap_socket(raw, server_side=True) as inner:
                    heads.append(head_of(inner))
                    inner.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1], heads
    finally:
        listener.close()
        thread.join()


def head_of(connection: socket.socket) -> str:
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        data += connection.recv(1)
    return data.decode()


@pytest.fixture
def access(tmp_path: Path) -> tuple[Access, ssl.SSLContext]:
    (tmp_path / "tls").mkdir(mode=0o700)
    files = make(tmp_path / "tls", "kyverno")
    assert files.ca is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    found = replace(
        at_url("https://api.invalid:6443"),
        ca_pem=files.ca.read_text(),
        server_name=NAME,
        token="inner",
    )
    return found, context


def test_tunnel_is_opened(access: tuple[Access, ssl.SSLContext]) -> None:
    target, context = access
    with proxying("200 OK", context) as (port, heads):
        proxy = f"http://me:p%40ss@127.0.0.1:{port}"
        client = Client(Pool(replace(target, proxy=proxy)), "test")
        assert client.get("/version") == {}
        client.close()
    outer, inner = heads
    assert outer.startswith("CONNECT api.invalid:6443 HTTP/1.")
    login = base64.b64encode(b"me:p@ss").decode()
    assert f"Proxy-Authorization: Basic {login}\r\n" in outer
    assert "inner" not in outer
    assert inner.startswith("GET /version HTTP/1.1\r\n")
    assert "Bearer inner" in inner
    assert login not in inner


def test_proxy_that_rejects(access: tuple[Access, ssl.SSLContext]) -> None:
    target, context = access
    with proxying("407 Proxy Authentication Required", context) as (port, heads):
        proxy = f"http://me:secret@127.0.0.1:{port}"
        client = Client(Pool(replace(target, proxy=proxy)), "test")
        with pytest.raises(KubeUnavailable) as raised:
            client.call(Call(method="GET", path="/version", repeatable=False))
        client.close()
    assert len(heads) == 1
    assert "secret" not in str(raised.value)

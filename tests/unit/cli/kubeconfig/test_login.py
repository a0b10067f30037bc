"""An expired OIDC login is renewed with an issuer that proves its identity."""

import base64
import json
import ssl
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import yaml

from kyverno_mp.cli.cluster.access import find_access
from kyverno_mp.errors import SettingInvalid
from kyverno_mp.process.startup.certificate import Files, make


@dataclass
class Issuer:
    """An issuer with its prepared response and the received requests."""

    url: str = ""
    answer: dict[str, str] = field(default_factory=dict)
    asked: list[dict[str, list[str]]] = field(default_factory=list)
    looked_up: int = 0


def _handler_of(issuer: Issuer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.looked_up += 1
            self.reply({"token_endpoint": f"{issuer.url}/token"})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            issuer.asked.append(parse_qs(body.decode()))
            self.reply(issuer.answer)

        def reply(self, document: dict[str, str]) -> None:
            data = json.dumps(document).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named so above
            pass

    return Handler


@contextmanager
def issuing(files: Files) -> Iterator[Issuer]:
    issuer = Issuer()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(issuer))
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    issuer.url = f"https://localhost:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    (tmp_path / "tls").mkdir(mode=0o700)
    return make(tmp_path / "tls", "kyverno")


def token(expires_s: float) -> str:
    claims = json.dumps({"exp": time.time() + expires_s}).encode()
    parts = (b"{}", claims, b"signature")
    return ".".join(
        base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts
    )


def kubeconfig(file: Path, login: dict[str, str]) -> Path:
    provider = {"name": "oidc", "config": login}
    named = {
        "clusters": [{"name": "c", "cluster": {"server": "https://x"}}],
        "users": [
            {"name": "other", "user": {"token": "kept"}},
            {"name": "u", "user": {"auth-provider": provider}},
        ],
        "contexts": [{"name": "a", "context": {"cluster": "c", "user": "u"}}],
    }
    file.write_text(yaml.safe_dump({**named, "current-context": "a"}))
    return file


def login_at(issuer: Issuer) -> dict[str, str]:
    return {
        "id-token": token(-1),
        "refresh-token": "old-secret",
        "client-id": "me",
        "idp-issuer-url": issuer.url,
    }


@pytest.mark.parametrize("inline", [True, False])
def test_login_is_renewed_and_stored(
    tmp_path: Path,
    files: Files,
    inline: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    assert files.ca is not None
    with issuing(files) as issuer:
        new = token(3600)
        issuer.answer = {
            "id_token": new,
            "refresh_token": "new-secret",
            "access_token": "unused",
            "token_type": "Bearer",
        }
        ca = {"idp-certificate-authority": str(files.ca)}
        if inline:
            data = base64.b64encode(files.ca.read_bytes()).decode()
            ca = {"idp-certificate-authority-data": data}
        file = kubeconfig(tmp_path / "k", login_at(issuer) | ca)
        expected = yaml.safe_load(file.read_text())
        assert find_access(str(file), "", {}).token == new
        assert [asked["refresh_token"] for asked in issuer.asked] == [["old-secret"]]
        login = expected["users"][1]["user"]["auth-provider"]["config"]
        login |= {"id-token": new, "refresh-token": "new-secret"}
        assert yaml.safe_load(file.read_text()) == expected
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert find_access(str(file), "", {}).token == new
        assert len(issuer.asked) == 1


def test_untrusted_issuer_receives_no_secret(tmp_path: Path, files: Files) -> None:
    with issuing(files) as issuer:
        file = kubeconfig(tmp_path / "k", login_at(issuer))
        with pytest.raises(SettingInvalid) as raised:
            find_access(str(file), "", {})
        assert raised.value.code == "kube.login"
        assert str(file) in str(raised.value)
        assert "secret" not in str(raised.value)
        assert (issuer.looked_up, issuer.asked) == (0, [])


def test_image_names_the_missing_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image does not contain the official client (deploy/pin.py)."""
    monkeypatch.setitem(sys.modules, "kubernetes.client", None)
    file = kubeconfig(tmp_path / "k", login_at(Issuer()))
    with pytest.raises(SettingInvalid, match="needs the package kubernetes") as raised:
        find_access(str(file), "", {})
    assert raised.value.code == "kube.login"

"""A real registry (distribution's, Debian package docker-registry) for each test file.

Takes: the program on the PATH, else the tests skip. Gives: Registry, in the usual
configurations: open, with a password, behind a token service, with TLS. May touch:
loopback ports, temporary folders, one child process each.
"""

import base64
import datetime as dt
import http.server
import json
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import ClassVar

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from kyverno_mp.cli.main import run
from tests.image_rig import answering
from tests.ports import free_port
from tests.waiting import HANG_S, wait_for

USER, PASSWORD = "robot", "s3cret-word"
_HTPASSWD = f"{USER}:$2b$05$abcdefghijklmnopqrstuuEpHRRKIlpAGo.iP7Bpa.htQEJMAAnRe\n"


@dataclass(frozen=True)
class Registry:
    """The address of a registry."""

    host: str

    def image(self, name: str) -> str:
        return f"{self.host}/{name}"


@dataclass
class Done:
    """The result of one command."""

    code: int
    out: str
    err: str


class Cli:
    """A runner of commands with a separate docker configuration for the test."""

    def __init__(self, capfd: pytest.CaptureFixture[str], docker: Path) -> None:
        self._capfd = capfd
        self._docker = docker

    def __call__(self, *arguments: object) -> Done:
        self._capfd.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = self._capfd.readouterr()
        return Done(code, out, err)

    def log_in(self, host: str, **entry: str) -> None:
        self._docker.mkdir(exist_ok=True)
        config = json.dumps({"auths": {host: entry}})
        (self._docker / "config.json").write_text(config)


@pytest.fixture
def cli(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Cli:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    return Cli(capfd, tmp_path / "docker")


@contextmanager
def serving(folder: Path, config: dict[str, object], scheme: str) -> Iterator[Registry]:
    """Start the registry and wait until it answers; stop only this process."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip(
            "docker-registry is not installed (apt-get install docker-registry)"
        )
    port = free_port()
    settings = {
        "version": 0.1,
        "log": {"accesslog": {"disabled": True}, "level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "store")}},
        **config,
    }
    web = {"addr": f"127.0.0.1:{port}", "secret": "same"}
    if scheme == "https":
        web["tls"] = {  # type: ignore[assignment]  # one map of many in JSON
            "certificate": str(folder / "tls.crt"),
            "key": str(folder / "tls.key"),
            "clientcas": [str(path) for path in folder.glob("clients.crt")],
        }
    (folder / "config.yml").write_text(json.dumps({**settings, "http": web}))
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            [program, "serve", str(folder / "config.yml")], stdout=log, stderr=log
        ) as process,
    ):
        try:
            _wait(f"{scheme}://127.0.0.1:{port}/v2/", process, folder)
            yield Registry(f"127.0.0.1:{port}")
        finally:
            process.terminate()


def _wait(url: str, process: "subprocess.Popen[bytes]", folder: Path) -> None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if (folder / "tls.crt").exists():
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            urllib.request.urlopen(url, timeout=HANG_S, context=context).close()
        except urllib.error.HTTPError as refused:
            refused.close()
        except OSError:
            return False
        return True

    wait_for(answers)


def make_certificate(folder: Path) -> rsa.RSAPrivateKey:
    """Write tls.crt and tls.key, self-signed; return the key."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "registry")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "tls.crt").write_bytes(certificate.public_bytes(pem))
    (folder / "tls.key").write_bytes(
        key.private_bytes(
            pem,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    return key


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with serving(tmp_path_factory.mktemp("open"), {}, "http") as found:
        yield found


@pytest.fixture(scope="module")
def tls_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    folder = tmp_path_factory.mktemp("tls")
    make_certificate(folder)
    with serving(folder, {}, "https") as found:
        yield found


@pytest.fixture(scope="module")
def password_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    folder = tmp_path_factory.mktemp("password")
    (folder / "htpasswd").write_text(_HTPASSWD)
    auth = {"htpasswd": {"realm": "test", "path": str(folder / "htpasswd")}}
    with serving(folder, {"auth": auth}, "http") as found:
        yield found


@pytest.fixture(scope="module")
def token_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    folder = tmp_path_factory.mktemp("token")
    key = make_certificate(folder)
    with tokens(folder, key) as realm:
        auth = {
            "realm": realm,
            "service": "the registry",
            "issuer": "the issuer",
            "rootcertbundle": str(folder / "tls.crt"),
        }
        with serving(folder, {"auth": {"token": auth}}, "http") as found:
            yield found


class _Tokens(http.server.BaseHTTPRequestHandler):
    """A service that issues the requested tokens to clients with the password."""

    key: ClassVar[rsa.RSAPrivateKey]
    certificate: ClassVar[str]

    def do_GET(self) -> None:
        pair = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if self.headers.get("Authorization") != f"Basic {pair}":
            self.send_response(401)
            self.end_headers()
            return
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        body = json.dumps({"token": self._token(query)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _token(self, query: dict[str, list[str]]) -> str:
        kind, name, actions = query["scope"][0].split(":")
        now = int(time.time())
        claims = {
            "iss": "the issuer",
            "aud": query["service"][0],
            "sub": USER,
            "nbf": now - 10,
            "iat": now,
            "exp": now + 300,
            "jti": "1",
            "access": [{"type": kind, "name": name, "actions": actions.split(",")}],
        }
        head = {"typ": "JWT", "alg": "RS256", "x5c": [self.certificate]}
        signed = f"{_encoded(head)}.{_encoded(claims)}"
        signature = self.key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_base64(signature)}"

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def _encoded(value: object) -> str:
    return _base64(json.dumps(value).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@contextmanager
def tokens(folder: Path, key: rsa.RSAPrivateKey) -> Iterator[str]:
    """Run a token service; yield its realm."""
    pem = x509.load_pem_x509_certificate((folder / "tls.crt").read_bytes())
    der = pem.public_bytes(serialization.Encoding.DER)
    handler = type(
        "Handler",
        (_Tokens,),
        {"key": key, "certificate": base64.b64encode(der).decode()},
    )
    with answering(handler) as host:
        yield f"http://{host}/token"

"""Write and read kubeconfig files.

Takes: an address, a trust anchor, a token or a client certificate. Gives: a file that
kubectl and clients accept. May touch: that file.
"""

import base64
import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.certificates import Pair


@dataclass(frozen=True)
class Access:
    """Access to an API server as one user."""

    server: str
    ca: bytes = field(repr=False)
    token: str = field(default="", repr=False)
    certificate: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)

    def tls(self) -> ssl.SSLContext:
        """Return a context that trusts the server and sends the client certificate."""
        context = ssl.create_default_context(cadata=self.ca.decode() or None)
        if self.certificate:
            with tempfile.NamedTemporaryFile(suffix=".pem") as both:
                both.write(self.certificate + b"\n" + self.key)
                both.flush()
                context.load_cert_chain(both.name)
        return context


def with_token(server: str, ca: Path, token: str) -> Access:
    """Return access by a bearer token."""
    return Access(server, ca.read_bytes(), token=token)


def with_certificate(server: str, ca: Path, pair: Pair) -> Access:
    """Return access by a client certificate."""
    return Access(
        server,
        ca.read_bytes(),
        certificate=pair.certificate.read_bytes(),
        key=pair.key.read_bytes(),
    )


def write_kubeconfig(
    path: Path, access: Access, user: str, cluster: str = "e2e"
) -> Path:
    """Write the file of one user, which no other user can read."""
    credentials: dict[str, Any] = {"token": access.token} if access.token else {}
    if access.certificate:
        credentials["client-certificate-data"] = _encode(access.certificate)
        credentials["client-key-data"] = _encode(access.key)
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": user,
        "clusters": [
            {
                "name": cluster,
                "cluster": {
                    "server": access.server,
                    "certificate-authority-data": _encode(access.ca),
                },
            }
        ],
        "contexts": [{"name": user, "context": {"cluster": cluster, "user": user}}],
        "users": [{"name": user, "user": credentials}],
    }
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(content))
    return path


def read_kubeconfig(path: Path) -> Access:
    """Read the current context of a file; its credential commands are not run."""
    content = yaml.safe_load(path.read_text())
    context = _named(content["contexts"], content["current-context"])["context"]
    cluster = _named(content["clusters"], context["cluster"])["cluster"]
    user = _named(content["users"], context["user"])["user"]
    return Access(
        cluster["server"],
        _data(cluster, "certificate-authority", path),
        token=user.get("token", ""),
        certificate=_data(user, "client-certificate", path),
        key=_data(user, "client-key", path),
    )


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(entry for entry in entries if entry["name"] == name)


def _data(source: dict[str, Any], name: str, path: Path) -> bytes:
    if f"{name}-data" in source:
        return base64.b64decode(source[f"{name}-data"])
    return (path.parent / source[name]).read_bytes() if name in source else b""


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()

"""Make images signed in Cosign's format, and serve them like a registry.

Gives: Contents and ``serving`` (a dictionary behind HTTP), ``Signer`` with keys of
``cryptography``, ``Repository`` that builds manifests. May touch: loopback ports.
"""

import base64
import hashlib
import http.server
import json
import threading
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import yaml
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from kyverno_mp.images.sigstore.proof import Layer
from kyverno_mp.registry.client import Client
from kyverno_mp.registry.reference import Reference

OCI = "application/vnd.oci.image.manifest.v1+json"
IN_TOTO = "application/vnd.in-toto+json"


@dataclass
class Contents:
    """The registry's content by path: status, headers and body."""

    answers: dict[tuple[str, str], tuple[int, dict[str, str], bytes]] = field(
        default_factory=dict
    )

    once: dict[tuple[str, str], tuple[int, dict[str, str], bytes]] = field(
        default_factory=dict
    )
    """Answers that are given once, before the regular ones."""

    def load_registry(self, raw: dict[str, Any]) -> None:
        for repo, content in raw.get("repos", {}).items():
            for digest, data in content.get("blobs", {}).items():
                path = f"/v2/{repo}/blobs/{digest}"
                body = base64.b64decode(data)
                self.answers["GET", path] = (200, {}, body)
            for manifest in content.get("manifests", []):
                body = manifest["content"].encode()
                headers = {
                    "Content-Type": manifest["mediaType"],
                    "Docker-Content-Digest": manifest["digest"],
                }
                for name in [*manifest["tags"], manifest["digest"]]:
                    path = f"/v2/{repo}/manifests/{name}"
                    self.answers["GET", path] = (200, headers, body)

    def load_canned(self, raw: dict[str, Any]) -> None:
        for route in raw.get("routes", []):
            body = route.get("body", "")
            data = base64.b64decode(route["body64"]) if "body64" in route else b""
            data = data or (body if type(body) is str else json.dumps(body)).encode()
            key = (route.get("method", "GET"), route["path"])
            self.answers[key] = (
                route.get("status", 200),
                route.get("headers") or {},
                data,
            )

    def missing(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Answer as docker-registry does."""
        name = urllib.parse.unquote(path.rpartition("/")[2])
        known = "/manifests/" in path
        code = "MANIFEST_UNKNOWN" if known else "BLOB_UNKNOWN"
        text = "manifest unknown" if known else "blob unknown to registry"
        error = {"code": code, "message": text, "detail": {"Tag": name}}
        headers = {"Content-Type": "application/json"}
        return 404, headers, json.dumps({"errors": [error]}).encode()


class _Handler(http.server.BaseHTTPRequestHandler):
    contents: ClassVar[Contents]
    is_canned: ClassVar[bool]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        found = self.contents.once.pop((self.command, path), None)
        found = found or self.contents.answers.get((self.command, path))
        if found is None and self.command == "HEAD":
            found = self.contents.answers.get(("GET", path))
        if found is None and path == "/v2/":
            found = 200, {}, b"{}"
        if found is None and self.is_canned:
            error = {"errors": [{"code": "NOT_FOUND", "message": "no such path"}]}
            found = 404, {}, json.dumps(error).encode()
        if found is None and "/referrers/" in path:
            found = 404, {}, b"404 page not found\n"
        status, headers, body = found or self.contents.missing(path)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def serving(contents: Contents, *, is_canned: bool) -> AbstractContextManager[str]:
    """Serve the contents on a free port of this machine; yield host and port."""
    own = {"contents": contents, "is_canned": is_canned}
    return answering(type("Handler", (_Handler,), own))


@contextmanager
def answering(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve HTTP on a free port of this machine; yield host and port."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Signer:
    """A key pair on P-256."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        public = self._key.public_key().public_bytes(
            serialization.Encoding.PEM,
            serialization.PublicFormat.SubjectPublicKeyInfo,
        )
        self.pem = public.decode()

    def sign(self, data: bytes) -> bytes:
        return self._key.sign(data, ec.ECDSA(hashes.SHA256()))


def payload_for(digest: str, **optional: str) -> bytes:
    """Return a simple-signing payload."""
    critical = {
        "identity": {"docker-reference": "example/reference"},
        "image": {"docker-manifest-digest": digest},
        "type": "cosign container image signature",
    }
    return json.dumps({"critical": critical, "optional": optional or None}).encode()


def envelope_for(statement: Mapping[str, Any], signer: Signer) -> bytes:
    """Return a signed DSSE envelope."""
    body = json.dumps(statement).encode()
    signed = b"DSSEv1 %d %s %d %s" % (len(IN_TOTO), IN_TOTO.encode(), len(body), body)
    signature = base64.b64encode(signer.sign(signed)).decode()
    return json.dumps(
        {
            "payloadType": IN_TOTO,
            "payload": base64.b64encode(body).decode(),
            "signatures": [{"keyid": "", "sig": signature}],
        }
    ).encode()


def signed_policy(host: str, signer: Signer) -> str:
    """Return a policy, as YAML, that requires this key's signature on the images."""
    keys = {"publicKeys": signer.pem, "rekor": {"ignoreTlog": True}}
    rule = {
        "name": "verify",
        "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
        "verifyImages": [
            {
                "imageReferences": [f"{host}/*"],
                "attestors": [{"entries": [{"keys": keys}]}],
            }
        ],
    }
    return yaml.safe_dump(
        {
            "apiVersion": "kyverno.io/v1",
            "kind": "ClusterPolicy",
            "metadata": {"name": "signed"},
            "spec": {"validationFailureAction": "Enforce", "rules": [rule]},
        }
    )


@dataclass
class Repository:
    """One repository: images, their signatures and attestations."""

    name: str
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: list[tuple[str, bytes]] = field(default_factory=list)
    """(tag, content), in the order of pushing."""

    def image(self, tag: str = "v1", salt: str = "") -> str:
        """Add an image; return its digest."""
        config = self._blob(json.dumps({"salt": f"{self.name} {tag} {salt}"}).encode())
        return self._manifest(tag, config, [])

    def sign(self, digest: str, signer: Signer, **optional: str) -> None:
        """Add a signature of an image."""
        payload = payload_for(digest, **optional)
        signature = base64.b64encode(signer.sign(payload)).decode()
        self.attach(digest, "sig", [(payload, signature)])

    def attest(
        self, digest: str, signer: Signer, kind: str, predicate: Mapping[str, Any]
    ) -> None:
        """Add an attestation of an image."""
        statement = {
            "_type": "https://in-toto.io/Statement/v0.1",
            "predicateType": kind,
            "subject": [{"name": "i", "digest": {"sha256": digest[7:]}}],
            "predicate": predicate,
        }
        self.attach(digest, "att", [(envelope_for(statement, signer), "")])

    def attach(self, digest: str, suffix: str, layers: list[tuple[bytes, str]]) -> None:
        """Add a manifest of signed layers: (payload, signature)."""
        name = "dev.cosignproject.cosign/signature"
        signed = [
            Layer(digest_of(payload), payload, {name: signature})
            for payload, signature in layers
        ]
        self.attach_layers(digest, suffix, signed)

    def attach_layers(self, digest: str, suffix: str, layers: Sequence[Layer]) -> None:
        """Add a manifest of layers with any annotations."""
        listed = [
            {
                "mediaType": "application/octet-stream",
                "digest": self._blob(one.payload),
                "size": len(one.payload),
                "annotations": dict(one.annotations),
            }
            for one in layers
        ]
        tag = f"{digest.replace(':', '-')}.{suffix}"
        self._manifest(tag, self._blob(b"{}"), listed)

    def _blob(self, data: bytes) -> str:
        self.blobs[digest_of(data)] = data
        return digest_of(data)

    def _manifest(self, tag: str, config: str, layers: list[dict[str, Any]]) -> str:
        content = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": OCI,
                "config": {
                    "mediaType": "application/vnd.oci.image.config.v1+json",
                    "digest": config,
                    "size": len(self.blobs[config]),
                },
                "layers": layers,
            }
        ).encode()
        self.manifests.append((tag, content))
        return digest_of(content)

    def load(self, contents: Contents) -> None:
        """Put everything into a dictionary."""
        contents.load_registry(
            {
                "repos": {
                    self.name: {
                        "blobs": {
                            digest: base64.b64encode(data).decode()
                            for digest, data in self.blobs.items()
                        },
                        "manifests": [
                            {
                                "digest": digest_of(content),
                                "mediaType": OCI,
                                "tags": [tag],
                                "content": content.decode(),
                            }
                            for tag, content in self.manifests
                        ],
                    }
                }
            }
        )

    def push(self, client: Client, host: str, deadline_ns: int) -> None:
        """Push everything to a registry."""
        for data in self.blobs.values():
            client.push_blob(Reference(host, self.name, "v1", ""), data, deadline_ns)
        for tag, content in self.manifests:
            place = Reference(host, self.name, tag, "")
            client.push_manifest(place, content, OCI, deadline_ns)

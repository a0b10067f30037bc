"""Push and pull manifests and blobs; every digest is computed from the bytes.

Room: registry. Takes: References, bytes. Gives: Manifests, bytes, digests.
Next: registry/image.py, cli/oci.py. May touch: the network through registry/session.py.
Source: OCI distribution specification 1.1; docs/behaviour/lessons 4.2 rows 1, 5-9.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from kyverno_mp.errors import RegistryUnavailable, RequestInvalid
from kyverno_mp.kube.translate import cut
from kyverno_mp.limits import (
    REGISTRY_BLOB_BYTES_MAX,
    REGISTRY_MANIFEST_BYTES_MAX,
    REGISTRY_SESSIONS_MAX,
    REGISTRY_TOKEN_BYTES_MAX,
)
from kyverno_mp.registry.credentials import Credentials
from kyverno_mp.registry.exchange import Exchange, RegistryResponse, exchange
from kyverno_mp.registry.reference import Reference
from kyverno_mp.registry.session import Session

OCI_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX: Final = "application/vnd.oci.image.index.v1+json"
_DOCKER_MANIFEST: Final = "application/vnd.docker.distribution.manifest.v2+json"
_DOCKER_LIST: Final = "application/vnd.docker.distribution.manifest.list.v2+json"
MANIFEST_TYPES: Final = (OCI_MANIFEST, _DOCKER_MANIFEST)
INDEX_TYPES: Final = (OCI_INDEX, _DOCKER_LIST)
_ACCEPT: Final = ", ".join((*MANIFEST_TYPES, *INDEX_TYPES))
_OK, _CREATED, _ACCEPTED = 200, 201, 202
_PULL, _PUSH = "pull", "push,pull"


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest or an index as stored in the registry."""

    media_type: str
    digest: str
    body: bytes


class _Problem(msgspec.Struct):
    code: str = ""
    message: str = ""


class _Problems(msgspec.Struct):
    errors: list[_Problem] = []


_PROBLEMS = msgspec.json.Decoder(_Problems)


class Client:
    """Client of all registries; keeps scheme and authorization of each repository."""

    def __init__(
        self,
        credentials: Callable[[str], Credentials],
        *,
        user_agent: str,
        insecure: bool = False,
        keychain: Callable[[Reference, int], Credentials] | None = None,
        send: Exchange = exchange,
    ) -> None:
        """``keychain``: credentials by repository, found before a deadline."""
        self._credentials = credentials
        self._keychain = keychain
        self._exchange = send
        self._user_agent = user_agent
        self._insecure = insecure
        self._sessions: dict[tuple[str, str], Session] = {}

    def manifest(self, reference: Reference, deadline_ns: int) -> Manifest:
        """Return the manifest that a tag or digest names.

        Raises: RegistryUnavailable, RequestInvalid (``registry.digest``: the bytes have
        another digest), DeadlinePassed.
        """
        session = self._session(reference, _PULL, deadline_ns)
        answer = session.ask(
            "GET",
            session.url(f"manifests/{reference.identifier}", deadline_ns),
            headers={"Accept": _ACCEPT},
            bytes_max=REGISTRY_MANIFEST_BYTES_MAX,
            deadline_ns=deadline_ns,
        )
        _expect(answer, _OK, reference.name)
        named = reference.digest or answer.headers.get("docker-content-digest", "")
        digest = checked_digest(answer.body, named, reference.name)
        media_type = answer.headers.get("content-type", "").partition(";")[0].strip()
        return Manifest(media_type, digest, answer.body)

    def blob(self, reference: Reference, digest: str, deadline_ns: int) -> bytes:
        """Return a blob of the reference's repository. Raises: as ``manifest``."""
        session = self._session(reference, _PULL, deadline_ns)
        name = f"{reference.place}@{digest}"
        answer = session.ask(
            "GET",
            session.url(f"blobs/{digest}", deadline_ns),
            bytes_max=REGISTRY_BLOB_BYTES_MAX,
            deadline_ns=deadline_ns,
        )
        _expect(answer, _OK, name)
        checked_digest(answer.body, digest, name)
        return answer.body

    def read(
        self, reference: Reference, path: str, deadline_ns: int, *, bytes_max: int
    ) -> tuple[str, RegistryResponse]:
        """Return the URL of a path below a repository, and the unchecked response.

        For callers that have their own error messages and check the digest themselves.
        Raises: RegistryUnavailable, RequestInvalid, DeadlinePassed.
        """
        session = self._session(reference, _PULL, deadline_ns)
        url = session.url(path, deadline_ns)
        answer = session.ask(
            "GET",
            url,
            headers={"Accept": _ACCEPT},
            bytes_max=bytes_max,
            deadline_ns=deadline_ns,
        )
        return url, answer

    def push_blob(self, reference: Reference, data: bytes, deadline_ns: int) -> str:
        """Store a blob unless the registry has it; returns its digest.

        Raises: RegistryUnavailable, RequestInvalid, DeadlinePassed.
        """
        session = self._session(reference, _PUSH, deadline_ns)
        digest = digest_of(data)
        existing = session.ask(
            "HEAD",
            session.url(f"blobs/{digest}", deadline_ns),
            bytes_max=REGISTRY_TOKEN_BYTES_MAX,
            deadline_ns=deadline_ns,
        )
        if existing.status == _OK:
            return digest
        name = f"{reference.place}@{digest}"
        started = session.ask(
            "POST",
            session.url("blobs/uploads/", deadline_ns),
            body=b"",
            bytes_max=REGISTRY_TOKEN_BYTES_MAX,
            deadline_ns=deadline_ns,
        )
        _expect(started, _ACCEPTED, name)
        location = session.url(started.headers.get("location", ""), deadline_ns)
        done = session.ask(
            "PUT",
            f"{location}{'&' if '?' in location else '?'}digest={digest}",
            headers={"Content-Type": "application/octet-stream"},
            body=data,
            bytes_max=REGISTRY_TOKEN_BYTES_MAX,
            deadline_ns=deadline_ns,
        )
        _expect(done, _CREATED, name)
        return digest

    def push_manifest(
        self, reference: Reference, data: bytes, media_type: str, deadline_ns: int
    ) -> str:
        """Store a manifest under the reference's tag or digest; returns its digest.

        Raises: RegistryUnavailable, RequestInvalid, DeadlinePassed.
        """
        digest = checked_digest(data, reference.digest, reference.name)
        session = self._session(reference, _PUSH, deadline_ns)
        answer = session.ask(
            "PUT",
            session.url(f"manifests/{reference.identifier}", deadline_ns),
            headers={"Content-Type": media_type},
            body=data,
            bytes_max=REGISTRY_TOKEN_BYTES_MAX,
            deadline_ns=deadline_ns,
        )
        _expect(answer, _CREATED, reference.name)
        return digest

    def _session(self, reference: Reference, actions: str, deadline_ns: int) -> Session:
        key = (reference.place, actions)
        session = self._sessions.get(key)
        if session is None:
            if len(self._sessions) >= REGISTRY_SESSIONS_MAX:
                self._sessions.clear()
            session = self._sessions[key] = Session(
                reference.registry,
                reference.repository,
                (
                    self._credentials(reference.registry)
                    if self._keychain is None
                    else self._keychain(reference, deadline_ns)
                ),
                actions=actions,
                insecure=self._insecure,
                user_agent=self._user_agent,
                send=self._exchange,
            )
        return session


def digest_of(data: bytes) -> str:
    """Return the name of content: ``sha256:<hex>``."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def checked_digest(data: bytes, named: str, subject: str) -> str:
    """Return the digest of the bytes; it must equal the expected digest, if any."""
    algorithm = named.partition(":")[0] if named else "sha256"
    if algorithm not in ("sha256", "sha512"):
        raise RequestInvalid(
            "registry.digest",
            f"{subject}: digests of {cut(algorithm)} are not supported",
        )
    digest = f"{algorithm}:{hashlib.new(algorithm, data).hexdigest()}"
    if named and digest != named:
        raise RequestInvalid(
            "registry.digest", f"{subject}: the content has the digest {digest}"
        )
    return digest


def _expect(answer: RegistryResponse, status: int, subject: str) -> None:
    """Raise RegistryUnavailable (``registry.refused``) for any other status."""
    if answer.status == status:
        return
    try:
        problems = _PROBLEMS.decode(answer.body).errors
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        problems = []
    details = cut(
        "; ".join(f"{problem.code}: {problem.message}" for problem in problems)
    )
    tail = f" ({details})" if details else ""
    raise RegistryUnavailable(
        "registry.refused", f"{subject}: the registry returned {answer.status}{tail}"
    )

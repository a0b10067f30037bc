"""One HTTP exchange with a registry: bounded in bytes and time, errors translated.

Room: registry. Takes: method, URL, headers, body, a deadline. Gives: RegistryResponse.
Next: registry/session.py, egress/registries.py. May touch: DNS, one socket.
Source: docs/behaviour/lessons 4.2 rows 5-8 (no read of a registry without a bound).

Messages contain no queries, headers or bodies, because these may hold secrets.
"""

import http.client
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import SplitResult, urlsplit

from kyverno_mp.errors import DeadlinePassed, RegistryUnavailable, RequestInvalid
from kyverno_mp.kube.connection import Connection, body_parts
from kyverno_mp.limits import REGISTRY_TLS_CONTEXTS_MAX
from kyverno_mp.registry.credentials import NO_FILES, TlsFiles
from kyverno_mp.telemetry.trace import External

SLOW: Final = "registry.slow"
"""Code of an error: a server does not keep the pace that is required."""
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class RegistryResponse:
    """A server's response; header names are in lower case.

    ``is_private``: the server is in a private network, as far as the sender checks it.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_private: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryCall:
    """One request. ``is_verified``: the certificate must match the host.

    ``tls``: the files for this host; without verification they are not used.

    ``is_redirected``: a registry has named another server, as the target of a redirect
    or as its token service.
    """

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None = None
    bytes_max: int
    is_verified: bool = True
    is_redirected: bool = False
    tls: TlsFiles = NO_FILES


Exchange: TypeAlias = Callable[[RegistryCall, int], RegistryResponse]
"""Sends one request within a deadline; egress/registries.py has another
implementation.
"""


def exchange(call: RegistryCall, deadline_ns: int) -> RegistryResponse:
    """Send a request and read the whole response; redirects and failures are responses.

    Raises: RequestInvalid (``registry.url``, ``registry.size``), RegistryUnavailable
    (``registry.network``), DeadlinePassed.
    """
    parts, port = taken_apart(call.url)
    connection = Connection(
        parts.hostname or "", port, context=tls_context(parts.scheme, call)
    )
    connection.limit(deadline_ns)
    try:
        return converse(connection, call, parts, {"Connection": "close"})
    finally:
        connection.abandon()


def converse(
    connection: Connection,
    call: RegistryCall,
    parts: SplitResult,
    headers: Mapping[str, str],
) -> RegistryResponse:
    """Send a request on a connection and read the whole response.

    Raises: as ``exchange``, and RegistryUnavailable (``registry.slow``) if the server
    does not keep the connection's pace; the connection is unusable afterwards.
    """
    with External("registry", call.method) as traced:
        response = _converse(connection, call, parts, headers)
        traced.status = response.status
        return response


def _converse(
    connection: Connection,
    call: RegistryCall,
    parts: SplitResult,
    headers: Mapping[str, str],
) -> RegistryResponse:
    host = parts.netloc
    path = parts.path or "/"
    is_connected = connection.sock is not None
    try:
        if not is_connected:
            connection.connect()
            is_connected = True
        connection.limit_overhead()
        connection.request(
            call.method,
            f"{path}?{parts.query}" if parts.query else path,
            call.body,
            {**call.headers, "Host": parts.netloc, **headers},
        )
        answer = connection.getresponse()
        response_headers = {name.lower(): value for name, value in answer.getheaders()}
        body = _read(answer, connection, call.bytes_max, host)
        # The connection accepts no other request until the response is closed.
        answer.close()
        return RegistryResponse(answer.status, response_headers, body)
    except TimeoutError as error:
        message = f"{host} did not answer in time"
        if connection.has_time_left:
            message = f"{host} answers too slowly"
            raise _failed(RegistryUnavailable, "slow", message, is_connected) from error
        raise _failed(DeadlinePassed, "deadline", message, is_connected) from error
    except ssl.SSLCertVerificationError as error:
        raise RegistryUnavailable(
            "registry.network", f"{host}: {error.verify_message}"
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        message = f"{host}: {reason}"
        raise _failed(RegistryUnavailable, "network", message, is_connected) from error


def _failed(
    kind: type[DeadlinePassed] | type[RegistryUnavailable],
    reason: str,
    message: str,
    is_connected: bool,  # noqa: FBT001 - a field of the error
) -> DeadlinePassed | RegistryUnavailable:
    """Return an error.

    SAFETY: the caller must not keep it in a variable (errors.without_frames).
    """
    error = kind(f"registry.{reason}", message)
    error.is_connected = is_connected
    return error


def taken_apart(url: str) -> tuple[SplitResult, int]:
    """Return the parsed URL and its port. Raises: RequestInvalid."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise RequestInvalid("registry.url", "a registry's URL is invalid") from error
    plain = url.isascii() and url.isprintable() and " " not in url
    if parts.scheme not in _PORTS or not parts.hostname or "@" in parts.netloc:
        plain = False
    if not plain:
        raise RequestInvalid("registry.url", "a registry's URL is not http(s)")
    return parts, port or _PORTS[parts.scheme]


def tls_context(scheme: str, call: RegistryCall) -> ssl.SSLContext | None:
    """Return the TLS context for a call, None for plain HTTP."""
    if scheme != "https":
        return None
    # SAFETY: calls without verification have a separate context, so that one insecure
    # registry does not make the others insecure.
    if not call.is_verified:
        return _unverified()
    paths = ssl.get_default_verify_paths()
    try:
        versions = tuple(Path(name).stat().st_mtime_ns for name in call.tls if name)
        return _verified(paths.cafile, paths.capath, call.tls, versions)
    except OSError as error:
        # An ssl.SSLError is one; its text names no file and has no content.
        host = urlsplit(call.url).netloc
        reason = getattr(error, "reason", None) or error.strerror or "unreadable"
        message = f"{host}: its certificate or key cannot be read: {reason}"
        raise RegistryUnavailable("registry.certificate", message) from None


@cache
def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


@lru_cache(maxsize=REGISTRY_TLS_CONTEXTS_MAX)
def _verified(
    _file: str | None, _folder: str | None, files: TlsFiles, _versions: tuple[int, ...]
) -> ssl.SSLContext:
    """Return the context with the system's authorities, or those that OpenSSL is told.

    PERF: reading them takes 20 to 50 ms, more than a call. Raises: OSError.
    """
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.authority:
        context.load_verify_locations(files.authority)
    if files.certificate:
        context.load_cert_chain(files.certificate, files.key, password="")
    return context


def _read(
    answer: http.client.HTTPResponse, connection: Connection, most: int, host: str
) -> bytes:
    parts: list[bytes] = []
    size = 0
    for part in body_parts(answer, connection):
        size += len(part)
        if size > most:
            raise RequestInvalid(
                "registry.size", f"{host}: a response is larger than {most} bytes"
            )
        parts.append(part)
    return b"".join(parts)

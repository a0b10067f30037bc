"""Keep connections to the API server open and share them among threads.

Room: kube. Takes: Access. Gives: connections and the headers with the credentials.
Next: kube/rest.py. May touch: sockets, the token file, a temporary key file.
Source: client-go transport (a token file is read again within a minute).

SAFETY: a pool belongs to the process that created it; create it after the fork.
"""

import contextlib
import http.client
import os
import socket
import ssl
import tempfile
import threading
import time
from base64 import b64encode
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

from kyverno_mp.errors import KubeUnavailable, SettingInvalid
from kyverno_mp.kube.access import Access
from kyverno_mp.kube.connection import Connection
from kyverno_mp.limits import KUBE_IDLE_CONNECTIONS_MAX

_TOKEN_AGE_NS_MAX: Final = 10 * 10**9
"""How often the token file is checked. The kubelet rotates a token well before it
expires.
"""


class Tokens(Protocol):
    """A source of tokens other than Access, e.g. kube/tokens.py."""

    def token(self, *, renew: bool = False) -> str:
        """Return a valid token; ``renew``: the API server rejected the last token."""


class Pool:
    """Connections of one process to one API server; threads may share it."""

    def __init__(self, access: Access, tokens: Tokens | None = None) -> None:
        """``tokens`` replace the credentials of ``access``."""
        if tokens is not None:
            # K8S: a client certificate would take precedence over the token.
            access = replace(access, client_cert_pem="", client_key_pem="")
        self._access = access
        self._tokens = tokens
        self._context = _tls_of(access) if access.scheme == "https" else None
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._token = access.token
        self._token_seen_ns = 0
        self._token_stamp = (0, 0)

    def take(self, deadline_ns: int) -> Connection:
        """Return a connection whose waits end at the deadline."""
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self.fresh(deadline_ns)
            if connection.is_usable():
                connection.limit(deadline_ns)
                return connection
            connection.abandon()

    def fresh(self, deadline_ns: int) -> Connection:
        """Return a new connection, which opens on first use."""
        access = self._access
        connection = Connection(
            access.host,
            access.port,
            context=self._context,
            server_name=access.server_name,
            dial=partial(_through, access) if access.proxy else None,
        )
        connection.limit(deadline_ns)
        return connection

    def give(self, connection: Connection) -> None:
        """Put a connection back after its response was read completely."""
        if connection.sock is None:
            return
        with self._lock:
            if len(self._idle) < KUBE_IDLE_CONNECTIONS_MAX:
                self._idle.append(connection)
                return
        connection.abandon()

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.abandon()

    @property
    def idle_count(self) -> int:
        """Number of idle connections."""
        return len(self._idle)

    @property
    def prefix(self) -> str:
        """The prefix of every path."""
        return self._access.prefix

    def authorization(self, *, renew: bool = False) -> str:
        """Return the Authorization header, "" without a token.

        ``renew``: the API server rejected the token, so the file is read at once.
        """
        if self._tokens is not None:
            return f"Bearer {self._tokens.token(renew=renew)}"
        if self._access.token_file:
            self._reload_token(renew=renew)
        return f"Bearer {self._token}" if self._token else ""

    def _reload_token(self, *, renew: bool) -> None:
        now_ns = time.monotonic_ns()
        with self._lock:
            is_fresh = now_ns - self._token_seen_ns < _TOKEN_AGE_NS_MAX
            if is_fresh and self._token and not renew:
                return
            path = Path(self._access.token_file)
            try:
                status = path.stat()
                stamp = (status.st_mtime_ns, status.st_ino)
                if stamp != self._token_stamp or not self._token:
                    self._token = path.read_text().strip()
                    self._token_stamp = stamp
            except (OSError, UnicodeDecodeError) as error:
                if not self._token:
                    raise KubeUnavailable(
                        "kube.token", f"cannot read the token file {path}"
                    ) from error
            self._token_seen_ns = now_ns


def _through(access: Access, timeout_s: float) -> socket.socket:
    """Open a tunnel through the proxy (CONNECT). Raises: OSError."""
    proxy = urlsplit(access.proxy)
    headers = {}
    if proxy.username is not None:
        login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        headers = {"Proxy-Authorization": f"Basic {b64encode(login.encode()).decode()}"}
    tunnel = http.client.HTTPConnection(
        proxy.hostname or "", proxy.port or http.client.HTTP_PORT, timeout=timeout_s
    )
    tunnel.set_tunnel(access.host, access.port, headers)
    tunnel.connect()
    return tunnel.sock


def _tls_of(access: Access) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=access.ca_pem or None)
    except (ssl.SSLError, ValueError) as error:
        raise SettingInvalid("kube.tls", "the CA certificates are not PEM") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Without ALPN, a request could reach a server of another protocol with the same
    # name.
    context.set_alpn_protocols(["http/1.1"])
    if access.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if access.client_cert_pem:
        _load_client_certificate(context, access)
    return context


def _load_client_certificate(context: ssl.SSLContext, access: Access) -> None:
    """Load certificate and key from a file, the only way that ``ssl`` supports."""
    descriptor, name = tempfile.mkstemp(prefix="kyverno-mp-")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{access.client_cert_pem}\n{access.client_key_pem}\n")
        context.load_cert_chain(name)
    except ssl.SSLError as error:
        raise SettingInvalid(
            "kube.tls", "the client certificate and key do not match"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            Path(name).unlink()

"""Call image registries for rules: few concurrent calls, to checked addresses.

Room: egress. Takes: RegistryCalls of registry/session.py. Gives: RegistryResponses;
satisfies registry.exchange.Exchange. Next: webhook/images.py.
May touch: DNS through egress/hosts.py, sockets.
Source: docs/behaviour/lessons 4.2 rows 13, 22-24; docs/behaviour/images 6.

The author of a Pod chooses the registry, and the registry chooses its token service and
its redirects. Each of these addresses is checked. The name is resolved once, and the
connection goes to the checked address. A redirect, or a public registry's token service
on another host, can lead into a private network only if the allowlist names the server:
the default ``*`` is meant for registries.
"""

import socket
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import SplitResult

from kyverno_mp.egress.addresses import Address, Target, UrlRules, allowed, is_private
from kyverno_mp.egress.lookups import Lookups
from kyverno_mp.errors import (
    DeadlinePassed,
    ExpressionFailed,
    KubeUnavailable,
    RegistryUnavailable,
)
from kyverno_mp.kube.connection import Connection, ReadPace
from kyverno_mp.limits import (
    REGISTRY_CALLS_PER_HOST_MAX,
    REGISTRY_HOSTS_MAX,
    REGISTRY_IDLE_PER_HOST_MAX,
    REGISTRY_PLACE_WAIT_S,
    SERVICE_ADDRESSES_MAX,
)
from kyverno_mp.registry.credentials import TlsFiles
from kyverno_mp.registry.exchange import (
    SLOW,
    RegistryCall,
    RegistryResponse,
    converse,
    taken_apart,
    tls_context,
)

_IDLE_NS_MAX: Final = 30_000_000_000
"""Registries close idle connections after about a minute; addresses may change."""
_SETTING: Final = "KYVERNO_MP_REGISTRY_ALLOWLIST"

OnCall: TypeAlias = Callable[[str, str], None]


class _Key(NamedTuple):
    scheme: str
    host: str
    port: int
    is_verified: bool
    is_redirected: bool
    tls: TlsFiles
    """SAFETY: calls without it must not use a connection that proves an identity."""


class _Connection(Connection):
    """A connection to a registry. ``is_private``: in a private network."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        context: ssl.SSLContext | None,
        dial: Callable[[float], socket.socket],
        is_private: bool,
    ) -> None:
        super().__init__(host, port, context=context, dial=dial)
        self.is_private = is_private


class _Host:
    """The connections to one registry."""

    def __init__(self, calls_max: int) -> None:
        self.places = threading.BoundedSemaphore(calls_max)
        self.idle: list[tuple[_Connection, int]] = []
        """Each connection with the time at which it became idle."""
        self.users = 0


class RegistryTransport:
    """All calls of one process to registries; threads may share it."""

    def __init__(
        self,
        rules: UrlRules,
        resolve: Callable[[str], list[str]],
        on_call: OnCall = lambda _host, _outcome: None,
        threads: int = 2 * REGISTRY_CALLS_PER_HOST_MAX,
        is_helper: Callable[[], bool] = lambda: False,
        pace: ReadPace | None = None,
    ) -> None:
        """``on_call`` gets the host of each call, "" if unknown, and its outcome.

        The outcome is a status, or the kind of failure.
        ``threads``: the number of calling threads; one registry gets at most half of
        them. ``is_helper``: whether the calling thread is a helper (images/at_once.py);
        helpers are not counted. ``pace``: how fast a server must answer.
        """
        self._pace = pace
        self._rules = rules
        names = tuple(
            allowed_name
            for allowed_name in rules.allowed_names
            if allowed_name.strip("*?.")
        )
        self._redirect_rules = replace(rules, allowed_names=names)
        self._resolve = Lookups(resolve)
        self._calls_max = max(1, min(REGISTRY_CALLS_PER_HOST_MAX, threads // 2))
        self._on_call = on_call
        self._is_helper = is_helper
        self._hosts: OrderedDict[_Key, _Host] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, call: RegistryCall, deadline_ns: int) -> RegistryResponse:
        """Send one request and read the whole response.

        Raises: ExpressionFailed (``egress.denied``: the address is not allowed),
        RequestInvalid, RegistryUnavailable, DeadlinePassed.
        """
        host = ""
        try:
            parts, port = taken_apart(call.url)
            host = parts.hostname or ""
            response = self._call(call, parts, port, deadline_ns)
        except DeadlinePassed:
            self._on_call(host, "deadline")
            raise
        except RegistryUnavailable as error:
            self._on_call(host, "slow" if error.code == SLOW else "network")
            raise
        except Exception:
            self._on_call(host, "refused")
            raise
        self._on_call(host, str(response.status))
        return response

    @property
    def host_count(self) -> int:
        """Number of registries in the cache."""
        return len(self._hosts)

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle = [
                connection
                for host in self._hosts.values()
                for connection, _ in host.idle
            ]
            for host in self._hosts.values():
                host.idle.clear()
        for connection in idle:
            connection.abandon()

    def _call(
        self, call: RegistryCall, parts: SplitResult, port: int, deadline_ns: int
    ) -> RegistryResponse:
        key = _Key(
            parts.scheme,
            parts.hostname or "",
            port,
            call.is_verified,
            # A connection that redirects are not allowed to use has another key.
            call.is_redirected,
            call.tls,
        )
        with self._place(key, deadline_ns) as host:
            connection = self._idle(host)
            if connection is not None:
                try:
                    return self._on(connection, host, call, parts, deadline_ns)
                except RegistryUnavailable as error:
                    is_safe = call.method in ("GET", "HEAD")
                    if not (is_safe and isinstance(error.__cause__, ConnectionError)):
                        raise
                    # The registry has closed the idle connection in the meantime.
            connection = self._fresh(key, call, deadline_ns)
            return self._on(connection, host, call, parts, deadline_ns)

    def _on(
        self,
        connection: _Connection,
        host: _Host,
        call: RegistryCall,
        parts: SplitResult,
        deadline_ns: int,
    ) -> RegistryResponse:
        connection.limit(deadline_ns)
        if self._pace is not None:
            connection.keep_pace(self._pace)
        try:
            response = converse(connection, call, parts, {})
        except BaseException:
            connection.abandon()
            raise
        response = replace(response, is_private=connection.is_private)
        keeps = response.headers.get("connection", "").lower() != "close"
        with self._lock:
            if (
                keeps
                and connection.sock is not None
                and len(host.idle) < REGISTRY_IDLE_PER_HOST_MAX
            ):
                host.idle.append((connection, time.monotonic_ns()))
                return response
        connection.abandon()
        return response

    @contextmanager
    def _place(self, key: _Key, deadline_ns: int) -> Iterator[_Host]:
        """Wait for a slot; a slow registry gets few concurrent calls."""
        with self._lock:
            host = self._hosts.setdefault(key, _Host(self._calls_max))
            self._hosts.move_to_end(key)
            host.users += 1
            self._forget()
        try:
            if self._is_helper():
                yield host
                return
            left_s = (deadline_ns - time.monotonic_ns()) / 1e9
            wait_s = min(left_s, REGISTRY_PLACE_WAIT_S)
            if wait_s <= 0 or not host.places.acquire(timeout=wait_s):
                message = f"{key.host}: too many calls wait for it"
                if wait_s < left_s:
                    raise RegistryUnavailable("registry.busy", message)
                raise DeadlinePassed("registry.deadline", message)
            try:
                yield host
            finally:
                host.places.release()
        finally:
            with self._lock:
                host.users -= 1

    def _forget(self) -> None:
        """Evict the least recently used registries; the caller holds the lock."""
        unused = [key for key, host in self._hosts.items() if not host.users]
        for key in unused[: max(0, len(self._hosts) - REGISTRY_HOSTS_MAX)]:
            for connection, _ in self._hosts.pop(key).idle:
                connection.abandon()

    def _idle(self, host: _Host) -> _Connection | None:
        oldest_ns = time.monotonic_ns() - _IDLE_NS_MAX
        while True:
            with self._lock:
                if not host.idle:
                    return None
                connection, since_ns = host.idle.pop()
            if since_ns > oldest_ns and connection.is_usable():
                return connection
            connection.abandon()

    def _fresh(self, key: _Key, call: RegistryCall, deadline_ns: int) -> _Connection:
        target = Target(key.scheme, key.host.rstrip("."), key.port, "/")
        try:
            resolved = self._resolve(target.host, deadline_ns)
        except KubeUnavailable as error:
            raise RegistryUnavailable("registry.network", error.message) from error
        addresses = allowed(target, resolved, self._rules)[:SERVICE_ADDRESSES_MAX]
        if call.is_redirected:
            self._check_redirected(target, resolved)
        return _Connection(
            key.host,
            key.port,
            context=tls_context(key.scheme, call),
            dial=lambda timeout_s: _dial(addresses, key.port, timeout_s),
            # All of them: whoever controls the name chooses the address to dial.
            is_private=all(map(is_private, addresses)),
        )

    def _check_redirected(self, target: Target, resolved: list[str]) -> None:
        """Require that more than ``*`` allows the addresses. Raises: ExpressionFailed.

        The message names the setting, because the server is often a token service.
        """
        try:
            allowed(target, resolved, self._redirect_rules)
        except ExpressionFailed as error:
            message = f"a registry named this server, but {_SETTING} does not"
            raise ExpressionFailed(error.code, f"{error.message}: {message}") from error


def _dial(addresses: list[Address], port: int, timeout_s: float) -> socket.socket:
    """Connect to the first address that accepts; the addresses share the time-out."""
    end_s = time.monotonic() + timeout_s
    for index, address in enumerate(addresses, start=1):
        left_s = max(0.001, end_s - time.monotonic())
        try:
            share_s = left_s / (len(addresses) - index + 1)
            return socket.create_connection((str(address), port), share_s)
        except OSError:
            if index == len(addresses):
                raise
    raise AssertionError("there is at least one address")

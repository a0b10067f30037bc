"""Answer Envoy's requests for authorization over gRPC, in one process.

Room: webhook. Takes: Settings, the runtime folder, the certificate. Gives: ``serve``,
which returns after SIGTERM. Next: deciding.py, expr/cel/authz/message_wire.py.
May touch: its listening socket, signals; threads of the gRPC library.
Source: docs/behaviour/cel 15.8; Envoy's ext_authz; grpc/health/v1/health.proto.

The library does not survive a fork, so it is imported and started in each process. All
of them bind the port (SO_REUSEPORT), and the kernel distributes the connections.
"""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from kyverno_mp.errors import Error, Preempted
from kyverno_mp.expr.cel.authz.message_wire import (
    WireInvalid,
    request_from_wire,
    response_to_wire,
)
from kyverno_mp.expr.cel.authz.messages import Message
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.limits import AUTHZ_CALLS_MAX, AUTHZ_STREAMS_MAX
from kyverno_mp.settings.settings import Settings
from kyverno_mp.webhook.authz.attach import Attached, Places
from kyverno_mp.webhook.authz.deciding import Asked, Deciding, Outcome, failed

_LOG = logging.getLogger(__name__)
CHECK: Final = "envoy.service.auth.v3.Authorization"
HEALTH: Final = "grpc.health.v1.Health"
_ALLOWED: Final = b""
"""A CheckResponse without fields: its status is OK."""
_DENIED: Final = b"\x0a\x02\x08\x07\x12\x05\x0a\x03\x08\x93\x03"
"""PERMISSION_DENIED with the HTTP status 403."""
_SERVING: Final = b"\x08\x01"
_NOT_SERVING: Final = b"\x08\x02"
_KNOWN: Final = frozenset({"", CHECK})
_TICK_S: Final = 1.0


class CheckServer:
    """The methods Check, and those of the health protocol."""

    def __init__(self, deciding: Deciding, grpc: Any) -> None:
        """``grpc``: the library's module."""
        self._deciding = deciding
        self._grpc = grpc
        self.is_draining = False

    async def check(self, data: bytes, context: Any) -> bytes:
        """Judge one request; an error ends the call with its status."""
        arrived_ns = time.monotonic_ns()
        asked = Asked("", "", "")
        try:
            request = request_from_wire(data)
            asked = _asked(request)
            outcome = await self._deciding.run(
                lambda runtime: self._judged(request, runtime),
                arrived_ns=arrived_ns,
                is_pure=self._deciding.authorizer().is_pure,
            )
            answer = _answer(outcome)
        except WireInvalid as error:
            outcome, answer = _unread(str(error)), b""
        except Exception as error:  # noqa: BLE001 - an internal error denies, too
            outcome, answer = failed(error), b""
        self._deciding.decided(outcome, asked, arrived_ns)
        if outcome.error:
            # Envoy denies, unless its operator chose failure_mode_allow.
            await context.abort(self._grpc.StatusCode.UNKNOWN, outcome.error)
        return answer

    def _judged(self, request: Message, runtime: Runtime) -> Outcome:
        try:
            return self._deciding.outcome(request, runtime)
        except Preempted:
            raise
        except Error as error:
            return failed(error)

    async def health(self, data: bytes, context: Any) -> bytes:
        """Answer grpc.health.v1.Health/Check."""
        if _service(data) not in _KNOWN:
            await context.abort(self._grpc.StatusCode.NOT_FOUND, "unknown service")
        return self._status()

    async def watch(self, data: bytes, _context: Any) -> AsyncIterator[bytes]:
        """Answer grpc.health.v1.Health/Watch: the status, and its changes."""
        last = b""
        while True:
            status = self._status() if _service(data) in _KNOWN else b"\x08\x03"
            if status != last:
                last = status
                yield status
            await asyncio.sleep(_TICK_S)

    def _status(self) -> bytes:
        if self.is_draining:
            return _NOT_SERVING
        try:
            self._deciding.authorizer()
        except Error:
            return _NOT_SERVING
        return _SERVING


def handlers(server: CheckServer, grpc: Any) -> tuple[Any, ...]:
    """Return the handlers of both services; messages stay bytes."""
    unary = grpc.unary_unary_rpc_method_handler
    return (
        grpc.method_handlers_generic_handler(CHECK, {"Check": unary(server.check)}),
        grpc.method_handlers_generic_handler(
            HEALTH,
            {
                "Check": unary(server.health),
                "Watch": grpc.unary_stream_rpc_method_handler(server.watch),
            },
        ),
    )


def serve(
    settings: Settings, places: Places, certificate: tuple[Path, Path] | None
) -> None:
    """Serve until SIGTERM. ``certificate``: its chain and its key, None for no TLS."""
    asyncio.run(_serve(settings, places, certificate))


async def _serve(
    settings: Settings, places: Places, certificate: tuple[Path, Path] | None
) -> None:
    # Imported late: an optional library, which must not be loaded before a fork.
    import grpc
    import grpc.aio

    loop = asyncio.get_running_loop()
    attached = Attached(settings, places, loop)
    checks = CheckServer(attached.deciding, grpc)
    server = grpc.aio.server(
        maximum_concurrent_rpcs=AUTHZ_CALLS_MAX,
        options=(
            ("grpc.so_reuseport", 1),
            ("grpc.max_receive_message_length", settings.body_bytes_max),
            ("grpc.max_concurrent_streams", AUTHZ_STREAMS_MAX),
        ),
    )
    server.add_generic_rpc_handlers(handlers(checks, grpc))
    address = _address(settings)
    if certificate is None:
        server.add_insecure_port(address)
    else:
        server.add_secure_port(address, _credentials(settings, certificate, grpc))
    ending = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ending.set)
    attached.listen()
    await server.start()
    _LOG.info("authorizer ready", extra={"fields": {"address": address}})
    while not ending.is_set():
        attached.tick()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(ending.wait(), _TICK_S)
    checks.is_draining = True
    await server.stop(settings.drain_timeout_s)
    attached.deciding.stop()


def _credentials(settings: Settings, certificate: tuple[Path, Path], grpc: Any) -> Any:
    """Return the certificate, read again at a handshake after its files changed."""
    authorities = None
    if settings.client_ca_file:
        authorities = Path(settings.client_ca_file).read_bytes()

    def read() -> Any:
        chain, key = (path.read_bytes() for path in certificate)
        return grpc.ssl_server_certificate_configuration([(key, chain)], authorities)

    stamps: list[tuple[int, ...]] = []

    def changed() -> Any:
        now = [
            (facts.st_ino, facts.st_mtime_ns, facts.st_size)
            for facts in (path.stat() for path in certificate)
        ]
        if now == stamps:
            return None
        stamps[:] = now
        return read()

    return grpc.dynamic_ssl_server_credentials(
        read(), changed, require_client_authentication=authorities is not None
    )


def _address(settings: Settings) -> str:
    host = settings.webhook_host or "::"
    return (
        f"[{host}]:{settings.webhook_port}"
        if ":" in host
        else (f"{host}:{settings.webhook_port}")
    )


def _answer(outcome: Outcome) -> bytes:
    """Return the CheckResponse. Raises: WireInvalid."""
    if outcome.error:
        return b""
    if outcome.response is not None:
        return response_to_wire(outcome.response)
    return _ALLOWED if outcome.is_allowed else _DENIED


def _unread(reason: str) -> Outcome:
    return Outcome(is_allowed=False, error=reason, source="server")


def _asked(request: Message) -> Asked:
    """Return what is logged; a request of another protocol than HTTP has nothing."""
    http = request.field("attributes").field("request").field("http")
    return Asked(http.field("method"), http.field("host"), http.field("path"))


def _service(data: bytes) -> str:
    """Return the service in a HealthCheckRequest, whose only field is its name."""
    if not data:
        return ""
    is_name = data[:1] == b"\x0a" and len(data) == 2 + data[1]
    return data[2:].decode("utf-8", "replace") if is_name else "?"

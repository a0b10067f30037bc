"""Serve small HTTP/1.1 responses, one per connection, to clients that may misbehave.

Room: process. Takes: a function that answers a request; certificates, if it also
serves TLS. Gives: HttpServer, Gate, Asked, response_bytes. Next:
process/roles/health.py, process/roles/dashboard.py.
May touch: its listening socket. Everything is bounded: 8 KiB for request heads, five
seconds per request or handshake, and the number of connections. At the limit, the
oldest unfinished connection is closed for a new one. A request that a Gate admitted is
never closed for a new one.
"""

import asyncio
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

_HEAD_BYTES_MAX: Final = 8 * 1024
_REQUEST_S_MAX: Final = 5.0
_LONG_MAX: Final = 8
"""Concurrent responses of several MiB; each stays in memory until its client reads it.
"""
_ACCEPT_PAUSE_S: Final = 0.1
"""The pause after a failed accept: no file descriptor is free."""
_HANDSHAKE: Final = b"\x16"
"""The first byte of a client that speaks TLS (RFC 8446 5.1); none of HTTP's methods."""
_Connections = dict["asyncio.Task[None]", Callable[[], object]]
"""How to end each connection, in order of arrival."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The head of a request; ``path`` is empty if it is invalid.

    ``headers`` has lower-case names; the values of a repeated header are joined by
    commas.
    """

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    is_gone: Callable[[], bool] = lambda: False
    """Whether the client has closed the connection."""
    is_tls: bool = False


@dataclass(frozen=True, slots=True)
class Gate:
    """Decides about requests before they are processed.

    ``refusal`` returns the response to a request that is not admitted; ``busy`` returns
    the response to a request above ``admitted_max``. Both return at once.
    """

    refusal: Callable[[Asked], bytes | None]
    busy: Callable[[Asked], bytes]
    admitted_max: int


class HttpServer:
    """Reads request heads, and writes the responses from ``answer``."""

    def __init__(
        self,
        answer: Callable[[Asked], Awaitable[bytes]],
        *,
        connections_max: int,
        is_long: Callable[[Asked], bool] = lambda _asked: False,
        gate: Gate | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """``is_long``: whether the response to a request can have several MiB.

        With ``tls``, the port serves clients with TLS and without; ``Asked.is_tls``
        tells them apart.
        """
        self._answer = answer
        self._connections_max = connections_max
        self._is_long = is_long
        self._gate = gate
        self._tls = tls
        self._admitted: set[asyncio.Task[None]] = set()
        self._unfinished: _Connections = {}
        """Connections that wait for their clients."""
        self._long: _Connections = {}
        """Connections with requests for possibly large responses."""

    async def serve(self, listener: socket.socket) -> None:
        """Serve until SIGTERM."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, ended.set)
        if self._tls is not None:
            accepting = loop.create_task(self._accept(listener, self._tls))
            await ended.wait()
            accepting.cancel()
            return
        server = await asyncio.start_server(
            self._connection, sock=listener, limit=_HEAD_BYTES_MAX
        )
        async with server:
            await ended.wait()

    async def _accept(self, listener: socket.socket, tls: ssl.SSLContext) -> None:
        """Accept connections until this task is cancelled."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        tasks: set[asyncio.Task[None]] = set()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError:
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            task = loop.create_task(self._introduced(connection, tls))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _introduced(self, connection: socket.socket, tls: ssl.SSLContext) -> None:
        """Serve a connection, by TLS if the client's first byte asks for it."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._make_room(self._unfinished, self._connections_max)
        self._unfinished[task] = task.cancel
        reader = asyncio.StreamReader(limit=_HEAD_BYTES_MAX)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            async with asyncio.timeout(_REQUEST_S_MAX):
                is_tls = await _first_byte(connection) == _HANDSHAKE
                transport, _ = await loop.connect_accepted_socket(
                    lambda: protocol, connection, ssl=tls if is_tls else None
                )
        except (TimeoutError, OSError, asyncio.CancelledError):
            connection.close()
            return
        finally:
            self._unfinished.pop(task, None)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        await self._connection(reader, writer, is_tls=is_tls)

    async def _connection(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        is_tls: bool = False,
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._make_room(self._unfinished, self._connections_max)
        self._unfinished[task] = writer.transport.abort
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _REQUEST_S_MAX)
            # Requests that have arrived get a response, even if more arrive.
            self._unfinished.pop(task, None)
            asked = _asked(
                head,
                lambda: reader.at_eof() or writer.transport.is_closing(),
                is_tls=is_tls,
            )
            response = self._stopped_at_gate(asked, task)
            if response is None:
                if self._is_long(asked):
                    self._make_room(self._long, _LONG_MAX)
                    self._long[task] = writer.transport.abort
                response = await self._answer(asked)
            if task not in self._admitted:
                self._make_room(self._unfinished, self._connections_max)
                self._unfinished[task] = writer.transport.abort
            writer.write(response)
            await asyncio.wait_for(writer.drain(), _REQUEST_S_MAX)
            writer.close()
            await asyncio.wait_for(writer.wait_closed(), _REQUEST_S_MAX)
        except (
            TimeoutError,
            OSError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
        ):
            writer.transport.abort()
        finally:
            self._unfinished.pop(task, None)
            self._long.pop(task, None)
            self._admitted.discard(task)
            writer.close()

    def _stopped_at_gate(
        self, asked: Asked, task: "asyncio.Task[None]"
    ) -> bytes | None:
        """Return the response to a request that does not pass the gate."""
        if self._gate is None:
            return None
        refused = self._gate.refusal(asked)
        if refused is not None:
            return refused
        if len(self._admitted) >= self._gate.admitted_max:
            return self._gate.busy(asked)
        self._admitted.add(task)
        return None

    @staticmethod
    def _make_room(connections: _Connections, most: int) -> None:
        """Close the connection that has waited longest for its client.

        A probe sends its request and reads the response at once. Connections that stay
        open must not block probes, or the kubelet would kill a healthy pod.
        """
        if len(connections) >= most:
            oldest = next(iter(connections))
            connections.pop(oldest)()


async def _first_byte(connection: socket.socket) -> bytes:
    """Wait for a client's first byte, which stays unread."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    connection.setblocking(False)
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)
    return connection.recv(1, socket.MSG_PEEK)


def _asked(head: bytes, is_gone: Callable[[], bool], *, is_tls: bool) -> Asked:
    first, *rest = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):  # noqa: PLR2004 - method, target, version
        return Asked("GET", "", is_gone=is_gone, is_tls=is_tls)
    headers: dict[str, str] = {}
    for line in rest:
        name, _, value = line.partition(":")
        key, value = name.lower(), value.strip(" \t")
        headers[key] = f"{headers[key]},{value}" if key in headers else value
    path, _, query = words[1].partition("?")
    return Asked(words[0], path, query, headers, is_gone, is_tls)


def response_bytes(
    method: str,
    status: HTTPStatus,
    content_type: str,
    body: bytes,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """Return a whole response; for HEAD, only its head."""
    more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"Content-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        f"{more}"
        "Connection: close\r\n\r\n"
    ).encode("latin-1")
    return head if method == "HEAD" else head + body

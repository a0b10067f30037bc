"""Speak HTTP/1.1 on one connection of the API server.

Room: webhook. Takes: bytes of a socket. Gives: reviews to Service, all other requests
to the Falcon app. Next: service, rest. May touch: its transport.
Source: RFC 9112; spec/controllers.md 2.1 (timeouts); anchors.md 2.8: the API server
speaks HTTP/1.1 with JSON bodies to webhooks, so nothing else is on the fast way.

PERF: TLS, 16 connections, one core, parse and answer only: 38,700 reviews/s this way;
22,800 through uvicorn's protocol and a bare ASGI callable; 17,400 through Gunicorn's
ASGI protocol with its C parser and the same callable; 14,000 with Falcon in front.
"""

import asyncio
import logging
from collections import deque
from typing import Final, cast

import httptools

from kyverno_mp.limits import HEAD_BYTES_MAX
from kyverno_mp.webhook import refusals
from kyverno_mp.webhook.asgi import call_app
from kyverno_mp.webhook.door import ANSWERING, CLOSING, IDLE, READING, Door
from kyverno_mp.webhook.refusals import Refusal
from kyverno_mp.webhook.route import SHARED, route_of

_LOG = logging.getLogger(__name__)

_JSON: Final = b"application/json"
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_REASONS: Final = {
    200: "OK",
    204: "No Content",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    417: "Expectation Failed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class Exchange:
    """One request, whole, and whether the connection lives on after its answer."""

    __slots__ = ("body", "content_type", "headers", "keep_alive", "method", "target")

    def __init__(self) -> None:
        self.method = b""
        self.target = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.content_type = b""
        self.body = b""
        self.keep_alive = True


class Protocol(asyncio.Protocol):
    """One connection. Requests are answered in the order they came (pipelining)."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._parser: httptools.HttpRequestParser
        self._transport: asyncio.Transport | None = None
        self._exchange = Exchange()
        self._chunks: list[bytes] = []
        self._body_bytes = 0
        self._head_bytes = 0
        self._in_head = True
        self._waiting: deque[Exchange] = deque()
        self._task: asyncio.Task[None] | None = None
        self.state = IDLE
        self.since = 0.0

    # Connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start idle."""
        # uvloop's TLS transport is one by its methods, not by its class.
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpRequestParser(self)
        self._enter(IDLE)
        self._door.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection; a review that is being judged goes on unheard."""
        del exc
        self._transport = None
        self._waiting.clear()
        self._enter(CLOSING)
        # PERF: parser and connection know each other. An API server under load opens
        # hundreds a second, and Python's collector would come to them 30 MiB later.
        del self._parser
        self._door.closed(self)

    def pause_writing(self) -> None:
        """Read no more from a client that does not read."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Read on."""
        if self._transport is not None and not self._waiting:
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Parse; whole requests are answered from within the parser's callbacks."""
        if self.state == CLOSING:
            return
        if self.state == IDLE:
            self._enter(READING)
        if self._in_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            _LOG.exception("defect while answering a request")
            self._refuse(refusals.DEFECT, "internal error")
            return
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            # There is nothing to upgrade to.
            self._refuse(refusals.MALFORMED, "malformed request")
            return
        if self._in_head and self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(refusals.HEAD_TOO_LARGE, "header too large")

    def drain(self) -> None:
        """Close when nothing is under way, else after the answer.

        A connection that was busy a moment ago may have a request on its way to us,
        which nobody would send again: it may still come, and is the last.
        """
        if self._transport is None:
            return
        if self.state == CLOSING:
            self._transport.close()
        elif self.state == IDLE:
            self._close_when_quiet()

    def _close_when_quiet(self) -> None:
        if self.state != IDLE or self._transport is None:
            return
        loop = self._door.loop
        left_s = self.since + self._door.quiet_s - loop.time()
        if left_s > 0:
            loop.call_later(left_s, self._close_when_quiet)
        else:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # Parser callbacks

    def on_url(self, url: bytes) -> None:
        """Collect the request target, which may come in parts."""
        self._exchange.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header."""
        name = name.lower()
        if name == b"content-type":
            self._exchange.content_type = value
        self._exchange.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Look at what must be known before the body comes."""
        self._in_head = False
        self._exchange.method = self._parser.get_method()
        for name, value in self._exchange.headers:
            if name == b"content-length":
                if int(value) > self._door.body_bytes_max:
                    self._refuse(refusals.BODY_TOO_LARGE, "request body too large")
            elif name == b"expect" and value.lower() == b"100-continue":
                self._write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        """Collect the body up to the limit; chunked bodies name no length."""
        if self.state == CLOSING:
            return
        self._body_bytes += len(body)
        if self._body_bytes > self._door.body_bytes_max:
            self._refuse(refusals.BODY_TOO_LARGE, "request body too large")
            return
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        """Answer the request, or let it wait for those before it."""
        if self.state == CLOSING:
            return
        exchange, chunks = self._exchange, self._chunks
        exchange.body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        exchange.keep_alive = self._parser.should_keep_alive()
        self._exchange, self._chunks = Exchange(), []
        self._body_bytes = self._head_bytes = 0
        self._in_head = True
        if self.state == ANSWERING:
            self._waiting.append(exchange)
            if self._transport is not None:
                self._transport.pause_reading()
            return
        self._begin(exchange)

    # Answers

    def _begin(self, exchange: Exchange) -> None:
        path, _, query = exchange.target.partition(b"?")
        if exchange.method != b"POST":
            self._ask_app(exchange, path, query)
            return
        route = SHARED.get(path) or route_of(path)
        if route is None:
            self._ask_app(exchange, path, query)
            return
        # KYVERNO: exactly this type, no parameters (controllers.md 14.11).
        if exchange.content_type != _JSON:
            self._door.service.refused(refusals.CONTENT_TYPE)
            refusal = Refusal(refusals.CONTENT_TYPE, "invalid Content-Type")
            self._end_refused(exchange, refusal)
            return
        try:
            answer = self._door.service.answer(route, query, exchange.body)
        except Refusal as refusal:
            self._end_refused(exchange, refusal)
            return
        if type(answer) is bytes:
            self._end_review(exchange, answer)
            return
        assert isinstance(answer, asyncio.Future)
        self._enter(ANSWERING)
        answer.add_done_callback(lambda done: self._end_late(exchange, done.result()))

    def _end_late(self, exchange: Exchange, body: bytes) -> None:
        # What came meanwhile may have ended the connection.
        if self.state == ANSWERING:
            self._end_review(exchange, body)

    def _end_review(self, exchange: Exchange, body: bytes) -> None:
        if self._door.letting_go or not exchange.keep_alive:
            exchange.keep_alive = exchange.keep_alive and not self._door.lets_go()
            self._end(exchange, 200, body, b"application/json; charset=utf-8")
            return
        self._write(b"%b%d\r\n\r\n%b" % (self._door.review_head, len(body), body))
        self._next()

    def _end(
        self, exchange: Exchange, status: int, body: bytes, content_type: bytes
    ) -> None:
        headers = [(b"content-type", content_type)]
        self._respond(exchange, status, headers, body)

    def _end_refused(self, exchange: Exchange, refusal: Refusal) -> None:
        body = f"{refusal.text}\n".encode()
        self._end(exchange, refusal.status, body, b"text/plain")

    def _respond(
        self,
        exchange: Exchange,
        status: int,
        headers: list[tuple[bytes, bytes]],
        body: bytes,
    ) -> None:
        head = [
            f"HTTP/1.1 {status} {_REASONS.get(status, 'Status')}".encode(),
            self._door.date_header,
            *(name + b": " + value for name, value in headers),
            b"content-length: %d" % len(body),
        ]
        keep_alive = exchange.keep_alive and not self._door.draining
        if not keep_alive:
            head.append(b"connection: close")
        # A HEAD request is told the length and gets no body.
        sent = b"" if exchange.method == b"HEAD" else body
        self._write(b"\r\n".join([*head, b"", sent]))
        if keep_alive:
            self._next()
        else:
            self._linger()

    def _ask_app(self, exchange: Exchange, path: bytes, query: bytes) -> None:
        """Hand a request that is no review to the Falcon app."""
        self._enter(ANSWERING)
        self._task = self._door.loop.create_task(self._relay(exchange, path, query))

    async def _relay(self, exchange: Exchange, path: bytes, query: bytes) -> None:
        status, headers, body = await call_app(
            self._door.app,
            exchange.method,
            path,
            query,
            exchange.headers,
            exchange.body,
        )
        self._task = None
        if self.state == ANSWERING:
            self._respond(exchange, status, headers, body)

    def _next(self) -> None:
        """Go on with the request that waits longest, or wait for one."""
        if self._waiting and self._transport is not None:
            # Not by recursion: a client may have sent a thousand requests at once.
            self._enter(ANSWERING)
            self._door.loop.call_soon(self._begin_waiting)
            return
        self._enter(IDLE if self._in_head and not self._head_bytes else READING)

    def _begin_waiting(self) -> None:
        if not self._waiting or self.state == CLOSING:
            return
        exchange = self._waiting.popleft()
        if not self._waiting and self._transport is not None:
            self._transport.resume_reading()
        try:
            self._begin(exchange)
        except Exception:  # noqa: BLE001 - the edge; here no parser catches it
            _LOG.exception("defect while answering a request")
            self._refuse(refusals.DEFECT, "internal error")

    def _refuse(self, code: str, message: str) -> None:
        """Answer what cannot be parsed to its end; the connection cannot be kept."""
        if self.state == CLOSING:
            return
        self._door.service.refused(code)
        exchange = Exchange()
        exchange.keep_alive = False
        self._waiting.clear()
        self._end_refused(exchange, Refusal(code, message))

    def _linger(self) -> None:
        """Stop listening, and close a moment later.

        A close while the client still sends would reset the connection and could
        destroy the answer before the client reads it.
        """
        self._enter(CLOSING)
        self._door.loop.call_later(self._door.linger_s, self._close)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _enter(self, state: int) -> None:
        self.state = state
        self.since = self._door.loop.time()

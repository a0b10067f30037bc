"""Implement HTTP/1.1 on one connection of the API server.

Room: webhook. Takes: bytes of a socket. Gives: reviews to Service, all other requests
to the Falcon app. Next: webhook/review/service, rest. May touch: its transport.
Source: RFC 9112; docs/behaviour/controllers 2.1 (timeouts); docs/behaviour/lessons 2.8:
the API server speaks HTTP/1.1 with JSON bodies to webhooks, so nothing else is on the
fast path.

PERF: with TLS, 16 connections and one core, this module parses and answers 38,700
reviews/s. uvicorn's protocol with a bare ASGI callable reaches 22,800, Gunicorn's ASGI
protocol with its C parser and the same callable 17,400, and Falcon on top 14,000.

Over 400 lines: one state machine. The callbacks of the transport, of the parser and of
an answer change the same state, so separate classes would only share their fields.
"""

import asyncio
import logging
from collections import deque
from typing import Final, cast

import httptools

from kyverno_mp.admission.refusal import UID_WITHIN_BYTES, refusal
from kyverno_mp.admission.weigh import decoded_bytes
from kyverno_mp.limits import (
    HEAD_BYTES_MAX,
    HEADERS_MAX,
    LARGE_BODY_BYTES,
    REQUESTS_WAITING_MAX,
)
from kyverno_mp.webhook import http_errors
from kyverno_mp.webhook.http.asgi import call_app
from kyverno_mp.webhook.http.budget import RunningReview
from kyverno_mp.webhook.http.connections import (
    ANSWERING,
    CLOSING,
    IDLE,
    READING,
    UNREAD_PAUSE_S,
    Connections,
    close_idle,
)
from kyverno_mp.webhook.http.exchange import (
    HEADER_BYTES,
    JSON,
    Exchange,
    announces_body,
    bytes_of,
    is_review,
    response_head,
)
from kyverno_mp.webhook.http_errors import HttpError
from kyverno_mp.webhook.review.lanes import LateAnswer
from kyverno_mp.webhook.route import SHARED, route_of

_LOG = logging.getLogger(__name__)

_REVIEWED: Final = b"application/json; charset=utf-8"
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Protocol(asyncio.Protocol):
    """One connection. Requests are answered in order of arrival (pipelining)."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._parser: httptools.HttpRequestParser
        self._transport: asyncio.Transport | None = None
        self._exchange = Exchange()
        self._body: bytes | bytearray = b""
        self._body_bytes = 0
        self._wire_bytes = 0
        """Bytes received of the current request, including its body."""
        self._in_head = True
        self._too_large = False
        self._owes_continue = False
        self._holds = False
        self._certified: bool | None = None
        """Whether the connection's client certificate proves the caller."""
        self._answers_proved = False
        """Whether the review that is being evaluated has a proof."""
        self._waiting: deque[Exchange] = deque()
        self._waiting_bytes = 0
        self._is_paused = False
        """Reading is paused: a request waits, or the client does not read."""
        self._is_parked = False
        """The next waiting request starts when the client reads again."""
        self._task: asyncio.Task[None] | None = None
        self.state = IDLE
        self.since = 0.0
        self.unread_since = 0.0
        self._is_new = True
        """No byte of a request has arrived."""
        self._quiet_until = 0.0

    # Connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start idle."""
        # uvloop's TLS transport has the methods of a Transport, but not its class.
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpRequestParser(self)
        certificate = transport.get_extra_info("peercert")
        self._certified = self._connections.callers.certified(certificate)
        self._enter(IDLE)
        self._connections.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection; the evaluation of a review continues."""
        del exc
        self._transport = None
        if self._owes_proved():
            self._connections.gave_up()
        self._waiting.clear()
        self._enter(CLOSING)
        self._release()
        # PERF: break the reference cycle with the parser. A busy API server opens
        # hundreds of connections a second, and without this, memory would grow by 30
        # MiB before the garbage collector runs.
        del self._parser
        self._connections.closed(self)

    def _owes_proved(self) -> bool:
        """Return whether a proved request has arrived, at least in part, unanswered."""
        return (
            self._exchange.is_proved
            or (self.state == ANSWERING and self._answers_proved)
            or any(one.is_proved for one in self._waiting)
        )

    def pause_writing(self) -> None:
        """Stop reading and answering while the client does not read."""
        if self._transport is None:
            return
        self._pause()
        self.unread_since = self._connections.loop.time()
        self._hold(self._wire_bytes)

    def resume_writing(self) -> None:
        """Continue with the waiting requests, or resume reading."""
        self.unread_since = 0.0
        if self._transport is None:
            return
        if self._is_parked:
            self._is_parked = False
            self._connections.loop.call_soon(self._begin_waiting)
        else:
            self._read_on()

    def data_received(self, data: bytes) -> None:
        """Parse the data; the parser's callbacks answer complete requests."""
        if self.state == CLOSING:
            return
        if self.state == IDLE:
            self._is_new = False
            self._enter(READING)
        self._wire_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            _LOG.exception("internal error while answering a request")
            self._refuse(http_errors.INTERNAL_ERROR, "internal error")
            return
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            # No protocol upgrade is supported.
            self._refuse(http_errors.MALFORMED, "malformed request")
            return
        # PERF: after complete requests both are empty, and no check is needed.
        if self._wire_bytes or self._exchange.target:
            self._weigh()

    def _weigh(self) -> None:
        """Enforce the limits for an incomplete request."""
        if self.state == CLOSING:
            return
        if self.state == IDLE:
            # Its start arrived together with the end of the previous request.
            self._enter(READING)
        self._wire_bytes = self._wire_bytes or len(self._exchange.target)
        framing = self._wire_bytes - self._body_bytes
        headers = len(self._exchange.headers)
        if framing > HEAD_BYTES_MAX + self._body_bytes or headers > HEADERS_MAX:
            self._refuse(http_errors.HEAD_TOO_LARGE, "header too large")
            return
        if self.state == ANSWERING:
            # The rest of an incomplete request can wait in the kernel.
            self._pause()
        self._hold(self._wire_bytes + headers * HEADER_BYTES)

    def _hold(self, size: int) -> None:
        self._holds = True
        size += self._waiting_bytes + self._unread_bytes()
        self._connections.arriving.hold(self, size)

    def _release(self) -> None:
        self._holds = False
        self._connections.arriving.release(self)

    def evict(self) -> bool:
        """Drop an unfinished request; False if complete ones wait for an answer."""
        if self.unread_since:
            self._enter(CLOSING)
            self.abort()
            return True
        if self.state != READING:
            return False
        self._refuse(http_errors.NO_ROOM, "too many bytes are in unfinished requests")
        return True

    def drain(self) -> None:
        """Close if idle, otherwise after the answer.

        On any connection, a request may be in transit, which no client would send
        again. It can still arrive, and is the last one.
        """
        if self._transport is None:
            return
        if self.state == CLOSING:
            self._transport.close()
        elif self.state == IDLE:
            connections = self._connections
            self._quiet_until = connections.loop.time() + connections.quiet_s
            if self._is_new:
                first = self.since + connections.first_request_s
                self._quiet_until = max(self._quiet_until, first)
            self._close_when_quiet()

    def _close_when_quiet(self) -> None:
        if self.state != IDLE or self._transport is None:
            return
        loop = self._connections.loop
        left_s = self._quiet_until - loop.time()
        if left_s > 0:
            loop.call_later(left_s, self._close_when_quiet)
        elif not self.end_idle():
            # This loop was too busy to read the request that has arrived, or the client
            # to receive its answer.
            loop.call_later(UNREAD_PAUSE_S, self._close_when_quiet)

    def end_idle(self) -> bool:
        """Close an idle connection; False if one side has not received all bytes."""
        if self._transport is not None and not close_idle(self._transport):
            return False
        self._enter(CLOSING)
        return True

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # Parser callbacks

    def on_url(self, url: bytes) -> None:
        """Collect the request target, which may arrive in parts."""
        self._exchange.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header; trailers also arrive here, and are ignored."""
        if not self._in_head:
            return
        name = name.lower()
        if name == b"content-type":
            self._exchange.content_type = value
        elif name == b"traceparent":
            self._exchange.traceparent = value
        self._exchange.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Make the checks that must precede the body."""
        self._in_head = False
        exchange = self._exchange
        exchange.method = self._parser.get_method()
        callers = self._connections.callers
        exchange.path, exchange.query, exchange.is_proved = callers.read(
            exchange.target
        )
        if self._certified is not None:
            exchange.is_proved = self._certified
        if not exchange.is_proved and not self._admits(exchange):
            return
        if len(exchange.headers) > HEADERS_MAX:
            self._refuse(http_errors.HEAD_TOO_LARGE, "header too large")
            return
        for name, value in exchange.headers:
            if name == b"content-length":
                if int(value) > self._connections.body_bytes_max:
                    self._too_large = True
            elif name == b"expect" and value.lower() == b"100-continue":
                self._owes_continue = True
        if self._owes_continue and self.state == READING:
            self._continue()
        if self._too_large and not self._is_review(exchange):
            self._refuse(http_errors.BODY_TOO_LARGE, "request body too large")

    def _is_review(self, exchange: Exchange) -> bool:
        return self._connections.serves_reviews and is_review(exchange)

    def _admits(self, exchange: Exchange) -> bool:
        """Return whether to read on; without a body, only a POST needs a proof."""
        if exchange.method != b"POST" and not announces_body(exchange):
            return True
        code = self._connections.callers.refusal(
            is_proved=exchange.is_proved, certified=self._certified
        )
        if code:
            self._refuse(code, "no webhook for this caller")
        return not code

    def _continue(self) -> None:
        """Send 100 Continue to a client that waits for it, once per request."""
        self._owes_continue = False
        self._write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        """Collect the body up to the limit; chunked bodies declare no length."""
        if self.state == CLOSING:
            return
        self._body_bytes += len(body)
        if self._body_bytes == len(body):
            self._body = body
        else:
            if type(self._body) is bytes:
                # Not a list: with millions of tiny chunks, each list item would take 50
                # bytes.
                self._body = bytearray(self._body)
            self._body += body
        if self._too_large or self._body_bytes > self._connections.body_bytes_max:
            self._refuse_too_large()

    def _refuse_too_large(self) -> None:
        """Deny a review whose uid has arrived; an HTTP error could allow it."""
        code, text, answer = http_errors.BODY_TOO_LARGE, "request body too large", None
        # After another request, the client could not match the answer to its request.
        if self.state == READING and self._is_review(self._exchange):
            answer = refusal(self._body, code, text)
            if answer is None and self._body_bytes < UID_WITHIN_BYTES:
                return
        if answer is None:
            self._refuse(code, text)
            return
        self._connections.service.refused(code)
        self._exchange.keep_alive = False
        self._end(self._exchange, 200, answer, _REVIEWED)

    def on_message_complete(self) -> None:
        """Answer the request, or queue it after the earlier ones."""
        if self.state == CLOSING:
            return
        if self._too_large:
            self._refuse(http_errors.BODY_TOO_LARGE, "request body too large")
            return
        exchange = self._exchange
        exchange.body = self._body
        exchange.keep_alive = self._parser.should_keep_alive()
        self._exchange, self._body = Exchange(), b""
        self._in_head = True
        # A complete request is in state READING, unless it arrived together with
        # another one. Such requests take turns with other connections.
        if self.state != READING:
            exchange.arrived_s = self._connections.loop.time()
            self._wait(exchange)
            return
        exchange.arrived_s = self.since
        if len(exchange.body) > LARGE_BODY_BYTES:
            self._wait(exchange)
            self._enter(ANSWERING)
            self._connections.take_turn(self._begin_waiting)
            return
        self._body_bytes = self._wire_bytes = 0
        self._begin(exchange)

    def _wait(self, exchange: Exchange) -> None:
        if len(self._waiting) >= REQUESTS_WAITING_MAX:
            self._refuse(http_errors.NO_ROOM, "too many requests wait")
            return
        self._body_bytes = self._wire_bytes = 0
        self._waiting.append(exchange)
        self._waiting_bytes += bytes_of(exchange)
        self._hold(0)
        self._pause()
        if self.state == IDLE:
            self._next()

    def _pause(self) -> None:
        self._is_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def _read_on(self) -> None:
        """Resume reading if no request waits and the client has read its answers."""
        if self.state == ANSWERING or self.unread_since or self._transport is None:
            return
        self._is_paused = False
        self._transport.resume_reading()

    # Answers

    def _begin(self, exchange: Exchange) -> None:
        path = exchange.path
        if exchange.method != b"POST" or not self._connections.serves_reviews:
            self._call_app(exchange)
            return
        route = SHARED.get(path) or route_of(path)
        if route is None:
            self._call_app(exchange)
            return
        # KYVERNO: exactly this type, no parameters (docs/behaviour/controllers 14.11).
        if exchange.content_type != JSON:
            self._connections.service.refused(http_errors.CONTENT_TYPE)
            error = HttpError(http_errors.CONTENT_TYPE, "invalid Content-Type")
            self._end_refused(exchange, error)
            return
        weight = 0
        try:
            if len(exchange.body) > LARGE_BODY_BYTES:
                weight = self._weight_with_room(exchange.body)
            arrived_ns = int(exchange.arrived_s * 1e9)
            answer = self._connections.service.answer(
                route,
                exchange.query,
                exchange.body,
                arrived_ns,
                weight,
                is_proved=exchange.is_proved,
                traceparent=exchange.traceparent,
            )
        except HttpError as error:
            self._end_refused(exchange, error)
            return
        if type(answer) is bytes:
            self._end_review(exchange, answer)
            return
        assert isinstance(answer, LateAnswer)
        self._enter(ANSWERING)
        self._answers_proved = exchange.is_proved
        self._hold_decoded(exchange, answer, weight)
        answer.add_done_callback(lambda done: self._end_late(exchange, done.result()))

    def _weight_with_room(self, body: bytes | bytearray) -> int:
        """Return the decoded size of a large body.

        Raises: HttpError if too many bytes are evaluated outside of the event loop.
        """
        weight = decoded_bytes(body)
        if not self._connections.evaluating.has_room(weight):
            self._connections.service.refused(http_errors.NO_ROOM)
            raise HttpError(http_errors.NO_ROOM, "too many bytes are being evaluated")
        return weight

    def _hold_decoded(
        self, exchange: Exchange, answer: LateAnswer, weight: int
    ) -> None:
        """Count a review that a thread evaluates by its decoded size.

        It counts until the thread releases it, which can be long after the answer and
        after the end of the connection.
        """
        review, evaluating = RunningReview(), self._connections.evaluating
        evaluating.hold(review, weight or decoded_bytes(exchange.body))
        answer.ended.add_done_callback(lambda _ended: evaluating.release(review))
        exchange.body = b""
        self._hold(self._wire_bytes)

    def _end_late(self, exchange: Exchange, body: bytes) -> None:
        # The connection may have been closed meanwhile.
        if self.state == ANSWERING:
            self._answers_proved = False
            self._end_review(exchange, body)

    def _end_review(self, exchange: Exchange, body: bytes) -> None:
        if self._connections.letting_go or not exchange.keep_alive:
            exchange.keep_alive = (
                exchange.keep_alive and not self._connections.should_close()
            )
            self._end(exchange, 200, body, _REVIEWED)
            return
        self._write(
            b"%b%d\r\n\r\n%b" % (self._connections.review_head, len(body), body)
        )
        self._next()

    def _end(
        self, exchange: Exchange, status: int, body: bytes, content_type: bytes
    ) -> None:
        headers = [(b"content-type", content_type)]
        self._respond(exchange, status, headers, body)

    def _end_refused(self, exchange: Exchange, refusal: HttpError) -> None:
        body = f"{refusal.text}\n".encode()
        self._end(exchange, refusal.status, body, b"text/plain")

    def _respond(
        self,
        exchange: Exchange,
        status: int,
        headers: list[tuple[bytes, bytes]],
        body: bytes,
    ) -> None:
        keep_alive = exchange.keep_alive and not self._connections.leaving
        head = response_head(status, headers, len(body), self._connections.date_header)
        if not keep_alive:
            head.append(b"connection: close")
        # The response to a HEAD request has the length, but no body.
        sent = b"" if exchange.method == b"HEAD" else body
        self._write(b"\r\n".join([*head, b"", sent]))
        if keep_alive:
            self._next()
        else:
            self._linger()

    def _call_app(self, exchange: Exchange) -> None:
        """Pass a request that is not a review to the Falcon app."""
        self._enter(ANSWERING)
        is_review = exchange.method == b"POST"
        self._answers_proved = exchange.is_proved and is_review
        if is_review and not exchange.is_proved:
            self._connections.service.refused(http_errors.UNPROVED)
        self._task = self._connections.loop.create_task(self._relay(exchange))

    async def _relay(self, exchange: Exchange) -> None:
        status, headers, body = await call_app(
            self._connections.app,
            exchange.method,
            exchange.path,
            exchange.query,
            exchange.headers,
            bytes(exchange.body),
            is_proved=exchange.is_proved,
        )
        self._task = None
        if self.state == ANSWERING:
            self._answers_proved = False
            self._respond(exchange, status, headers, body)

    def _next(self) -> None:
        """Continue with the request that has waited longest, or wait for one."""
        if self._holds:
            self._release()
            if self._wire_bytes or self._waiting or self.unread_since:
                self._hold(self._wire_bytes)
        if self._waiting and self._transport is not None:
            # No recursion: a client can have sent a hundred requests at once.
            self._enter(ANSWERING)
            self._connections.loop.call_soon(self._begin_waiting)
            return
        self._enter(IDLE if self._in_head and not self._wire_bytes else READING)
        if self._is_paused:
            self._read_on()
        if self._owes_continue:
            self._continue()

    def _unread_bytes(self) -> int:
        if not self.unread_since or self._transport is None:
            return 0
        return self._transport.get_write_buffer_size()

    def _begin_waiting(self) -> None:
        if not self._waiting or self.state == CLOSING:
            return
        if self.unread_since:
            self._is_parked = True
            return
        exchange = self._waiting.popleft()
        self._waiting_bytes -= bytes_of(exchange)
        try:
            self._begin(exchange)
        except Exception:  # noqa: BLE001 - the edge; here no parser catches it
            _LOG.exception("internal error while answering a request")
            self._refuse(http_errors.INTERNAL_ERROR, "internal error")

    def _refuse(self, code: str, message: str) -> None:
        """Answer an unparsable request and close the connection."""
        if self.state == CLOSING:
            return
        self._connections.service.refused(code)
        exchange = Exchange()
        exchange.keep_alive = False
        self._waiting.clear()
        self._end_refused(exchange, HttpError(code, message))

    def _linger(self) -> None:
        """Stop reading, and close after a short delay.

        Closing while the client still sends would reset the connection, and the client
        might not be able to read the answer.
        """
        if self._exchange.is_proved:
            # The answer was early: the client may not read it, but fail to send.
            self._connections.gave_up()
        self._enter(CLOSING)
        self._exchange, self._body = Exchange(), b""
        self._release()
        if self._is_paused and self._transport is not None:
            # Discard all further input.
            self._transport.resume_reading()
        self._connections.loop.call_later(self._connections.linger_s, self._close)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _enter(self, state: int) -> None:
        self.state = state
        self.since = self._connections.loop.time()

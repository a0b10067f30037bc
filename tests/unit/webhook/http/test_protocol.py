"""One connection, from bytes to bytes: framing, order, limits, ends."""

import asyncio
import contextlib
import gc
import json
import socket
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from kyverno_mp.webhook.http.connections import Connections
from kyverno_mp.webhook.http.protocol import Protocol
from kyverno_mp.webhook.rest import make_app
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.lanes import Lane
from kyverno_mp.webhook.review.service import Service
from tests.unit.webhook.stub import StubEvaluate, StubPlan, StubRecords, review
from tests.waiting import HANG_S, wait_on_loop

BODY = review()
TWO_LENGTHS = (
    b"POST /validate HTTP/1.1\r\nContent-Length: 5\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
)


def post(
    body: bytes = BODY,
    path: str = "/validate/fail",
    *headers: str,
    version: str = "1.1",
) -> bytes:
    lines = [
        f"POST {path} HTTP/{version}",
        "Host: kyverno-svc",
        f"Content-Length: {len(body)}",
        *(headers or ("Content-Type: application/json",)),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Client:
    """The client side of a connection to a server with a stub engine."""

    def __init__(
        self, connections: Connections, reader: asyncio.StreamReader, writer: Any
    ) -> None:
        self.connections = connections
        self.reader = reader
        self.writer = writer

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Read one response."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = head.strip().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return int(status.split()[1]), headers, body

    async def ask(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        self.writer.write(data)
        return await self.answer()

    async def ended(self) -> bool:
        """Return whether the server closed the connection."""
        try:
            return await asyncio.wait_for(self.reader.read(), HANG_S) == b""
        except (ConnectionResetError, BrokenPipeError):
            # Which of them depends on when the last bytes were written.
            return True


def talk(
    story: Callable[[Client], Awaitable[None]],
    *,
    plan: StubPlan | None = None,
    **limits: Any,
) -> None:
    """Run a story on a new connection; any error in the server fails the test."""
    errors: list[dict[str, Any]] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: errors.append(context))
        lane = Lane(loop, 2, 10, lambda: int(loop.time() * 1e9))
        service = Service(
            Dependencies(
                records=StubRecords(),
                monotonic_ns=lambda: int(loop.time() * 1e9),
                slow_lane=lane,
            ),
            handlers_of(StubEvaluate(plan)),
        )
        options = {
            "body_bytes_max": 10_000,
            "keepalive_s": 300.0,
            "linger_s": 0.01,
            "quiet_s": 0.05,
            "first_request_s": 0.0,
        }
        connections = Connections(
            loop,
            service,
            make_app(lambda: True),
            time_s=lambda: 0.0,
            **{**options, **limits},
        )
        ours, theirs = socket.socketpair()
        await loop.connect_accepted_socket(lambda: Protocol(connections), ours)
        reader, writer = await asyncio.open_connection(sock=theirs)
        try:
            await asyncio.wait_for(story(Client(connections, reader, writer)), HANG_S)
        finally:
            # A loop with an open connection would not end, and would hide the failure.
            writer.close()
            for connection in list(connections.open):
                connection.abort()
            lane.stop()
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    assert errors == []


def test_reviews_on_one_connection() -> None:
    async def story(client: Client) -> None:
        for _ in range(3):
            status, headers, body = await client.ask(post())
            assert status == 200
            assert headers["content-type"] == "application/json; charset=utf-8"
            assert headers["date"] == "Thu, 01 Jan 1970 00:00:00 GMT"
            assert json.loads(body)["response"] == {"uid": "u-1", "allowed": True}

    talk(story)


def test_request_can_arrive_byte_by_byte() -> None:
    async def story(client: Client) -> None:
        for byte in post():
            client.writer.write(bytes((byte,)))
            await asyncio.sleep(0)
        assert (await client.answer())[0] == 200

    talk(story)


def test_chunked_body() -> None:
    async def story(client: Client) -> None:
        head = (
            b"POST /validate HTTP/1.1\r\nHost: k\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        half = len(BODY) // 2
        for part in (BODY[:half], BODY[half:]):
            head += b"%x\r\n%b\r\n" % (len(part), part)
        assert (await client.ask(head + b"0\r\n\r\n"))[0] == 200
        assert (await client.ask(post()))[0] == 200

    talk(story)


def test_answers_are_in_request_order() -> None:
    """A slow review delays only later requests on its own connection."""
    calls: list[int] = []
    gate = threading.Event()

    def work(_deadline_ns: int) -> None:
        calls.append(1)
        if len(calls) == 1:
            gate.wait(HANG_S)

    async def story(client: Client) -> None:
        many = b"".join(post(review(uid=f"u{number}")) for number in range(50))
        client.writer.write(many + b"GET /health/liveness HTTP/1.1\r\nHost: k\r\n\r\n")
        asyncio.get_running_loop().call_later(0.02, gate.set)
        for number in range(50):
            _status, _headers, body = await client.answer()
            assert json.loads(body)["response"]["uid"] == f"u{number}"
        assert (await client.answer())[0] == 200
        assert (await client.ask(post()))[0] == 200

    talk(story, plan=StubPlan(needs_io=True, work=work))


WITH_CHARSET = "Content-Type: application/json; charset=utf-8"


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (post(BODY, "/validate", WITH_CHARSET), 415, "webhook.content_type"),
        (post(BODY, "/validate", "X-Other: 1"), 415, "webhook.content_type"),
        (post(b"{"), 417, "admission.not_json"),
        (post(b""), 400, "admission.empty"),
        (post(b"{}"), 400, "admission.no_request"),
        (post(b'{"request":{"operation":"CREATE"}}'), 400, "admission.incomplete"),
        (post(BODY, "/elsewhere"), 404, "webhook.path_unknown"),
        (post(b"{", "/policymutate"), 400, "admission.not_json"),
        (
            b"GET /validate/fail HTTP/1.1\r\nHost: k\r\n\r\n",
            405,
            "webhook.method",
        ),
        (
            b"PUT /mutate HTTP/1.1\r\nHost: k\r\nContent-Length: 0\r\n\r\n",
            405,
            "webhook.method",
        ),
        (b"GET /%ff HTTP/1.1\r\nHost: k\r\n\r\n", 404, "webhook.path_unknown"),
    ],
)
def test_rejected_requests_have_a_code_and_keep_the_connection(
    data: bytes, status: int, code: str
) -> None:
    async def story(client: Client) -> None:
        got, headers, body = await client.ask(data)
        assert got == status
        if headers["content-type"] == "application/json":
            assert json.loads(body)["code"] == code
        else:
            assert body.endswith(f" ({code})\n".encode())
        assert (await client.ask(post()))[0] == 200

    talk(story)


@pytest.mark.parametrize(
    "data",
    [
        post(BODY, "/policymutate"),
        b"GET /health/liveness HTTP/1.1\r\nHost: k\r\n\r\n",
        b"GET /health/readiness HTTP/1.1\r\nHost: k\r\n\r\n",
    ],
)
def test_requests_other_than_resource_reviews_are_answered(data: bytes) -> None:
    async def story(client: Client) -> None:
        assert (await client.ask(data))[0] == 200
        assert (await client.ask(post()))[0] == 200

    talk(story)


CODES = {
    400: "webhook.malformed",
    413: "webhook.body_too_large",
    431: "webhook.head_too_large",
}


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", 400),
        (TWO_LENGTHS, 400),
        (b"POST /validate HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"y" * 100_000, 431),
        (b"GET /" + b"y" * 100_000, 431),
        (b"POST /validate HTTP/1.1\r\nContent-Length: 10001\r\n\r\n", 413),
        (
            b"POST /validate HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2711\r\n"
            + b"x" * 10_001,
            413,
        ),
    ],
)
def test_invalid_framing_closes_the_connection(data: bytes, status: int) -> None:
    async def story(client: Client) -> None:
        got, headers, body = await client.ask(data)
        assert (got, headers["connection"]) == (status, "close")
        assert body.endswith(f" ({CODES[status]})\n".encode())
        client.writer.write(b"more of it")
        assert await client.ended()

    talk(story)


@pytest.mark.parametrize(
    "data",
    [
        post(BODY, "/validate", "Content-Type: application/json", "Connection: close"),
        post(version="1.0"),
    ],
)
def test_client_can_request_connection_close(data: bytes) -> None:
    async def story(client: Client) -> None:
        status, headers, _body = await client.ask(data)
        assert (status, headers["connection"]) == (200, "close")
        assert await client.ended()

    talk(story)


def test_expect_continue() -> None:
    async def story(client: Client) -> None:
        head, body = post(
            BODY, "/validate", "Content-Type: application/json", "Expect: 100-continue"
        ).split(b"\r\n\r\n", 1)
        assert (await client.ask(head + b"\r\n\r\n"))[0] == 100
        assert (await client.ask(body))[0] == 200

    talk(story)


@pytest.mark.parametrize("started", [b"", b"POST /validate HTTP/1.1\r\n"])
def test_idle_and_slow_connections_are_closed(started: bytes) -> None:
    async def story(client: Client) -> None:
        assert (await client.ask(post()))[0] == 200
        client.writer.write(started)
        sleeping = asyncio.ensure_future(client.ended())
        while not sleeping.done():
            client.connections.tick()
            await asyncio.sleep(0)
        assert await sleeping
        assert client.connections.open == set()

    talk(story, keepalive_s=0.0, read_timeout_s=0.0)


def test_active_connection_is_not_closed_by_the_timer() -> None:
    async def story(client: Client) -> None:
        client.writer.write(post()[:-5])
        await wait_on_loop(lambda: client.connections.arriving.total)
        client.connections.tick()
        assert (await client.ask(post()[-5:]))[0] == 200

    talk(story, keepalive_s=0.0)


def test_draining_closes_idle_connections() -> None:
    async def story(client: Client) -> None:
        assert (await client.ask(post()))[0] == 200
        client.connections.drain()
        assert await client.ended()

    talk(story)


def test_connection_opened_during_a_drain_is_closed() -> None:
    """Otherwise a connection in its handshake delays the exit of the worker."""

    async def story(client: Client) -> None:
        connections = client.connections
        connections.drain()
        assert await client.ended()
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: Protocol(connections), ours)
        reader, writer = await asyncio.open_connection(sock=theirs)
        assert await Client(connections, reader, writer).ended()
        assert connections.open == set()
        writer.close()

    talk(story)


def test_internal_error_in_a_pipelined_request_is_answered() -> None:
    """Otherwise the caller and all later requests on that connection wait forever."""

    async def story(client: Client) -> None:
        answer = client.connections.service.answer
        asked: list[bytes] = []

        def broken(
            route: Any,
            query: bytes,
            body: bytes | bytearray,
            arrived_ns: int = 0,
            weight: int = 0,
            **facts: Any,
        ) -> Any:
            asked.append(bytes(body))
            if len(asked) == 2:
                raise KeyError
            return answer(route, query, body, arrived_ns, weight, **facts)

        client.connections.service.answer = broken  # type: ignore[method-assign]  # a defect
        liveness = b"GET /health/liveness HTTP/1.1\r\nHost: k\r\n\r\n"
        client.writer.write(liveness + post() + post())
        assert (await client.answer())[0] == 200
        assert (await client.answer())[0] == 200
        status, _headers, body = await client.answer()
        assert (status, body) == (500, b"internal error (webhook.defect)\n")
        assert await client.ended()

    talk(story)


def test_draining_answers_a_request_in_transit() -> None:
    async def story(client: Client) -> None:
        assert (await client.ask(post()))[0] == 200
        client.connections.drain()
        status, headers, _body = await client.ask(post())
        assert (status, headers["connection"]) == (200, "close")
        assert await client.ended()

    talk(story, quiet_s=HANG_S)


def test_draining_reads_what_has_arrived() -> None:
    """A busy loop may drain before it reads; no client sends the request again."""

    async def story(client: Client) -> None:
        assert (await client.ask(post()))[0] == 200
        client.writer.write(post())
        client.connections.drain()
        status, headers, _body = await client.answer()
        assert (status, headers["connection"]) == (200, "close")
        assert await client.ended()

    talk(story, quiet_s=0.0)


def test_draining_waits_for_requests_on_a_connection_that_was_idle_for_long() -> None:
    """The API server does not know yet that it should not use it again."""

    async def story(client: Client) -> None:
        assert (await client.ask(post()))[0] == 200
        (connection,) = client.connections.open
        connection.since -= 10.0
        client.connections.drain()
        await asyncio.sleep(0)
        status, headers, _body = await client.ask(post())
        assert (status, headers["connection"]) == (200, "close")
        assert await client.ended()

    talk(story, quiet_s=HANG_S)


def test_draining_answers_running_reviews() -> None:
    began, gate = threading.Event(), threading.Event()

    def work(_deadline_ns: int) -> None:
        began.set()
        gate.wait(HANG_S)

    async def story(client: Client) -> None:
        client.writer.write(post())
        await wait_on_loop(began.is_set)
        client.connections.drain()
        gate.set()
        status, headers, _body = await client.answer()
        assert (status, headers["connection"]) == (200, "close")
        assert await client.ended()

    talk(story, plan=StubPlan(needs_io=True, work=work))


def test_client_can_disconnect_during_its_review() -> None:
    began, gate = threading.Event(), threading.Event()

    def work(_deadline_ns: int) -> None:
        began.set()
        gate.wait(HANG_S)

    async def story(client: Client) -> None:
        client.writer.write(post() + post())
        await wait_on_loop(began.is_set)
        client.writer.transport.abort()
        await wait_on_loop(lambda: not client.connections.open)
        gate.set()
        await wait_on_loop(lambda: not client.connections.open)

    talk(story, plan=StubPlan(needs_io=True, work=work))


@pytest.mark.parametrize("head", [b"", b"POST /validate HTTP/1.1\r\nHost", post()])
def test_closed_connection_leaves_no_garbage(head: bytes) -> None:
    """The API server opens one for each review beyond 25 concurrent ones."""
    gone: list[weakref.ref[object]] = []

    async def story(client: Client) -> None:
        gone.extend(map(weakref.ref, client.connections.open))
        client.writer.write(head)
        client.writer.write_eof()
        await client.reader.read()
        await wait_on_loop(lambda: not client.connections.open)
        await wait_on_loop(lambda: [one() for one in gone] == [None])

    gc.disable()
    try:
        talk(story)
    finally:
        gc.enable()


PIECES = st.lists(
    st.sampled_from([post(), post()[:40], b"GET / HTTP/1.1\r\n\r\n", b"\r\n", b"0\r\n"])
    | st.binary(max_size=30),
    max_size=6,
)


@given(PIECES)
@settings(max_examples=60)
def test_any_bytes_leave_the_server_working(pieces: list[bytes]) -> None:
    async def story(client: Client) -> None:
        # After a rejection the server closes first, at any moment.
        with contextlib.suppress(RuntimeError, ConnectionError):
            for piece in pieces:
                client.writer.write(piece)
                await asyncio.sleep(0)
            client.writer.write_eof()
        with contextlib.suppress(ConnectionError):
            await client.reader.read()

    talk(story)

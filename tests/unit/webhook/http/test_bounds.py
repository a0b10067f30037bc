"""No client can exceed a worker's memory bounds or make others wait for long.

Each attack is measured by the allocated bytes and by the answers to an honest client
beside it.
"""

import asyncio
import json
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from kyverno_mp.admission import decode as decode_module
from kyverno_mp.admission import weigh as weigh_module
from kyverno_mp.limits import (
    DECODED_BYTES_MAX,
    DECODED_TIMES_MAX,
    HEADERS_MAX,
    LARGE_BODY_BYTES,
    REQUESTS_WAITING_MAX,
)
from kyverno_mp.webhook.http import connections as connections_module
from kyverno_mp.webhook.http import protocol as protocol_module
from kyverno_mp.webhook.http.budget import Budget
from kyverno_mp.webhook.http.protocol import Protocol
from tests.unit.webhook.http.test_protocol import BODY, Client, post, talk
from tests.unit.webhook.stub import StubPlan, response, review
from tests.waiting import HANG_S, wait_on_loop

MIB = 1 << 20
_ROUNDS = 50
"""The event loop reads all sockets that have data in each round."""
CHUNKED = (
    b"POST /validate HTTP/1.1\r\nHost: k\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
SIZED = (
    b"POST /validate/ignore HTTP/1.1\r\nHost: k\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n"
)


@contextmanager
def kept_below(size: int) -> Iterator[None]:
    """Fail if more memory is allocated at any time."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < size


async def another(client: Client) -> Client:
    """Open one more connection to the same worker."""
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    await loop.connect_accepted_socket(lambda: Protocol(client.connections), ours)
    reader, writer = await asyncio.open_connection(sock=theirs)
    return Client(client.connections, reader, writer)


async def pour(client: Client, piece: bytes, size: int) -> None:
    """Send a piece repeatedly until enough is sent or the server stops reading."""
    try:
        for _ in range(size // len(piece)):
            if client.reader._buffer:  # type: ignore[attr-defined]
                return
            client.writer.write(piece)
            await client.writer.drain()
    except ConnectionError:
        pass


ENDLESS = {
    "trailers": (CHUNKED + b"1\r\nx\r\n0\r\n", b"x: y\r\n" * 1000),
    "one trailer": (CHUNKED + b"1\r\nx\r\n0\r\nx: ", b"y" * 8192),
    "a trailer's name": (CHUNKED + b"1\r\nx\r\n0\r\n", b"y" * 8192),
    "a chunk extension": (CHUNKED + b"1;x=", b"y" * 8192),
    "chunk extensions": (CHUNKED, b"8;x=" + b"y" * 500 + b"\r\n12345678\r\n"),
    "tiny chunks": (CHUNKED, b"1\r\nx\r\n" * 1000),
    "headers": (b"GET / HTTP/1.1\r\n", b"a:\r\n" * 1000),
    "one header": (b"GET / HTTP/1.1\r\na: ", b"y" * 8192),
    "a URL": (b"GET /", b"y" * 8192),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_http_framing_is_bounded(name: str) -> None:
    """A failure means: any client that reaches the port can use unlimited memory."""
    head, piece = ENDLESS[name]

    async def story(client: Client) -> None:
        with kept_below(8 * MIB):
            client.writer.write(head)
            await pour(client, piece, 16 * MIB)
        status, headers, body = await client.answer()
        assert (status, headers["connection"]) == (431, "close")
        assert body.endswith(b" (webhook.head_too_large)\n")
        assert await client.ended()

    talk(story, body_bytes_max=10 * MIB, linger_s=0.5)


async def arrived(client: Client) -> None:
    """Return when the server has read what the client wrote."""
    transport = client.writer.transport
    await wait_on_loop(lambda: transport.get_write_buffer_size() == 0)
    await rounds()


async def rounds() -> None:
    """Let the event loop do everything that is possible now."""
    for _ in range(_ROUNDS):
        await asyncio.sleep(0)


def test_small_chunks_count_with_their_overhead() -> None:
    """Chunks of eight bytes have five bytes of framing, but cost sixty as objects."""

    async def story(client: Client) -> None:
        with kept_below(12 * MIB):
            client.writer.write(CHUNKED)
            await pour(client, b"8\r\n        \r\n" * 1000, 5 * MIB)
        client.writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY))
        assert (await client.answer())[0] == 200

    talk(story, body_bytes_max=10 * MIB)


def test_trailers_are_ignored() -> None:
    """A failure means: a client that can add trailers sets the body's content type."""

    async def story(client: Client) -> None:
        head = CHUNKED.replace(b"application/json", b"text/plain")
        trailer = b"0\r\nContent-Type: application/json\r\n\r\n"
        data = head + b"%x\r\n%b\r\n" % (len(BODY), BODY) + trailer
        assert (await client.ask(data))[0] == 415
        assert (await client.ask(post()))[0] == 200

    talk(story)


@pytest.mark.parametrize(("count", "status"), [(100, 200), (HEADERS_MAX + 1, 431)])
def test_header_count_is_bounded(count: int, status: int) -> None:
    async def story(client: Client) -> None:
        more = [f"x-{number}: y" for number in range(count)]
        data = post(BODY, "/validate", "Content-Type: application/json", *more)
        assert (await client.ask(data))[0] == status

    talk(story)


def test_oldest_unfinished_bodies_are_dropped_first() -> None:
    """Clients with unfinished bodies can neither fill a worker nor block others."""

    async def story(client: Client) -> None:
        held = [await another(client) for _ in range(12)]
        for one in held:
            one.writer.write(SIZED % (2 * MIB) + b" " * MIB)
            await one.writer.drain()
            await arrived(one)
            assert client.connections.arriving.total <= 4 * MIB
        status, _headers, body = await held[0].answer()
        assert (status, body.split()[-1]) == (503, b"(webhook.no_room)")
        assert (await client.ask(post(b" " * MIB + BODY)))[0] == 200
        held[-1].writer.write(b" " * (MIB - len(BODY)) + BODY)
        assert (await held[-1].answer())[0] == 200
        for one in held:
            one.writer.close()
        await wait_on_loop(lambda: client.connections.arriving.total == 0)

    talk(story, body_bytes_max=10 * MIB, arriving_bytes_max=4 * MIB)


@pytest.mark.parametrize("leaves", [False, True])
def test_review_body_is_released_with_its_thread(
    leaves: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """A review that is past its deadline or lost its client still uses memory."""
    gate = threading.Event()
    body = review(object={"a": "x" * LARGE_BODY_BYTES})
    large = post(body, "/validate/fail?timeout=50ms")
    refused = (503, b"too many bytes are being evaluated (webhook.no_room)\n")

    def wait(_deadline_ns: int) -> None:
        gate.wait(HANG_S)

    async def story(client: Client) -> None:
        evaluating = client.connections.evaluating
        first = await another(client)
        first.writer.write(large)
        if leaves:
            await wait_on_loop(lambda: evaluating.total > 0)
            first.writer.close()
            await wait_on_loop(lambda: len(client.connections.open) == 1)
        else:
            _status, _headers, answer = await first.answer()
            assert json.loads(answer)["response"]["allowed"] is False
            first.writer.close()
        status, _headers, answer = await client.ask(large)
        assert (status, answer) == refused
        gate.set()
        await wait_on_loop(lambda: evaluating.total == 0)
        status, _headers, answer = await client.ask(post(body))
        assert (status, json.loads(answer)["response"]["allowed"]) == (200, True)
        await wait_on_loop(lambda: evaluating.total == 0)

    plan = StubPlan(needs_io=True, work=wait)
    room = {"body_bytes_max": MIB, "evaluating_bytes_max": 3 * LARGE_BODY_BYTES // 2}
    talk(story, plan=plan, **room)


def test_unfinished_headers_count_against_the_budget() -> None:
    async def story(client: Client) -> None:
        held = [await another(client) for _ in range(40)]
        for one in held:
            one.writer.write(b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 100)
            await arrived(one)
        assert client.connections.arriving.total <= 200_000
        assert (await held[0].answer())[0] == 503
        assert (await client.ask(post()))[0] == 200
        for one in held:
            one.writer.close()

    talk(story, arriving_bytes_max=200_000)


def test_answers_for_a_stalled_reader_are_not_produced() -> None:
    """A failure means: answers accumulate for a client that never reads them."""
    made: list[int] = []
    long = response(message="m" * MIB)
    plan = StubPlan(enforce=[long], work=made.append)

    async def story(client: Client) -> None:
        silent = await another(client)
        silent.reader._transport.pause_reading()  # type: ignore[attr-defined]
        silent.writer.write(post() * 50)
        await wait_on_loop(lambda: client.connections.arriving.total > MIB // 2)
        await rounds()
        assert 1 <= len(made) <= 5

        def is_closed() -> bool:
            # The event loop's clock counts milliseconds: the first tick may come in the
            # one in which the client stopped reading.
            client.connections.tick()
            return len(client.connections.open) == 1

        await wait_on_loop(is_closed)
        assert client.connections.arriving.total == 0
        silent.writer.close()

    talk(story, plan=plan, write_timeout_s=0.0)


def test_slow_reader_gets_all_answers() -> None:
    """The bound withholds no answers from a client that reads them in the end."""
    long = response(message="m" * MIB)
    plan = StubPlan(enforce=[long])

    async def story(client: Client) -> None:
        for uid in range(20):
            client.writer.write(post(review(uid=f"u{uid}")))
        await arrived(client)
        for uid in range(20):
            _status, _headers, body = await client.answer()
            assert json.loads(body)["response"]["uid"] == f"u{uid}"
        assert (await client.ask(post()))[0] == 200

    talk(story, plan=plan)


def test_pipelined_requests_take_turns() -> None:
    """A failure means: a hundred reviews of one connection delay all other reviews."""
    order: list[str] = []

    async def story(client: Client) -> None:
        answer = client.connections.service.answer

        def noting(
            route: Any,
            query: bytes,
            body: bytes | bytearray,
            arrived_ns: int = 0,
            weight: int = 0,
            **facts: Any,
        ) -> Any:
            order.append(json.loads(body)["request"]["uid"])
            return answer(route, query, body, arrived_ns, weight, **facts)

        client.connections.service.answer = noting  # type: ignore[method-assign]  # to see
        other = await another(client)
        client.writer.write(b"".join(post(review(uid="many")) for _ in range(100)))
        other.writer.write(post(review(uid="one")))
        assert (await other.answer())[0] == 200
        for _ in range(100):
            assert (await client.answer())[0] == 200
        other.writer.close()

    talk(story)
    assert order.index("one") < 20


def test_waiting_requests_are_counted() -> None:
    async def story(client: Client) -> None:
        many = b"GET /health/liveness HTTP/1.1\r\n\r\n" * (2 * REQUESTS_WAITING_MAX)
        client.writer.write(many)
        told = await client.reader.read()
        assert told.count(b"HTTP/1.1 ") < REQUESTS_WAITING_MAX
        assert told.endswith(b" (webhook.no_room)\n")

    talk(story)


def test_expect_is_answered_once_in_order() -> None:
    async def story(client: Client) -> None:
        expects = ["Expect: 100-continue"] * 50
        head, body = post(
            BODY, "/validate", "Content-Type: application/json", *expects
        ).split(b"\r\n\r\n", 1)
        assert (await client.ask(head + b"\r\n\r\n"))[0] == 100
        assert (await client.ask(body))[0] == 200
        # A queued request gets its turn when the request before it is answered.
        liveness = b"GET /health/liveness HTTP/1.1\r\nHost: k\r\n\r\n"
        client.writer.write(liveness + head + b"\r\n\r\n")
        assert (await client.answer())[0] == 200
        assert (await client.answer())[0] == 100
        assert (await client.ask(body))[0] == 200

    talk(story)


@pytest.mark.parametrize("chunked", [True, False])
def test_oversized_review_is_denied_with_its_uid(chunked: bool) -> None:  # noqa: FBT001 - a parameter
    """The API server would ignore an HTTP error if failures are ignored."""
    body = review(object={"a": "x" * 100_000})

    async def story(client: Client) -> None:
        head = CHUNKED if chunked else SIZED % len(body)
        data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body
        status, headers, answer = await client.ask(head + data)
        assert (status, headers["connection"]) == (200, "close")
        found = json.loads(answer)["response"]
        assert (found["uid"], found["allowed"]) == ("u-1", False)
        assert "webhook.body_too_large" in found["status"]["message"]
        assert await client.ended()

    talk(story)


def test_oversized_other_body_is_an_http_error() -> None:
    async def story(client: Client) -> None:
        body = json.dumps({"metadata": {"uid": "u"}, "x": "y" * 20_000}).encode()
        assert (await client.ask(SIZED % len(body) + body))[0] == 413

    talk(story)


def test_most_idle_of_too_many_connections_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections_module, "CONNECTIONS_MAX", 10)

    async def story(client: Client) -> None:
        await wait_on_loop(lambda: bool(client.connections.open))
        # The others arrive later on the loop's clock, which has milliseconds.
        began_s = client.connections.loop.time()
        await wait_on_loop(lambda: client.connections.loop.time() > began_s)
        held = [await another(client) for _ in range(10)]
        assert await client.ended()
        assert len(client.connections.open) == 10
        assert (await held[-1].ask(post()))[0] == 200
        for one in held:
            one.writer.close()

    talk(story)


class Holder:
    def __init__(self, name: str, gone: list[str], *, yields: bool = True) -> None:
        self.name, self.gone, self.yields = name, gone, yields

    def evict(self) -> bool:
        if self.yields:
            self.gone.append(self.name)
        return self.yields


def test_budget_drops_the_oldest_bodies_and_keeps_running_reviews() -> None:
    gone: list[str] = []
    budget = Budget(100)
    evaluated = Holder("evaluated", gone, yields=False)
    a, b, c = (Holder(name, gone) for name in "abc")
    for holder in (evaluated, a, b):
        budget.hold(holder, 30)
    budget.hold(a, 35)
    assert (gone, budget.total) == ([], 95)
    budget.hold(c, 40)
    assert (gone, budget.total) == (["a"], 100)
    budget.hold(evaluated, 90)
    assert gone == ["a", "b", "c"]
    assert budget.total == 90
    assert not budget.has_room(11)
    budget.release(evaluated)
    budget.release(evaluated)
    assert budget.total == 0


def test_one_large_body_is_started_per_round() -> None:
    """A failure means: small reviews wait until several large ones are decoded."""
    order: list[str] = []

    async def story(client: Client) -> None:
        answer = client.connections.service.answer

        def noting(
            route: Any,
            query: bytes,
            body: bytes | bytearray,
            arrived_ns: int = 0,
            weight: int = 0,
            **facts: Any,
        ) -> Any:
            uid = json.loads(body)["request"]["uid"]
            order.append(uid)
            if uid == "large-0":
                # A body that arrives in the same round is answered before the next
                # large one.
                assert client.connections.loop.time() * 1e9 >= arrived_ns > 0
                client.connections.loop.call_soon(order.append, "small")
            return answer(route, query, body, arrived_ns, weight, **facts)

        client.connections.service.answer = noting  # type: ignore[method-assign]  # to see
        client.connections.body_bytes_max = MIB
        others = [await another(client) for _ in range(3)]
        for number, one in enumerate(others):
            padding = "x" * LARGE_BODY_BYTES
            one.writer.write(post(review(uid=f"large-{number}", name=padding)))
        for one in others:
            assert (await one.answer())[0] == 200
            one.writer.close()

    talk(story)
    assert sorted(order) == ["large-0", "large-1", "large-2", "small"]
    assert order.index("small") <= order.index("large-0") + 2


@pytest.mark.parametrize("needs_io", [False, True])
def test_large_body_is_estimated_once(needs_io: bool) -> None:  # noqa: FBT001 - a parameter
    """A failure means: each large body blocks the event loop several times as long."""
    weighed: list[int] = []
    weigh = weigh_module.decoded_bytes

    def noting(body: bytes | bytearray) -> int:
        weighed.append(len(body))
        return weigh(body)

    # Above the size at which decoding also checks the weight.
    body = review(object={"a": "x" * (DECODED_BYTES_MAX // DECODED_TIMES_MAX)})

    async def story(client: Client) -> None:
        assert (await client.ask(post(body)))[0] == 200

    with (
        patch.object(weigh_module, "decoded_bytes", noting),
        patch.object(decode_module, "decoded_bytes", noting),
        patch.object(protocol_module, "decoded_bytes", noting),
    ):
        talk(story, plan=StubPlan(needs_io=needs_io), body_bytes_max=4 * MIB)
    assert weighed == [len(body)]

"""Two workers share one listening socket: each accepts its part, none is refused."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Sequence

import pytest
import uvloop

from kyverno_mp.webhook.http import accept
from kyverno_mp.webhook.http.accept import Acceptor
from kyverno_mp.webhook.http.connections import Connections
from kyverno_mp.webhook.rest import make_app
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.service import Service
from tests.unit.webhook.http.test_protocol import post
from tests.unit.webhook.stub import StubEvaluate, StubRecords
from tests.waiting import HANG_S, wait_on_loop


class Board:
    """The counters that workers share; one of the workers may never accept."""

    def __init__(self) -> None:
        self.told: dict[int, int] = {}
        self.acceptors: list[Acceptor] = []


class Seat:
    """One worker's place on the board."""

    def __init__(self, board: Board, number: int) -> None:
        self._told = board.told
        self._number = number

    def report(self, connections: int) -> None:
        self._told[self._number] = connections

    def expose(self) -> None:
        """Count no failed call."""

    def others(self) -> Sequence[int]:
        return [
            count
            for number, count in self._told.items()
            if number != self._number and count >= 0
        ]


def connections_of(loop: asyncio.AbstractEventLoop, seat: Seat) -> Connections:
    service = Service(
        Dependencies(
            records=StubRecords(),
            monotonic_ns=lambda: int(loop.time() * 1e9),
        ),
        handlers_of(StubEvaluate(None)),
    )
    return Connections(
        loop,
        service,
        make_app(lambda: True),
        body_bytes_max=10_000,
        keepalive_s=300.0,
        time_s=lambda: 0.0,
        linger_s=0.01,
        peers=seat,
    )


Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Dial = Callable[[], Awaitable[Link]]
Story = Callable[[list[Connections], Board, Dial], Awaitable[None]]


def serve(count: int, story: Story) -> None:
    """Run workers on one socket; pass them and a connect function to the story."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        board = Board()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            workers = [connections_of(loop, Seat(board, n)) for n in range(count)]
            # Each worker has its own descriptor of the shared socket, as after a fork.
            ours = [listener.dup() for _ in workers]
            acceptors = board.acceptors = [
                Acceptor(loop, one, connections, None)
                for one, connections in zip(ours, workers, strict=True)
            ]
            for acceptor in acceptors:
                acceptor.start()
            port = listener.getsockname()[1]
            links: list[Link] = []

            async def dial() -> Link:
                links.append(await asyncio.open_connection("127.0.0.1", port))
                return links[-1]

            try:
                await asyncio.wait_for(story(workers, board, dial), HANG_S)
            finally:
                for acceptor, one in zip(acceptors, ours, strict=True):
                    acceptor.close()
                    one.close()
                # A loop with an open connection may never end, so a failure would hang.
                for _, writer in links:
                    writer.transport.abort()
                await wait_on_loop(
                    lambda: not any(connections.handshakes for connections in workers)
                )
                for connections in workers:
                    for connection in list(connections.open):
                        connection.abort()
                await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(post())
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    await reader.readexactly(length)
    return head


def test_each_worker_accepts_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine, the moment would be over before it begins.
    monkeypatch.setattr(accept, "_LET_OTHERS_S", 5.0)

    async def story(workers: list[Connections], _board: Board, dial: Dial) -> None:
        links = [await dial() for _ in range(16)]
        await wait_on_loop(
            lambda: sum(len(connections.open) for connections in workers) == len(links)
        )
        counts = sorted(len(connections.open) for connections in workers)
        assert counts[-1] - counts[0] <= 1
        for link in links:
            assert (await ask(*link)).startswith(b"HTTP/1.1 200")
            link[1].close()

    serve(4, story)


def test_worker_that_never_starts_causes_only_a_short_delay() -> None:
    """A worker that crashed or hangs is still listed on the board."""

    async def story(workers: list[Connections], board: Board, dial: Dial) -> None:
        board.told[99] = 0
        links = [await dial() for _ in range(6)]
        await wait_on_loop(lambda: len(workers[0].open) == len(links))
        for link in links:
            assert (await ask(*link)).startswith(b"HTTP/1.1 200")
            link[1].close()

    serve(1, story)


def test_connections_move_to_an_idle_worker() -> None:
    """Every request is answered; the answer says that the connection ends."""

    async def story(workers: list[Connections], board: Board, dial: Dial) -> None:
        board.told[1] = 99
        links = [await dial() for _ in range(12)]
        await wait_on_loop(
            lambda: (workers[0].handshakes, board.told[0]) == (0, len(links))
        )
        board.told[1] = 0
        workers[0].tick()
        heads = [await ask(*link) for link in links]
        assert all(head.startswith(b"HTTP/1.1 200") for head in heads)
        told = sum(b"connection: close" in head for head in heads)
        assert told == 3
        await wait_on_loop(lambda: len(workers[0].open) == len(links) - told)
        for _, writer in links:
            writer.close()

    serve(1, story)


def test_few_connections_are_not_moved() -> None:
    async def story(workers: list[Connections], board: Board, dial: Dial) -> None:
        board.told[1] = 1
        link = await dial()
        await wait_on_loop(lambda: len(workers[0].open) == 1)
        board.told[1] = 0
        workers[0].tick()
        assert b"connection: close" not in await ask(*link)
        link[1].close()

    serve(1, story)


def test_draining_worker_is_not_waited_for() -> None:
    async def story(workers: list[Connections], board: Board, dial: Dial) -> None:
        link = await dial()
        await wait_on_loop(lambda: board.told[0] == 1)
        workers[0].drain()
        assert board.told[0] == -1
        assert b"connection: close" in await ask(*link)
        link[1].close()

    serve(1, story)


def test_draining_workers_answer_connections_in_the_queue_of_the_kernel() -> None:
    """Otherwise the kernel resets them when the last worker ends."""

    async def story(workers: list[Connections], board: Board, dial: Dial) -> None:
        for worker in workers:
            worker.report_count()
        await wait_on_loop(lambda: len(board.told) == len(workers))
        for acceptor in board.acceptors:
            acceptor.close()
        workers[0].drain()
        link = await dial()
        assert board.acceptors[0].accept_waiting() == 0, "another worker accepts it"
        workers[1].drain()
        assert board.acceptors[0].accept_waiting() == 1
        assert b"connection: close" in await ask(*link)
        link[1].close()
        assert board.told == {0: -1, 1: -1}

    serve(2, story)


def test_client_that_disconnects_immediately_causes_no_harm() -> None:
    async def story(workers: list[Connections], board: Board, dial: Dial) -> None:
        for _ in range(20):
            _, writer = await dial()
            writer.transport.abort()
        link = await dial()
        assert (await ask(*link)).startswith(b"HTTP/1.1 200")
        link[1].close()
        await wait_on_loop(lambda: not workers[0].open and board.told[0] == 0)
        assert workers[0].handshakes == 0
        with contextlib.suppress(OSError):
            await link[1].wait_closed()

    serve(1, story)

"""A worker ends: no request that a client could write to a connection is lost.

An API server repeats a call only if it wrote no byte of it (Go 1.26, net/http
transport.go, shouldRetryRequest). So the end of an idle connection must reach the
client's kernel, which rejects the next write, and not only its program.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from kyverno_mp.process.startup.certificate import make
from kyverno_mp.webhook.http.connections import Connections
from kyverno_mp.webhook.http.protocol import Protocol
from kyverno_mp.webhook.http.tls import Certificates
from kyverno_mp.webhook.rest import make_app
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.service import Service
from tests.unit.webhook.http.test_protocol import post
from tests.unit.webhook.http.test_tls import client_context
from tests.unit.webhook.stub import StubEvaluate, StubRecords
from tests.waiting import HANG_S, wait_on_loop

REQUEST = post()
PEERS = 4


def connections_of(loop: asyncio.AbstractEventLoop, **limits: Any) -> Connections:
    service = Service(
        Dependencies(
            records=StubRecords(), monotonic_ns=lambda: int(loop.time() * 1e9)
        ),
        handlers_of(StubEvaluate(None)),
    )
    options: dict[str, Any] = {"quiet_s": 0.0, "first_request_s": 0.0, **limits}
    return Connections(
        loop,
        service,
        make_app(lambda: True),
        body_bytes_max=10_000,
        time_s=lambda: 0.0,
        linger_s=0.0,
        **{"keepalive_s": 300.0, **options},
    )


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(story(), HANG_S)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(limited())


class Peer:
    """A client that sends one request after another, as slowly as the test says."""

    def __init__(self, connections: Connections, stack: contextlib.ExitStack) -> None:
        self._connections = connections
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.link = stack.enter_context(
            socket.create_connection(listener.getsockname())
        )
        self.link.setblocking(False)
        self._accepted, _ = listener.accept()
        self._unsent = b""
        self._answer = b""
        self.owed = 0
        self.has_ended = False
        """The server has said so, or the kernel has rejected a write."""

    async def open(self) -> None:
        await self._connections.loop.connect_accepted_socket(
            lambda: Protocol(self._connections), self._accepted
        )

    def send(self, size: int) -> None:
        """Send bytes of a request; a new one begins after the answer to the last."""
        self.receive()
        if self.has_ended or (self.owed and not self._unsent):
            return
        begins = not self._unsent
        data = self._unsent or REQUEST
        try:
            sent = self.link.send(data[:size])
        except OSError:
            assert begins, "a request was lost after its first bytes"
            self.has_ended = True
            return
        self.owed = 1
        self._unsent = data[sent:]

    def receive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while not self.has_ended:
                try:
                    data = self.link.recv(65536)
                except ConnectionResetError:
                    data = b""
                if not data:
                    assert not self.owed, "a request was lost"
                    self.has_ended = True
                    return
                self._answer += data
                if self._answer.endswith(b"}"):
                    assert self._answer.startswith(b"HTTP/1.1 200")
                    self.has_ended = b"connection: close" in self._answer
                    self.owed, self._answer = 0, b""

    def is_served(self) -> bool:
        """Finish the request that has begun; return whether it was answered."""
        if self._unsent:
            self.send(len(REQUEST))
        self.receive()
        return not self.owed


class Others:
    """Another worker, without connections; this one would let its own go."""

    def report(self, connections: int) -> None:
        """See Peers."""
        assert connections >= 0, "it still accepts"

    def others(self) -> list[int]:
        """See Peers."""
        return [0]

    def expose(self) -> None:
        """See Peers."""


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.integers(0, PEERS - 1), st.integers(1, 2 * len(REQUEST))),
            st.just("turn"),
            st.just("turn"),
            st.just("leave"),
            st.just("drain"),
            st.just("tick"),
        ),
        max_size=40,
    )
)
def test_no_request_is_lost_in_any_order_of_events(steps: list[Any]) -> None:
    """A client may send at any moment before, during and after the drain."""

    async def story() -> None:
        connections = connections_of(asyncio.get_running_loop(), keepalive_s=-1.0)
        with contextlib.ExitStack() as stack:
            peers = [Peer(connections, stack) for _ in range(PEERS)]
            for peer in peers:
                await peer.open()
            for step in steps:
                if step == "turn":
                    await asyncio.sleep(0)
                elif step == "leave":
                    connections.leave()
                elif step == "drain":
                    connections.drain()
                elif step == "tick":
                    connections.tick()
                else:
                    number, size = step
                    peers[number].send(size)
            connections.drain()
            await wait_on_loop(lambda: all(peer.is_served() for peer in peers))
            await wait_on_loop(lambda: not connections.open)

    run(story)


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("is_drain", [False, True], ids=["keepalive", "drain"])
def test_kernel_rejects_the_next_request(
    tmp_path: Path, *, is_drain: bool, is_tls: bool
) -> None:
    """A busy client may not have read the end of its connection when it writes."""
    files = make(tmp_path, "kyverno")
    context = Certificates(files.cert, files.key).context if is_tls else None

    async def story() -> None:
        loop = asyncio.get_running_loop()
        connections = connections_of(loop, keepalive_s=-1.0)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = listener.getsockname()
            asked = loop.run_in_executor(None, _ask, address, is_tls)
            accepted, _ = await loop.run_in_executor(None, listener.accept)
            await loop.connect_accepted_socket(
                lambda: Protocol(connections), accepted, ssl=context
            )
            with await asked as link:
                if is_drain:
                    connections.drain()

                def has_ended() -> bool:
                    if not is_drain:
                        connections.tick()
                    return not connections.open

                await wait_on_loop(has_ended)
                with pytest.raises(OSError, match=r"reset|Broken pipe|EOF"):
                    link.sendall(REQUEST)

    run(story)


def _ask(address: tuple[str, int], is_tls: bool) -> socket.socket:  # noqa: FBT001 - run_in_executor
    link = socket.create_connection(address, HANG_S)
    if is_tls:
        link = client_context().wrap_socket(link)
    link.sendall(REQUEST)
    answer = b""
    while not answer.endswith(b"}"):
        answer += link.recv(65536)
    return link


def test_new_connection_waits_for_its_first_request() -> None:
    """No client repeats that request, and a busy one sends it late."""

    async def story() -> None:
        connections = connections_of(asyncio.get_running_loop(), first_request_s=HANG_S)
        with contextlib.ExitStack() as stack:
            peer = Peer(connections, stack)
            await peer.open()
            connections.drain()
            await asyncio.sleep(0)
            assert connections.open
            peer.send(len(REQUEST))
            await wait_on_loop(peer.is_served)
            await wait_on_loop(lambda: not connections.open)

    run(story)


@given(
    before=st.integers(0, PEERS),
    has_others=st.booleans(),
    order=st.permutations(range(PEERS)),
)
def test_each_answer_before_the_drain_ends_its_connection(
    before: int, order: list[int], *, has_others: bool
) -> None:
    """Old connections and new ones; a silent client keeps its connection."""

    async def story() -> None:
        peers_of = Others() if has_others else None
        connections = connections_of(asyncio.get_running_loop(), peers=peers_of)
        with contextlib.ExitStack() as stack:
            peers = [Peer(connections, stack) for _ in range(PEERS)]
            silent = Peer(connections, stack)
            for peer in (silent, *peers[:before]):
                await peer.open()
            connections.leave()
            connections.tick()
            for peer in peers[before:]:
                await peer.open()
            for number in order:
                peers[number].send(len(REQUEST))
                await wait_on_loop(peers[number].is_served)
                assert peers[number].has_ended, "its answer does not say so"
                connections.tick()
            await wait_on_loop(lambda: len(connections.open) == 1)
            silent.receive()
            assert not silent.has_ended

    run(story)

"""Run a proxy between a client and the API server that can cut or mute traffic.

Takes: the server's port. Gives: a port of 127.0.0.1 that leads there, and ways to
disturb its connections. One thread with an event loop. May touch: loopback sockets.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Final

from tests.waiting import HANG_S

_PART_BYTES: Final = 65536


class _Link:
    """One connection through the proxy."""

    def __init__(self, *writers: asyncio.StreamWriter) -> None:
        self._writers = writers
        self.loud = asyncio.Event()
        self.loud.set()

    def cut(self) -> None:
        # Clients that wait for a response are disconnected, too.
        self.loud.set()
        for writer in self._writers:
            writer.transport.abort()


class CuttingProxy:
    """A TCP proxy with ``start`` and ``stop``."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._refuses = False
        self.port = 0

    def start(self) -> None:
        """Start to listen."""
        self._thread.start()
        listening = asyncio.run_coroutine_threadsafe(self._listen(), self._loop)
        listening.result(HANG_S)

    def stop(self) -> None:
        """Cut everything and end."""
        self.cut()
        self._do(self._close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(HANG_S)
        self._loop.close()

    def cut(self) -> int:
        """Break every connection; return their number."""
        return self._do(self._cut)

    def mute(self) -> int:
        """Stop forwarding on the current connections, but keep them open."""
        return self._do(self._mute)

    def refuse(self, *, refuses: bool) -> None:
        """Break new connections at once, or accept them again."""
        self._refuses = refuses

    def _do(self, act: Callable[[], int]) -> int:
        async def run() -> int:
            return act()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(HANG_S)

    def _cut(self) -> int:
        links, self._links = self._links, set()
        for link in links:
            link.cut()
        return len(links)

    def _mute(self) -> int:
        for link in self._links:
            link.loud.clear()
        return len(self._links)

    def _close(self) -> int:
        if self._server is not None:
            self._server.close()
        return 0

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _take(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self._refuses:
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(writer, back)
        self._links.add(link)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(_pump(reader, back, link), _pump(there, writer, link))
        self._links.discard(link)
        link.cut()


async def _pump(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, link: _Link
) -> None:
    while part := await source.read(_PART_BYTES):
        await link.loud.wait()
        target.write(part)
        await target.drain()
    await link.loud.wait()
    link.cut()

"""One HTTP connection whose waits all end by the current deadline.

Room: kube. Takes: an address, a TLS context. Gives: Connection. Next: kube/pool.py,
egress/services.py. May touch: one socket.
Source: K8S: keep-alive probes detect within about a minute that a peer died silently.

``http.client`` bounds each read of the socket, not the whole response: a peer that
sends a byte from time to time could block a caller forever. So before every read, the
socket's time-out is set to the time left until the deadline. Nor does it bound
interim responses, trailers and the number of chunks, which take time although they add
no byte to the body: see ``limit_overhead`` and ``body_parts``.
"""

import contextlib
import http.client
import io
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from kyverno_mp.limits import (
    RESPONSE_HEAD_BYTES_MAX,
    RESPONSE_PART_BYTES_MIN,
    RESPONSE_SMALL_PARTS_MAX,
)

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_CONNECT_S_MAX: Final = 10.0
_READ_BYTES: Final = 65536
_KEEPALIVE: Final = tuple(
    (getattr(socket, name), value)
    for name, value in (
        ("TCP_KEEPIDLE", 30),
        ("TCP_KEEPALIVE", 30),  # its name on macOS
        ("TCP_KEEPINTVL", 10),
        ("TCP_KEEPCNT", 3),
    )
    if hasattr(socket, name)
)
"""Options of TCP, and seconds or probes."""


class ResponseTooLong(http.client.HTTPException):
    """A server sends more around the body of a response than a response needs."""


def body_parts(
    answer: http.client.HTTPResponse, connection: "Connection"
) -> Iterator[bytes]:
    """Yield the body in parts. Raises: ResponseTooLong for many tiny chunks.

    SECURITY: each chunk takes some microseconds of this process's CPU, so a server that
    sends single bytes could use up a core until the deadline. Only for servers that
    ``limit_overhead`` concerns; the network cuts a body without chunks.
    """
    is_bounded = answer.chunked and connection.is_limited
    count = size = 0
    while part := answer.read1(_READ_BYTES):
        count += 1
        size += len(part)
        is_small = size < count * RESPONSE_PART_BYTES_MIN
        if is_bounded and is_small and count > RESPONSE_SMALL_PARTS_MAX:
            raise ResponseTooLong("the chunks of a response are too small")
        # A chunk of that size takes eight more bytes.
        connection.allow_bytes(len(part) + len(part) // 8 + 8)
        yield part


class ReadPace(NamedTuple):
    """How fast a server must answer, so that it does not hold a thread for long.

    ``first_byte_s``: from the start of a call, with its connection, to the response's
    first byte. ``bytes_per_s``: of the response after as long again; 0 = any.
    """

    first_byte_s: float
    bytes_per_s: int = 0

    def until_ns(self, began_ns: int, first_ns: int, size: int) -> float:
        """Return when the next byte is late; ``first_ns``: 0 before the first one."""
        grace_ns = self.first_byte_s * 1e9
        if not first_ns:
            return began_ns + grace_ns
        if not self.bytes_per_s:
            return inf
        return first_ns + grace_ns + size / self.bytes_per_s * 1e9


class TimedSocket:
    """A socket whose waits end at ``deadline_ns`` of the monotonic clock.

    The socket is closed when the connection and all response readers have released it,
    as ``http.client`` expects.
    """

    def __init__(self, raw: socket.socket, deadline_ns: int) -> None:
        self.raw = raw
        self.deadline_ns = deadline_ns
        self.bytes_left: int | None = None
        """The bytes that can still be received; None = any number."""
        self._pace: ReadPace | None = None
        self._began_ns = self._first_ns = self._size = 0
        self._users = 1
        self._closed = False

    def arm(self) -> None:
        """Set the socket's time-out for the next wait. Raises: TimeoutError past it."""
        until_ns: float = self.deadline_ns
        if self._pace is not None:
            late_ns = self._pace.until_ns(self._began_ns, self._first_ns, self._size)
            until_ns = min(until_ns, late_ns)
        left_s = (until_ns - time.monotonic_ns()) / 1e9
        if left_s <= 0:
            raise TimeoutError
        self.raw.settimeout(left_s)

    def keep_pace(self, pace: ReadPace, began_ns: int) -> None:
        """Require a pace of the response to the call that began then."""
        self._pace, self._began_ns = pace, began_ns
        self._first_ns = self._size = 0

    def received(self, size: int) -> None:
        """Count bytes of the response."""
        self._first_ns = self._first_ns or time.monotonic_ns()
        self._size += size

    def sendall(self, data: bytes) -> None:
        """Send all of ``data``."""
        self.arm()
        self.raw.sendall(data)

    def makefile(self, _mode: str, _buffering: int = -1) -> io.BufferedReader:
        """Return a reader of the response."""
        self._users += 1
        return io.BufferedReader(_TimedReader(self), 65536)

    def close(self) -> None:
        """Release the connection's reference; called once."""
        if not self._closed:
            self._closed = True
            self.release()

    def release(self) -> None:
        """Drop one reference; the last one closes the socket."""
        self._users -= 1
        if self._users == 0:
            self.raw.close()


class _TimedReader(io.RawIOBase):
    """Reads a TimedSocket."""

    def __init__(self, owner: TimedSocket) -> None:
        super().__init__()
        self._owner = owner

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        owner = self._owner
        owner.arm()
        size = owner.raw.recv_into(buffer)
        owner.received(size)
        if owner.bytes_left is not None:
            owner.bytes_left -= size
            if owner.bytes_left < 0:
                raise ResponseTooLong("a response is too long")
        return size

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._owner.release()


class Connection(http.client.HTTPConnection):
    """An HTTP/1.1 connection, with TLS when ``context`` is given.

    ``host`` is the address to connect to; ``server_name`` is the name in the
    certificate and in the Host header.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        context: ssl.SSLContext | None = None,
        server_name: str = "",
        dial: Callable[[float], socket.socket] | None = None,
    ) -> None:
        super().__init__(host, port)
        self._context = context
        self._server_name = server_name or host
        self._dial = dial
        self._timed: TimedSocket | None = None
        self._pace: ReadPace | None = None
        self._began_ns = 0
        self.deadline_ns = 0
        self.fresh = True
        """Whether no response has arrived on this connection yet."""

    def limit(self, deadline_ns: int) -> None:
        """Set the deadline of all following operations."""
        self.deadline_ns = deadline_ns
        if self._timed is not None:
            self._timed.deadline_ns = deadline_ns

    def keep_pace(self, pace: ReadPace) -> None:
        """Require a pace of the next call, which begins now."""
        self._pace, self._began_ns = pace, time.monotonic_ns()
        if self._timed is not None:
            self._timed.keep_pace(pace, self._began_ns)

    @property
    def has_time_left(self) -> bool:
        """Return whether a time-out was due to the pace, not to the deadline."""
        return time.monotonic_ns() < self.deadline_ns

    def limit_overhead(self) -> None:
        """Bound the next response without its body; the connection must be open."""
        if self._timed is not None:
            self._timed.bytes_left = RESPONSE_HEAD_BYTES_MAX

    @property
    def is_limited(self) -> bool:
        """Return whether the response is bounded without its body."""
        return self._timed is not None and self._timed.bytes_left is not None

    def allow_bytes(self, count: int) -> None:
        """Allow the response this many more bytes, because its body has grown."""
        if self._timed is not None and self._timed.bytes_left is not None:
            self._timed.bytes_left += count

    def connect(self) -> None:
        """Open the socket within the deadline."""
        left_s = (self.deadline_ns - time.monotonic_ns()) / 1e9
        if left_s <= 0:
            raise TimeoutError
        raw = self._open(min(left_s, self._connect_s_max))
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                raw.setsockopt(socket.IPPROTO_TCP, option, value)
            if self._context is not None:
                raw = self._context.wrap_socket(raw, server_hostname=self._server_name)
        except BaseException:
            raw.close()
            raise
        self.fresh = True
        self.sock = self._timed = TimedSocket(raw, self.deadline_ns)
        if self._pace is not None:
            self._timed.keep_pace(self._pace, self._began_ns)

    @property
    def _connect_s_max(self) -> float:
        if self._pace is None:
            return _CONNECT_S_MAX
        return min(_CONNECT_S_MAX, self._pace.first_byte_s)

    def _open(self, timeout_s: float) -> socket.socket:
        if self._dial is not None:
            return self._dial(timeout_s)
        return socket.create_connection((self.host, self.port), timeout_s)

    def is_usable(self) -> bool:
        """Return whether an idle connection can take a request.

        A connection with unread data was closed by the peer or is out of sync.
        """
        if self.sock is None or self._timed is None:
            return False
        poll = select.poll()
        try:
            poll.register(self._timed.raw, select.POLLIN)
        except (ValueError, OSError):
            return False
        return not poll.poll(0)

    def abandon(self) -> None:
        """Close the socket at once, even if a response is unread."""
        self.close()
        if self._timed is not None:
            self._timed.raw.close()

    def interrupt(self) -> None:
        """Wake a thread that reads from this connection; it then reads end of file."""
        if self._timed is not None:
            # SAFETY: this shuts down the plain socket below TLS, without a TLS close.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._timed.raw, socket.SHUT_RDWR)

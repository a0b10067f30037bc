"""Represent one HTTP request until its answer, and build response heads.

Room: webhook. Takes: output of the parser. Gives: Exchange, heads. Next: protocol.
Source: RFC 9112.
"""

from typing import Final

from kyverno_mp.webhook.route import route_of

JSON: Final = b"application/json"
HEADER_BYTES: Final = 200
"""The memory of a header in addition to its bytes."""
_REASONS: Final = {
    200: "OK",
    204: "No Content",
    400: "Bad Request",
    403: "Forbidden",
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
    """One complete request, and whether the connection stays open after its answer."""

    __slots__ = (
        "arrived_s",
        "body",
        "content_type",
        "headers",
        "is_proved",
        "keep_alive",
        "method",
        "path",
        "query",
        "target",
        "traceparent",
    )

    def __init__(self) -> None:
        self.method = b""
        self.target = b""
        self.path = b""
        """The path without a caller's secret segment, once the head is complete."""
        self.query = b""
        self.is_proved = False
        """Whether the API server has sent the request (webhook/http/callers.py)."""
        self.headers: list[tuple[bytes, bytes]] = []
        self.content_type = b""
        self.body: bytes | bytearray = b""
        self.keep_alive = True
        self.traceparent = b""
        self.arrived_s = 0.0
        """The time at which its first byte arrived, by the event loop's clock."""


def is_review(exchange: Exchange) -> bool:
    """Return whether method, content type and path match a resource review."""
    if exchange.method != b"POST" or exchange.content_type != JSON:
        return False
    return route_of(exchange.path) is not None


def announces_body(exchange: Exchange) -> bool:
    """Return whether the head says that a body follows."""
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and int(value) > 0)
        for name, value in exchange.headers
    )


def bytes_of(exchange: Exchange) -> int:
    """Return the approximate size of a request while it waits."""
    head = len(exchange.target) + len(exchange.headers) * HEADER_BYTES
    return head + len(exchange.body) + HEADER_BYTES


def response_head(
    status: int, headers: list[tuple[bytes, bytes]], length: int, date: bytes
) -> list[bytes]:
    """Return the lines of a response head, except ``connection``."""
    return [
        f"HTTP/1.1 {status} {_REASONS.get(status, 'Status')}".encode(),
        date,
        *(name + b": " + value for name, value in headers),
        b"content-length: %d" % length,
    ]

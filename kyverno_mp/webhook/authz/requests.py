"""Read the HTTP request to judge: the request itself, or one in wire form in its body.

Room: webhook. Takes: method, target, headers and body, or the bytes of a request.
Gives: an http.CheckRequest. Next: http_app.py.
Source: docs/behaviour/cel 15.2, 15.8; Go's net/http ReadRequest and net/url.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

import httptools

from kyverno_mp.errors import RequestInvalid
from kyverno_mp.expr.cel.authz.http import canonical, request_of
from kyverno_mp.expr.cel.authz.messages import Message
from kyverno_mp.limits import AUTHZ_HEADERS_MAX

MALFORMED: Final = "webhook.malformed"
Headers = Iterable[tuple[bytes, bytes]]
_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_ABSOLUTE: Final = re.compile(rb"([A-Za-z][A-Za-z0-9+.-]*)://([^/?]*)(.*)", re.DOTALL)
_HOST: Final = b"host"
_LEFT_OUT: Final = (_HOST, b"transfer-encoding")
_CONNECT: Final = b"CONNECT"
_NAMES_KEPT: Final = 1024
"""PERF: proxies send a few dozen different names of headers."""


def request_from(
    method: bytes, target: bytes, headers: Headers, body: bytes, protocol: str
) -> Message:
    """Return the request. Raises: RequestInvalid."""
    scheme, host, rest = b"", b"", target
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is not None:
        scheme, host, rest = absolute.groups()
    if method == _CONNECT and not rest.startswith(b"/"):
        host, rest = rest, b""
    path, _, query = rest.partition(b"?")
    if _ESCAPE.search(path):
        raise malformed()
    values: dict[str, list[str]] = {}
    for name, value in headers:
        lower = name.lower()
        if lower in _LEFT_OUT:
            # GO: neither is among the headers. The target's host comes first.
            host = host or (value if lower == _HOST else b"")
            continue
        values.setdefault(_canonical(name), []).append(_text(value))
    return request_of(
        {
            "method": _text(method),
            "header": values,
            "host": _text(host),
            "protocol": protocol,
            "contentLength": len(body),
            "body": body,
            "scheme": _text(scheme).lower(),
            "path": _text(unquote_to_bytes(path)),
            "query": parsed_query(query),
        }
    )


def parsed_query(query: bytes) -> dict[str, list[str]]:
    """Return the parameters; GO: url.Values, without the pairs that are not valid."""
    found: dict[str, list[str]] = {}
    for pair in query.split(b"&"):
        if not pair or b";" in pair or _ESCAPE.search(pair):
            continue
        name, _, value = (part.replace(b"+", b" ") for part in _split(pair))
        found.setdefault(_text(unquote_to_bytes(name)), []).append(
            _text(unquote_to_bytes(value))
        )
    return found


def _split(pair: bytes) -> tuple[bytes, bytes, bytes]:
    return pair.partition(b"=")


def nested_request(data: bytes) -> Message:
    """Return the request that ``data`` is in wire form. Raises: RequestInvalid."""
    reader = _Reader()
    parser = reader.parser = httptools.HttpRequestParser(reader)
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        # A request to change the protocol ends with its head.
        reader.is_complete = True
    except httptools.HttpParserError:
        # Bytes after the request are not part of it.
        if not reader.is_complete:
            raise malformed() from None
    if not reader.is_complete or len(reader.headers) > AUTHZ_HEADERS_MAX:
        raise malformed()
    return request_from(
        reader.method,
        reader.target,
        reader.headers,
        bytes(reader.body),
        reader.protocol,
    )


class _Reader:
    """Takes the parser's callbacks for the first request of some bytes."""

    parser: httptools.HttpRequestParser

    def __init__(self) -> None:
        self.method = b""
        self.protocol = ""
        self.target = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = bytearray()
        self.is_complete = False
        self._in_body = False

    def on_url(self, url: bytes) -> None:
        """Collect the target."""
        if not self.is_complete:
            self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header; trailers are left out, as Go's Header does."""
        if not (self.is_complete or self._in_body):
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Note the end of the head."""
        if not self.is_complete:
            self._in_body = True
            self.method = self.parser.get_method()
            self.protocol = f"HTTP/{self.parser.get_http_version()}"

    def on_body(self, body: bytes) -> None:
        """Collect the body."""
        if not self.is_complete:
            self.body += body

    def on_message_complete(self) -> None:
        """End the first request."""
        self.is_complete = True


def malformed() -> RequestInvalid:
    """Return the error of bytes that are no HTTP request."""
    return RequestInvalid(MALFORMED, "malformed HTTP request")


@lru_cache(_NAMES_KEPT)
def _canonical(name: bytes) -> str:
    return canonical(_text(name))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")

"""Call an ASGI app with a complete request, and collect its response.

Room: webhook. Takes: method, path, headers, body. Gives: status, headers, body.
Next: protocol.
Source: ASGI 3.0, HTTP connection scope. This serves only rare requests (health, wrong
paths), with Falcon's routing and error responses.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote

from kyverno_mp.webhook.http_errors import INTERNAL_ERROR, error_text

_LOG = logging.getLogger(__name__)

IS_PROVED: Final = "is_proved"
Message = dict[str, Any]
App = Callable[
    [
        Message,
        Callable[[], Awaitable[Mapping[str, Any]]],
        Callable[[Message], Awaitable[None]],
    ],
    Awaitable[None],
]
Headers = list[tuple[bytes, bytes]]


async def call_app(  # noqa: PLR0913 - the parts of a request
    app: App,
    method: bytes,
    path: bytes,
    query: bytes,
    headers: Headers,
    body: bytes,
    *,
    is_proved: bool,
) -> tuple[int, Headers, bytes]:
    """Return ``(status, headers, body)``; 500 if the app fails.

    The app finds ``is_proved`` in its scope (webhook/http/callers.py).
    """
    received = False

    async def receive() -> Message:
        nonlocal received
        if received:
            return {"type": "http.disconnect"}
        received = True
        return {"type": "http.request", "body": body, "more_body": False}

    status = 500
    answered: Headers = []
    chunks: list[bytes] = []

    async def send(message: Message) -> None:
        nonlocal status, answered
        if message["type"] == "http.response.start":
            status = message["status"]
            answered = [
                (name, value)
                for name, value in message.get("headers", ())
                if name.lower() != b"content-length"
            ]
        else:
            chunks.append(message.get("body", b""))

    scope: Message = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method.decode("latin-1"),
        "scheme": "https",
        "path": unquote(path.decode("latin-1")),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": headers,
        "server": None,
        "client": None,
        "state": {IS_PROVED: is_proved},
    }
    try:
        await app(scope, receive, send)
    except Exception:  # noqa: BLE001 - the edge: an internal error answers 500
        _LOG.exception("internal error in a request other than a review")
        return 500, [], f"{error_text(INTERNAL_ERROR, 'internal error')}\n".encode()
    return status, answered, b"".join(chunks)

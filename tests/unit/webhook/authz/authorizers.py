"""An HTTP authorizer and an Envoy authorizer in this process, for tests."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from kyverno_mp.compiler.cel_kinds.authorization import compile_exchange
from kyverno_mp.expr.cel.authz.http import REQUEST, RESPONSE, SENT
from kyverno_mp.ir.authorization import AuthorizationPolicyIR
from kyverno_mp.program.authorization import Authorizer, Exchange
from kyverno_mp.webhook.authz.deciding import Access, Deciding, Options
from kyverno_mp.webhook.authz.http_app import Exchanges, HttpAuthorizer, make_app
from kyverno_mp.webhook.http.asgi import call_app
from tests.waiting import HANG_S

T = TypeVar("T")


class Rig:
    """One worker's part that decides, with what it has counted."""

    def __init__(
        self, mode: str, *policies: AuthorizationPolicyIR, **more: Any
    ) -> None:
        self.authorizer: Authorizer | None = Authorizer(policies, mode)
        self.counted: list[tuple[str, str, str]] = []
        self.refused: list[str] = []
        options = Options(
            mode=mode,
            denies_by_default=more.get("denies_by_default", False),
            timeout_s=more.get("timeout_s", HANG_S),
            threads=more.get("threads", 2),
            waiting_max=more.get("waiting_max", 8),
            logs=more.get("logs", "off"),
        )
        self.deciding = Deciding(
            options,
            lambda: self.authorizer,
            more.get("access", Access()),
            lambda decision, source, policy, _s: self.counted.append(
                (decision, source, policy)
            ),
        )
        given, sent = more.get("given"), more.get("sent")
        exchanges = Exchanges(
            more.get("is_nested", True),
            Exchange(compile_exchange(given, REQUEST, REQUEST)) if given else None,
            Exchange(compile_exchange(sent, RESPONSE, SENT)) if sent else None,
        )
        http = HttpAuthorizer(self.deciding, exchanges)
        self.app = make_app(http, self.refused.append)

    async def send(
        self,
        body: bytes,
        method: bytes = b"POST",
        target: bytes = b"/",
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> tuple[int, dict[str, list[str]], bytes]:
        """Send a request to the HTTP authorizer."""
        path, _, query = target.partition(b"?")
        status, sent, answer = await call_app(
            self.app, method, path, query, list(headers), body, is_proved=True
        )
        found: dict[str, list[str]] = {}
        for name, value in sent:
            found.setdefault(name.decode().lower(), []).append(value.decode("latin-1"))
        return status, found, answer

    def ask(
        self, body: bytes, method: bytes = b"POST", target: bytes = b"/", **more: Any
    ) -> tuple[int, dict[str, list[str]], bytes]:
        """Send one request, in its own event loop."""
        return run(self.send(body, method, target, **more))


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run something in a new event loop."""
    return asyncio.run(work)


def wire(
    path: str = "/", *headers: str, method: str = "GET", body: bytes = b""
) -> bytes:
    """Return a request in wire form."""
    lines = [f"{method} {path} HTTP/1.1", "Host: h", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

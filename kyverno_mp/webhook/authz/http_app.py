"""Answer a proxy's requests for authorization over HTTP.

Room: webhook. Takes: requests to ``POST /``. Gives: a Falcon app. Next: deciding.py;
webhook/http/protocol.py passes it the requests.
Source: docs/behaviour/cel 15.8; RFC 9110.

SAFETY: a proxy lets a request through if the status of the answer is 2xx. So nothing
but a decision has such a status: not OPTIONS, which Falcon would answer itself, and no
probe. A report on a JSON payload has one, on its own path, if the operator wants it.
"""

import re
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import falcon
import falcon.asgi

from kyverno_mp.errors import Error, ExpressionFailed, Preempted
from kyverno_mp.expr.cel.authz.http import allowed, denied
from kyverno_mp.expr.cel.authz.messages import Message
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.limits import AUTHZ_HEADERS_MAX
from kyverno_mp.program.authorization import Exchange
from kyverno_mp.webhook.authz.deciding import Asked, Deciding, Outcome, failed
from kyverno_mp.webhook.authz.requests import nested_request, request_from
from kyverno_mp.webhook.payloads import PATH, JsonPayloads

_TEXT: Final = "text/plain; charset=utf-8"
_NO_ANSWER: Final = "no policy allows the request"
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\U0010ffff]*")
_FRAMING: Final = frozenset(
    {"connection", "content-length", "keep-alive", "trailer", "transfer-encoding"}
)
"""Headers of the connection, which is ours."""
_STATUS_MIN: Final = 200
_STATUS_MAX: Final = 599


class Exchanges(NamedTuple):
    """How requests are read, and answers are sent."""

    is_nested: bool = False
    given: Exchange | None = None
    """Turns the http.CheckRequest that arrived into the one to judge."""
    sent: Exchange | None = None
    """Turns the http.CheckResponse into the httpserver.HttpResponse to send."""


_UNREAD: Final = Asked("", "", "")


class _Answer(NamedTuple):
    outcome: Outcome
    asked: Asked
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class HttpAuthorizer:
    """Answers ``POST /``."""

    def __init__(self, deciding: Deciding, exchanges: Exchanges) -> None:
        self._deciding = deciding
        self._exchanges = exchanges
        self._is_pure = all(
            one is None or one.is_pure for one in (exchanges.given, exchanges.sent)
        )

    async def on_post(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response
    ) -> None:
        """Judge one request."""
        arrived_ns = time.monotonic_ns()
        body = await req.stream.read()
        try:
            answer = await self._answer(req, body, arrived_ns)
        except Exception as error:  # noqa: BLE001 - an internal error denies, too
            answer = _refused(failed(error))
        self._deciding.decided(answer.outcome, answer.asked, arrived_ns)
        resp.status = answer.status
        resp.data = answer.body
        resp.content_type = _TEXT
        for name, value in answer.headers:
            if name.lower() == "content-type":
                resp.content_type = value
            else:
                resp.append_header(name, value)

    async def on_options(
        self, _req: falcon.asgi.Request, _resp: falcon.asgi.Response
    ) -> None:
        """Reject OPTIONS, which must not look like a decision."""
        raise falcon.HTTPMethodNotAllowed(["POST"])

    async def _answer(
        self, req: falcon.asgi.Request, body: bytes, arrived_ns: int
    ) -> _Answer:
        if self._exchanges.is_nested:
            request = nested_request(body)
        else:
            scope = req.scope
            query: bytes = scope["query_string"]
            raw: bytes = scope["raw_path"]
            target = b"%b?%b" % (raw, query) if query else raw
            request = request_from(
                req.method.encode(), target, scope["headers"], body, "HTTP/1.1"
            )
        is_pure = self._is_pure and self._deciding.authorizer().is_pure

        def work(runtime: Runtime) -> _Answer:
            return self._judged(request, runtime)

        return await self._deciding.run(work, arrived_ns=arrived_ns, is_pure=is_pure)

    def _judged(self, request: Message, runtime: Runtime) -> _Answer:
        """Decide a request, and prepare what is sent. Raises: Preempted."""
        deciding, given = self._deciding, self._exchanges.given
        asked = _asked(request)
        try:
            if given is not None:
                result = given.result(deciding.check(request, runtime))
                request = request if result is None else result
                asked = _asked(request)
            outcome = deciding.outcome(request, runtime)
            if outcome.error:
                return _refused(outcome, asked)
            return self._sent(outcome, asked, runtime)
        except Preempted:
            raise
        except Error as error:
            return _refused(failed(error), asked)

    def _sent(self, outcome: Outcome, asked: Asked, runtime: Runtime) -> _Answer:
        response = outcome.response
        if response is None:
            response = allowed() if outcome.is_allowed else denied(_NO_ANSWER)
        sent = self._exchanges.sent
        result = None
        if sent is not None:
            result = sent.result(self._deciding.check(response, runtime))
        if result is not None:
            return _from_expression(outcome, asked, result)
        if outcome.is_allowed:
            return _Answer(outcome, asked, 200, (), b"")
        reason: str = response.field("denied").field("reason")
        return _Answer(outcome, asked, 403, (), reason.encode("utf-8", "replace"))


def _from_expression(outcome: Outcome, asked: Asked, result: Message) -> _Answer:
    """Return what the output expression says. Raises: ExpressionFailed."""
    status: int = result.field("status")
    if not _STATUS_MIN <= status <= _STATUS_MAX:
        raise ExpressionFailed(
            "authz.output", f"the output expression gives the status {status}"
        )
    headers = [
        (name, value)
        for name, values in result.field("header").items()
        for value in values
    ]
    for name, value in headers:
        if (
            not (_TOKEN.fullmatch(name) and _VALUE.fullmatch(value))
            or name.lower() in _FRAMING
            or len(headers) > AUTHZ_HEADERS_MAX
        ):
            raise ExpressionFailed(
                "authz.output", "the output expression gives an unusable header"
            )
    body: bytes = result.field("body")
    encoded = tuple((name, value.encode().decode("latin-1")) for name, value in headers)
    return _Answer(outcome, asked, status, encoded, body)


def _refused(outcome: Outcome, asked: Asked = _UNREAD) -> _Answer:
    """Return the answer to a request that could not be decided."""
    return _Answer(outcome, asked, 500, (), outcome.error.encode())


def _asked(request: Message) -> Asked:
    attributes = request.field("attributes")
    return Asked(*(attributes.field(name) for name in Asked._fields))


def make_app(
    authorizer: HttpAuthorizer,
    refused: Callable[[str], None],
    payloads: JsonPayloads | None = None,
) -> "falcon.asgi.App[falcon.asgi.Request, falcon.asgi.Response]":
    """Return the app; ``refused`` counts requests that are not for authorization.

    ``payloads`` judges JSON payloads, None if that is off.
    """

    def problem(
        _req: falcon.asgi.Request, resp: falcon.asgi.Response, error: falcon.HTTPError
    ) -> None:
        refused(f"authz.http_{error.status_code}")
        resp.content_type = _TEXT
        resp.data = f"{error.title}\n".encode()

    app = falcon.asgi.App()
    app.set_error_serializer(problem)
    app.add_route("/", authorizer)
    if payloads is not None:
        app.add_route(PATH, payloads)
    return app

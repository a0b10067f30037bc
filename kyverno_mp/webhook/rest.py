"""Serve all but reviews of resources: reviews of policies, health, what is not there.

Room: webhook. Takes: a readiness question, options of policy reviews. Gives: a Falcon
app. Next: protocol (asgi). May touch: the event loop's threads.
Source: spec/controllers.md 2.1 (health routes of the TLS listener, reviews of
policies), 3.6 (the health lease).
"""

import asyncio
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Final

import falcon
import falcon.asgi
import orjson

from kyverno_mp.admission.decode import decode
from kyverno_mp.admission.encode import allowed, patched
from kyverno_mp.errors import ExpressionFailed, RequestInvalid
from kyverno_mp.values import ttl
from kyverno_mp.webhook.policy_review import (
    KINDS_OF_PATH,
    PolicyReview,
    ReviewOptions,
)
from kyverno_mp.webhook.refusals import code_of

_REVIEW_PATHS = re.compile(
    "/(?:validate|mutate)(?:/(?:fail|ignore)(?:/finegrained/.*)?)?$"
)


_LAST_REQUEST: Final = "/metadata/annotations/kyverno.io~1last-request-time"


class _Liveness:
    async def on_get(
        self, _req: falcon.asgi.Request, resp: falcon.asgi.Response
    ) -> None:
        resp.status = 200


class _Readiness:
    def __init__(self, is_ready: Callable[[], bool]) -> None:
        self._is_ready = is_ready

    async def on_get(
        self, _req: falcon.asgi.Request, resp: falcon.asgi.Response
    ) -> None:
        # KYVERNO: 500, not 503, when it is not ready (controllers.md 2.1).
        resp.status = 200 if self._is_ready() else 500


class _NoReview(falcon.HTTPBadRequest):
    """What was posted is no review."""

    def __init__(self, error: RequestInvalid) -> None:
        super().__init__(description=error.message)
        self.reason = error.code


class _Review:
    """A webhook for Kyverno's own kinds: seldom asked, so off the fast way.

    The answer is made in a thread, as a large policy takes long to check.
    """

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer

    async def on_post(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response
    ) -> None:
        body = await req.stream.read()
        loop = asyncio.get_running_loop()
        try:
            resp.data = await loop.run_in_executor(None, self._answer, body)
        except RequestInvalid as error:
            raise _NoReview(error) from error
        resp.content_type = "application/json; charset=utf-8"


def _allow(body: bytes) -> bytes:
    """Answer a webhook that Kyverno registers and that changes nothing."""
    return allowed(decode(body).uid)


def _stamp(body: bytes) -> bytes:
    """Put the time into a Lease: proof for its writer that the API server reaches us.

    Without annotations there is no place for it, and nothing is changed.
    """
    request = decode(body)
    metadata = request.object.get("metadata")
    if not isinstance(metadata, dict) or not metadata.get("annotations"):
        return allowed(request.uid)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    # "add" replaces what is there, as upstream does, and also adds what is not.
    return patched(request.uid, [{"op": "add", "path": _LAST_REQUEST, "value": now}])


def _warn_of_ttl(body: bytes) -> bytes:
    """Warn of a time to live that nobody can read; such an object is never refused."""
    request = decode(body)
    metadata = request.object.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    value = labels.get(ttl.LABEL) if isinstance(labels, dict) else None
    if not isinstance(value, str):
        return allowed(request.uid)
    try:
        ttl.parse_ttl(value)
    except ExpressionFailed as error:
        text = "label value cannot be parsed as any recognizable format"
        return allowed(request.uid, [f"{ttl.LABEL} {text} ({error.message})"])
    return allowed(request.uid)


async def _only_post(
    req: falcon.asgi.Request, resp: falcon.asgi.Response | None, **path: object
) -> None:
    del req, resp, path
    raise falcon.HTTPMethodNotAllowed(["POST"])


def _problem(
    _req: falcon.asgi.Request,
    resp: falcon.asgi.Response,
    error: falcon.HTTPError,
) -> None:
    named = error.reason if isinstance(error, _NoReview) else code_of(error.status_code)
    resp.content_type = "application/json"
    resp.data = orjson.dumps({**error.to_dict(), "code": named})


def make_app(
    is_ready: Callable[[], bool], options: ReviewOptions | None = None
) -> "falcon.asgi.App[falcon.asgi.Request, falcon.asgi.Response]":
    """Return the app; ``is_ready`` tells whether this worker can judge reviews.

    ``options``: what the review of policies depends on; None = nothing is known.
    """
    app = falcon.asgi.App()
    app.set_error_serializer(_problem)
    app.add_route("/health/liveness", _Liveness())
    app.add_route("/health/readiness", _Readiness(is_ready))
    app.add_route("/policymutate", _Review(_allow))
    app.add_route("/verifymutate", _Review(_stamp))
    app.add_route("/verifyttl", _Review(_warn_of_ttl))
    policies = PolicyReview(options or ReviewOptions())
    for path in KINDS_OF_PATH:
        app.add_route(path, _Review(partial(policies.answer, path)))
    app.add_sink(_only_post, _REVIEW_PATHS)
    return app

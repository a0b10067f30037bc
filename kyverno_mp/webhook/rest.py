"""Serve what is no review: health over TLS, methods and paths that do not exist.

Room: webhook. Takes: a readiness question. Gives: a Falcon app. Next: protocol (asgi).
May touch: nothing outside its arguments.
Source: spec/controllers.md 2.1 (health routes of the TLS listener, POST /policymutate).
"""

import re
from collections.abc import Callable

import falcon
import falcon.asgi
import orjson

from kyverno_mp.admission.decode import decode
from kyverno_mp.admission.encode import allowed
from kyverno_mp.errors import RequestInvalid

_REVIEW_PATHS = re.compile(
    "/(?:validate|mutate)(?:/(?:fail|ignore)(?:/finegrained/.*)?)?$"
)


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


class _AllowedReview:
    """A webhook that Kyverno registers and that changes nothing."""

    async def on_post(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response
    ) -> None:
        try:
            request = decode(await req.stream.read())
        except RequestInvalid as error:
            raise falcon.HTTPBadRequest(description=error.message) from error
        resp.content_type = "application/json; charset=utf-8"
        resp.data = allowed(request.uid)


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
    resp.content_type = "application/json"
    resp.data = orjson.dumps(error.to_dict())


def make_app(
    is_ready: Callable[[], bool],
) -> "falcon.asgi.App[falcon.asgi.Request, falcon.asgi.Response]":
    """Return the app; ``is_ready`` tells whether this worker can judge reviews."""
    app = falcon.asgi.App()
    app.set_error_serializer(_problem)
    app.add_route("/health/liveness", _Liveness())
    app.add_route("/health/readiness", _Readiness(is_ready))
    app.add_route("/policymutate", _AllowedReview())
    app.add_sink(_only_post, _REVIEW_PATHS)
    return app

"""Serve every request except reviews of resources: policies, health, unknown paths.

Room: webhook. Takes: a readiness check, options of policy reviews. Gives: a Falcon
app. Next: webhook/http/protocol (webhook/http/asgi), webhook/review_threads.
Source: docs/behaviour/controllers 2.1 (health routes of the TLS listener, reviews of
policies), 3.6 (the health lease).
"""

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
from kyverno_mp.errors import RequestInvalid
from kyverno_mp.policy.ports import ClusterView
from kyverno_mp.webhook.author_review import author_patch
from kyverno_mp.webhook.http.asgi import IS_PROVED
from kyverno_mp.webhook.http_errors import code_of
from kyverno_mp.webhook.payloads import PATH, JsonPayloads
from kyverno_mp.webhook.policy_review import (
    KINDS_OF_PATH,
    PolicyReview,
    ReviewOptions,
)
from kyverno_mp.webhook.review_threads import Full, Reviewers
from kyverno_mp.webhook.ttl_review import TtlReview

_REVIEW_PATHS = re.compile(
    "/(?:validate|mutate)(?:/(?:fail|ignore)(?:/finegrained/.*)?)?$"
)


_REVIEWED: Final = "application/json; charset=utf-8"
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
        # KYVERNO: 500 instead of 503 if not ready (docs/behaviour/controllers 2.1).
        resp.status = 200 if self._is_ready() else 500


class _NoReview(falcon.HTTPBadRequest):
    """Raised if the request body is not a review."""

    def __init__(self, error: RequestInvalid) -> None:
        super().__init__(description=error.message)
        self.reason = error.code


class _Review:
    """A cheap webhook that answers at once.

    The health lease uses this path. If it were queued behind slow reviews of policies,
    the API server would seem unable to reach us, and the webhooks would be removed.
    """

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer

    async def on_post(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response
    ) -> None:
        body = await req.stream.read()
        try:
            resp.data = self._answer(body)
        except RequestInvalid as error:
            raise _NoReview(error) from error
        resp.content_type = _REVIEWED


class _TtlReview:
    """A webhook that warns of labels without effect."""

    def __init__(self, review: TtlReview) -> None:
        self._review = review

    async def on_post(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response
    ) -> None:
        body = await req.stream.read()
        try:
            resp.data = await self._review.answer(body)
        except RequestInvalid as error:
            raise _NoReview(error) from error
        resp.content_type = _REVIEWED


class _PolicyReview:
    """A webhook that reviews policies, exceptions and similar kinds."""

    def __init__(self, reviewers: Reviewers, answer: Callable[..., bytes]) -> None:
        """``answer`` takes a body, and ``is_proved``."""
        self._reviewers = reviewers
        self._answer = answer

    async def on_post(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response
    ) -> None:
        body = await req.stream.read()
        is_proved = req.scope.get("state", {}).get(IS_PROVED, False)
        answer = partial(self._answer, is_proved=is_proved)
        try:
            resp.data = await self._reviewers.run(answer, body)
        except RequestInvalid as error:
            raise _NoReview(error) from error
        resp.content_type = _REVIEWED


def _record_author(view: ClusterView | None, body: bytes) -> bytes:
    """Record the author of a namespaced policy; Kyverno's webhook has no effect."""
    request = decode(body)
    is_checked = view is not None and view.authors is not None
    patch = list(author_patch(request)) if is_checked else []
    return patched(request.uid, patch) if patch else allowed(request.uid)


def _stamp(body: bytes) -> bytes:
    """Write the time into a Lease, as proof that the API server reaches us.

    A Lease without annotations is not changed.
    """
    request = decode(body)
    metadata = request.object.get("metadata")
    if not isinstance(metadata, dict) or not metadata.get("annotations"):
        return allowed(request.uid)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    # "add" replaces an existing value, as upstream does, and also adds a new one.
    return patched(request.uid, [{"op": "add", "path": _LAST_REQUEST, "value": now}])


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
    named = (
        error.reason
        if isinstance(error, _NoReview | Full)
        else code_of(error.status_code)
    )
    resp.content_type = "application/json"
    resp.data = orjson.dumps({**error.to_dict(), "code": named})


def make_app(
    is_ready: Callable[[], bool],
    options: ReviewOptions | None = None,
    reviewers: Reviewers | None = None,
    payloads: JsonPayloads | None = None,
) -> "falcon.asgi.App[falcon.asgi.Request, falcon.asgi.Response]":
    """Return the app; ``is_ready`` returns whether this worker can answer reviews.

    ``options`` are the inputs of policy reviews, None if there are none. ``payloads``
    judges JSON payloads, None if that is off.
    """
    app = falcon.asgi.App()
    app.set_error_serializer(_problem)
    app.add_route("/health/liveness", _Liveness())
    app.add_route("/health/readiness", _Readiness(is_ready))
    options = options or ReviewOptions()
    record_author = partial(_record_author, options.view)
    app.add_route("/policymutate", _Review(record_author))
    app.add_route("/verifymutate", _Review(_stamp))
    ttl = TtlReview(options.view, needs_delete=options.ttl_needs_delete)
    app.add_route("/verifyttl", _TtlReview(ttl))
    policies = PolicyReview(options)
    threads = reviewers or Reviewers()
    for path in KINDS_OF_PATH:
        app.add_route(path, _PolicyReview(threads, partial(policies.answer, path)))
    if payloads is not None:
        app.add_route(PATH, payloads)
    app.add_sink(_only_post, _REVIEW_PATHS)
    return app

"""Answer the requests of browsers and programs.

Room: dashboard. Takes: method, path, query and headers of a request. Gives: Response.
Next: process/roles/dashboard.py sends it. May touch: the log.
Source: docs/dashboard.md; RFC 9110 (405, 421); CSP Level 3.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final

import msgspec

from kyverno_mp.dashboard import api, pages, pod_pages
from kyverno_mp.dashboard.access import Guard
from kyverno_mp.dashboard.facts import Facts, View, Watch
from kyverno_mp.dashboard.history import History
from kyverno_mp.dashboard.query import FILTERS, Values, read_query
from kyverno_mp.dashboard.render import render, security_policy
from kyverno_mp.dashboard.results import Results
from kyverno_mp.errors import RequestInvalid

_log = logging.getLogger(__name__)
HTML: Final = "text/html; charset=utf-8"
JSON: Final = "application/json"
SERVED, REFUSED, UNKNOWN, FAILED = "served", "refused", "unknown", "failed"
BUSY: Final = "busy"
_FIELDS: Final[Mapping[str, Collection[str]]] = {
    "/": ("refresh",),
    "/results": (*FILTERS, "page"),
    "/groups": ("by", "of", "page"),
    "/report": ("namespace", "kind", "name", "page"),
    "/policies": ("page",),
    "/policy": ("name",),
    "/exceptions": ("page",),
    "/processes": (),
    api.DESCRIPTION: (),
    **{path: endpoint.fields for path, endpoint in api.ENDPOINTS.items()},
}
_PAGES: Final[Mapping[str, Callable[[View, Values], str]]] = {
    "/": pages.overview,
    "/results": pages.results,
    "/groups": pages.groups,
    "/report": pages.report,
    "/policies": pod_pages.policies,
    "/policy": pod_pages.policy,
    "/exceptions": pod_pages.exceptions,
    "/processes": pod_pages.processes,
}
HEADERS: Final[Mapping[str, str]] = {
    # Frames can only be forbidden by a header.
    "Content-Security-Policy": security_policy("'self'") + "; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}
_WHY: Final[Mapping[HTTPStatus, str]] = {
    HTTPStatus.UNAUTHORIZED: "A token is required: enter it as the password.",
    HTTPStatus.SERVICE_UNAVAILABLE: (
        "The token file cannot be read or contains no token of at least 16 characters."
    ),
    HTTPStatus.MISDIRECTED_REQUEST: (
        "Without a token, the dashboard can only be opened by an IP"
        " address or as localhost."
    ),
    HTTPStatus.NOT_FOUND: "There is no such page.",
    HTTPStatus.METHOD_NOT_ALLOWED: "The dashboard can only be read.",
    HTTPStatus.INTERNAL_SERVER_ERROR: "The page could not be written; see the log.",
}


@dataclass(frozen=True, slots=True)
class Response:
    """A page to send. ``outcome``: label of the metric."""

    status: HTTPStatus
    body: bytes
    outcome: str
    headers: Mapping[str, str] = field(default_factory=lambda: HEADERS)
    content_type: str = HTML


class Site:
    """The pages; call it from one thread."""

    def __init__(
        self,
        guard: Guard,
        facts: Facts,
        results: Results,
        history: History,
        watch: Watch | None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """``watch`` None: there is no cluster, so there are no stored reports."""
        self._guard = guard
        self._facts = facts
        self._results = results
        self._history = history
        self._watch = watch
        self._now = now

    def refusal(self, headers: Mapping[str, str]) -> Response | None:
        """Return the response that rejects a request, or None if it is admitted."""
        refused = self._guard.refusal(headers)
        return None if refused is None else _plain(refused, REFUSED)

    def respond(
        self, method: str, path: str, query: str, headers: Mapping[str, str]
    ) -> Response:
        """Answer one request; never raises."""
        refused = self.refusal(headers)
        if refused is not None:
            return refused
        plain = _problem if path.startswith("/api/") else _plain
        if not path:
            return plain(HTTPStatus.BAD_REQUEST, UNKNOWN)
        if path not in _FIELDS:
            return plain(HTTPStatus.NOT_FOUND, UNKNOWN)
        if method not in ("GET", "HEAD"):
            return plain(HTTPStatus.METHOD_NOT_ALLOWED, UNKNOWN)
        try:
            values = read_query(query, _FIELDS[path])
            return self._found(path, values)
        except RequestInvalid as error:
            return plain(HTTPStatus.BAD_REQUEST, UNKNOWN, error.message)
        except Exception:  # noqa: BLE001 - one page must not end the others
            _log.exception("a page of the dashboard failed: %s", path)
            return plain(HTTPStatus.INTERNAL_SERVER_ERROR, FAILED)

    def _found(self, path: str, values: Values) -> Response:
        """Return the page or the answer of a path. Raises: RequestInvalid."""
        view = View(self._facts, self._results, self._history, self._watch, self._now())
        if path == api.DESCRIPTION:
            description = msgspec.json.encode(api.openapi())
            return Response(HTTPStatus.OK, description, SERVED, content_type=JSON)
        if path in api.ENDPOINTS:
            body = api.answer(path, view, values)
            return Response(HTTPStatus.OK, body, SERVED, content_type=JSON)
        # A name may contain a lone surrogate, which JSON allows.
        body = _PAGES[path](view, values).encode("utf-8", "replace")
        return Response(HTTPStatus.OK, body, SERVED)


def busy() -> Response:
    """Return the response when too many requests wait."""
    response = _plain(
        HTTPStatus.SERVICE_UNAVAILABLE, BUSY, "Too many pages are requested at once."
    )
    return replace(response, headers={**response.headers, "Retry-After": "1"})


def _plain(status: HTTPStatus, outcome: str, explanation: str = "") -> Response:
    reason = explanation or _WHY.get(status, "The request cannot be read.")
    body = render("refusal", title=status.phrase, reason=reason)
    headers = dict(HEADERS)
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Basic realm="kyverno-mp", charset="UTF-8"'
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = "GET, HEAD"
    return Response(status, body.encode(), outcome, headers)


def _problem(status: HTTPStatus, outcome: str, explanation: str = "") -> Response:
    """Return why a program gets no answer, as JSON."""
    page = _plain(status, outcome, explanation)
    error = explanation or _WHY.get(status, status.phrase)
    return replace(page, body=api.encoded(api.Problem(error)), content_type=JSON)

"""Present the health server's responses to people: a start page, indented JSON.

Room: process. Takes: an Accept header, endpoints, a summary. Gives: content types and
bodies.
Next: process/roles/health.py sends them.
"""

import html
import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from kyverno_mp.dashboard.style import style_sheet

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"
HTML: Final = "text/html; charset=utf-8"
ENDPOINTS: Final = (
    ("/health/liveness", "200 unless a restart of the pod may help"),
    ("/health/readiness", "200 when every worker serves, and none lags for seconds"),
    ("/healthz", "all problems, and the processes, as JSON"),
    ("/policies", "every policy with its state, including rejected ones, as JSON"),
    ("/metrics", "metrics for Prometheus, as text or OpenMetrics"),
)
"""Path, purpose."""
Answer = tuple[HTTPStatus, str, bytes]
"""Status, content type, body."""


PROBES: Final = frozenset(
    {"/health/liveness", "/health/readiness", "/livez", "/readyz"}
)
"""What is answered by plain HTTP even if the rest needs TLS."""
HTTPS_ONLY: Final = HTTPStatus.FORBIDDEN, TEXT, b"https only\n"


def plain(status: HTTPStatus) -> Answer:
    """Return the response that only states its status."""
    return status, TEXT, f"{status.phrase}\n".encode()


def verdict(reasons: tuple[str, ...]) -> Answer:
    """Return the response of a probe."""
    if not reasons:
        return plain(HTTPStatus.OK)
    body = "\n".join(reasons) + "\n"
    return HTTPStatus.SERVICE_UNAVAILABLE, TEXT, body.encode()


def is_browser(accept: str) -> bool:
    """Return whether a client asks for HTML; curl and probes do not."""
    return "text/html" in accept.lower()


def start_page(
    accept: str, lines: Sequence[str], dashboard: str = ""
) -> tuple[str, bytes]:
    """Return the start page: ``lines`` about the state, then the endpoints.

    ``dashboard``: the address of the dashboard, "" if it is off.
    """
    endpoints = list(ENDPOINTS)
    if dashboard:
        endpoints.insert(0, (dashboard, "the dashboard: denials, results, policies"))
    if is_browser(accept):
        return HTML, _html(lines, endpoints).encode()
    width = max(len(path) for path, _ in endpoints)
    rows = [f"  {path:<{width}}  {purpose}" for path, purpose in endpoints]
    return TEXT, "\n".join([*lines, "", *rows, ""]).encode()


def _html(lines: Sequence[str], endpoints: Sequence[tuple[str, str]]) -> str:
    state = "".join(f"<p>{html.escape(line)}</p>\n" for line in lines)
    rows = "".join(
        f'<tr><td><a href="{html.escape(path)}">{html.escape(path)}</a></td>'
        f"<td>{html.escape(purpose)}</td></tr>\n"
        for path, purpose in endpoints
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>kyverno-mp</title>\n<style>{style_sheet()}</style></head>\n"
        '<body>\n<header class="site"><span class="brand">kyverno-mp</span></header>'
        f"\n<main><h1>Start page</h1>\n{state}"
        '<div class="wide"><table><thead><tr><th scope="col">Address</th>'
        f'<th scope="col">Content</th></tr></thead><tbody>\n{rows}</tbody></table>'
        "</div></main>\n</body>\n</html>\n"
    )


def json_text(body: object) -> bytes:
    """Return JSON on one line."""
    return json.dumps(body).encode() + b"\n"


def for_reader(content_type: str, body: bytes, accept: str) -> bytes:
    """Return the body in a form that suits the client: indented JSON for a browser."""
    if content_type != JSON or not is_browser(accept):
        return body
    return json.dumps(json.loads(body), indent=2).encode() + b"\n"

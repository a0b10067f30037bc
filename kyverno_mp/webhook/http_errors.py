"""Define the errors that the webhook answers with an HTTP status instead of a review.

Room: webhook. Gives: HttpError; the codes, the status of each, the table of codes
in docs/metrics.md. Next: webhook/review/service, webhook/http/protocol, rest.
Source: docs/behaviour/controllers 2.2 (statuses of reviews); RFC 9110.
"""

from typing import Final, NamedTuple

from kyverno_mp.admission import decode as codes

BODY_TOO_LARGE: Final = "webhook.body_too_large"
CONTENT_TYPE: Final = "webhook.content_type"
CALLER_FOREIGN: Final = "webhook.caller_foreign"
CALLER_UNKNOWN: Final = "webhook.caller_unknown"
INTERNAL_ERROR: Final = "webhook.defect"
HEAD_TOO_LARGE: Final = "webhook.head_too_large"
MALFORMED: Final = "webhook.malformed"
METHOD: Final = "webhook.method"
NO_ROOM: Final = "webhook.no_room"
NO_SNAPSHOT: Final = "webhook.no_snapshot"
PATH_UNKNOWN: Final = "webhook.path_unknown"
UNPROVED: Final = "webhook.unproved"
"""A review without proof of its caller was answered and started nothing."""
POLICY_REVIEWS_FULL: Final = "webhook.policy_reviews_full"


class _Row(NamedTuple):
    status: int
    meaning: str


_ROWS: Final = {
    codes.EMPTY: _Row(400, "No body."),
    codes.NOT_JSON: _Row(
        417,
        "The body is not JSON, or a field has a wrong type; 400 where policies are"
        " reviewed.",
    ),
    codes.NO_REQUEST: _Row(400, "The AdmissionReview has no request."),
    codes.INCOMPLETE: _Row(
        400, "The request has no kind, or a CREATE or UPDATE has no object."
    ),
    codes.TOO_DEEP: _Row(417, "The review is nested too deeply to be evaluated."),
    codes.TOO_LARGE: _Row(413, "The review would take too much memory when decoded."),
    codes.KIND_UNKNOWN: _Row(400, "The kind that owns the subresource is unknown."),
    MALFORMED: _Row(400, "The input is not an HTTP/1.1 request."),
    PATH_UNKNOWN: _Row(404, "No webhook has this path."),
    CALLER_UNKNOWN: _Row(
        404,
        "The path lacks the secret segment, and no client certificate proves the"
        " caller.",
    ),
    CALLER_FOREIGN: _Row(
        403, "The client certificate is missing or names another caller."
    ),
    METHOD: _Row(405, "The path expects another method."),
    BODY_TOO_LARGE: _Row(413, "More bytes than `KYVERNO_MP_BODY_BYTES_MAX`."),
    CONTENT_TYPE: _Row(415, "Not exactly `application/json`."),
    HEAD_TOO_LARGE: _Row(
        431, "Request line, headers, trailers and framing of chunks are too long."
    ),
    INTERNAL_ERROR: _Row(
        500, "An internal error of kyverno-mp; the log has the traceback."
    ),
    NO_ROOM: _Row(
        503,
        "The worker has reached its limit of unfinished and waiting requests.",
    ),
    NO_SNAPSHOT: _Row(503, "This worker has no policies yet."),
    POLICY_REVIEWS_FULL: _Row(503, "Too many policies are being reviewed."),
}


class HttpError(Exception):
    """The review cannot be answered; the transport returns an HTTP status."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.status = status_of(code)
        self.text = error_text(code, message)


def status_of(code: str) -> int:
    """Return the HTTP status; codes outside of the table are temporary states: 503."""
    row = _ROWS.get(code)
    return 503 if row is None else row.status


def code_of(status: int) -> str:
    """Return the code for a status that the app returns without its own code."""
    found = {404: PATH_UNKNOWN, 405: METHOD, 500: INTERNAL_ERROR}
    return found.get(status, MALFORMED)


def error_text(code: str, message: str) -> str:
    """Return the text of a non-JSON body."""
    return f"{message} ({code})"


def table() -> str:
    """Return the codes as a Markdown table."""
    rows = [
        f"| `{code}` | {row.status} | {row.meaning} |" for code, row in _ROWS.items()
    ]
    return "\n".join(["| code | status | meaning |", "|---|---|---|", *rows])

"""Deny a review that cannot be decoded or is too large to evaluate.

Room: admission. Takes: the review's bytes, a code, a message. Gives: the bytes of a
denial, None when the bytes hold no AdmissionReview with a uid. Next: webhook.
Source: Kubernetes admission.k8s.io/v1; its webhook client accepts a denial on any path,
while after an HTTP error it allows the request if failurePolicy is Ignore.
"""

import re
from typing import Final

import orjson

from kyverno_mp.admission.encode import denied

UID_WITHIN_BYTES: Final = 16 * 1024
"""K8S: Go writes ``uid`` as the request's first field, before any user-controlled
field."""
_SCANNED_BYTES_MAX: Final = 128 * 1024
"""PERF: at worst about 130 ms on a busy machine, for a body of only quotes and
brackets. A map of 10,000 levels takes 60 KiB."""
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}:,\[\]]|"', re.DOTALL)
"""A string, a bracket or a separator; the last alternative is the quote of an unclosed
string."""


def not_evaluated(code: str, reason: str) -> str:
    """Return the message for a caller whose request was not evaluated."""
    return f"kyverno could not evaluate this request ({code}): {reason}"


def refusal(body: bytes | bytearray, code: str, reason: str) -> bytes | None:
    """Return the denial of a review, None if the body is not a review."""
    uid = uid_of(body)
    return None if uid is None else denied(uid, not_evaluated(code, reason))


def uid_of(body: bytes | bytearray) -> str | None:
    """Return ``request.uid`` of a review, even if its rest is deep or truncated.

    Cost: bounded by _SCANNED_BYTES_MAX; a uid beyond that many bytes is not found.
    """
    depth = 0
    string, key = b"", b""
    in_request = False
    for match in _TOKEN.finditer(body, 0, _SCANNED_BYTES_MAX):
        token = match[0]
        first = token[0]
        if first == 0x22:  # noqa: PLR2004 - a quote
            if len(token) == 1:
                return None
            if key == b'"uid"' and in_request and depth == 2:  # noqa: PLR2004 - below request
                return _text(token)
            string, key = token, b""
        elif first == 0x3A:  # noqa: PLR2004 - a colon
            key = string
        elif first in b"{[":
            depth += 1
            if depth == 2:  # noqa: PLR2004 - below the review
                in_request = first == 0x7B and key == b'"request"'  # noqa: PLR2004 - a brace
            key = b""
        else:
            depth -= first != 0x2C  # noqa: PLR2004 - a comma
            key = b""
        if depth < 1:
            return None
    return None


def _text(token: bytes) -> str | None:
    try:
        string: str = orjson.loads(token)
    except orjson.JSONDecodeError:
        return None
    return string or None

"""Search a transparency log for the entries of a signature.

Room: images. Takes: a signature, the URL of a log. Gives: the log's response. Next:
images/sigstore/rekor.py. May touch: the network through the given Send.
Source: docs/behaviour/images 3.5 (online); Rekor's API, /api/v1/log/entries/retrieve.
"""

import base64
import hashlib
import json
from collections.abc import Callable
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from kyverno_mp.errors import DeadlinePassed, DependencyError, InputError
from kyverno_mp.images.keys import Unproved
from kyverno_mp.images.sigstore.rekor_entry import Signed
from kyverno_mp.values.jsonvalue import Json

Send: TypeAlias = Callable[[str, bytes, int], tuple[int, bytes]]
"""Sends a JSON document to a URL before a deadline; returns status and body."""

_PATH: Final = "/api/v1/log/entries/retrieve"
_OK: Final = 200
_PREFIX: Final = "searching log query"
_DENIED: Final = "egress.denied"
_NO_ANSWER: Final = "the log gave no answer"


def search_log(
    url: str, signed: Signed, send: Send, deadline_ns: int, *, is_quiet: bool = False
) -> bytes:
    """Return the log's response.

    ``is_quiet``: an error message must not contain the server's response, and the URL
    must not have a path, because a tenant has chosen the server.
    KYVERNO: an unreachable log is a failure, not an outage
    (docs/behaviour/images 2.4). Raises: Unproved.
    """
    target = _base(url, is_quiet=is_quiet) + _PATH
    query = json.dumps({"entries": proposed_entries(signed)}).encode()
    try:
        status, body = send(target, query, deadline_ns)
    except DeadlinePassed:
        # SAFETY: a review that runs out of time has no verdict, unlike upstream.
        raise
    except (DependencyError, InputError) as error:
        is_told = not is_quiet or error.code == _DENIED
        reason = error.message if is_told else _NO_ANSWER
        raise Unproved(f'{_PREFIX}: Post "{target}": {reason}') from error
    if status != _OK:
        reason = _NO_ANSWER if is_quiet else f"status {status}"
        raise Unproved(f'{_PREFIX}: Post "{target}": {reason}')
    return body


def _base(url: str, *, is_quiet: bool) -> str:
    """Return the base URL of the log's API. Raises: Unproved.

    SAFETY: the author of the policy chooses the server, but never the request.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        raise Unproved(f"{_PREFIX}: the URL of the log is not a URL") from None
    if "?" in url or "#" in url or "@" in parts.netloc:
        message = "the URL of the log has a query, a fragment or a user"
        raise Unproved(f"{_PREFIX}: {message}")
    base = url.rstrip("/")
    if is_quiet and parts.path.strip("/"):
        message = "in a namespaced policy, the URL of the log has no path"
        raise Unproved(f"{_PREFIX}: {message}")
    return base


def proposed_entries(signed: Signed) -> list[Json]:
    """Return the possible log entries for the signature."""
    key = base64.b64encode(signed.pem.encode()).decode()
    if signed.signature:
        digest = hashlib.sha256(signed.payload).hexdigest()
        spec: Json = {
            "data": {"hash": {"algorithm": "sha256", "value": digest}},
            "signature": {"content": signed.signature, "publicKey": {"content": key}},
        }
        return [{"apiVersion": "0.0.1", "kind": "hashedrekord", "spec": spec}]
    envelope = signed.payload.decode(errors="replace")
    proposed: Json = {"proposedContent": {"envelope": envelope, "verifiers": [key]}}
    content: Json = {"content": {"envelope": envelope}, "publicKey": key}
    return [
        {"apiVersion": "0.0.1", "kind": "dsse", "spec": proposed},
        {"apiVersion": "0.0.1", "kind": "intoto", "spec": content},
    ]

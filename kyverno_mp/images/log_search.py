"""Ask a transparency log for the entries of a signature.

Room: images. Takes: a signature, the URL of a log. Gives: the log's answer.
Next: images/rekor.py. May touch: the network through the Send that it is given.
Source: docs/behaviour/images 3.5 (online); Rekor's API, /api/v1/log/entries/retrieve.
"""

import base64
import hashlib
import json
from collections.abc import Callable
from typing import Final, TypeAlias

from kyverno_mp.errors import DeadlinePassed, DependencyError, InputError
from kyverno_mp.images.keys import Unproved
from kyverno_mp.images.rekor_entry import Signed
from kyverno_mp.values.jsonvalue import Json

Send: TypeAlias = Callable[[str, bytes, int], tuple[int, bytes]]
"""Sends a JSON document to a URL before a deadline; gives status and body."""

_PATH: Final = "/api/v1/log/entries/retrieve"
_OK: Final = 200
_PREFIX: Final = "searching log query"


def search_log(url: str, signed: Signed, send: Send, deadline_ns: int) -> bytes:
    """Return the log's answer.

    KYVERNO: a log that cannot be reached is a failure, no outage
    (docs/behaviour/images 2.4). Raises: Unproved.
    """
    target = url.rstrip("/") + _PATH
    query = json.dumps({"entries": proposed_entries(signed)}).encode()
    try:
        status, body = send(target, query, deadline_ns)
    except DeadlinePassed:
        # SAFETY: a review that runs out of time has no verdict; upstream's has one.
        raise
    except (DependencyError, InputError) as error:
        raise Unproved(f'{_PREFIX}: Post "{target}": {error.message}') from error
    if status != _OK:
        raise Unproved(f'{_PREFIX}: Post "{target}": status {status}')
    return body


def proposed_entries(signed: Signed) -> list[Json]:
    """Return the entries under which the log may have the signature."""
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

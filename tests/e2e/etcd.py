"""Measure what objects take in etcd, and compact it.

Takes: the client address of an etcd. Gives: sizes by key. May touch: etcd.
Source: etcd's gRPC gateway (/v3/kv/range, /v3/kv/compaction); Kubernetes stores an
object at /registry/<resource or group/resource>/<namespace>/<name>.
"""

import base64
import json
import urllib.request
from typing import Any, Final

from tests.waiting import HANG_S

_LIMIT: Final = 1000


def sizes(client_url: str, prefix: str) -> dict[str, int]:
    """Return the bytes of every value whose key has the prefix."""
    found: dict[str, int] = {}
    start, end = prefix.encode(), _after(prefix.encode())
    while True:
        answer = _range(client_url, start, end)
        for one in answer.get("kvs") or ():
            key = base64.b64decode(one["key"])
            found[key.decode()] = len(base64.b64decode(one.get("value", "")))
            start = key + b"\0"
        if not answer.get("more"):
            return found


def _range(client_url: str, start: bytes, end: bytes) -> dict[str, Any]:
    asked = {
        "key": base64.b64encode(start).decode(),
        "range_end": base64.b64encode(end).decode(),
        "limit": _LIMIT,
    }
    return _ask(client_url, "range", asked)


def _ask(client_url: str, what: str, asked: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{client_url}/v3/kv/{what}", json.dumps(asked).encode()
    )
    with urllib.request.urlopen(request, timeout=HANG_S) as response:
        return dict(json.load(response))


def _after(prefix: bytes) -> bytes:
    """Return the first key after all keys with the prefix."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def compact(client_url: str) -> None:
    """Compact all older versions: a watch that resumes from one gets 410 Gone."""
    newest = _ask(client_url, "range", {"key": base64.b64encode(b"/").decode()})
    revision = newest["header"]["revision"]
    _ask(client_url, "compaction", {"revision": revision, "physical": True})

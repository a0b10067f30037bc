"""Read and write what etcd stores, and compact it.

Takes: the client address of an etcd. Gives: keys, values and sizes by
key. May touch: etcd.
Source: etcd's gRPC gateway (/v3/kv/range, /v3/kv/txn, /v3/kv/compaction); Kubernetes
stores an object at /registry/<resource or group/resource>/<namespace>/<name>.
"""

import base64
import contextlib
import json
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from tests.waiting import HANG_S

_LIMIT: Final = 1000
_PUTS_MAX: Final = 100
"""In a transaction; etcd accepts 128."""
_ALL: Final = "/registry/"
_EVENTS: Final = "/registry/events/"


def sizes(client_url: str, prefix: str) -> dict[str, int]:
    """Return the bytes of every value whose key has the prefix."""
    start = prefix.encode()
    return {
        base64.b64decode(one["key"]).decode(): len(base64.b64decode(one["value"]))
        for one in _range(client_url, start, _after(start))
    }


def values(client_url: str, prefixes: Iterable[str]) -> dict[str, str]:
    """Return every value, in base64, whose key has one of the prefixes."""
    return {
        base64.b64decode(one["key"]).decode(): one["value"]
        for prefix in prefixes
        for one in _range(client_url, prefix.encode(), _after(prefix.encode()))
    }


def write(client_url: str, values: Mapping[str, str]) -> None:
    """Store values in base64 by their keys."""
    puts = [
        {
            "requestPut": {
                "key": base64.b64encode(key.encode()).decode(),
                "value": value,
            }
        }
        for key, value in values.items()
    ]
    for start in range(0, len(puts), _PUTS_MAX):
        some = puts[start : start + _PUTS_MAX]
        _ask(client_url, "txn", {"success": some})


def is_serving(client_url: str) -> bool:
    """Whether it answers, which takes a moment after its start."""
    with contextlib.suppress(OSError):
        _newest(client_url)
        return True
    return False


def keys(client_url: str) -> list[str]:
    """Return the keys of all objects except events, which are many."""
    before, behind = _ALL.encode(), _after(_ALL.encode())
    events = _EVENTS.encode()
    return [
        base64.b64decode(one["key"]).decode()
        for start, end in ((before, events), (_after(events), behind))
        for one in _range(client_url, start, end, keys_only=True)
    ]


def _range(
    client_url: str, start: bytes, end: bytes, *, keys_only: bool = False
) -> Iterator[dict[str, str]]:
    while True:
        asked = {
            "key": base64.b64encode(start).decode(),
            "range_end": base64.b64encode(end).decode(),
            "limit": _LIMIT,
            "keys_only": keys_only,
        }
        answer = _ask(client_url, "range", asked)
        for one in answer.get("kvs") or ():
            yield {"value": "", **one}
            start = base64.b64decode(one["key"]) + b"\0"
        if not answer.get("more"):
            return


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
    asked = {"revision": _newest(client_url), "physical": True}
    _ask(client_url, "compaction", asked)


def _newest(client_url: str) -> int:
    """Return the newest revision."""
    answer = _ask(client_url, "range", {"key": base64.b64encode(b"/").decode()})
    return int(answer["header"]["revision"])

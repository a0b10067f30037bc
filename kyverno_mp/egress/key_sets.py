"""Fetch the key sets of token issuers, with a cache and limits of time and size.

Room: egress. Takes: the port of services, which applies the operator's rules for URLs.
Gives: KeySets, the port of CEL's ``jwks``. Next: cli/apply/stages/authorization.py.
May touch: services, through the port; the monotonic clock.
Source: docs/behaviour/cel 15.4.

Upstream calls the issuer at each evaluation, without a time limit. Here a set is kept
for minutes and a failure for seconds, and of concurrent checks one makes the call.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from kyverno_mp.errors import DeadlinePassed, DependencyError, ExpressionFailed
from kyverno_mp.expr.cel.outside import HttpPort, HttpRequest
from kyverno_mp.expr.jose import KeySet, parse_key_set
from kyverno_mp.limits import (
    JWKS_BYTES_MAX,
    JWKS_FAILURE_KEPT_S,
    JWKS_KEPT_MAX,
    JWKS_KEPT_S,
    JWKS_TIMEOUT_S,
)

_OK = 200
_NS = 10**9


class _Entry:
    """What is known of one URL; the lock is held during a call."""

    __slots__ = ("keys", "lock", "message", "until_ns")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.keys: KeySet | None = None
        self.message = ""
        self.until_ns = 0


class KeySets:
    """Key sets by URL; thread-safe."""

    def __init__(
        self,
        services: HttpPort,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._services = services
        self._now_ns = monotonic_ns
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def fetch(self, url: str, deadline_ns: int) -> KeySet:
        """Return the keys at a URL. Raises: ExpressionFailed, DeadlinePassed."""
        entry = self._entry(url)
        left_ns = deadline_ns - self._now_ns() if deadline_ns else JWKS_TIMEOUT_S * _NS
        if not entry.lock.acquire(timeout=max(0, left_ns) / _NS):
            # Another request reads them, and has more time.
            raise DeadlinePassed("egress.key_set", "the keys were not read in time")
        try:
            if self._now_ns() >= entry.until_ns:
                self._renew(entry, url, deadline_ns)
            if entry.keys is None:
                raise ExpressionFailed("egress.key_set", entry.message)
            return entry.keys
        finally:
            entry.lock.release()

    def _entry(self, url: str) -> _Entry:
        with self._lock:
            entry = self._entries.get(url)
            if entry is None:
                entry = self._entries[url] = _Entry()
            self._entries.move_to_end(url)
            if len(self._entries) > JWKS_KEPT_MAX:
                self._entries.popitem(last=False)
            return entry

    def _renew(self, entry: _Entry, url: str, deadline_ns: int) -> None:
        """Read the keys again; old keys end now. Raises: DeadlinePassed."""
        entry.keys, kept_s = None, JWKS_FAILURE_KEPT_S
        try:
            entry.keys = self._read(url, deadline_ns)
            kept_s = JWKS_KEPT_S
        except DeadlinePassed:
            # It says nothing about the issuer: another request may have more time.
            raise
        except (ExpressionFailed, DependencyError) as error:
            entry.message = error.message
        entry.until_ns = self._now_ns() + kept_s * _NS

    def _read(self, url: str, deadline_ns: int) -> KeySet:
        own_ns = self._now_ns() + JWKS_TIMEOUT_S * _NS
        limit_ns = min(deadline_ns or own_ns, own_ns)
        request = HttpRequest("GET", url, {"Accept": "application/json"}, None, "")
        try:
            status, data = self._services.exchange(request, limit_ns)
        except DeadlinePassed as error:
            if limit_ns == deadline_ns:
                raise
            raise ExpressionFailed("egress.key_set", error.message) from error
        if status != _OK:
            raise ExpressionFailed("egress.key_set", f"the answer has status {status}")
        if len(data) > JWKS_BYTES_MAX:
            raise ExpressionFailed("egress.key_set", "the answer is too large")
        return parse_key_set(data)

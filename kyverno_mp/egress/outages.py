"""Skip unreachable registries for a short time, for background work.

Room: egress. Takes: an Exchange with registries. Gives: RememberedOutages, also an
Exchange.
Next: webhook/images.py. May touch: the clock.
Source: docs/reports.md (images): a scan verifies images of thousands of objects, and a
dead registry must not cause a time-out for each of them.

A registry that accepts no connection is down for all callers with the same scheme and
settings. A registry that accepts the connection but does not answer is down for this
repository only: behind a proxy cache, perhaps only one tenant's upstream hangs.
"""

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from kyverno_mp.errors import DeadlinePassed, RegistryUnavailable
from kyverno_mp.limits import (
    REGISTRY_HOSTS_MAX,
    REGISTRY_OUTAGE_S,
    REGISTRY_SCAN_CALL_S,
)
from kyverno_mp.registry.exchange import Exchange, RegistryCall, RegistryResponse

_BUSY: Final = "registry.busy"
_REPOSITORY: Final = re.compile(r"/v2/(.+)/(?:manifests|blobs|tags|referrers)/")


class _Key(NamedTuple):
    """The target and the kind of a call.

    ``is_verified``: a registry without TLS is first tried with TLS, and a rejected
    certificate says nothing about calls without verification. ``is_redirected``: an
    address that is forbidden for redirects may be allowed for other calls.
    ``repository``: "" = the whole host.
    """

    scheme: str
    host: str
    is_verified: bool
    is_redirected: bool
    repository: str = ""


class _Outage(NamedTuple):
    code: str
    message: str
    until_ns: int


class RememberedOutages:
    """Calls registries; after no answer, a registry is skipped for a short time."""

    def __init__(
        self, send: Exchange, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._send = send
        self._monotonic_ns = monotonic_ns
        self._outages: OrderedDict[_Key, _Outage] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, call: RegistryCall, deadline_ns: int) -> RegistryResponse:
        """Send one request. Raises: as the Exchange, or the error of a known outage."""
        parts = urlsplit(call.url)
        registry_key = _Key(
            parts.scheme, parts.netloc, call.is_verified, call.is_redirected
        )
        part = registry_key._replace(repository=_repository_of(parts))
        now_ns = self._monotonic_ns()
        for key in (registry_key, part):
            outage = self._outages.get(key)
            if outage is not None and now_ns < outage.until_ns:
                raise RegistryUnavailable(outage.code, outage.message)
        own_ns = now_ns + REGISTRY_SCAN_CALL_S * 10**9
        try:
            return self._send(call, min(deadline_ns, own_ns))
        except DeadlinePassed as error:
            if own_ns > deadline_ns:
                raise
            message = f"{parts.netloc}: no answer within {REGISTRY_SCAN_CALL_S} s"
            key = part if error.is_connected else registry_key
            self._remember(key, "registry.network", message)
            raise RegistryUnavailable("registry.network", message) from error
        except RegistryUnavailable as error:
            # A long queue of callers says nothing about the registry.
            if error.code != _BUSY:
                key = part if error.is_connected else registry_key
                self._remember(key, error.code, error.message)
            raise

    def _remember(self, key: _Key, code: str, message: str) -> None:
        until_ns = self._monotonic_ns() + REGISTRY_OUTAGE_S * 10**9
        with self._lock:
            self._outages[key] = _Outage(code, message, until_ns)
            self._outages.move_to_end(key)
            if len(self._outages) > REGISTRY_HOSTS_MAX:
                self._outages.popitem(last=False)


def _repository_of(parts: SplitResult) -> str:
    """Return a call's repository; path and query for other calls, e.g. for tokens."""
    match = _REPOSITORY.match(parts.path)
    return match[1] if match else f"{parts.path or '/'}?{parts.query}"

"""Remember for a moment which registries do not answer, for work that nobody waits for.

Room: egress. Takes: an Exchange with registries. Gives: RememberedOutages, one, too.
Next: webhook/images.py. May touch: the clock.
Source: docs/reports.md (images): a scan verifies images of thousands of objects, and a
dead registry must not cost the time of each of them.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from kyverno_mp.errors import DeadlinePassed, RegistryUnavailable
from kyverno_mp.limits import (
    REGISTRY_HOSTS_MAX,
    REGISTRY_OUTAGE_S,
    REGISTRY_SCAN_CALL_S,
)
from kyverno_mp.registry.exchange import Exchange, RegistryCall, RegistryResponse

_BUSY: Final = "registry.busy"


class _Outage(NamedTuple):
    code: str
    text: str
    until_ns: int


class RememberedOutages:
    """Calls registries; one that gave no answer is not called again for a moment."""

    def __init__(
        self, send: Exchange, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._send = send
        self._monotonic_ns = monotonic_ns
        self._outages: OrderedDict[tuple[str, str], _Outage] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, call: RegistryCall, deadline_ns: int) -> RegistryResponse:
        """Send one request. Raises: as the Exchange, and what an outage has raised."""
        parts = urlsplit(call.url)
        # A registry without TLS is tried with it first.
        host, key = parts.netloc, (parts.scheme, parts.netloc)
        now_ns = self._monotonic_ns()
        known = self._outages.get(key)
        if known is not None and now_ns < known.until_ns:
            raise RegistryUnavailable(known.code, known.text)
        own_ns = now_ns + REGISTRY_SCAN_CALL_S * 10**9
        try:
            return self._send(call, min(deadline_ns, own_ns))
        except DeadlinePassed as error:
            if own_ns > deadline_ns:
                raise
            text = f"{host}: no answer within {REGISTRY_SCAN_CALL_S} s"
            self._remember(key, "registry.network", text)
            raise RegistryUnavailable("registry.network", text) from error
        except RegistryUnavailable as error:
            # That others wait for it says nothing about the registry.
            if error.code != _BUSY:
                self._remember(key, error.code, error.message)
            raise

    def _remember(self, key: tuple[str, str], code: str, text: str) -> None:
        until_ns = self._monotonic_ns() + REGISTRY_OUTAGE_S * 10**9
        with self._lock:
            self._outages[key] = _Outage(code, text, until_ns)
            self._outages.move_to_end(key)
            if len(self._outages) > REGISTRY_HOSTS_MAX:
                self._outages.popitem(last=False)

"""Limit the values of labels that name hosts and outcomes of calls.

Room: telemetry. Takes: hosts and outcomes of calls. Gives: label values. Next:
webhook/images.py. May touch: a lock, the clock.
Source: docs/metrics.md.

SAFETY: the author of a Pod chooses the registry, and the registry chooses its status.
A host gets a name with its first successful response, so names without a server and
servers that only fail take no place. A host without calls loses its place to another.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from time import monotonic_ns
from typing import Final

from kyverno_mp.limits import REGISTRY_HOSTS_NAMED_IDLE_S, REGISTRY_HOSTS_NAMED_MAX

OTHER: Final = "other"
_STATUSES: Final = frozenset(
    str(status)
    for status in (
        *(200, 201, 206, 301, 302, 307, 308),
        *(400, 401, 403, 404, 429, 500, 502, 503, 504),
    )
)
"""The statuses that registries, their storage and proxies send."""
_CLASSES: Final = "12345"


class HostLabels:
    """The hosts that one process names; threads may share it."""

    def __init__(self, named: Iterable[str] = ()) -> None:
        """``named``: hosts that the settings name; they always have a name."""
        self._named = frozenset(_normal(one) for one in named if one)
        self._called_ns: OrderedDict[str, int] = OrderedDict()
        """The other hosts that have a name, by the time of the last call."""
        self._lock = threading.Lock()

    def labels(self, host: str, outcome: str) -> tuple[str, str]:
        """Return the label values for a call: the host and the outcome."""
        is_success = len(outcome) == len("2xx") and outcome.startswith("2")
        return self._host(_normal(host), is_success=is_success), _outcome(outcome)

    def _host(self, host: str, *, is_success: bool) -> str:
        if host in self._named:
            return host
        now_ns = monotonic_ns()
        with self._lock:
            if host not in self._called_ns and not (
                host and is_success and self._has_place(now_ns)
            ):
                return OTHER
            self._called_ns[host] = now_ns
            self._called_ns.move_to_end(host)
        return host

    def _has_place(self, now_ns: int) -> bool:
        """Return whether another host can get a name; remove an idle one for it."""
        if len(self._called_ns) < REGISTRY_HOSTS_NAMED_MAX:
            return True
        idlest, called_ns = next(iter(self._called_ns.items()))
        if now_ns - called_ns < REGISTRY_HOSTS_NAMED_IDLE_S * 10**9:
            return False
        del self._called_ns[idlest]
        return True


def _normal(host: str) -> str:
    return host.rstrip(".").lower()


def _outcome(outcome: str) -> str:
    """Return a status that is not usual as its class, such as ``5xx``."""
    if not outcome.isdigit() or outcome in _STATUSES:
        return outcome
    is_class = len(outcome) == len("5xx") and outcome[0] in _CLASSES
    return f"{outcome[0]}xx" if is_class else OTHER

"""Name hosts in labels of metrics: a few by name, all others together.

Room: telemetry. Takes: hosts and whether they answered. Gives: label values. Next:
webhook/images.py. May touch: a lock.
Source: docs/metrics.md.

SAFETY: the author of a Pod chooses the registry. A host gets a name when it has
answered for the first time, so that names without a server take no place.
"""

import threading
from collections.abc import Iterable
from typing import Final

from kyverno_mp.limits import REGISTRY_HOSTS_NAMED_MAX

OTHER: Final = "other"


class HostLabels:
    """The hosts that one process names; threads may share it."""

    def __init__(self, named: Iterable[str] = ()) -> None:
        """``named``: hosts that the operator names; they take the first places."""
        self._named = set(list(dict.fromkeys(named))[:REGISTRY_HOSTS_NAMED_MAX])
        self._lock = threading.Lock()

    def label(self, host: str, *, has_answered: bool) -> str:
        """Return the label value for a call to the host."""
        host = host.rstrip(".").lower()
        if host in self._named:
            return host
        if not has_answered or not host:
            return OTHER
        with self._lock:
            if len(self._named) >= REGISTRY_HOSTS_NAMED_MAX:
                return OTHER
            self._named.add(host)
        return host

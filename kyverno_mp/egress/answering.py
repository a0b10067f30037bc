"""Remember which registries answer, so that others wait for none that do not.

Room: egress. Takes: the outcome of each call. Gives: AnsweringHosts.
Next: webhook/review/service.py asks it for the shares of a review.
May touch: nothing but its own memory; the clock is passed in.
Source: docs/images.md (registries).

The author of a Pod chooses its registries. One that has never answered, or whose last
call failed, is not trusted to answer soon.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from kyverno_mp.limits import REGISTRIES_ANSWERED_MAX, REGISTRY_ANSWERED_S

UNANSWERED: Final = "registries without an answer"
"""The share of all reviews with a registry that does not answer."""
_SERVER_ERRORS: Final = 500
_HUB: Final = "docker.io"
"""Its API has other names below this one."""


class AnsweringHosts:
    """The hosts that answered recently; threads may share it."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._answered_s: OrderedDict[str, float] = OrderedDict()

    def note(self, host: str, outcome: str) -> None:
        """Note an outcome as RegistryTransport reports it: a status, or a failure."""
        name = _name_of(host)
        with self._lock:
            self._answered_s.pop(name, None)
            if outcome.isdecimal() and int(outcome) < _SERVER_ERRORS:
                self._answered_s[name] = self._monotonic_s()
                if len(self._answered_s) > REGISTRIES_ANSWERED_MAX:
                    self._answered_s.popitem(last=False)

    def shares_of(self, hosts: Iterable[str]) -> tuple[str, ...]:
        """Return the shares of a review of images of these hosts."""
        names = tuple(hosts)
        since_s = self._monotonic_s() - REGISTRY_ANSWERED_S
        with self._lock:
            answer = all(
                self._answered_s.get(_name_of(name), float("-inf")) >= since_s
                for name in names
            )
        return names if answer else (*names, UNANSWERED)


def _name_of(host: str) -> str:
    """Return the host without a port; the names of Docker Hub are one."""
    name = host.lower()
    if name.count(":") == 1 or name.startswith("["):
        name = name.rpartition(":")[0] if name[-1:] != "]" else name
    name = name.strip("[].")
    return _HUB if name.endswith(f".{_HUB}") else name

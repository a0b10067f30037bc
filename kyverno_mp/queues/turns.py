"""Choose which work starts next, so that no tenant and no server takes all threads.

Room: queues. Takes: the shares that each piece of work uses. Gives: Turns. Next:
reports/feed.py, webhook/review/lanes.py. May touch: nothing outside its arguments.
Source: docs/images.md (registries): a dead registry must not delay images of others.

A share is a name, e.g. of a namespace or of a registry. Work starts only while each of
its shares has room, and tenants take turns: the tenant that started work last waits for
the others. Work for a server that already has its fair part waits for all others. The
caller keeps the queues and holds its own lock.
"""

from collections import Counter
from collections.abc import Iterable
from typing import TypeAlias

Shares: TypeAlias = tuple[str, ...]
"""The shares of one piece of work, first its tenant; () = no limit."""


class Turns:
    """The running work of each share; not thread-safe."""

    def __init__(
        self, running_max: int, tenant_max: int = 0, fair_max: int = 0
    ) -> None:
        """``running_max``: how much work of one share runs at a time.

        ``tenant_max``: how much work of one tenant, 0 = ``running_max``. A tenant can
        name any server, so it must not be able to take the whole share of one.
        ``fair_max``: the part of one server, which it exceeds only if no other work can
        start; 0 = ``running_max``.
        """
        self._running_max = running_max
        self._tenant_max = tenant_max or running_max
        self._fair_max = fair_max or running_max
        self._running: Counter[str] = Counter()
        self._last: dict[str, int] = {}
        """The number of the start that each tenant had last."""
        self._starts = 0

    def choose(self, waiting: Iterable[Shares]) -> Shares | None:
        """Return the shares whose work starts next, None if all must wait.

        ``waiting``: in order of arrival, which decides between works of one tenant.
        """
        free = (one for one in waiting if self._has_room(one))
        return min(free, key=self._order, default=None)

    def begin(self, shares: Shares) -> None:
        """Count work that starts."""
        if not shares:
            return
        self._running.update(set(shares))
        self._starts += 1
        # Keeps the dictionary ordered by start.
        self._last.pop(shares[0], None)
        self._last[shares[0]] = self._starts

    def end(self, shares: Shares, waiting: int) -> None:
        """Count work that has ended; ``waiting``: how many sets of shares wait."""
        for one in set(shares):
            self._running[one] -= 1
            if not self._running[one]:
                del self._running[one]
        while len(self._last) > waiting + len(self._running):
            # A tenant that is not known here is the first to start anyway.
            del self._last[next(iter(self._last))]

    def _has_room(self, shares: Shares) -> bool:
        if not shares:
            return True
        return self._running[shares[0]] < self._tenant_max and all(
            self._running[one] < self._running_max for one in shares[1:]
        )

    def _order(self, shares: Shares) -> tuple[bool, int]:
        if not shares:
            return False, 0
        is_beyond = any(self._running[one] >= self._fair_max for one in shares[1:])
        return is_beyond, self._last.get(shares[0], 0)

"""Choose which work starts next, so that no tenant and no server takes all threads.

Room: queues. Takes: the shares that each piece of work uses. Gives: Turns. Next:
reports/feed.py, webhook/review/lanes.py.
Source: docs/images.md (registries): a dead registry must not delay images of others.

A share is a name, e.g. of a namespace or of a registry. Work starts only while each of
its shares has room, and tenants take turns: the tenant that started work last waits for
the others. Work for a server that already has its fair part waits for all others. The
caller keeps the queues and holds its own lock.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from kyverno_mp.limits import BRIEF_WORK_S, THREAD_TIME_HALF_LIFE_S

_HALF_LIFE_NS: Final = THREAD_TIME_HALF_LIFE_S * 1e9
_FORGOTTEN_NS: Final = 10 * _HALF_LIFE_NS
_BRIEF_NS: Final = BRIEF_WORK_S * 1e9
Shares: TypeAlias = tuple[str, ...]
"""The shares of one piece of work, first its tenant; () = no limit."""


class _ThreadTime:
    """The thread-time of each tenant: what its work uses now, and has used lately."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._used: dict[str, tuple[float, float, int]] = {}
        """Thread-time and number of ended works, both decayed, and up to when."""
        self._running: dict[str, tuple[int, int]] = {}
        """The number of running works, and the sum of their starts."""

    def begin(self, tenant: str) -> int:
        """Count work that starts; return when."""
        now_ns = self._now_ns()
        count, starts = self._running.get(tenant, (0, 0))
        self._running[tenant] = count + 1, starts + now_ns
        return now_ns

    def end(self, tenant: str, began_ns: int) -> None:
        """Count work that has ended."""
        now_ns = self._now_ns()
        count, starts = self._running.pop(tenant)
        if count > 1:
            self._running[tenant] = count - 1, starts - began_ns
        used_ns, works = self._decayed(tenant, now_ns)
        self._used[tenant] = used_ns + now_ns - began_ns, works + 1, now_ns
        for name in [one for one in self._used if self._is_old(one, now_ns)]:
            del self._used[name]

    def spent(self, tenant: str) -> float:
        """Return what a tenant has used and holds. Unit: ns."""
        now_ns = self._now_ns()
        count, starts = self._running.get(tenant, (0, 0))
        return self._decayed(tenant, now_ns)[0] + count * now_ns - starts

    def is_brief(self, tenant: str) -> bool:
        """Return whether a tenant's works end soon, or it has none at the moment."""
        used_ns, works = self._decayed(tenant, self._now_ns())
        if not works:
            return tenant not in self._running
        return used_ns < works * _BRIEF_NS

    def long_running(self) -> int:
        """Return how much work of tenants runs whose works do not end soon."""
        return sum(
            count
            for tenant, (count, _) in self._running.items()
            if not self.is_brief(tenant)
        )

    def _decayed(self, tenant: str, now_ns: int) -> tuple[float, float]:
        used_ns, works, at_ns = self._used.get(tenant, (0.0, 0.0, now_ns))
        part = float(0.5 ** ((now_ns - at_ns) / _HALF_LIFE_NS))
        return used_ns * part, works * part

    def _is_old(self, tenant: str, now_ns: int) -> bool:
        return now_ns - self._used[tenant][2] > _FORGOTTEN_NS


class Turns:
    """The running work of each share; not thread-safe."""

    def __init__(
        self,
        running_max: int,
        tenant_max: int = 0,
        fair_max: int = 0,
        *,
        limits: Mapping[str, int] | None = None,
        long_max: int = 0,
        now_ns: Callable[[], int] | None = None,
    ) -> None:
        """``running_max``: how much work of one share runs at a time.

        ``tenant_max``: how much work of one tenant, 0 = ``running_max``. A tenant can
        name any server, so it must not be able to take the whole share of one.
        ``fair_max``: the part of one server, which it exceeds only if no other work can
        start; 0 = ``running_max``. ``limits``: how much work of particular shares.
        ``now_ns``: a clock, with which tenants take turns by their thread-time instead
        of their starts; ``long_max``: how much work of all tenants whose works do not
        end soon. A tenant's first work counts as if it did.
        """
        self._limits = limits or {}
        self._long_max = long_max
        self._time = _ThreadTime(now_ns) if now_ns is not None else None
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
        able: Iterable[Shares] = [one for one in waiting if self._has_room(one)]
        if self._time is not None and self._time.long_running() >= self._long_max:
            able = [one for one in able if not one or self._time.is_brief(one[0])]
        return min(able, key=self._order, default=None)

    def begin(self, shares: Shares) -> int:
        """Count work that starts; return when, for ``end``."""
        if not shares:
            return 0
        self._running.update(set(shares))
        self._starts += 1
        # Keeps the dictionary ordered by start.
        self._last.pop(shares[0], None)
        self._last[shares[0]] = self._starts
        return self._time.begin(shares[0]) if self._time is not None else 0

    def end(self, shares: Shares, waiting: int, began_ns: int = 0) -> None:
        """Count work that has ended; ``waiting``: how many sets of shares wait."""
        if self._time is not None and shares:
            self._time.end(shares[0], began_ns)
        for share in set(shares):
            self._running[share] -= 1
            if not self._running[share]:
                del self._running[share]
        while len(self._last) > waiting + len(self._running):
            # A tenant that is not known here is the first to start anyway.
            del self._last[next(iter(self._last))]

    def _has_room(self, shares: Shares) -> bool:
        if not shares:
            return True
        return self._running[shares[0]] < self._tenant_max and all(
            self._running[share] < self._limits.get(share, self._running_max)
            for share in shares[1:]
        )

    def _order(self, shares: Shares) -> tuple[bool, float, int]:
        if not shares:
            return False, 0.0, 0
        spent = self._time.spent(shares[0]) if self._time is not None else 0.0
        is_beyond = any(self._running[share] >= self._fair_max for share in shares[1:])
        return is_beyond, spent, self._last.get(shares[0], 0)

"""Keep one thread free of slow rules, so that they do not delay those of others.

Room: background. Takes: the policy and the duration of each piece of work. Gives:
SlowTenants. Next: background/requests.py. May touch: the caller's clock and queue.
Source: docs/background.md (requests).

A rule may wait for a service for half a minute, for each of its triggers. Without a
limit, a few triggers would take all threads of the pool. A pool with one thread cannot
keep it free; instead, slow rules pause after each piece of work.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Final

from kyverno_mp.background.policies import tenant_of
from kyverno_mp.limits import BACKGROUND_SLOW_TENANTS_MAX

PAUSE_S: Final = 5.0
"""How long other work of a slow tenant waits, unless it is woken before."""
_SLOW_S: Final = 3.0
"""Usual work takes milliseconds."""
_KEPT_S: Final = 300.0
"""How long a tenant is slow after its last slow work."""


class SlowTenants:
    """The tenants with slow work; threads may share it."""

    def __init__(
        self, clock_s: Callable[[], float], threads: int, wake: Callable[[str], object]
    ) -> None:
        """``threads``: the number of the pool's threads. ``wake`` queues a key."""
        self._clock_s = clock_s
        self._wake = wake
        self._most = max(1, threads - 1)
        self._rest_s = PAUSE_S if threads == 1 else 0.0
        self._rests_until_s = float("-inf")
        """With one thread: when the pause after the last slow work ends."""
        self._lock = threading.Lock()
        self._running = 0
        """How much work of slow tenants runs."""
        self._until_s: dict[str, float] = {}
        """When each tenant is no longer slow, the earliest first."""
        self._waiting: dict[str, None] = {}
        """Keys of work that had no turn, in their order."""

    @contextmanager
    def turn(self, policy: str, key: str) -> Iterator[bool]:
        """Yield whether work of a policy can run now, and measure its duration.

        If not, ``key`` is woken when other slow work ends: after one slow call, the
        tenant's work continues with all threads but one.

        Work that ends with an exception, e.g. because of an outage, is not measured.
        """
        tenant, began_s = tenant_of(policy), self._clock_s()
        with self._lock:
            is_slow = self._is_slow(tenant, began_s)
            is_free = self._running < self._most and began_s >= self._rests_until_s
            has_turn = not is_slow or is_free
            self._running += is_slow and has_turn
            if has_turn:
                self._waiting.pop(key, None)
            else:
                self._waiting[key] = None
        try:
            yield has_turn
            now_s = self._clock_s()
            if has_turn and now_s - began_s >= _SLOW_S:
                self._note(tenant, now_s)
        finally:
            if is_slow and has_turn:
                self._end()

    def __len__(self) -> int:
        """Return the number of tenants that are kept."""
        return len(self._until_s)

    def _note(self, tenant: str, now_s: float) -> None:
        """Keep a tenant with slow work; drop those that are no longer slow."""
        with self._lock:
            self._until_s.pop(tenant, None)
            self._until_s[tenant] = now_s + _KEPT_S
            while self._until_s:
                first = next(iter(self._until_s))
                is_over = self._until_s[first] <= now_s
                if not is_over and len(self._until_s) <= BACKGROUND_SLOW_TENANTS_MAX:
                    break
                del self._until_s[first]
            self._rests_until_s = now_s + self._rest_s

    def _end(self) -> None:
        with self._lock:
            self._running -= 1
            if self._clock_s() < self._rests_until_s:
                # The keys come back by themselves, after the pause.
                return
            woken = list(islice(self._waiting, self._most - self._running))
            for key in woken:
                del self._waiting[key]
        for key in woken:
            self._wake(key)

    def _is_slow(self, tenant: str, now_s: float) -> bool:
        return self._until_s.get(tenant, now_s) > now_s

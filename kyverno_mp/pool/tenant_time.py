"""Share the time of a pool between the policies of namespaces and all others.

Room: pool. Takes: namespaces, a clock. Gives: TenantTime. Next:
reports/scan/evaluator.py, reports/policies/cel_rules.py. May touch: nothing outside its
arguments.
Source: docs/architecture.md 1 (promise 4); limits.POOL_TENANT_S.

SECURITY: an author of a namespaced policy also creates the objects that it is evaluated
on, and each of them may take seconds. The objects of all namespaces wait in one queue.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from kyverno_mp.errors import StateError
from kyverno_mp.limits import (
    POOL_TENANT_NAMESPACES_MAX,
    POOL_TENANT_S,
    POOL_TENANT_SHARE,
    POOL_TENANTS_S,
    POOL_TENANTS_SHARE,
)

_NS: Final = 10**9
_WAIT_S_MIN: Final = 1.0
_WAIT_S_MAX: Final = 60.0
_ALL: Final = ""
"""The key of the sum over all namespaces."""


class _Left(NamedTuple):
    """The time that is left, and when that was computed."""

    left_ns: float
    at_ns: int


class TenantTime:
    """The time that namespaced policies may take; threads may share it.

    A namespace whose time is used up gets a share of the following time. Its policies
    are evaluated later, and the results of all other policies do not wait for them.
    """

    def __init__(self, monotonic_ns: Callable[[], int]) -> None:
        self._monotonic_ns = monotonic_ns
        self._lock = threading.Lock()
        self._left: dict[str, _Left] = {}
        """By namespace, the most recently charged one last."""

    def why_not(self, namespace: str) -> StateError | None:
        """Return why a policy of this namespace is not evaluated now, if so."""
        if not self.wait_s(namespace):
            return None
        return StateError(
            "pool.tenant_time",
            f"the policies of namespace {namespace} take too much time, so this object"
            " is evaluated later",
        )

    def wait_s(self, namespace: str) -> float:
        """Return how long a policy of this namespace has to wait; "" never waits."""
        if not namespace or not self._left:
            return 0.0
        with self._lock:
            return max(self._wait_s(namespace), self._wait_s(_ALL))

    @contextmanager
    def charged(self, namespace: str) -> Iterator[None]:
        """Charge the time of the block to the namespace; "" = a cluster policy."""
        if not namespace:
            yield
            return
        began_ns = self._monotonic_ns()
        try:
            yield
        finally:
            ended_ns = self._monotonic_ns()
            with self._lock:
                for key in (namespace, _ALL):
                    left_ns = self._left_ns(key) - (ended_ns - began_ns)
                    self._left.pop(key, None)
                    self._left[key] = _Left(left_ns, ended_ns)
                if len(self._left) > POOL_TENANT_NAMESPACES_MAX:
                    del self._left[next(iter(self._left))]

    def _wait_s(self, key: str) -> float:
        left_ns, share = self._left_ns(key), self._share_of(key)
        if left_ns > 0:
            return 0.0
        return min(_WAIT_S_MAX, _WAIT_S_MIN - left_ns / _NS / share)

    def _left_ns(self, key: str) -> float:
        most_ns = (POOL_TENANT_S if key else POOL_TENANTS_S) * _NS
        found = self._left.get(key)
        if found is None:
            return most_ns
        passed_ns = self._monotonic_ns() - found.at_ns
        return min(most_ns, found.left_ns + self._share_of(key) * passed_ns)

    def _share_of(self, key: str) -> float:
        return POOL_TENANT_SHARE if key else POOL_TENANTS_SHARE

"""Share the time of scans between the policies of namespaces and all others.

Room: reports. Takes: namespaces, a clock. Gives: TenantTime. Next:
reports/scan/evaluator.py, reports/policies/cel_rules.py. May touch: nothing outside its
arguments.
Source: docs/architecture.md 1 (promise 4); limits.REPORTS_TENANT_S.

SECURITY: an author of a namespaced policy also creates the objects that it is evaluated
on, and each of them may take seconds. All objects of a kind wait in one queue.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from kyverno_mp.errors import StateError
from kyverno_mp.limits import (
    REPORTS_TENANT_NAMESPACES_MAX,
    REPORTS_TENANT_S,
    REPORTS_TENANT_SHARE,
    REPORTS_TENANTS_S,
    REPORTS_TENANTS_SHARE,
)

_NS: Final = 10**9
_ALL: Final = ""
"""The key of the sum over all namespaces."""


class _Left(NamedTuple):
    """The time that is left, and when that was computed."""

    left_ns: float
    at_ns: int


class TenantTime:
    """The time that namespaced policies may take; not thread-safe.

    A namespace whose time is used up gets a share of the following time. Its policies
    are evaluated later, and the results of all other policies do not wait for them.
    """

    def __init__(self, monotonic_ns: Callable[[], int]) -> None:
        self._monotonic_ns = monotonic_ns
        self._left: dict[str, _Left] = {}
        """By namespace, the most recently charged one last."""

    def why_not(self, namespace: str) -> StateError | None:
        """Return why a policy of this namespace is not evaluated now, if so."""
        if not namespace or not self._left:
            return None
        if self._left_ns(namespace) > 0 and self._left_ns(_ALL) > 0:
            return None
        return StateError(
            "reports.tenant_time",
            f"the policies of namespace {namespace} take too much time, so this object"
            " is evaluated later",
        )

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
            for key in (namespace, _ALL):
                left_ns = self._left_ns(key) - (ended_ns - began_ns)
                self._left.pop(key, None)
                self._left[key] = _Left(left_ns, ended_ns)
            if len(self._left) > REPORTS_TENANT_NAMESPACES_MAX:
                del self._left[next(iter(self._left))]

    def _left_ns(self, key: str) -> float:
        most_s, share = (
            (REPORTS_TENANT_S, REPORTS_TENANT_SHARE)
            if key
            else (REPORTS_TENANTS_S, REPORTS_TENANTS_SHARE)
        )
        found = self._left.get(key)
        if found is None:
            return most_s * _NS
        passed_ns = self._monotonic_ns() - found.at_ns
        return min(most_s * _NS, found.left_ns + share * passed_ns)

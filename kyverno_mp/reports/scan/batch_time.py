"""Share the time of a batch among the namespaces of its objects.

Room: reports. Takes: a monotonic clock. Gives: BatchTime. Next:
reports/scan/evaluator.py. May touch: the clock.
Source: docs/pools.md 1; docs/reports.md (scans).

The rules of one namespace can wait for servers that do not answer. Its remaining
objects are then postponed, so that the other objects of the batch are evaluated, and
the batch is answered before its evaluator counts as dead.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kyverno_mp.limits import REPORTS_BATCH_EVALUATED_S_MAX, REPORTS_BATCH_SHARE_S_MAX


class BatchTime:
    """The time that each namespace has used; one thread uses it."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        """Begin with a batch; ``now_ns``: the monotonic time."""
        self._now_ns = now_ns
        self._begun_ns = now_ns()
        self._used_ns: Counter[str] = Counter()

    def is_over(self, namespace: str) -> bool:
        """Return whether the objects of a namespace are postponed."""
        passed_ns = self._now_ns() - self._begun_ns
        used_ns = self._used_ns[namespace]
        return (
            passed_ns >= REPORTS_BATCH_EVALUATED_S_MAX * 10**9
            or used_ns >= REPORTS_BATCH_SHARE_S_MAX * 10**9
        )

    @contextmanager
    def used_by(self, namespace: str) -> Iterator[None]:
        """Add the time of the block to a namespace's."""
        begun_ns = self._now_ns()
        try:
            yield
        finally:
            self._used_ns[namespace] += self._now_ns() - begun_ns

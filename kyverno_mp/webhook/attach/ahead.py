"""Link the policies of a new generation before reviews use it.

Room: webhook. Takes: the sources of the new and of the previous generation. Gives:
LinkingAhead. Next: followed, cluster_policies. May touch: the log; sleeps in threads.
Source: docs/architecture.md 3 (attach, swapped between two requests).

What did not change stays linked. The rest is linked in slices while reviews use the
previous generation, so that no review waits for hundreds of links at once.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Protocol, Self

from kyverno_mp.limits import (
    LINKED_AHEAD_BYTES_MAX,
    LINKED_AHEAD_NS_MAX,
    LINKED_AHEAD_PAUSE_NS,
    LINKED_AHEAD_SLICE_NS,
)
from kyverno_mp.program.matching.rule_ref import Ahead
from kyverno_mp.webhook.collector import Collector

_LOG = logging.getLogger(__name__)


class Source(Protocol):
    """The rules of one generation of one kind of policies."""

    def take_over(self, previous: Self, /) -> list[Any]:
        """Keep the linked rules that did not change; return the others."""

    def ahead(self, previous: Self | None, /) -> Iterator[Ahead]:
        """Yield what to link before this generation is served."""


class LinkingAhead:
    """Links ahead of reviews, one generation after the other."""

    def __init__(
        self,
        collector: Collector,
        count_error: Callable[[str], None],
        start_ns_max: int = LINKED_AHEAD_NS_MAX,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``start_ns_max``: the time for all kinds before this worker serves."""
        self._collector = collector
        self._count_error = count_error
        self._monotonic_ns = monotonic_ns
        self._sleep = sleep
        self._until_ns = monotonic_ns() + start_ns_max
        self._serves = False
        self._has_rest = False
        self._releasing = threading.Lock()

    def begin_serving(self) -> bool:
        """Leave the core to reviews from now on; return whether rules are not linked.

        Link them, without a previous generation, while reviews use the linked ones.
        """
        self._serves = True
        return self._has_rest

    def release(self) -> None:
        """Free the rules of replaced generations, unless another thread is doing so."""
        if self._releasing.acquire(blocking=False):
            try:
                self._collector.release()
            finally:
                self._releasing.release()

    def link(
        self, sources: Sequence[Source], previous: Sequence[Source] | None
    ) -> bool:
        """Link the rules of new sources; ``previous`` has those in use, if any.

        Return whether to link the rest after the swap.

        A rule that cannot be linked must not prevent other rules from coming into
        force. Its policy's failurePolicy decides about the requests that need it.
        """
        # Release the rules of earlier snapshots, so that consecutive changes do not
        # keep them all.
        self.release()
        is_over = False
        now_ns = self._monotonic_ns()
        until_ns = now_ns + LINKED_AHEAD_NS_MAX if self._serves else self._until_ns
        for source, before in zip(sources, previous or repeat(None), strict=False):
            try:
                if before is not None:
                    self._collector.note(source.take_over(before))
                is_over |= self._link(source.ahead(before), until_ns)
            except Exception:  # noqa: BLE001 - logged here; each request reports it again
                self._failed()

        self._has_rest |= is_over
        return is_over and self._serves

    def _link(self, steps: Iterable[Ahead], until_ns: int) -> bool:
        """Link; return whether the time was too short."""
        left = LINKED_AHEAD_BYTES_MAX
        began_ns = self._monotonic_ns()
        for step in steps:
            left -= step.size
            now_ns = self._monotonic_ns()
            if left < 0 or now_ns > until_ns:
                _LOG.info("a generation is served before all its rules are linked")
                return now_ns > until_ns
            if self._serves and now_ns - began_ns > LINKED_AHEAD_SLICE_NS:
                self._sleep(LINKED_AHEAD_PAUSE_NS / 1e9)
                began_ns = self._monotonic_ns()
            try:
                step.link()
            except Exception:  # noqa: BLE001 - as in ``link``
                self._failed()
        return False

    def _failed(self) -> None:
        self._count_error("webhook.defect")
        _LOG.exception("internal error while linking rules")

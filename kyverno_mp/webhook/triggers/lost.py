"""Record in a journal the policies whose triggers are not recorded themselves.

Room: webhook. Takes: names of policies. Gives: LostPolicies. Next:
leader/triggers/writer.py writes UpdateRequests that synchronize these policies again.
May touch: the journal of this process, its log; counts.
Source: docs/pools.md 3 (a full journal).

A policy has at most one unread record, so the journal has room for all policies. The
pool syncs the policy with a delay, so that losses shortly after a record was read are
part of the same sync.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Final

from kyverno_mp.queues.journal import Journal
from kyverno_mp.queues.triggers import (
    LEFT_ROLE,
    LOST_ROLE,
    UNPROVED_ROLE,
    encode_trigger,
    lost_record,
)
from kyverno_mp.webhook.ports import Records

_LOG = logging.getLogger(__name__)
NOT_REMEMBERED: Final = "webhook.triggers_lost"
_TEXTS: Final = {
    LOST_ROLE: "triggers of a policy could not be recorded, so it is synced",
    UNPROVED_ROLE: "reviews without proof may trigger a policy, so it is synced",
    LEFT_ROLE: "reviews without proof trigger a policy, which is not run for them",
}
_PAUSE_NS: Final = 10 * 10**9
"""The interval between two records of a policy: less than the pool's ABSENT_S, with a
margin."""


class LostPolicies:
    """Appends records to the journal; thread-safe."""

    def __init__(
        self, journal: Journal, records: Records, now_ns: Callable[[], int]
    ) -> None:
        """``now_ns`` returns the wall-clock time."""
        self._journal = journal
        self._records = records
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str, str], tuple[int, int]] = {}
        """By type, policy and role: the end of its last record in the journal, and when
        that was written."""

    def add(self, policies: Iterable[tuple[str, str]], role: str = LOST_ROLE) -> None:
        """Record policies, each with the type of its requests; "" means all.

        ``role``: why: LOST_ROLE, UNPROVED_ROLE or LEFT_ROLE.
        """
        with self._lock:
            for kind, policy in policies:
                self._add(policy, kind, role)

    def _add(self, policy: str, kind: str, role: str) -> None:
        now_ns = self._now_ns()
        known = self._known.get((kind, policy, role))
        if known is not None:
            end, at_ns = known
            if end > self._journal.taken or abs(now_ns - at_ns) < _PAUSE_NS:
                return
        record = lost_record(policy, now_ns, kind, role)
        if self._journal.append(encode_trigger(record)):
            self._known[kind, policy, role] = self._journal.written, now_ns
            # Not for each review: under load, this would log thousands of lines.
            _LOG.warning(_TEXTS[role], extra={"fields": {"policies": [policy]}})
            return
        self._records.error(NOT_REMEMBERED)
        _LOG.error(
            "triggers of a policy are lost until its next scan",
            extra={"fields": {"code": NOT_REMEMBERED, "policies": [policy]}},
        )

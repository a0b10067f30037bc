"""Decide when a rejected record is tried again, and when it is given up.

Room: leader. Takes: rejected and accepted records, a clock. Gives: Rejections. Next:
leader/triggers/writer.py.
Source: docs/background.md (requests); docs/faults.md.

A webhook or a ValidatingAdmissionPolicy may deny all UpdateRequests for a while, or
those of some API servers. Then nothing may be given up. So a record is only given up
if the API server accepted others between its rejections, several times.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from kyverno_mp.limits import (
    TRIGGER_REJECTED_S,
    TRIGGER_REJECTED_TIMES,
    TRIGGER_RETRIES_PER_S,
)
from kyverno_mp.queues.ahead import Held
from kyverno_mp.queues.work_queue import Backoff

_PAUSES: Final = Backoff(least_s=0.25, most_s=15.0)
_QUIET_S: Final = 5 * TRIGGER_REJECTED_S
"""Without accepted records for this long, earlier ones no longer count."""


@dataclass(slots=True)
class _Rejection:
    """The rejections of one record."""

    names: frozenset[str]
    since_s: float
    """Since when the counted rejections happened."""
    times: int = 0
    counted: int = 0
    """Rejections since ``since_s`` with accepted records after the previous one."""
    seen: int = 0
    """Accepted records up to the last rejection."""
    due_s: float = 0.0


class Rejections:
    """The rejected records; for one thread, except for ``hold`` and the names."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._of: WeakKeyDictionary[Held, _Rejection] = WeakKeyDictionary()
        self._accepted = self._accepted_before = 0
        self._accepted_s = 0.0
        self._stored: dict[str, int] = {}
        """By the name of a rejected record's request: when the newest stored request
        with this name was recorded, 0 if none was stored."""

    def __len__(self) -> int:
        return len(self._of)

    def is_due(self, record: Held) -> bool:
        """Return whether a record is new or due again."""
        rejection = self._of.get(record)
        return rejection is None or rejection.due_s <= self._monotonic_s()

    def retry_now(self) -> None:
        """Make all records due, and let none be given up."""
        self.disturb()
        for rejection in self._of.values():
            rejection.due_s = 0.0

    def disturb(self) -> None:
        """Start the count over, e.g. after an outage."""
        now_s = self._monotonic_s()
        for rejection in self._of.values():
            rejection.since_s, rejection.counted, rejection.seen = (
                now_s,
                0,
                self._accepted,
            )

    def accept(self, number: int) -> None:
        """Count the accepted records of one round, before its rejected ones."""
        now_s = self._monotonic_s()
        if now_s - self._accepted_s > _QUIET_S:
            self.disturb()
        self._accepted_before = self._accepted
        self._accepted += number
        if number:
            self._accepted_s = now_s

    def reject(self, record: Held, names: Iterable[str]) -> bool:
        """Count a rejection; return whether to give the record up."""
        now_s = self._monotonic_s()
        rejection = self._of.get(record)
        if rejection is None:
            rejection = self._of[record] = _Rejection(frozenset(names), now_s)
        elif self._accepted_before > rejection.seen:
            rejection.counted += 1
        rejection.times += 1
        rejection.seen = self._accepted
        pause_s = _PAUSES.pause_s(rejection.times)
        rejection.due_s = now_s + max(pause_s, len(self._of) / TRIGGER_RETRIES_PER_S)
        is_old = now_s - rejection.since_s >= TRIGGER_REJECTED_S
        return is_old and rejection.counted >= TRIGGER_REJECTED_TIMES

    def forget(self, records: Iterable[Held]) -> None:
        """Forget finished records."""
        if [record for record in records if self._of.pop(record, None) is not None]:
            stored_names = {
                name for rejection in self._of.values() for name in rejection.names
            }
            self._stored = {
                n: at for n, at in self._stored.items() if n in stored_names
            }

    def hold(self, names: Iterable[str], stored: Iterable[str], at_ns: int) -> None:
        """Remember which requests of a rejected record were stored."""
        for name in names:
            self._stored.setdefault(name, 0)
        for name in stored:
            self.store(name, at_ns)

    def store(self, name: str, at_ns: int) -> None:
        """Remember a stored request if a rejected record has one of this name."""
        if name in self._stored:
            self._stored[name] = max(self._stored[name], at_ns)

    def is_stored(self, name: str, at_ns: int) -> bool:
        """Return whether this request or a newer one of the same name is stored.

        An older one must not replace it, because the pool may have processed it.
        """
        return self._stored.get(name, 0) >= at_ns > 0

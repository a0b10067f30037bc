"""Create Events from the records that webhook workers write to their journals.

Room: controllers. Takes: a queues.journal Reader, kube's Events. Gives: EventInfos (the
messages are in kube/policy_events.py). Next: leader/control/run.py runs the thread.
May touch: the journals, the API server through kube/events.py, one thread.
Source: docs/behaviour/controllers 9.1 (messages, objects, reasons, actions); Kyverno
pkg/event/events.go, pkg/webhooks/utils/event.go.

A record is removed from its journal after all of its Events are written. If this
process is killed, the next one writes some Events again. They have the same names, so
the API server rejects the duplicates. Every replica writes the Events of its own
workers, without a Lease.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

from kyverno_mp.errors import DependencyError, StateError
from kyverno_mp.kube.events import EventInfo, Events, Reference
from kyverno_mp.kube.policy_events import (
    CEL_POLICY_VERSION,
    POLICY_VERSION,
    SKIPPED,
    PolicyMessages,
    UidOf,
    no_uid,
)
from kyverno_mp.policy.cel_kinds.served import SERVED_CEL_KINDS
from kyverno_mp.queues.journal import JournalReader, Record
from kyverno_mp.queues.record_pause import RecordPause
from kyverno_mp.queues.records import (
    ObjectRecord,
    PolicyRecord,
    ReviewRecord,
    decode_policies,
    decode_record,
)
from kyverno_mp.snapshot.bell import Bell

_log = logging.getLogger(__name__)
CONTROLLER: Final = "kyverno-admission"
_FAILED: Final = frozenset({"fail", "error"})
_COUNTS_S: Final = 2.0
"""The time between two flushes of event series counts."""
_AGAIN_S: Final = 0.02
_RETRY_S: Final = 0.25
_OFTEN: Final = 100
"""Looks after a record: two seconds, in which workers need not ring."""
_KNOWN_MAX: Final = 256
"""The number of reviews whose events are cached; each takes a few thousand bytes."""
_RECORDS_PER_POLL: Final = 4096
"""Limits the records per poll, so that a flood delays neither the counts nor the
shutdown."""
_PAUSE_S_MAX: Final = 15.0
_ATTEMPTS_MAX: Final = 12
"""Attempts at one record, over about two minutes: an Event that the cluster always
rejects must not block the records behind it."""


def event_infos_of(review: ReviewRecord, uid_of: UidOf = no_uid) -> Iterator[EventInfo]:
    """Yield the Events that Kyverno would write for one review.

    Raises: StateError if the record's policies cannot be read.
    """
    for policy in decode_policies(review):
        messages = _messages(review, policy)
        if not policy.rules:
            yield messages.applied(mutates=policy.mutates)
        elif any(rule.status in _FAILED for rule in policy.rules):
            for rule in policy.rules:
                found = rule.rule, rule.status, rule.message
                if rule.status in _FAILED:
                    yield messages.violation_on_policy(*found)
                # KYVERNO: if one rule fails, the policy's passed rules get events, too.
                if not review.blocked:
                    yield messages.violation_on_object(*found)
        else:
            for rule in policy.rules:
                yield from messages.skipped(rule.rule, rule.exceptions, uid_of)


def _messages(review: ReviewRecord, policy: PolicyRecord) -> PolicyMessages:
    is_cel = policy.kind in SERVED_CEL_KINDS
    version = CEL_POLICY_VERSION if is_cel else POLICY_VERSION
    return PolicyMessages(
        Reference(version, policy.kind, policy.name, policy.namespace, policy.uid),
        _reference(review.object),
        CONTROLLER,
        blocked=review.blocked,
        at_ns=review.at_ns,
        seed=review.uid,
    )


def _reference(review: ObjectRecord) -> Reference:
    return Reference(
        review.api_version, review.kind, review.name, review.namespace, review.uid
    )


class AdmissionEvents:
    """The thread that writes the Events of workers and the queue of kube's Events."""

    def __init__(
        self,
        reader: JournalReader,
        events: Events,
        uid_of: UidOf = no_uid,
        bell: Callable[[], Bell | None] = lambda: None,
    ) -> None:
        """``bell`` creates what workers ring."""
        self._reader = reader
        self._events = events
        self._uid_of = uid_of
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._attempts = 0
        self._pause = RecordPause(bell, _OFTEN)
        """Kyverno writes its events 10 to 100 ms after the request, and its users'
        scripts expect this. A look takes about 10 us."""
        self._is_submitted = False
        """Whether another thread has queued an event since the last flush."""
        events.on_submit = self._wake
        self._known: dict[tuple[object, ...], list[EventInfo]] = {}
        self._begun: tuple[bytes, int] = (b"", 0)
        """A record and the number of its events that were written, so that a retry
        skips them."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Write the pending events that the API server still accepts, and stop."""
        self._pause.stop()
        self._thread.join(timeout=5)

    def step(self) -> bool:
        """Write pending events; return False if the API server accepts none now."""
        for record in islice(self._reader.records(), _RECORDS_PER_POLL):
            self._pause.finds()
            try:
                self._write(record)
            except DependencyError as error:
                return self._put_off(record, error)
            self._attempts = 0
        return True

    def _write(self, record: Record) -> None:
        try:
            review = decode_record(record.content)
            infos = self._infos(review)
        except StateError as error:
            _log.error("cannot decode a journal record, skipping it: %s", error.message)
            record.give_up()
            return
        written = self._begun[1] if self._begun[0] == record.content else 0
        for number, info in enumerate(infos[written:], written):
            if self._events.accepts(info) and not self._events.count(info):
                self._begun = (record.content, number)
                # A cached event gets the time of the current occurrence.
                now = replace(info, at_ns=review.at_ns, seed=review.uid)
                self._events.write(now)
        self._begun = (b"", 0)
        record.done()

    def _infos(self, review: ReviewRecord) -> list[EventInfo]:
        """Return the events of a review.

        PERF: clients retry after a denial; the cache makes a repetition ten times
        cheaper.
        """
        about, blocked = review.object, review.blocked
        # K8S: a denied object has a new uid at each attempt.
        uid = "" if blocked else about.uid
        place = (about.api_version, about.kind, about.namespace, about.name, uid)
        key = (bytes(review.policies), blocked, *place)
        known = self._known.get(key)
        if known is None:
            known = list(event_infos_of(review, self._uid_of))
            if any(info.reason == SKIPPED for info in known):
                # A recreated exception has a new uid, which is not part of the cache
                # key.
                return known
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[key] = known
        return known

    def _put_off(self, record: Record, error: DependencyError) -> bool:
        self._attempts += 1
        _log.warning("cannot write Events, will retry: %s", error.message)
        if self._attempts >= _ATTEMPTS_MAX:
            self._attempts = 0
            record.give_up()
        return False

    def _run(self) -> None:
        flushed_s = time.monotonic()
        while not self._pause.is_last(self._pause_s()):
            is_due = time.monotonic() - flushed_s >= _COUNTS_S
            if self.step() and (is_due or self._is_submitted):
                flushed_s, self._is_submitted = time.monotonic(), False
                self._events.flush()
        self.step()
        self._events.flush()

    def _wake(self) -> None:
        self._is_submitted = True
        self._pause.wake()

    def _pause_s(self) -> float | None:
        """Return the time to the next attempt while writes fail."""
        if not self._attempts:
            # Records beyond the number of one look wait without a ring.
            return _AGAIN_S if self._reader.waiting else None
        return min(_PAUSE_S_MAX, _RETRY_S * 2.0**self._attempts)

"""Write the policy responses of answered reviews to the log, or to the leader.

Room: webhook. Takes: responses of reviews. Gives: nothing. Next: start wires LogSink
without a cluster, JournalSink with one.
May touch: the log, this process's metric page and journal.
Source: docs/behaviour/controllers 2.7 (audit aside), 9.1 (events);
docs/architecture.md 3 (audit queue).

A denial is written to the journal before its answer is sent, so that a kill -9 after
the answer loses no event. The write is a copy into memory, so answers neither wait for
it nor fail because of it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from kyverno_mp.limits import JOURNAL_RECORD_BYTES_MAX
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import ERROR, FAIL, PolicyResponse, SharedResponses
from kyverno_mp.queues.journal import Journal
from kyverno_mp.queues.records import (
    PolicyRecord,
    ReviewRecord,
    encode_policies,
    encode_record,
)
from kyverno_mp.webhook.audit.records import (
    WithMessages,
    is_redacted,
    merged,
    object_record,
    policy_records,
    space_of,
)
from kyverno_mp.webhook.ports import Records
from kyverno_mp.webhook.route import VALIDATE

_LOG = logging.getLogger(__name__)
_POLICIES_A_RECORD: Final = 16


class LogSink:
    """Logs the results of audit policies: only messages, never the object."""

    records_successes = False

    def __init__(self, records: Records, loop: asyncio.AbstractEventLoop) -> None:
        self._records = records
        self._loop = loop

    def answered(
        self, request: Request, responses: Sequence[PolicyResponse], *, blocked: bool
    ) -> None:
        """Do nothing: the caller has the answer, and the metrics have the counts."""

    def deliver(
        self,
        request: Request,
        enforced: Sequence[PolicyResponse],
        audited: Sequence[PolicyResponse],
        with_messages: WithMessages,
        *,
        seconds: float = 0.0,
    ) -> None:
        """Log each violation and error of the audited policies, and count them.

        The results of enforcing policies were counted with the answer.
        """
        del with_messages
        _count(self._records, self._loop, request, audited, seconds)
        relaxed = [response for response in enforced if response.is_relaxed]
        for response in (*audited, *relaxed):
            for rule in response.results:
                if rule.status not in (FAIL, ERROR):
                    continue
                fields = {
                    "policy": response.policy.key,
                    "rule": rule.rule,
                    "result": rule.status,
                    "kind": request.kind,
                    "namespace": request.namespace,
                    "name": request.name,
                    "uid": request.uid,
                }
                if not is_redacted(request):
                    # A message can quote values of the object (docs/behaviour/engine
                    # 5.6).
                    fields["reason"] = rule.message
                _LOG.info("audit", extra={"fields": fields})


@dataclass(frozen=True, slots=True, kw_only=True)
class EventOptions:
    """The worker's options for a JournalSink."""

    records_successes: Callable[[], bool]
    """Whether successes also become events (generateSuccessEvents)."""
    now_ns: Callable[[], int]
    """Returns the wall-clock time."""


class JournalSink:
    """Writes records of events to this worker's journal; thread-safe."""

    def __init__(
        self,
        journal: Journal,
        records: Records,
        loop: asyncio.AbstractEventLoop,
        options: EventOptions,
    ) -> None:
        self._journal = journal
        self._records = records
        self._loop = loop
        self._options = options

    @property
    def records_successes(self) -> bool:
        """Whether to record reviews in which every rule passed."""
        return self._options.records_successes()

    def answered(
        self, request: Request, responses: Sequence[PolicyResponse], *, blocked: bool
    ) -> None:
        """Record the responses that are known with the answer."""
        self._write(request, responses, blocked=blocked)

    def deliver(
        self,
        request: Request,
        enforced: Sequence[PolicyResponse],
        audited: Sequence[PolicyResponse],
        with_messages: WithMessages,
        *,
        seconds: float = 0.0,
    ) -> None:
        """Count the audited policies, and record all responses."""
        _count(self._records, self._loop, request, audited, seconds)
        self._write(request, merged(enforced, audited, with_messages), blocked=False)

    def _write(
        self, request: Request, responses: Sequence[PolicyResponse], *, blocked: bool
    ) -> None:
        about = object_record(request)
        if about is None:
            return
        for policies in self._encoded(request, responses, blocked=blocked):
            record = ReviewRecord(
                self._options.now_ns(), request.uid, about, blocked, policies
            )
            self._journal.append(encode_record(record), space_of(request))

    def _encoded(
        self, request: Request, responses: Sequence[PolicyResponse], *, blocked: bool
    ) -> list[msgspec.Raw]:
        """Return the encoded policies, none if no event is needed.

        PERF: requests with the same outcome share one tuple of responses
        (program/plans/batch.py), and encoding five denials takes 15 us.
        """
        redacted = is_redacted(request)
        key = (ReviewRecord, redacted, blocked, self.records_successes)
        derived = responses.derived if type(responses) is SharedResponses else {}
        known: list[msgspec.Raw] | None = derived.get(key)
        if known is not None:
            return known
        policies = list(
            policy_records(
                responses,
                blocked=blocked,
                redacted=redacted,
                with_passes=self.records_successes,
            )
        )
        found = [
            _bounded(policies[at : at + _POLICIES_A_RECORD])
            for at in range(0, len(policies), _POLICIES_A_RECORD)
        ]
        derived[key] = found
        return found


def _bounded(policies: Sequence[PolicyRecord]) -> msgspec.Raw:
    """Encode policies; omit messages if they would exceed the limit."""
    found = encode_policies(tuple(policies))
    if len(bytes(found)) <= JOURNAL_RECORD_BYTES_MAX:
        return found
    return encode_policies(
        tuple(
            msgspec.structs.replace(
                policy,
                rules=tuple(
                    msgspec.structs.replace(rule, message="") for rule in policy.rules
                ),
            )
            for policy in policies
        )
    )


def _count(
    records: Records,
    loop: asyncio.AbstractEventLoop,
    request: Request,
    audited: Sequence[PolicyResponse],
    seconds: float,
) -> None:
    if audited:
        # SAFETY: the metric page has one writer, the event loop's thread.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(
                records.audit, request, VALIDATE, audited, seconds
            )

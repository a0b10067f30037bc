"""Create UpdateRequests from the triggers that workers record, without losing any.

Room: leader. Takes: the journals of triggers, the API server. Gives: TriggerWriter,
whose thread writes. Next: the background pool watches UpdateRequests.
May touch: the journals, the API server through kube/apply.py, threads, the log.
Source: docs/pools.md 3; docs/behaviour/controllers 5.1.

A record is removed from its journal after all its UpdateRequests are stored. If this
process is killed, the next one writes some of them again under the same names. They are
due again, and processing them is idempotent. Every replica writes the UpdateRequests of
its own workers, without a Lease. A rejected record is retried after its own pauses, and
the records behind it are written meanwhile.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import msgspec

from kyverno_mp.errors import DependencyError, KubeConflict, KubeRefused, StateError
from kyverno_mp.kube.apply import Objects, key_of
from kyverno_mp.kube.rest import Client
from kyverno_mp.leader.triggers.left_out import change_unproved
from kyverno_mp.leader.triggers.rejections import Rejections
from kyverno_mp.limits import (
    TRIGGER_OBJECTS_BYTES_MAX,
    TRIGGER_WRITERS,
    TRIGGERS_AT_ONCE_MAX,
)
from kyverno_mp.queues.ahead import Ahead, Held
from kyverno_mp.queues.journal import JournalReader
from kyverno_mp.queues.record_pause import RecordPause
from kyverno_mp.queues.triggers import (
    LEFT_ROLE,
    TriggerRecord,
    Wanted,
    decode_trigger,
    lost_record,
)
from kyverno_mp.queues.update_requests import (
    RECORDED,
    UPDATE_REQUESTS,
    document_of,
    name_of,
    names_of,
    since_of,
)
from kyverno_mp.snapshot.bell import Bell
from kyverno_mp.telemetry.families import TRIGGERS, TRIGGERS_AGE, TRIGGERS_WAITING
from kyverno_mp.telemetry.record import Recorder
from kyverno_mp.telemetry.tally import Tally
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
_COUNT_S: Final = 1.0
"""The interval between two counts of the existing UpdateRequests."""
_AGAIN_S, _RETRY_S, _PAUSE_S_MAX = 0.02, 0.25, 15.0
_STOP_S: Final = 5.0
_RACES_MAX: Final = 5
WRITTEN: Final = "written"
COALESCED: Final = "coalesced"
GIVEN_UP: Final = "given_up"
_TOO_LARGE: Final = "kube.too_large"
_NEVER: Final = frozenset({"kube.invalid", "kube.refused", _TOO_LARGE})
"""Rejections of the content, for which a retry is pointless."""
_FORBIDDEN: Final = "kube.forbidden"
"""A webhook, a quota or a missing permission denies the request."""


class _End(NamedTuple):
    """How the attempt at one record ended."""

    error: DependencyError | None = None
    accepted: int = 0
    """Requests that the API server accepted."""


class TriggerWriter:
    """The thread that writes UpdateRequests."""

    def __init__(
        self,
        readers: Sequence[JournalReader],
        client: Client,
        namespace: str,
        threshold: Callable[[], int],
        monotonic_s: Callable[[], float] = time.monotonic,
        bell: Callable[[], Bell | None] = lambda: None,
    ) -> None:
        """``readers``: of triggers, and of policies that lost triggers.

        ``bell``: what workers ring. ``threshold``: UpdateRequests from which they wait.
        """
        self._readers = readers
        self._client = client
        self._objects = Objects(client)
        self._namespace = namespace
        self._threshold = threshold
        self._monotonic_s = monotonic_s
        self._pause = RecordPause(bell)
        self._thread = threading.Thread(target=self._run, name="triggers", daemon=True)
        self._pool = ThreadPoolExecutor(TRIGGER_WRITERS, "trigger-writer")
        self._failures = 0
        """Consecutive steps that failed, apart from rejections."""
        self._ahead: dict[int, Ahead] = {}
        self._rejections = Rejections(monotonic_s)
        self._room = 0
        self._counted_s = float("-inf")
        self.outcomes = Tally()
        """Counts of requests and records by outcome since the last ``count``."""
        self.oldest_ns = 0
        """The wall-clock time of the oldest pending record, 0 if none is pending."""
        self.waiting = 0
        """Pending records at the last read of the journals."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Write the pending records that the API server still accepts, and stop."""
        self._pause.stop()
        self._thread.join(timeout=_STOP_S)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def step(self) -> bool:
        """Write pending records; return False if some must be retried."""
        try:
            for ahead in self._journals():
                if records := ahead.due(TRIGGERS_AT_ONCE_MAX, self._rejections.is_due):
                    try:
                        self._write(records)
                    finally:
                        self._rejections.forget(o for o in records if o.is_finished)
                        ahead.remove()
        except DependencyError as error:
            _log.warning("cannot write UpdateRequests, will retry: %s", error)
            self._rejections.disturb()
            self._failures += 1
            return False
        except _Full:
            self._rejections.disturb()
            return False
        finally:
            self._look()
        self._failures = 0
        return not self.oldest_ns

    def _journals(self) -> list[Ahead]:
        """Return all journals, including those of new workers."""
        return [
            self._ahead.setdefault(id(journal), Ahead(journal))
            for reader in self._readers
            for journal in reader.journals()
        ]

    def _look(self) -> None:
        """Determine the number of pending records and the oldest one."""
        ahead = self._ahead.values()
        self.waiting = sum(source.waiting for source in ahead)
        times = [record.at_ns for source in ahead for record in source.pending()]
        self.oldest_ns = min(times, default=0)

    def count(self, recorder: Recorder) -> None:
        """Write the counts to the page; call it in the page's writer thread."""
        series = recorder.series(TRIGGERS)
        for labels, number in self.outcomes.drain().items():
            series.count(labels, float(number))
        recorder.series(TRIGGERS_WAITING).hold((), float(self.waiting))
        oldest_ns = self.oldest_ns
        age_s = max(0.0, (time.time_ns() - oldest_ns) / 1e9) if oldest_ns else 0.0
        recorder.series(TRIGGERS_AGE).hold((), round(age_s, 3))

    def _write(self, records: Sequence[Held]) -> None:
        """Write records concurrently, and finish those that are stored.

        Raises: DependencyError, except for a rejection; _Full.
        """
        read = [(record, self._decoded(record)) for record in records]
        lanes: dict[str, list[int]] = {}
        for number, (_, decoded) in enumerate(read):
            if decoded is not None:
                lanes.setdefault(_lane_of(decoded), []).append(number)
        self._wait_for_room()
        ends = [_End()] * len(read)

        def work(numbers: Sequence[int]) -> None:
            failed: DependencyError | None = None
            for number in numbers:
                decoded = read[number][1]
                if failed is None and decoded is not None:
                    ends[number] = self._stored(decoded)
                    error = ends[number].error
                    failed = None if _is_isolated(error) else error
                else:
                    ends[number] = _End(failed)

        list(self._pool.map(work, lanes.values()))
        self._rejections.accept(sum(end.accepted for end in ends))
        failed: DependencyError | None = None
        for (record, decoded), end in zip(read, ends, strict=True):
            if decoded is None:
                continue
            if end.error is None:
                record.finish()
            elif _is_isolated(end.error):
                self._reject(record, decoded, end.error)
            else:
                failed = failed or end.error
        if failed is not None:
            raise failed

    def _reject(
        self, record: Held, decoded: TriggerRecord, error: DependencyError
    ) -> None:
        """Keep a rejected record, or give it up if only it is rejected."""
        if not self._rejections:
            _log.warning("an UpdateRequest is rejected, will retry: %s", error)
        is_over = self._rejections.reject(record, names_of(decoded))
        if is_over and _is_refusal(error):
            self.outcomes.add((GIVEN_UP,))
            policies = sorted({part.policy for part in decoded.wanted})
            _log.error("UpdateRequests given up: %s: %s", ", ".join(policies), error)
            record.finish(gave_up=True)

    def _decoded(self, record: Held) -> TriggerRecord | None:
        try:
            decoded = decode_trigger(record.content)
        except StateError as error:
            _log.error("journal of triggers: %s", error.message)
            self.outcomes.add((GIVEN_UP,))
            record.finish(gave_up=True)
            return None
        record.at_ns = decoded.at_ns
        return decoded

    def _stored(self, decoded: TriggerRecord) -> _End:
        """Store the UpdateRequests of a record that are not stored yet."""
        rejected: DependencyError | None = None
        stored: list[str] = []
        for part in decoded.wanted:
            name = name_of(decoded, part)
            is_stored = self._rejections.is_stored(name, decoded.at_ns)
            if is_stored and not decoded.is_of_policy:
                continue
            try:
                self._store(decoded, part)
            except DependencyError as error:
                if not _is_isolated(error):
                    return _End(error, len(stored))
                rejected = rejected or error
            except Exception as error:  # noqa: BLE001 - one record must not stop others
                self.outcomes.add((GIVEN_UP,))
                # Log only the type, because the text can contain a value of an object.
                _log.error(
                    "internal error: no UpdateRequest written: %s", type(error).__name__
                )
            else:
                stored.append(name)
                self._rejections.store(name, decoded.at_ns)
        if rejected is not None:
            self._rejections.hold(names_of(decoded), stored, decoded.at_ns)
        return _End(rejected, len(stored))

    def _store(self, decoded: TriggerRecord, part: Wanted) -> None:
        """Store an UpdateRequest; if it is rejected, store one that syncs the policy.

        Raises: DependencyError; KubeRefused if both are rejected.
        """
        if decoded.role == LEFT_ROLE:
            return change_unproved(self._objects, part)
        try:
            _check_size(decoded, part)
            self._put(document_of(decoded, part, self._namespace))
        except KubeRefused as error:
            if not _is_refusal(error) or decoded.is_of_policy:
                raise
            lost = lost_record(part.policy, decoded.at_ns, part.type)
            self._store(lost, lost.wanted[0])
            self.outcomes.add((GIVEN_UP,))
            _log.error(
                "the API server rejects an UpdateRequest of policy %s: %s",
                part.policy,
                error.code,
            )

    def _put(self, document: Json) -> None:
        """Create a request, or update the existing one. Raises: DependencyError."""
        for _ in range(_RACES_MAX):
            try:
                self._objects.post(
                    UPDATE_REQUESTS, self._namespace, msgspec.json.encode(document)
                )
            except KubeConflict as error:
                if error.code != "kube.exists":
                    raise
            else:
                self.outcomes.add((WRITTEN,))
                return
            if self._mark(document):
                self.outcomes.add((COALESCED,))
                return
        raise KubeConflict("kube.conflict", "an UpdateRequest changes too often")

    def _mark(self, document: Json) -> bool:
        """Mark the request with this name as due; False if it is gone meanwhile.

        If the old version is being processed, its deletion spares the new version.
        """

        def edit(stored: Json) -> Json | None:
            metadata = stored["metadata"]
            if metadata.get("deletionTimestamp"):
                return None
            annotations = metadata.get("annotations") or {}
            new_annotations = document["metadata"]["annotations"]
            if int(annotations.get(RECORDED) or 0) > int(new_annotations[RECORDED]):
                # A later request updated it: it is due again, with newer content.
                new_annotations = {}
            else:
                stored["spec"] = document["spec"]
            metadata["annotations"] = {
                **annotations,
                **new_annotations,
                **since_of(annotations, document["metadata"]["annotations"]),
                _MARKED: str(time.time_ns()),
            }
            return stored

        key = key_of(document)
        changed = self._objects.change(UPDATE_REQUESTS, key, edit)
        return changed is not None and not changed["metadata"].get("deletionTimestamp")

    def _wait_for_room(self) -> None:
        """Raise _Full while too many requests exist."""
        now_s = self._monotonic_s()
        if now_s - self._counted_s >= _COUNT_S:
            path = UPDATE_REQUESTS.collection(self._namespace)
            page = self._client.get(path, [("limit", "1")])
            uncounted = (page.get("metadata") or {}).get("remainingItemCount") or 0
            self._room = self._threshold() - len(page.get("items") or ()) - uncounted
            self._counted_s = now_s
            if self._room <= 0:
                _log.warning(
                    "updateRequestThreshold is reached: triggers wait in the journal"
                )
        if self._room <= 0:
            raise _Full

    def _run(self) -> None:
        while not self._pause.is_last(self._pause_s()):
            self.step()
        self._rejections.retry_now()
        before = 0
        self.step()
        while self.waiting not in (0, before):
            before = self.waiting
            self.step()

    def _pause_s(self) -> float | None:
        if self._failures:
            return min(_PAUSE_S_MAX, _RETRY_S * 2.0 ** min(self._failures, 10))
        return _AGAIN_S if self.waiting else None  # nobody rings for them again


class _Full(Exception):
    """Raised if the maximum number of UpdateRequests exists."""


_MARKED: Final = "kyverno-mp.io/marked-at"


def _is_refusal(error: DependencyError | None) -> bool:
    """Return whether the API server rejects the content.

    K8S: another webhook or a ValidatingAdmissionPolicy causes the same status codes.
    """
    return error is not None and error.code in _NEVER


def _is_isolated(error: DependencyError | None) -> bool:
    """Return whether the requests of others may be accepted nevertheless."""
    return _is_refusal(error) or (error is not None and error.code == _FORBIDDEN)


def _check_size(decoded: TriggerRecord, part: Wanted) -> None:
    """Raise KubeRefused for objects that the API server cannot store."""
    if part.with_objects and len(decoded.objects) > TRIGGER_OBJECTS_BYTES_MAX:
        raise KubeRefused(_TOO_LARGE, "the objects are too large")


def _lane_of(decoded: TriggerRecord) -> str:
    """Return the key of a lane, whose records are written in order: one per trigger."""
    trigger = decoded.trigger
    who = decoded.who if trigger.is_nameless else trigger.name
    return f"{trigger.api_version}/{trigger.kind}/{trigger.namespace}/{who}"

"""Create UpdateRequests from the triggers that workers record, without losing any.

Room: leader. Takes: the journals of triggers, the API server. Gives: TriggerWriter,
whose thread writes. Next: the background pool watches UpdateRequests.
May touch: the journals, the API server through kube/apply.py, threads, the log.
Source: docs/pools.md 3; docs/behaviour/controllers 5.1.

A record is removed from its journal after all its UpdateRequests are stored. If this
process is killed, the next one writes some of them again under the same names. They are
marked as due again, and processing them is idempotent. Every replica writes the
UpdateRequests of its own workers, without a Lease.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Final

import msgspec

from kyverno_mp.errors import DependencyError, KubeConflict, KubeRefused, StateError
from kyverno_mp.kube.apply import Objects, key_of
from kyverno_mp.kube.rest import Client
from kyverno_mp.leader.triggers.document import (
    LOST_SINCE,
    RECORDED,
    UPDATE_REQUESTS,
    document_of,
)
from kyverno_mp.limits import (
    TRIGGER_OBJECTS_BYTES_MAX,
    TRIGGER_WRITERS,
    TRIGGERS_AT_ONCE_MAX,
)
from kyverno_mp.queues.journal import JournalReader, Record
from kyverno_mp.queues.triggers import (
    LOST_ROLE,
    TriggerRecord,
    Wanted,
    decode_trigger,
    lost_record,
)
from kyverno_mp.telemetry.families import TRIGGERS, TRIGGERS_AGE, TRIGGERS_WAITING
from kyverno_mp.telemetry.record import Recorder
from kyverno_mp.telemetry.tally import Tally
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
_POLL_S: Final = 0.02
_RETRY_S: Final = 0.25
_PAUSE_S_MAX: Final = 15.0
_COUNT_S: Final = 1.0
"""The interval between two counts of the existing UpdateRequests."""
_STOP_S: Final = 5.0
_RACES_MAX: Final = 5
WRITTEN: Final = "written"
COALESCED: Final = "coalesced"
GIVEN_UP: Final = "given_up"
_TOO_LARGE: Final = "kube.too_large"
_NEVER: Final = frozenset({"kube.invalid", "kube.refused", _TOO_LARGE})
"""Rejections of the content, for which a retry is pointless."""


class TriggerWriter:
    """The thread that writes UpdateRequests."""

    def __init__(
        self,
        readers: Sequence[JournalReader],
        client: Client,
        namespace: str,
        threshold: Callable[[], int],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``readers``: one for triggers, and one for policies that lost triggers.

        ``threshold`` returns the number of UpdateRequests from which records have to
        wait.
        """
        self._readers = readers
        self._client = client
        self._objects = Objects(client)
        self._namespace = namespace
        self._threshold = threshold
        self._monotonic_s = monotonic_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="triggers", daemon=True)
        self._pool = ThreadPoolExecutor(TRIGGER_WRITERS, "trigger-writer")
        self._failures = 0
        self._accepted = 0
        """Number of records whose requests were accepted since the first failure."""
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
        self._stopping.set()
        self._thread.join(timeout=_STOP_S)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def step(self) -> bool:
        """Write pending records; return False if some must be retried."""
        has_failed = False
        for records in chain.from_iterable(
            one.ahead(TRIGGERS_AT_ONCE_MAX) for one in self._readers
        ):
            self.waiting = sum(one.waiting for one in self._readers)
            try:
                self._write(records)
            except DependencyError as error:
                _log.warning("cannot write UpdateRequests, will retry: %s", error)
                has_failed = True
                if not _is_refusal(error):
                    break
            except _Full:
                return False
        if has_failed:
            self._failures += 1
            return False
        self._failures = self._accepted = self.waiting = self.oldest_ns = 0
        return True

    def count(self, recorder: Recorder) -> None:
        """Write the counts to the page; call it in the page's writer thread."""
        series = recorder.series(TRIGGERS)
        for labels, number in self.outcomes.drain().items():
            series.count(labels, float(number))
        recorder.series(TRIGGERS_WAITING).hold((), float(self.waiting))
        oldest_ns = self.oldest_ns
        age_s = max(0.0, (time.time_ns() - oldest_ns) / 1e9) if oldest_ns else 0.0
        recorder.series(TRIGGERS_AGE).hold((), round(age_s, 3))

    def _write(self, records: Sequence[Record]) -> None:
        """Write records concurrently, and remove those before the first failure.

        Raises: DependencyError, _Full.
        """
        read = [(one, self._decoded(one)) for one in records]
        lanes: dict[str, list[int]] = {}
        for number, (_, decoded) in enumerate(read):
            if decoded is not None:
                lanes.setdefault(_lane_of(decoded), []).append(number)
        self.oldest_ns = next((decoded.at_ns for _, decoded in read if decoded), 0)
        self._wait_for_room()
        ends: list[DependencyError | None] = [None] * len(read)

        def work(numbers: Sequence[int]) -> None:
            failed: DependencyError | None = None
            for number in numbers:
                decoded = read[number][1]
                if failed is None and decoded is not None:
                    ends[number] = self._stored(decoded)
                    failed = None if _is_refusal(ends[number]) else ends[number]
                else:
                    ends[number] = failed

        list(self._pool.map(work, lanes.values()))
        if self._failures:
            self._accepted += sum(
                decoded is not None and end is None
                for (_, decoded), end in zip(read, ends, strict=True)
            )
        for (record, decoded), end in zip(read, ends, strict=True):
            if decoded is None:
                record.give_up()
            elif _is_refusal(end) and self._accepted:
                # Since the first rejection, the API server accepted other requests.
                self.outcomes.add((GIVEN_UP,))
                record.give_up()
            elif end is not None:
                self.oldest_ns = decoded.at_ns
                raise end
            else:
                record.done()

    def _decoded(self, record: Record) -> TriggerRecord | None:
        try:
            return decode_trigger(record.content)
        except StateError as error:
            _log.error("journal of triggers: %s", error.message)
            self.outcomes.add((GIVEN_UP,))
            return None

    def _stored(self, decoded: TriggerRecord) -> DependencyError | None:
        """Store the UpdateRequests of a record; return an error that needs a retry."""
        for wanted in decoded.wanted:
            try:
                self._store(decoded, wanted)
            except DependencyError as error:
                return error
            except Exception as error:  # noqa: BLE001 - one record must not stop others
                self.outcomes.add((GIVEN_UP,))
                # Log only the type, because the text can contain a value of an object.
                _log.error(
                    "internal error: no UpdateRequest written: %s", type(error).__name__
                )
        return None

    def _store(self, decoded: TriggerRecord, wanted: Wanted) -> None:
        """Store an UpdateRequest; if it is rejected, store one that syncs the policy.

        Raises: DependencyError; KubeRefused if both are rejected.
        """
        try:
            _check_size(decoded, wanted)
            self._put(document_of(decoded, wanted, self._namespace))
        except KubeRefused as error:
            if not _is_refusal(error) or decoded.role == LOST_ROLE:
                raise
            _log.error(
                "the API server rejects an UpdateRequest of policy %s: %s",
                wanted.policy,
                error.code,
            )
            lost = lost_record(wanted.policy, decoded.at_ns, wanted.type)
            self._store(lost, lost.wanted[0])
            self.outcomes.add((GIVEN_UP,))

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

        If the old version is being processed, its deletion does not delete the new
        version.
        """

        def edit(found: Json) -> Json | None:
            metadata = found["metadata"]
            if metadata.get("deletionTimestamp"):
                return None
            annotations = metadata.get("annotations") or {}
            wanted = document["metadata"]["annotations"]
            if int(annotations.get(RECORDED) or 0) > int(wanted[RECORDED]):
                # A later request already updated it: it is due again, with the newer
                # content.
                wanted = {}
            else:
                found["spec"] = document["spec"]
            metadata["annotations"] = {
                **annotations,
                **wanted,
                **_since(annotations, document["metadata"]["annotations"]),
                _MARKED: _mark_of(),
            }
            return found

        key = key_of(document)
        found = self._objects.change(UPDATE_REQUESTS, key, edit)
        return found is not None and not found["metadata"].get("deletionTimestamp")

    def _wait_for_room(self) -> None:
        """Raise _Full while too many requests exist."""
        now_s = self._monotonic_s()
        if now_s - self._counted_s >= _COUNT_S:
            path = UPDATE_REQUESTS.collection(self._namespace)
            page = self._client.get(path, [("limit", "1")])
            left = (page.get("metadata") or {}).get("remainingItemCount") or 0
            self._room = self._threshold() - len(page.get("items") or ()) - left
            self._counted_s = now_s
            if self._room <= 0:
                _log.warning(
                    "updateRequestThreshold is reached: triggers wait in the journal"
                )
        if self._room <= 0:
            raise _Full

    def _run(self) -> None:
        while not self._stopping.wait(self._pause_s()):
            self.step()
        self.step()

    def _pause_s(self) -> float:
        if not self._failures:
            return _POLL_S
        return min(_PAUSE_S_MAX, _RETRY_S * 2.0 ** min(self._failures, 10))


class _Full(Exception):
    """Raised if the maximum number of UpdateRequests exists."""


_MARKED: Final = "kyverno-mp.io/marked-at"


def _mark_of() -> str:
    return str(time.time_ns())


def _is_refusal(error: DependencyError | None) -> bool:
    """Return whether the API server rejects the content.

    K8S: another webhook or a ValidatingAdmissionPolicy causes the same status codes.
    """
    return error is not None and error.code in _NEVER


def _check_size(decoded: TriggerRecord, wanted: Wanted) -> None:
    """Raise KubeRefused for objects that the API server cannot store."""
    if wanted.with_objects and len(decoded.objects) > TRIGGER_OBJECTS_BYTES_MAX:
        raise KubeRefused(_TOO_LARGE, "the objects are too large")


def _since(known: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """Return the time since when triggers are lost: the earlier of both times."""
    found = [int(one[LOST_SINCE]) for one in (known, new) if one.get(LOST_SINCE)]
    return {LOST_SINCE: str(min(found))} if found else {}


def _lane_of(decoded: TriggerRecord) -> str:
    """Return the key of a lane, whose records are written in order: one per trigger."""
    trigger = decoded.trigger
    who = decoded.who if trigger.is_nameless else trigger.name
    return f"{trigger.api_version}/{trigger.kind}/{trigger.namespace}/{who}"

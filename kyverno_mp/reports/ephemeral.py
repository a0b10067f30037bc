"""Read results of reviews from EphemeralReports, and remove merged results.

Room: reports. Takes: the API server, a function that merges the results for one object
into its report. Gives: ReviewResults, LiveSubjects. Next: reports/results.py defines
the format of these reports, leader/results/reports.py writes them. May touch: the API
server through kube/, the wall clock.
Source: docs/pools.md 4; docs/behaviour/controllers 6.6.

The lease holder calls ``step`` repeatedly. A report is deleted when all its results are
merged. Results that still wait for their object stay in it for the next lease holder.
Both writes have the version that was read as a precondition: a report with new results
is read again, and merging a result twice is harmless.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

import msgspec

from kyverno_mp.errors import (
    DependencyError,
    KubeConflict,
    KubeNotFound,
    KubeRefused,
)
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.kube.rest import Call, Client
from kyverno_mp.kube.watch import IDENTITY, WatchScope
from kyverno_mp.limits import (
    RESULT_MERGERS,
    RESULTS_JOINED_S_MAX,
    RESULTS_UNCLAIMED_S_MAX,
)
from kyverno_mp.reports.entries import Row, Subject
from kyverno_mp.reports.results import (
    ADMISSION,
    EPHEMERAL_REPORTS,
    SOURCE_LABEL,
    Result,
    ResultKey,
    Results,
    document_of,
    results_in,
    row_of_bytes,
)

_log = logging.getLogger(__name__)
_REMOVALS_MAX: Final = 3
"""Attempts to remove merged results from a report that changes all the time."""
_AGAIN_S: Final = 5.0
"""Pause before an unchanged report is checked again, because its results wait."""
_METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
MERGED: Final = "merged"
UNCLAIMED: Final = "unclaimed"
FORBIDDEN: Final = "forbidden"
Resolve = Callable[[Subject, float], Subject | None]
"""Returns the stored object with its uid, or None while it does not exist.

The second argument is the age of the newest result in seconds. Raises: KubeRefused if
its kind may not be read, DependencyError."""
Join = Callable[[Subject, list[Row]], "Future[bool] | None"]
"""Lets the pending scan of an object write its rows, too; None if there is no such
scan. The future is False if the rows have to be merged separately."""
Merge = Callable[[Subject, list[Row]], bool]
"""Merges rows into the report of an object; returns False if it has to be retried.

Several threads may call it. Raises: DependencyError."""


class _Held(msgspec.Struct, frozen=True):
    """One EphemeralReport at one version."""

    uid: str
    version: str
    results: Results


class _Joined(NamedTuple):
    """Results that the pending scan of their object writes, since ``at_ns``."""

    future: "Future[bool]"
    results: dict[ResultKey, Result]
    at_ns: int

    @property
    def is_written(self) -> bool:
        """Whether the scan has written the results."""
        return self.future.done() and self.future.result()

    def has_ended(self, now_ns: int) -> bool:
        """Return whether the scan has ended or takes too long."""
        first_ns = now_ns - RESULTS_JOINED_S_MAX * 10**9
        # The wall clock may jump.
        return self.future.done() or not first_ns < self.at_ns <= now_ns


def _join_nothing(_subject: Subject, _rows: list[Row]) -> None:
    """Merge all results separately."""


class ReviewResults:
    """Merges the results of reviews into reports; one thread calls ``step``."""

    def __init__(
        self,
        client: Client,
        objects: Objects,
        namespace: str,
        resolve: Resolve,
        count: Callable[[str], None] = lambda _outcome: None,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """``objects``: its writes check the lease. ``now_ns``: the wall clock.

        ``count``: called with the outcome of each object.
        """
        scope = WatchScope(
            resource=EPHEMERAL_REPORTS,
            namespace=namespace,
            label_selector=f"{SOURCE_LABEL}={ADMISSION}",
        )
        self.informer: Informer[_Held] = Informer(client, scope, _held)
        self._objects = objects
        self._resolve = resolve
        self._count = count
        self._now_ns = now_ns
        self._mergers = ThreadPoolExecutor(RESULT_MERGERS, "merge-results")
        self._joined: dict[Subject, _Joined] = {}
        """Results that stay in their EphemeralReports until their scans end."""
        self._seen: dict[Key, tuple[set[str], int]] = {}
        """For each report, the versions last read and written here, and the time."""

    def start(self) -> None:
        """Start the watch."""
        self.informer.start()

    def stop(self) -> None:
        """Stop the watch, and wait for running merges."""
        self.informer.stop()
        self._mergers.shutdown(wait=True, cancel_futures=True)

    def step(self, merge: Merge, join: Join = _join_nothing) -> bool:
        """Merge new results; return False if some have to be looked at again soon.

        It does not wait for scans: one slow scan would delay the results of all other
        objects. Raises: LeaseLost.
        """
        ended = self._ended()
        held = self._due(ended)
        if not held:
            return not self._joined
        newest = Results()
        for one in held.values():
            newest.add_all(one.results)
        claimed, left = self._claim(newest)

        rows: dict[Subject, list[Row]] = {}
        for subject, keys in claimed.items():
            found = {key: newest.by_key[key] for key in keys}
            if subject in self._joined or self._has_joined(
                subject, found, ended.get(subject), join
            ):
                left.update(keys)
            else:
                rows[subject] = _rows(found.values())
        unmerged = self._merge_all(rows, merge)
        for subject in rows:
            if subject in unmerged:
                left.update(claimed[subject])
            else:
                self._count(MERGED)
        now_ns = self._now_ns()
        for key, one in held.items():
            self._seen[key] = {one.version, self._remove(key, one, left)}, now_ns
        return not unmerged and not self._joined

    def _has_joined(
        self,
        subject: Subject,
        found: dict[ResultKey, Result],
        ended: _Joined | None,
        join: Join,
    ) -> bool:
        """Let a pending scan write results; return False if no scan is pending.

        ``found``: results that a scan has written are removed from it.
        """
        if ended is not None:
            if not ended.is_written:
                # It failed or took too long, and the next one may do so, too.
                return False
            for key, one in ended.results.items():
                if found.get(key) == one:
                    del found[key]
        future = join(subject, _rows(found.values())) if found else None
        if future is not None:
            self._joined[subject] = _Joined(future, found, self._now_ns())
        return future is not None

    def _ended(self) -> dict[Subject, _Joined]:
        """Return and forget the results whose scans have ended or take too long.

        A scan may write the rows even later; merging them twice is harmless.
        """
        now_ns = self._now_ns()
        known = self._joined.items()
        ended = {subject: one for subject, one in known if one.has_ended(now_ns)}
        for subject in ended:
            del self._joined[subject]
        return ended

    def _merge_all(self, rows: dict[Subject, list[Row]], merge: Merge) -> set[Subject]:
        """Merge all rows; return the objects whose rows have to be merged again.

        Raises: LeaseLost.
        """
        unmerged: set[Subject] = set()

        def merge_one(subject: Subject) -> None:
            try:
                is_merged = merge(subject, rows[subject])
            except DependencyError as error:
                _log.warning("results of reviews wait: %s", error)
                is_merged = False
            if not is_merged:
                unmerged.add(subject)

        list(self._mergers.map(merge_one, [one for one in rows if rows[one]]))
        return unmerged

    def _due(self, ended: Mapping[Subject, _Joined]) -> dict[Key, _Held]:
        """Return the reports that changed, or whose results have waited for a while.

        ``ended``: results that a scan no longer holds back.
        """
        found = self.informer.snapshot()
        self._seen = {key: seen for key, seen in self._seen.items() if key in found}
        before_ns = self._now_ns() - int(_AGAIN_S * 1e9)
        freed = {key for one in ended.values() for key in one.results}
        return {
            key: one
            for key, one in found.items()
            if key not in self._seen
            or one.version not in self._seen[key][0]
            or not self._seen[key][1] > before_ns
            or not freed.isdisjoint(one.results.by_key)
        }

    def _claim(
        self, newest: Results
    ) -> tuple[dict[Subject, list[ResultKey]], set[ResultKey]]:
        """Return the results by stored object, and the results that have to wait.

        One object may occur twice: before it has a uid, and after.
        """
        claimed: dict[Subject, list[ResultKey]] = {}
        left: set[ResultKey] = set()
        by_subject: dict[Subject, list[ResultKey]] = {}
        for key in newest.by_key:
            by_subject.setdefault(key[0], []).append(key)
        for subject, keys in by_subject.items():
            age_ns = self._now_ns() - max(newest.by_key[key].at_ns for key in keys)
            try:
                stored = self._resolve(subject, age_ns / 1e9)
            except KubeRefused as error:
                # KYVERNO: these results are never merged (6.6).
                _log.warning("discarding results of %s: %s", subject.kind, error)
                self._count(FORBIDDEN)
                continue
            except DependencyError as error:
                _log.warning("results of reviews wait: %s", error)
                left.update(keys)
                continue
            if stored is not None:
                claimed.setdefault(stored, []).extend(keys)
            elif age_ns < RESULTS_UNCLAIMED_S_MAX * 10**9:
                # The object may still be created.
                left.update(keys)
            else:
                self._count(UNCLAIMED)
        return claimed, left

    def _remove(self, key: Key, held: _Held, left: set[ResultKey]) -> str:
        """Remove the merged results from a report; return its version.

        If the report has changed since, it is read: a leader that adds results every
        second would otherwise win all the time, and the report would become full.
        """
        merged = {
            result_key: found
            for result_key, found in held.results.by_key.items()
            if result_key not in left
        }
        newest: _Held | None = held
        try:
            for _ in range(_REMOVALS_MAX):
                if newest is None:
                    break
                try:
                    version = self._reduce(key, newest, merged)
                except KubeConflict:
                    newest = self._read(key)
                else:
                    # New results in a report that was read are not merged yet.
                    return version if newest is held else held.version
        except KubeNotFound:
            pass
        except DependencyError as error:
            # The results will be merged again, which changes nothing.
            _log.warning("merged results cannot be removed: %s", error)
        return held.version

    def _reduce(self, key: Key, held: _Held, merged: dict[ResultKey, Result]) -> str:
        """Delete a report, or keep in it what is not merged; return its version.

        Raises: DependencyError; KubeConflict if the report has changed.
        """
        kept = Results(held.results.turn)
        for result_key, found in held.results.by_key.items():
            known = merged.get(result_key)
            # Times are stored in ticks, so a newer result can have an equal time.
            if known is None or (known != found and known.at_ns <= found.at_ns):
                kept.put(result_key, found)
        if len(kept) == len(held.results):
            return held.version
        namespace, name = key
        if not len(kept):
            self._objects.delete(
                EPHEMERAL_REPORTS, key, held.uid, resource_version=held.version
            )
            return held.version
        document = document_of(kept, name, namespace)
        document["metadata"]["resourceVersion"] = held.version
        stored = self._objects.replace(EPHEMERAL_REPORTS, document)
        return str(stored["metadata"]["resourceVersion"])

    def _read(self, key: Key) -> _Held | None:
        """Read a report; None if it does not exist. Raises: DependencyError."""
        found = self._objects.find(EPHEMERAL_REPORTS, key)
        return None if found is None else _held(msgspec.Raw(msgspec.json.encode(found)))


def _held(raw: msgspec.Raw) -> _Held | None:
    """Decode a report; return None for one of upstream's."""
    results = results_in(raw)
    if results is None:
        return None
    metadata = IDENTITY.decode(raw).metadata
    return _Held(metadata.uid, metadata.resource_version, results)


def _rows(found: Iterable[Result]) -> list[Row]:
    """Return the rows; of several for the same rule, the newest."""
    newest: dict[tuple[str, ...], Row] = {}
    for one in sorted(found, key=lambda result: result.at_ns):
        row = row_of_bytes(one)
        newest[row.merge_key] = row
    return list(newest.values())


class LiveSubjects:
    """Resolves subjects by reading the metadata of their objects."""

    def __init__(
        self, client: Client, resource_of: Callable[[str, str], Resource | None]
    ) -> None:
        """``resource_of``: returns the resource of a kind, None if it is not served."""
        self._client = client
        self._resource_of = resource_of

    def __call__(self, subject: Subject) -> Subject | None:
        """Return the stored object, or None if it does not exist.

        An object that was created again with the same name is a different object.
        Raises: DependencyError.
        """
        resource = self._resource_of(subject.api_version, subject.kind)
        if resource is None or not subject.name:
            return None
        path = resource.object((subject.namespace, subject.name))
        try:
            body = self._client.call(Call(method="GET", path=path, accept=_METADATA))
        except KubeNotFound:
            return None
        uid = IDENTITY.decode(body).metadata.uid
        if not uid or (subject.uid and subject.uid != uid):
            return None
        return msgspec.structs.replace(subject, uid=uid)

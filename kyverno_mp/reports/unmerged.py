"""Know the results in EphemeralReports that are not merged yet, and remove merged ones.

Room: reports. Takes: the watch of EphemeralReports, the API server. Gives:
UnmergedReports. Next: reports/ephemeral.py merges the results. May touch: the API
server through kube/.
Source: docs/pools.md 4.

Both writes, of a smaller report and its deletion, have the version that was read as a
precondition. What this process has written counts before the watch delivers it. If a
write fails, the results count as merged nevertheless, and only the write is repeated.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from kyverno_mp.errors import DependencyError, KubeConflict, KubeNotFound
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.resource import Key
from kyverno_mp.kube.watch import IDENTITY
from kyverno_mp.results.newest import (
    EPHEMERAL_REPORTS,
    Result,
    ResultKey,
    Results,
    document_of,
    results_in,
)

_log = logging.getLogger(__name__)
_REMOVALS_MAX: Final = 3
"""Attempts to remove merged results from a report that changes all the time."""
_AGAIN_S: Final = 5
_AGAIN_S_MAX: Final = 60
"""Pause before a failed write is repeated; it doubles with each failure."""
_SECOND_NS: Final = 10**9


class Report(msgspec.Struct, frozen=True):
    """One EphemeralReport at one version."""

    uid: str
    version: str
    results: Results


def report_of(raw: msgspec.Raw) -> Report | None:
    """Decode a report; return None for one of upstream's."""
    results = results_in(raw)
    if results is None:
        return None
    metadata = IDENTITY.decode(raw).metadata
    return Report(metadata.uid, metadata.resource_version, results)


class Backlog(NamedTuple):
    """What is not merged yet. ``oldest_ns``: wall-clock time, 0 = nothing."""

    reports: int = 0
    results: int = 0
    oldest_ns: int = 0


@dataclass(slots=True)
class _State:
    """The newest known version of a report, and its results that are merged."""

    report: Report
    merged: dict[ResultKey, Result] = field(default_factory=dict)
    failures: int = 0
    again_ns: int = 0

    def unmerged(self) -> Iterable[tuple[ResultKey, Result]]:
        """Yield the results that are not merged."""
        for key, result in self.report.results.by_key.items():
            merged = self.merged.get(key)
            # Times are stored in ticks, so a newer result can have an equal time.
            if merged is None or (merged != result and merged.at_ns <= result.at_ns):
                yield key, result

    @property
    def newest_ns(self) -> int:
        """The time of the newest result."""
        return max(
            (entry.at_ns for entry in self.report.results.by_key.values()), default=0
        )


class UnmergedReports:
    """The EphemeralReports without what was merged; use it from one thread."""

    def __init__(
        self, informer: Informer[Report], objects: Objects, now_ns: Callable[[], int]
    ) -> None:
        """``objects``: its writes check the lease."""
        self._informer = informer
        self._objects = objects
        self._now_ns = now_ns
        self._states: dict[Key, _State] = {}
        self.problem = ""
        """The error of the last write, "" if it succeeded."""

    def refresh(self) -> None:
        """Take over changes that the watch has received; repeat failed writes.

        Raises: LeaseLost.
        """
        reports = self._informer.snapshot()
        for key in self._states.keys() - reports.keys():
            del self._states[key]
        for key, report in reports.items():
            state = self._states.get(key)
            if state is None:
                self._states[key] = _State(report)
            elif _is_newer(report.version, state.report.version):
                state.report = report
        now_ns = self._now_ns()
        for key, state in self._states.items():
            if state.merged and not now_ns < state.again_ns:
                self._remove(key, state)
        if not any(state.merged for state in self._states.values()):
            self.problem = ""

    def newest(self) -> dict[ResultKey, Result]:
        """Return the newest unmerged result of each rule and subject.

        Reports that have not changed for the longest time come first: those of
        replicas that are gone.
        """
        newest: dict[ResultKey, Result] = {}
        for state in sorted(
            self._states.values(), key=lambda unmerged: unmerged.newest_ns
        ):
            for key, result in state.unmerged():
                entry = newest.get(key)
                if entry is None or entry.at_ns <= result.at_ns:
                    newest[key] = result
        return newest

    def remove(
        self, merged: Collection[ResultKey], newest: Mapping[ResultKey, Result]
    ) -> None:
        """Remove results from the reports. ``newest``: as returned by ``newest``.

        Raises: LeaseLost.
        """
        for key, state in self._states.items():
            removed = {
                name: result
                for name, result in state.unmerged()
                if name in merged and result.at_ns <= newest[name].at_ns
            }
            if removed:
                state.merged.update(removed)
                self._remove(key, state)

    def backlog(self) -> Backlog:
        """Return what is not merged yet."""
        times = [
            result.at_ns
            for state in self._states.values()
            for _, result in state.unmerged()
        ]
        reports = sum(
            1 for unmerged in self._states.values() if len(unmerged.report.results)
        )
        return Backlog(reports, len(times), min(times, default=0))

    def _remove(self, key: Key, state: _State) -> None:
        """Write a report without the merged results, or delete it.

        If the report has changed since, it is read: a leader that adds results every
        second would otherwise win all the time, and the report would become full.
        """
        try:
            for _ in range(_REMOVALS_MAX):
                try:
                    self._reduce(key, state)
                except KubeConflict:
                    self._read(key, state)
                else:
                    break
        except KubeNotFound:
            _empty(state)
        except DependencyError as error:
            _log.warning("merged results cannot be removed: %s", error)
            self.problem = error.message
            pause_s = min(_AGAIN_S_MAX, _AGAIN_S * 2 ** min(state.failures, 10))
            state.failures += 1
            state.again_ns = self._now_ns() + pause_s * _SECOND_NS
            return
        state.failures = state.again_ns = 0

    def _reduce(self, key: Key, state: _State) -> None:
        """Write what is left of a report.

        Raises: DependencyError; KubeConflict if the report has changed.
        """
        report = state.report
        remaining = Results(report.results.turn)
        for result_key, result in state.unmerged():
            remaining.put(result_key, result)
        if not len(remaining) and len(report.results):
            self._objects.delete(
                EPHEMERAL_REPORTS, key, report.uid, resource_version=report.version
            )
            _empty(state)
        elif len(remaining) < len(report.results):
            namespace, name = key
            document = document_of(remaining, name, namespace)
            document["metadata"]["resourceVersion"] = report.version
            stored = self._objects.replace(EPHEMERAL_REPORTS, document)
            version = str(stored["metadata"]["resourceVersion"])
            state.report = Report(report.uid, version, remaining)
        state.merged.clear()

    def _read(self, key: Key, state: _State) -> None:
        """Read a report again. Raises: DependencyError."""
        stored = self._objects.find(EPHEMERAL_REPORTS, key)
        raw = None if stored is None else msgspec.Raw(msgspec.json.encode(stored))
        report = None if raw is None else report_of(raw)
        if report is None:
            _empty(state)
        else:
            state.report = report


def _empty(state: _State) -> None:
    """Note that a report is deleted; the watch may deliver its last version again."""
    state.report = Report(state.report.uid, state.report.version, Results())
    state.merged.clear()


def _is_newer(version: str, version_before: str) -> bool:
    """K8S: resource versions of one resource can be compared as numbers (KEP-5504)."""
    if version.isdecimal() and version_before.isdecimal():
        return int(version) > int(version_before)
    return version != version_before

"""Keep unmerged results in two EphemeralReports.

Room: leader. Takes: Results, the API server. Gives: EphemeralPair.
Next: leader/results/writer.py, whose thread calls it.
May touch: the API server through kube/apply.py. Source: docs/pools.md 4.

New results are added to one of the two reports. The reports pool merges a report and
deletes it, or keeps in it the results that still wait for their object. Without a
running pool the report grows. When it is full, the other report replaces it, and the
results in that report, the oldest ones, are dropped. So the newest results that fit
into one report are never lost. Every write has the version that was read as its
precondition. Results that the pool removed are therefore not restored, and results of
this replica's previous process stay.

There is a fixed number of pairs, and a replica's identity selects one. Pods come and
go, and without a running pool the reports of those that are gone would add up without a
bound. A later replica continues the pair of an earlier one, and two can share one.
"""

import hashlib
import logging
from dataclasses import dataclass, field
from typing import Final

import msgspec

from kyverno_mp.errors import KubeConflict, KubeNotFound
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.resource import Key
from kyverno_mp.kube.rest import Client
from kyverno_mp.limits import EPHEMERAL_REPORT_BYTES_MAX, EPHEMERAL_REPORT_PAIRS
from kyverno_mp.results.newest import (
    EPHEMERAL_REPORTS,
    Results,
    document_of,
    results_of,
)
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
_RACES_MAX: Final = 5


@dataclass(slots=True)
class _Report:
    """One stored report; ``version`` is empty if it does not exist."""

    name: str
    version: str = ""
    results: Results = field(default_factory=Results)

    def empty(self) -> None:
        """Note that it does not exist any more; its turn stays."""
        self.version, self.results = "", Results(self.results.turn)


class EphemeralPair:
    """The two reports; use it from one thread only."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        identity: str,
        bytes_max: int = EPHEMERAL_REPORT_BYTES_MAX,
    ) -> None:
        """``identity`` is the replica's; it keeps its pair across a restart."""
        self._objects = Objects(client)
        self._namespace = namespace
        self._bytes_max = bytes_max
        digest = hashlib.sha256(identity.encode()).digest()
        slot = int.from_bytes(digest) % EPHEMERAL_REPORT_PAIRS
        self._pair = [_Report(f"kyverno-mp-{slot}-{end}") for end in "ab"]
        self._current = 0
        self._is_known = False
        """Whether the reports were read since this process started."""

    @property
    def size_bytes(self) -> int:
        """An upper bound for the size of the report that takes new results."""
        return self._pair[self._current].results.size_bytes

    def store(self, results: Results) -> int:
        """Store results; return how many older ones are dropped for lack of room.

        Repeating the call has no further effect. Raises: DependencyError.
        """
        if not self._is_known:
            self._read_both()
        for race in range(_RACES_MAX):
            current = self._pair[self._current]
            try:
                return self._store(results)
            except KubeNotFound:
                # The pool has merged and deleted it.
                current.empty()
            except KubeConflict:
                # The pool has merged a part, or else another replica writes them, too.
                if race:
                    self._read_both()
                else:
                    self._read(current)
        return self._store(results)

    def _store(self, results: Results) -> int:
        """Raises: KubeConflict and KubeNotFound if a report has changed."""
        current = self._pair[self._current]
        if current.version and self._is_full_with(current, results):
            # It may be merged already; only the API server can tell.
            self._read(current)
        if current.version and self._is_full_with(current, results):
            return self._begin_other(results)
        merged = _together(current.results, results)
        document = document_of(merged, current.name, self._namespace)
        if current.version:
            document["metadata"]["resourceVersion"] = current.version
            stored = self._objects.replace(EPHEMERAL_REPORTS, document)
        else:
            stored = self._objects.create(EPHEMERAL_REPORTS, document)
        current.version, current.results = _version_of(stored), merged
        return 0

    def forget(self) -> None:
        """Read the reports again before the next write."""
        self._is_known = False

    def _is_full_with(self, report: _Report, results: Results) -> bool:
        if report.results.size_bytes + results.size_bytes <= self._bytes_max:
            return False
        # Many equal results take far less than the estimate.
        together = _together(report.results, results)
        document = document_of(together, report.name, self._namespace)
        return len(msgspec.json.encode(document)) > self._bytes_max

    def _begin_other(self, results: Results) -> int:
        """Replace the other report; return how many of its results are lost."""
        full = self._pair[self._current]
        other_report = self._pair[1 - self._current]
        next_results = Results(full.results.turn + 1)
        next_results.add_all(results)
        # SAFETY: read and replaced at one version, so a report that was merged
        # meanwhile is not counted as lost.
        self._read(other_report)
        if other_report.results.turn > full.results.turn:
            message = f"another replica has begun {other_report.name}"
            raise KubeConflict("kube.conflict", message)
        lost = other_report.results.by_key.keys() - full.results.by_key.keys()
        lost -= results.by_key.keys()
        document = document_of(next_results, other_report.name, self._namespace)
        if other_report.version:
            document["metadata"]["resourceVersion"] = other_report.version
            stored = self._objects.replace(EPHEMERAL_REPORTS, document)
        else:
            stored = self._objects.create(EPHEMERAL_REPORTS, document)
        other_report.version, other_report.results = _version_of(stored), next_results
        self._current = 1 - self._current
        return len(lost)

    def _read_both(self) -> None:
        """Read what the previous process or another replica has stored."""
        for report in self._pair:
            self._read(report)
        first, second = (report.results.turn for report in self._pair)
        self._current = int(second > first)
        self._is_known = True

    def _read(self, report: _Report) -> None:
        raw = self._objects.find(EPHEMERAL_REPORTS, self._key(report))
        report.version, report.results = "", Results()
        if raw is None:
            return
        report.version = _version_of(raw)
        try:
            report.results = results_of(raw) or Results()
        except msgspec.ValidationError as error:
            # The next write replaces it.
            _log.error("%s is not a report of kyverno-mp: %s", report.name, error)

    def _key(self, report: _Report) -> Key:
        return self._namespace, report.name


def _together(stored: Results, new: Results) -> Results:
    results = Results(stored.turn)
    results.add_all(stored)
    results.add_all(new)
    return results


def _version_of(stored: Json) -> str:
    return str(stored["metadata"].get("resourceVersion") or "")

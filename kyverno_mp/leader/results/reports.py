"""Hold the results that nobody has merged yet in two EphemeralReports of this replica.

Room: leader. Takes: Results, the API server. Gives: EphemeralPair. Next:
leader/results/writer.py, whose thread calls it. May touch: the API server through
kube/apply.py.
Source: docs/pools.md 4.

New results go into one of the two reports. The reports pool merges a report and
deletes it, or leaves in it what still waits for its object. While nobody does, the
report grows; when it is full, the other one takes its place, and what was in that one
is given up: the oldest results. So the newest that fit into one report are never lost.

Every write has the version that was read as its precondition: what the pool removed
meanwhile does not come back, and what this replica's predecessor wrote stays.
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
from kyverno_mp.limits import EPHEMERAL_REPORT_BYTES_MAX
from kyverno_mp.reports.results import (
    EPHEMERAL_REPORTS,
    Results,
    document_of,
    results_of,
)
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
_RACES_MAX: Final = 5
_NAME_CHARACTERS: Final = 16


@dataclass(slots=True)
class _Report:
    """One report, as it is stored. ``version`` "": it does not exist."""

    name: str
    version: str = ""
    results: Results = field(default_factory=Results)


class EphemeralPair:
    """The two reports; for one thread."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        identity: str,
        bytes_max: int = EPHEMERAL_REPORT_BYTES_MAX,
    ) -> None:
        """``identity``: of this replica; it keeps its reports over a restart."""
        self._objects = Objects(client)
        self._namespace = namespace
        self._bytes_max = bytes_max
        digest = hashlib.sha256(identity.encode()).hexdigest()[:_NAME_CHARACTERS]
        self._pair = [_Report(f"kyverno-mp-{digest}-{end}") for end in "ab"]
        self._current = 0
        self._is_known = False
        """The reports were read since this process started."""

    @property
    def size_bytes(self) -> int:
        """The size of the report that takes new results, at most."""
        return self._pair[self._current].results.size_bytes

    def store(self, new: Results) -> int:
        """Store results; return how many older ones are given up for lack of room.

        Repeating it has no further effect. Raises: DependencyError.
        """
        if not self._is_known:
            self._read_both()
        current = self._pair[self._current]
        if current.version and self._is_full_with(current, new):
            # It may be merged already; only the API server knows.
            self._read(current)
        if current.version and self._is_full_with(current, new):
            return self._begin_other(new)
        self._put(current, new)
        return 0

    def forget(self) -> None:
        """Read the reports again before the next write."""
        self._is_known = False

    def _is_full_with(self, report: _Report, new: Results) -> bool:
        if report.results.size_bytes + new.size_bytes <= self._bytes_max:
            return False
        # Equal results take far less than the estimate.
        together = _together(report.results, new)
        document = document_of(together, report.name, self._namespace)
        return len(msgspec.json.encode(document)) > self._bytes_max

    def _begin_other(self, new: Results) -> int:
        """Replace the other report; return how many of its results are lost by that."""
        full = self._pair[self._current]
        other = self._pair[1 - self._current]
        wanted = Results(full.results.turn + 1)
        wanted.add_all(new)
        # SAFETY: read and replaced at one version, so a report that was merged
        # meanwhile is not counted as lost.
        self._read(other)
        lost = other.results.by_key.keys() - full.results.by_key.keys()
        lost -= new.by_key.keys()
        document = document_of(wanted, other.name, self._namespace)
        if other.version:
            document["metadata"]["resourceVersion"] = other.version
            stored = self._objects.replace(EPHEMERAL_REPORTS, document)
        else:
            stored = self._objects.create(EPHEMERAL_REPORTS, document)
        other.version, other.results = _version_of(stored), wanted
        self._current = 1 - self._current
        return len(lost)

    def _put(self, report: _Report, new: Results) -> None:
        """Add results to a report, which others may change at the same time."""
        for _ in range(_RACES_MAX):
            wanted = _together(report.results, new)
            document = document_of(wanted, report.name, self._namespace)
            try:
                if report.version:
                    document["metadata"]["resourceVersion"] = report.version
                    stored = self._objects.replace(EPHEMERAL_REPORTS, document)
                else:
                    stored = self._objects.create(EPHEMERAL_REPORTS, document)
            except KubeNotFound:
                if not report.version:
                    # The namespace or the kind is gone.
                    raise
                # All that was in it is merged.
                report.version, report.results = "", Results(report.results.turn)
            except KubeConflict:
                self._read(report)
            else:
                report.version, report.results = _version_of(stored), wanted
                return
        raise KubeConflict("kube.conflict", f"{report.name} comes and goes")

    def _read_both(self) -> None:
        """Find the reports of this replica's former process."""
        for report in self._pair:
            self._read(report)
        first, second = (report.results.turn for report in self._pair)
        self._current = int(second > first)
        self._is_known = True

    def _read(self, report: _Report) -> None:
        found = self._objects.find(EPHEMERAL_REPORTS, self._key(report))
        report.version, report.results = "", Results()
        if found is None:
            return
        report.version = _version_of(found)
        try:
            report.results = results_of(found) or Results()
        except msgspec.ValidationError as error:
            # The next write replaces it.
            _log.error("%s is not a report of kyverno-mp: %s", report.name, error)

    def _key(self, report: _Report) -> Key:
        return self._namespace, report.name


def _together(known: Results, new: Results) -> Results:
    found = Results(known.turn)
    found.add_all(known)
    found.add_all(new)
    return found


def _version_of(stored: Json) -> str:
    return str(stored["metadata"].get("resourceVersion") or "")

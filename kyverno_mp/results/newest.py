"""Keep the newest results by subject and rule, and encode them in EphemeralReports.

Room: results. Takes: records of reviews, or the JSON of an EphemeralReport. Gives:
Results, results_of, document_of. Next: leader/results/writer.py writes such reports,
reports/ephemeral.py reads them.
Source: docs/behaviour/controllers 1.6, 6.2, 6.6; docs/pools.md 4.

One EphemeralReport contains the results of many reviews, for subjects in all
namespaces:

    metadata: {name: kyverno-mp-..., namespace: kyverno, annotations:
               {kyverno-mp.io/results: "1", kyverno-mp.io/turn: "0"}}
    spec:
      results:
      - policy: p
        rule: r
        result: fail
        message: ...
        timestamp: {seconds: 1700000000, nanos: 100000000}
        resources: [{kind: Pod, name: a, ...}, {kind: Pod, name: b, ...}]

Equal results of the same tenth of a second share an entry: 150 bytes for another
subject, instead of 450.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from kyverno_mp.kube.resource import Resource
from kyverno_mp.results.entries import ROW, Row, Subject, Timestamp, summary_of
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.records import RecordType

EPHEMERAL_REPORTS: Final = Resource(
    group="reports.kyverno.io",
    version="v1",
    plural="ephemeralreports",
    kind="EphemeralReport",
)
FORMAT: Final = "kyverno-mp.io/results"
"""Annotation: the report has the format defined here; reports without it are
upstream's."""
VERSION: Final = "1"
TURN: Final = "kyverno-mp.io/turn"
"""Annotation: the number of times that its replica has switched between its two
reports."""
SOURCE_LABEL: Final = "audit.kyverno.io/source"
ADMISSION: Final = "admission"
_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
_TICK_NS: Final = 100_000_000
_SECOND_NS: Final = 1_000_000_000
_SUBJECT_BYTES: Final = 100
_ENTRY_BYTES: Final = 90
"""Bytes that JSON adds to the strings of a subject, and of an entry."""
_NO_OWNER: Final = {"apiVersion": "", "kind": "", "name": "", "uid": ""}
"""KYVERNO: the schema requires an owner, and upstream leaves it empty (1.6)."""

ResultKey = tuple[Subject, tuple[str, ...]]
"""A subject and the merge key of a row."""


class Result(NamedTuple):
    """The newest result of one rule for one subject. ``row``: without times."""

    at_ns: int
    row: bytes


class Results:
    """Results by subject and rule; a newer one replaces an older one.

    Equal rows share their bytes, so a result takes about 300 bytes.
    """

    def __init__(self, turn: int = 0) -> None:
        """``turn``: of a replica's two reports, the newer one has the higher turn."""
        self.turn = turn
        self.by_key: dict[ResultKey, Result] = {}
        self._rows: dict[bytes, bytes] = {}
        self.size_bytes = 0
        """Maximum size of the entries in an EphemeralReport."""

    def __len__(self) -> int:
        return len(self.by_key)

    def add(self, at_ns: int, subject: Subject, row: Row) -> None:
        """Add a result, unless a newer one is known."""
        content = msgspec.json.encode(
            msgspec.structs.replace(row, timestamp=None, resources=())
        )
        key = subject, row.merge_key
        self.put(key, Result(at_ns, self._rows.setdefault(content, content)))

    def add_all(self, results: "Results") -> None:
        """Add the results of another instance."""
        for key, entry in results.by_key.items():
            shared = self._rows.setdefault(entry.row, entry.row)
            self.put(key, Result(entry.at_ns, shared))

    def entries(self) -> list[dict[str, Any]]:
        """Return the entries of an EphemeralReport, in a fixed order."""
        groups: dict[tuple[bytes, int], list[Subject]] = {}
        for (subject, _), entry in self.by_key.items():
            group = entry.row, entry.at_ns // _TICK_NS
            groups.setdefault(group, []).append(subject)
        return [
            {
                **msgspec.json.decode(row),
                "timestamp": _time_of(tick * _TICK_NS),
                "resources": subjects,
            }
            for (row, tick), subjects in sorted(groups.items(), key=_by_time)
        ]

    def put(self, key: ResultKey, result: Result) -> None:
        """Add a result by its key, unless a newer one is known."""
        entry = self.by_key.get(key)
        if entry is not None and entry.at_ns > result.at_ns:
            return
        if entry is not None:
            self.size_bytes -= _size_of(key, entry)
        self.by_key[key] = result
        self.size_bytes += _size_of(key, result)


def _by_time(group: tuple[tuple[bytes, int], list[Subject]]) -> tuple[int, bytes]:
    (row, tick), _ = group
    return tick, row


def _time_of(at_ns: int) -> Timestamp:
    return Timestamp(at_ns // _SECOND_NS, at_ns % _SECOND_NS)


def _size_of(key: ResultKey, result: Result) -> int:
    subject = key[0]
    names = (subject.api_version, subject.kind, subject.namespace, subject.name)
    name_bytes = sum(len(name.encode()) for name in names) + len(subject.uid)
    return len(result.row) + _ENTRY_BYTES + name_bytes + _SUBJECT_BYTES


def document_of(results: Results, name: str, namespace: str) -> dict[str, Any]:
    """Return an EphemeralReport."""
    entries = results.entries()
    summary = summary_of(())
    for entry in entries:
        summary[entry["result"]] += len(entry["resources"])
    return {
        "apiVersion": EPHEMERAL_REPORTS.api_version,
        "kind": EPHEMERAL_REPORTS.kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {_MANAGED_BY: "kyverno", SOURCE_LABEL: ADMISSION},
            "annotations": {FORMAT: VERSION, TURN: str(results.turn)},
        },
        "spec": {"owner": _NO_OWNER, "summary": summary, "results": entries},
    }


class _Metadata(msgspec.Struct):
    annotations: dict[str, str] = {}


class _Spec(msgspec.Struct):
    results: list[Row] = []


class _Report(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)


_REPORT: Final = RecordType(_Report)
_DECODER: Final = msgspec.json.Decoder(_Report)


def results_in(raw: msgspec.Raw | bytes) -> Results | None:
    """Return the results in an EphemeralReport's JSON, None for one of upstream's.

    Raises: msgspec.ValidationError if it does not have the structure of its kind.
    """
    return _results_of(_DECODER.decode(raw))


def results_of(report: Mapping[str, Json]) -> Results | None:
    """Return the results in a decoded EphemeralReport. Raises: see ``results_in``."""
    return _results_of(_REPORT.convert(report))


def _results_of(report: _Report) -> Results | None:
    if report.metadata.annotations.get(FORMAT) != VERSION:
        return None
    turn = report.metadata.annotations.get(TURN, "")
    results = Results(int(turn) if turn.isdecimal() else 0)
    for at_ns, subject, row in _each(report.spec.results):
        results.add(at_ns, subject, row)
    return results


def _each(rows: Iterable[Row]) -> Iterator[tuple[int, Subject, Row]]:
    for row in rows:
        time = row.timestamp or Timestamp()
        for subject in row.resources:
            yield time.seconds * _SECOND_NS + time.nanos, subject, row


def row_of_bytes(result: Result) -> Row:
    """Return a row of a final report. KYVERNO: its time has whole seconds (6.5)."""
    row = ROW.decode(result.row)
    seconds = result.at_ns // _SECOND_NS
    return msgspec.structs.replace(row, timestamp=Timestamp(seconds))

"""Define the format of stored reports, and the data kept about them.

Room: reports. Takes: a Subject and its rows; the JSON of a stored report. Gives:
report_of, StoredReport, ReportKinds. Next: reports/writer.py.
Source: docs/behaviour/controllers 1.6, 6.6, 6.7.

The name of a report is the uid of its object, which is also its owner: when the object
is deleted, Kubernetes deletes the report.
"""

import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.limits import REPORT_BYTES_MAX
from kyverno_mp.reports.fingerprints import (
    ordered_fingerprints,
    packed_times,
    plain_row,
)
from kyverno_mp.results.entries import (
    Row,
    Subject,
    seconds_of,
    sorted_rows,
    summary_of,
)
from kyverno_mp.values.jsonvalue import Json

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
KYVERNO: Final = "kyverno"
LEFT_OUT: Final = "kyverno-mp.io/results-left-out"
"""Annotation of a report that would be too large: the number of omitted results."""
_LACKS_DIGITS: Final = 9
"""Digits of this number; a longer one was written by others, and is not read."""
_SEVERE: Final = {"fail": 0, "error": 1, "warn": 2, "skip": 3, "pass": 4}
"""Results that are kept first when a report is too large. Rows that others have stored
can lack a result, and are omitted first."""
ROW_BYTES: Final = 64
"""Bytes for the time and separators of one row."""


class ReportKinds(msgspec.Struct, frozen=True):
    """The two kinds of reports."""

    of_namespace: Resource
    of_cluster: Resource

    def of(self, namespace: str) -> Resource:
        """Return the report kind for a namespace; "" = cluster-scoped objects."""
        return self.of_namespace if namespace else self.of_cluster


def _pair(group: str, version: str, kind: str) -> ReportKinds:
    plural = f"{kind.lower()}s"
    return ReportKinds(
        Resource(group=group, version=version, plural=plural, kind=kind),
        Resource(
            group=group,
            version=version,
            plural=f"cluster{plural}",
            kind=f"Cluster{kind}",
            namespaced=False,
        ),
    )


POLICY_REPORTS: Final = _pair("wgpolicyk8s.io", "v1alpha2", "PolicyReport")
OPEN_REPORTS: Final = _pair("openreports.io", "v1alpha1", "Report")


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Report(msgspec.Struct):
    """A stored report."""

    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    scope: Subject | None = None
    summary: dict[str, int] | None = None
    results: list[Row] | None = None

    @property
    def is_ours(self) -> bool:
        """Whether Kyverno wrote the report; other reports are never changed."""
        return (self.metadata.labels or {}).get(MANAGED_BY) == KYVERNO

    @property
    def rows(self) -> list[Row]:
        """The report's results."""
        return self.results or []

    @property
    def left_out(self) -> str:
        """The annotation of a report that lacks rows, or ""."""
        return (self.metadata.annotations or {}).get(LEFT_OUT, "")

    @property
    def lacks(self) -> int:
        """The number of rows that the report lacks."""
        count = self.left_out
        # SAFETY: whoever may edit reports chooses the text.
        is_number = (
            count.isascii() and count.isdecimal() and len(count) <= _LACKS_DIGITS
        )
        return int(count) if is_number else int(bool(count))

    @property
    def has_right_summary(self) -> bool:
        """Whether the summary has the number of rows of each result."""
        summary = self.summary or {}
        expected = summary_of(self.rows).items()
        return all(summary.get(word, 0) == number for word, number in expected)


_REPORT: Final = msgspec.json.Decoder(Report)


def read_report(raw: bytes | msgspec.Raw) -> Report:
    """Read a stored report. Raises: msgspec.DecodeError."""
    return _REPORT.decode(raw)


class StoredReport(msgspec.Struct, frozen=True):
    """The data kept about a report.

    ``fingerprints``: in the order of its rows. ``size_bytes``: at least the size of its
    rows. ``left_out``: its annotation. ``times``: of its rows, b"" if not known.
    ``has_right_summary``: False if another writer changed it.
    """

    api_version: str
    kind: str
    name: str
    fingerprints: bytes
    size_bytes: int
    left_out: str = ""
    times: bytes = b""
    has_right_summary: bool = True

    @property
    def is_plain(self) -> bool:
        """Whether the fingerprints show all of its content."""
        return self.has_right_summary and not self.left_out


def stored_report(raw: msgspec.Raw) -> StoredReport | None:
    """Decode a report; return None if Kyverno did not write it."""
    report = read_report(raw)
    if not report.is_ours:
        return None
    scope = report.scope or Subject()
    return StoredReport(
        # PERF: few kinds, many reports.
        sys.intern(scope.api_version),
        sys.intern(scope.kind),
        scope.name,
        ordered_fingerprints(report.rows),
        len(memoryview(raw)),
        report.left_out,
        packed_times([seconds_of(row) for row in report.rows]),
        report.has_right_summary,
    )


def report_key(subject: Subject) -> Key:
    """Return the namespace and name of an object's report."""
    return subject.namespace, subject.uid


def report_of(
    kinds: ReportKinds, subject: Subject, content: Json, left_out: int = 0
) -> Json:
    """Return the report of one object.

    ``content``: the fields from its rows, in order and cut by ``cut_rows``.
    """
    resource = kinds.of(subject.namespace)
    metadata: Json = {
        "name": subject.uid,
        "labels": {MANAGED_BY: KYVERNO},
        "ownerReferences": [
            {
                "apiVersion": subject.api_version,
                "kind": subject.kind,
                "name": subject.name,
                "uid": subject.uid,
            }
        ],
    }
    if subject.namespace:
        metadata["namespace"] = subject.namespace
    if left_out:
        metadata["annotations"] = {LEFT_OUT: str(left_out)}
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": metadata,
        "scope": subject,
        **content,
    }


def content_of(rows: Sequence[Row]) -> dict[str, Json]:
    """Return the fields of a report that depend on its rows."""
    return {"summary": summary_of(rows), "results": rows}


def is_too_large(rows_bytes: int) -> bool:
    """Return whether a report with so many bytes of rows must be cut."""
    return rows_bytes > REPORT_BYTES_MAX


def cut_rows(rows: Sequence[Row]) -> tuple[list[Row], int]:
    """Return the rows that fit into a report, in order, and the number of omitted rows.

    Failures are kept in preference to passed and skipped results.
    """
    free_bytes = REPORT_BYTES_MAX
    fitting: list[Row] = []
    ordered = sorted_rows(rows)
    ordered.sort(key=lambda row: _SEVERE.get(row.result, len(_SEVERE)))
    for row in ordered:
        free_bytes -= len(plain_row(row)) + ROW_BYTES
        if free_bytes < 0:
            break
        fitting.append(row)
    return sorted_rows(fitting), len(rows) - len(fitting)

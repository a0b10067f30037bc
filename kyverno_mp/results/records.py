"""Define the record of a review's results that a worker sends for the reports.

Room: results. Takes: a subject, rows; Settings. Gives: bytes for the journal of
results, and back; which results are sent. Next: leader/results/writer.py creates
EphemeralReports from the records.
Source: docs/behaviour/controllers 2.10, 6.1, 6.2, 6.5; docs/pools.md 4.

The rows have no times of their own; the record has one for all. Many reviews have equal
rows, which are encoded only once (webhook/results/sink.py).
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from kyverno_mp.errors import StateError
from kyverno_mp.program.reporting import Reporting
from kyverno_mp.results.entries import Row, Subject
from kyverno_mp.settings.settings import Settings
from kyverno_mp.values.records import UNDECODABLE


class ResultRecord(msgspec.Struct, frozen=True, array_like=True):
    """The results for one subject. ``at_ns``: wall-clock time of the review.

    A subject without ``uid`` is being created; namespace and name identify it.
    """

    at_ns: int
    subject: Subject
    rows: tuple[msgspec.Raw, ...]


_ENCODER: Final = msgspec.msgpack.Encoder()
_RECORD: Final = msgspec.msgpack.Decoder(ResultRecord)
_ROW: Final = msgspec.msgpack.Decoder(Row)


def encode_row(row: Row) -> msgspec.Raw:
    """Encode a row, which many records may share."""
    return msgspec.Raw(_ENCODER.encode(row))


def encode_results(at_ns: int, subject: Subject, rows: Sequence[msgspec.Raw]) -> bytes:
    """Encode one record."""
    return _ENCODER.encode(ResultRecord(at_ns, subject, tuple(rows)))


def decode_results(record: bytes) -> tuple[int, Subject, list[Row]]:
    """Return time, subject and rows. Raises: StateError if it is not a record."""
    try:
        result_record = _RECORD.decode(record)
        return (
            result_record.at_ns,
            result_record.subject,
            [_ROW.decode(row) for row in result_record.rows],
        )
    except UNDECODABLE as error:
        raise StateError("reports.record", f"not a record: {error}") from error


def reporting_of(settings: Settings) -> Reporting | None:
    """Return the reporting options; None if disabled or without a reports pool."""
    if not (settings.has_reports_pool and settings.reports_admission):
        return None
    return Reporting(
        types=_words(settings.reports_of),
        words=_words(settings.reports_results),
        # KYVERNO: results of reviews are reported even if scans store nothing (6.1).
        scans=settings.reports_scan
        and settings.reports_store
        and settings.reports_aggregate,
    )


def _words(words: str) -> frozenset[str]:
    return frozenset(word.strip() for word in words.split(",") if word.strip())

"""Define the record of a review's results that a worker sends for the reports.

Room: reports. Takes: a subject, rows. Gives: bytes for the journal of results, and
back. Next: leader/results/writer.py creates EphemeralReports from the records. May
touch: nothing outside its arguments.
Source: docs/behaviour/controllers 2.10, 6.2; docs/pools.md 4.

The rows have no times of their own; the record has one for all. Many reviews have equal
rows, which are encoded only once (webhook/results/sink.py).
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from kyverno_mp.errors import StateError
from kyverno_mp.reports.entries import Row, Subject
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
        found = _RECORD.decode(record)
        return found.at_ns, found.subject, [_ROW.decode(row) for row in found.rows]
    except UNDECODABLE as error:
        raise StateError("reports.record", f"not a record: {error}") from error

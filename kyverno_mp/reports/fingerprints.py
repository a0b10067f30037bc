"""Compute fingerprints of rows, which the pool keeps instead of the rows of a report.

Room: reports. Takes: Rows. Gives: key_of, fingerprints_of, plain_row. Next:
reports/scan/evaluator.py computes those of new rows, reports/objects.py those of stored
rows, reports/writer.py compares them.
Source: docs/pools.md 4 (digests; identical results cause no write).

A fingerprint has 16 bytes: 8 of the row's merge key (which identifies the rule), 7 of
its content without times, and its result. The fingerprints of a report are joined, in
the order of its rows or, to compare, sorted: equal bytes mean equal rows. PERF: 19 rows
are some 7 KB as a report and 304 bytes as fingerprints.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from kyverno_mp.results.entries import WORDS, Row

KEY_BYTES: Final = 8
FINGERPRINT_BYTES: Final = 16
_CONTENT_BYTES: Final = FINGERPRINT_BYTES - KEY_BYTES - 1
_RESULTS: Final = {word: bytes([number]) for number, word in enumerate(WORDS)}
_NO_RESULT: Final = bytes([255])
"""For a row whose result is not one of upstream's words."""
_TIME_BYTES: Final = 4
TIME_UNKNOWN: Final = 2**32 - 1
"""Stands for a row's time that is not known, and is later than all times."""
_ENCODER: Final = msgspec.json.Encoder(order="deterministic")


def plain_row(row: Row) -> bytes:
    """Return a row as JSON without its time; equal rows have equal bytes."""
    if row.timestamp is not None:
        row = msgspec.structs.replace(row, timestamp=None)
    return _ENCODER.encode(row)


def key_of(row: Row) -> bytes:
    """Return the fingerprint of a row's merge key."""
    return key_of_names(row.merge_key)


@lru_cache(maxsize=4096)
def key_of_names(names: tuple[str, ...]) -> bytes:
    """Return the fingerprint of a merge key."""
    return _digest("\0".join(names).encode("utf-8", "surrogatepass"))


def fingerprint_of(row: Row, plain: bytes) -> bytes:
    """Return the fingerprint of a row. ``plain``: the result of ``plain_row``."""
    content = _digest(plain)[:_CONTENT_BYTES]
    return key_of(row) + content + _RESULTS.get(row.result, _NO_RESULT)


def result_of(fingerprint: bytes) -> str:
    """Return the result of a row, "" if it is not one of upstream's words."""
    number = fingerprint[-1]
    return WORDS[number] if number < len(WORDS) else ""


def summary_in(fingerprints: Iterable[bytes]) -> dict[str, int]:
    """Return the number of rows of each result; other words are not counted."""
    summary = dict.fromkeys(WORDS, 0)
    for fingerprint in fingerprints:
        if word := result_of(fingerprint):
            summary[word] += 1
    return summary


def fingerprints_of(rows: Iterable[Row]) -> bytes:
    """Return the fingerprints of a report in canonical order."""
    return joined(fingerprint_of(row, plain_row(row)) for row in rows)


def ordered_fingerprints(rows: Iterable[Row]) -> bytes:
    """Return the fingerprints of a report, in the order of its rows."""
    return b"".join(fingerprint_of(row, plain_row(row)) for row in rows)


def joined(fingerprints: Iterable[bytes]) -> bytes:
    """Join fingerprints in a fixed order."""
    return b"".join(sorted(fingerprints))


def each_fingerprint(fingerprints: bytes) -> Iterator[bytes]:
    """Yield the individual fingerprints."""
    for at in range(0, len(fingerprints), FINGERPRINT_BYTES):
        yield fingerprints[at : at + FINGERPRINT_BYTES]


def packed_times(seconds: Sequence[int]) -> bytes:
    """Return the times of rows as 4 bytes each; equal times are stored once."""
    different = seconds[:1] if len(set(seconds)) == 1 else seconds
    bounded = (min(max(time, 0), TIME_UNKNOWN) for time in different)
    return struct.pack(f"<{len(different)}I", *bounded)


def times_in(packed: bytes, count: int) -> list[int]:
    """Return the times of ``count`` rows, TIME_UNKNOWN if there are none."""
    if not packed:
        return [TIME_UNKNOWN] * count
    times = list(struct.unpack(f"<{len(packed) // _TIME_BYTES}I", packed))
    return times * count if len(times) == 1 else times


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=KEY_BYTES).digest()

"""Implement gzip.

Room: expr. Takes: Meter and values. Gives: OVERLOADS. Next: expr/cel/catalogue.py.
Source: kyverno/sdk cel/libs/gzip; docs/behaviour/cel 12.
"""

import gzip
import zlib
from typing import Final

from kyverno_mp.expr.cel.functions.kyverno.documents import no_text
from kyverno_mp.expr.cel.library import function
from kyverno_mp.expr.cel.values import (
    CelFailed,
    Meter,
    Optional,
    Value,
    text_bytes,
)
from kyverno_mp.values.go.gotext import text_bytes as utf8

_COST: Final = 400
_PACKED_PER_UNIT: Final = 1
"""Units per byte: compression takes up to 50 ns per byte."""
_HEADER_BYTES: Final = 10
_PORTION: Final = 16 * 1024
_GZIP: Final = 16 + zlib.MAX_WBITS
_WORKSPACE_BYTES: Final = 300 * 1024
"""The memory for the tables of one compressor or decompressor."""
_WORKSPACE_COST: Final = 2_000


def _compress(meter: Meter, value: Value) -> bytes:
    if value.__class__ is Optional and value.present:
        value = value.value
    if value.__class__ is not str:
        raise no_text(value)
    meter.charge(_WORKSPACE_COST)
    meter.hold(_WORKSPACE_BYTES)
    meter.charge_bytes(4 * text_bytes(len(value), value))
    data = utf8(value)
    meter.charge(_PACKED_PER_UNIT * len(data))
    return gzip.compress(data, mtime=0)


def _problem(data: bytes, reason: str) -> CelFailed:
    """Return the Go error that corresponds to zlib's error."""
    if "check" in reason and "header" not in reason:
        return CelFailed("gzip: invalid checksum")
    if len(data) < _HEADER_BYTES:
        return CelFailed("unexpected EOF")
    return CelFailed("gzip: invalid header")


def _decompress(meter: Meter, data: bytes) -> str:
    """Return the decompressed text; each portion is charged before it is unpacked."""
    meter.charge(_WORKSPACE_COST)
    meter.hold(_WORKSPACE_BYTES)
    parts: list[bytes] = []
    rest = data
    while rest:
        unpacker = zlib.decompressobj(_GZIP)
        while not unpacker.eof:
            # Each byte is counted once in its part, once in the joined bytes, and up to
            # four times in the text.
            meter.charge_bytes(6 * _PORTION)
            try:
                part = unpacker.decompress(rest, _PORTION)
            except zlib.error as error:
                raise _problem(rest, str(error)) from None
            rest = unpacker.unconsumed_tail
            if not part and not rest and not unpacker.eof:
                raise CelFailed("unexpected EOF")
            parts.append(part)
        rest = unpacker.unused_data
    if not parts:
        raise CelFailed("EOF")
    return b"".join(parts).decode(errors="replace")


OVERLOADS: Final = (
    function("gzip.compress(dyn) -> bytes", _compress, cost=_COST),
    function("gzip.decompress(bytes) -> string", _decompress, cost=_COST),
)

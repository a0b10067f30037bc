"""Implement base64.

Room: expr. Takes: Meter and values. Gives: OVERLOADS. Next: expr/cel/catalogue.py.
Source: cel-go ext/encoders.go.
"""

import base64
import binascii
import re
from typing import Final

from kyverno_mp.expr.cel.library import function
from kyverno_mp.expr.cel.values import LIST_BYTES, CelFailed, Meter, text_bytes

_FOREIGN: Final = re.compile(r"[^A-Za-z0-9+/]")


def _encode(meter: Meter, data: bytes) -> str:
    meter.charge_bytes(LIST_BYTES + 3 * len(data))
    return base64.b64encode(data).decode()


def _decode(meter: Meter, encoded: str) -> bytes:
    """Decode base64; padding is optional and, as in Go, line breaks are ignored."""
    meter.charge_bytes(3 * text_bytes(len(encoded), encoded))
    clean = encoded.replace("\n", "").replace("\r", "")
    try:
        return base64.b64decode(clean, validate=True)
    except (binascii.Error, ValueError):
        pass
    try:
        if "=" not in clean:
            return base64.b64decode(clean + "=" * (-len(clean) % 4), validate=True)
    except (binascii.Error, ValueError):
        pass
    raise CelFailed(f"illegal base64 data at input byte {_bad_at(clean)}")


def _bad_at(encoded: str) -> int:
    match = _FOREIGN.search(encoded)
    return len(encoded) - len(encoded) % 4 if match is None else match.start()


OVERLOADS = (
    function("base64.encode(bytes) -> string", _encode, cost=20),
    function("base64.decode(string) -> bytes", _decode, cost=80),
)


def _escaped(meter: Meter, key: str) -> str:
    meter.charge_bytes(3 * text_bytes(len(key), key))
    meter.charge_text(8 * len(key))
    return key.replace("~", "~0").replace("/", "~1")


ESCAPE_KEY: Final = function("jsonpatch.escapeKey(string) -> string", _escaped)
"""Encodes a key for a JSON pointer; only patches have it."""

"""Base64.

Room: expr. Takes: Meter and values. Gives: OVERLOADS. Next: catalogue.py.
May touch: nothing outside its arguments. Source: cel-go ext/encoders.go.
"""

import base64
import binascii

from kyverno_mp.expr.cel.library import function
from kyverno_mp.expr.cel.values import CelFailed, Meter


def _encode(meter: Meter, data: bytes) -> str:
    meter.charge_bytes(2 * len(data))
    return base64.b64encode(data).decode()


def _decode(meter: Meter, text: str) -> bytes:
    """Decode; the padding may be left out, line ends are ignored as Go does."""
    meter.charge_bytes(len(text))
    clean = text.replace("\n", "").replace("\r", "")
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


def _bad_at(text: str) -> int:
    for position, char in enumerate(text):
        if not (char.isascii() and (char.isalnum() or char in "+/")):
            return position
    return len(text) - len(text) % 4


OVERLOADS = (
    function("base64.encode(bytes) -> string", _encode),
    function("base64.decode(string) -> bytes", _decode),
)

"""Encode, decode and hash texts.

Room: expr. Takes: Runtime and checked arguments. Gives: function rows. Next: calls.py.
May touch: nothing outside its arguments.
Source: spec/engine.md 9.2.
"""

import base64
import hashlib
from typing import Final

from kyverno_mp.expr.jmespath.functions.entry import ANY, STRING, FunctionEntry
from kyverno_mp.expr.jmespath.interim import fail
from kyverno_mp.expr.jmespath.yaml_text import decode_yaml
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.values.gojson import JsonInvalid, decode_json
from kyverno_mp.values.jsonvalue import Json

_ALPHABET: Final = frozenset(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
)
_QUANTUM: Final = 4


def _base64_encode(runtime: Runtime, text: str) -> Json:
    data = text.encode("utf-8", "replace")
    runtime.charge_bytes(len(data) * 4 // 3 + _QUANTUM)
    return base64.b64encode(data).decode("ascii")


def _base64_decode(runtime: Runtime, text: str) -> Json:
    runtime.charge_bytes(len(text))
    data = text.encode("utf-8", "replace")
    plain = data.replace(b"\n", b"").replace(b"\r", b"")
    try:
        decoded = base64.b64decode(plain, validate=True)
    except ValueError:
        decoded = None
    if decoded is None or len(plain) % _QUANTUM:
        position = _corrupt_position(data)
        raise fail(f"illegal base64 data at input byte {position}")
    return decoded.decode("utf-8", "replace")


def _corrupt_position(data: bytes) -> int:
    """Find the byte that Go's decoder complains of."""
    position = 0
    while True:
        outcome = _read_quantum(data, position)
        if outcome is None:
            return len(data)
        position, corrupt = outcome
        if corrupt >= 0:
            return corrupt


def _read_quantum(data: bytes, position: int) -> tuple[int, int] | None:
    """Read four characters; gives where to go on and the bad byte or -1."""
    count = 0
    while count < _QUANTUM:
        if position == len(data):
            if count == 0:
                return None
            return position, position - count
        byte = data[position]
        position += 1
        if byte in _ALPHABET:
            count += 1
        elif byte not in b"\r\n":
            return position, _padding_fault(data, position, count, byte)
    return position, -1


def _padding_fault(data: bytes, position: int, count: int, byte: int) -> int:
    if byte != ord("=") or count < 2:  # noqa: PLR2004 - padding stands third or fourth
        return position - 1
    while position < len(data) and data[position] in b"\r\n":
        position += 1
    if count == 2:  # noqa: PLR2004 - two characters of padding are due
        if position == len(data):
            return len(data)
        if data[position] != ord("="):
            return position - 1
        position += 1
        while position < len(data) and data[position] in b"\r\n":
            position += 1
    return position


def parse_json_text(runtime: Runtime, text: str) -> Json:
    """Decode JSON; the error text is that of Go."""
    runtime.charge_bytes(len(text))
    try:
        return decode_json(text)
    except JsonInvalid as error:
        raise fail(str(error)) from error


def _parse_yaml(runtime: Runtime, text: str) -> Json:
    runtime.charge_bytes(len(text))
    return decode_yaml(text, runtime.charge)


def _sha256(_runtime: Runtime, text: str) -> Json:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _sha1(_runtime: Runtime, text: str) -> Json:
    data = text.encode("utf-8", "replace")
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


def _md5(_runtime: Runtime, text: str) -> Json:
    data = text.encode("utf-8", "replace")
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


FUNCTIONS: Final = (
    FunctionEntry(
        "base64_decode", (STRING,), _base64_decode, STRING, "decodes a base 64 string"
    ),
    FunctionEntry(
        "base64_encode",
        (STRING,),
        _base64_encode,
        STRING,
        "encodes a regular, plaintext and unencoded string to base64",
    ),
    FunctionEntry(
        "parse_json",
        (STRING,),
        parse_json_text,
        ANY,
        "decodes a valid JSON encoded string to the appropriate type. Opposite of "
        "`to_string` function",
    ),
    FunctionEntry(
        "parse_yaml",
        (STRING,),
        _parse_yaml,
        ANY,
        "decodes a valid YAML encoded string to the appropriate type provided it can "
        "be represented as JSON",
    ),
    FunctionEntry(
        "sha256",
        (STRING,),
        _sha256,
        STRING,
        "generate unique resources name if length exceeds the limit",
    ),
    FunctionEntry("sha1", (STRING,), _sha1, STRING, "generate a SHA-1 hash"),
    FunctionEntry("md5", (STRING,), _md5, STRING, "generates an MD5 hash"),
)

"""Implement functions that encode, decode and hash strings.

Room: expr. Takes: Runtime and checked arguments. Gives: function rows. Next: calls.py.
Source: docs/behaviour/engine 9.2.
"""

import base64
from typing import Final

from kyverno_mp.errors import BudgetExceeded
from kyverno_mp.expr.jmespath.functions.entry import ANY, STRING, FunctionEntry
from kyverno_mp.expr.jmespath.interim import fail
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.limits import DECODED_CHARACTERS_MAX
from kyverno_mp.values.effort import CHARACTERS_PER_STEP, width_of
from kyverno_mp.values.go.gojson import (
    JsonInvalid,
    decode_json,
    decoded_bytes,
    without_bytes,
)
from kyverno_mp.values.go.gotext import replaced_bytes, text_bytes
from kyverno_mp.values.jsonvalue import Json

_ALPHABET: Final = frozenset(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
)
_QUANTUM: Final = 4
_RUNE_BYTES_MAX: Final = 4
_DECODED_PER_STEP: Final = 16
"""The number of JSON characters, or bytes of invalid UTF-8, decoded per step."""
_PORTION: Final = 16 * 1024


def _encoded(runtime: Runtime, string: str, *, times: int = 1) -> bytes:
    """Return the UTF-8 of a string, and charge for reading it ``times`` times."""
    width = 1 if string.isascii() else _RUNE_BYTES_MAX
    runtime.charge_bytes(len(string) * width)
    runtime.charge(len(string) * width * times // CHARACTERS_PER_STEP)
    return text_bytes(string)


def _base64_encode(runtime: Runtime, string: str) -> Json:
    data = _encoded(runtime, string, times=2)
    runtime.charge_bytes(len(data) * 8 // 3 + _QUANTUM)
    return base64.b64encode(data).decode("ascii")


def _base64_decode(runtime: Runtime, encoded: str) -> Json:
    data = _encoded(runtime, encoded, times=8)
    runtime.charge_bytes(3 * len(data))
    plain = data.replace(b"\n", b"").replace(b"\r", b"")
    try:
        decoded = base64.b64decode(plain, validate=True)
    except ValueError:
        decoded = None
    if decoded is None or len(plain) % _QUANTUM:
        position = _corrupt_position(data, runtime)
        raise fail(f"illegal base64 data at input byte {position}")
    if not decoded.isascii():
        # Each byte may decode to a character of two or four bytes.
        runtime.charge_bytes(_RUNE_BYTES_MAX * len(decoded))
        runtime.charge(len(decoded) // _DECODED_PER_STEP)
    return _text_of(decoded, keeps_bytes=runtime.keeps_bytes)


def _text_of(data: bytes, *, keeps_bytes: bool) -> str:
    """Decode UTF-8; as in Go, each invalid byte becomes a separate character."""
    string = data.decode("utf-8", "surrogateescape")
    if keeps_bytes or string.isascii():
        return string
    return replaced_bytes(string)


def _corrupt_position(data: bytes, runtime: Runtime) -> int:
    """Return the position of the byte that Go's decoder reports as corrupt."""
    position = charged = 0
    while True:
        if position >= charged:
            runtime.charge(_PORTION)
            charged += _PORTION
        outcome = _read_quantum(data, position)
        if outcome is None:
            return len(data)
        position, corrupt = outcome
        if corrupt >= 0:
            return corrupt


def _read_quantum(data: bytes, position: int) -> tuple[int, int] | None:
    """Read four characters; return the next position, and the error position or -1."""
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
    if byte != ord("=") or count < 2:  # noqa: PLR2004 - padding is third or fourth
        return position - 1
    position = _after_breaks(data, position)
    if count == 2:  # noqa: PLR2004 - two padding characters are required
        if position == len(data):
            return len(data)
        if data[position] != ord("="):
            return position - 1
        position = _after_breaks(data, position + 1)
    return position


def _after_breaks(data: bytes, position: int) -> int:
    return len(data) - len(data[position:].lstrip(b"\r\n"))


def parse_json_text(runtime: Runtime, document: str) -> Json:
    """Decode JSON, with Go's error message."""
    if len(document) > DECODED_CHARACTERS_MAX:
        raise BudgetExceeded("expr.json", "text is too long to be decoded")
    runtime.charge(len(document) // _DECODED_PER_STEP)
    runtime.charge_bytes(decoded_bytes(document))
    try:
        value = decode_json(document, runtime.charge)
        return without_bytes(value) if runtime.keeps_bytes else value
    except JsonInvalid as error:
        raise fail(str(error)) from error


def _parse_yaml(runtime: Runtime, document: str) -> Json:
    if len(document) > DECODED_CHARACTERS_MAX:
        raise BudgetExceeded("expr.yaml", "text is too long to be decoded")
    # PERF: imported here, as below, to keep the start of the CLI short
    # (process/startup/preload.py).
    from kyverno_mp.expr.jmespath.yaml_text import (
        YAML_NODE_BYTES,
        decode_yaml,
        yaml_nodes,
    )

    nodes = yaml_nodes(document)
    runtime.charge(8 * nodes + len(document) // _DECODED_PER_STEP)
    runtime.charge_bytes(
        YAML_NODE_BYTES * nodes + 4 * len(document) * width_of(document)
    )
    return decode_yaml(document, runtime.charge)


def _sha256(runtime: Runtime, string: str) -> Json:
    import hashlib

    return hashlib.sha256(_encoded(runtime, string, times=2)).hexdigest()


def _sha1(runtime: Runtime, string: str) -> Json:
    data = _encoded(runtime, string, times=2)
    import hashlib

    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


def _md5(runtime: Runtime, string: str) -> Json:
    data = _encoded(runtime, string, times=2)
    import hashlib

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

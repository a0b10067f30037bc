"""Decode JSON like Go's encoding/json into interface{}: every number is a float.

Room: values. Takes: JSON text. Gives: Json, or JsonInvalid with Go's text.
Next: expr/jmespath (literals, parse_json), program/context.
Source: docs/behaviour/engine 0.2, 9.1; Go's encoding/json scanner.
"""

import json
import math
from typing import Final

from kyverno_mp.limits import JSON_DEPTH_MAX
from kyverno_mp.values.effort import Charge, uncharged, width_of
from kyverno_mp.values.go.gotext import replaced_bytes, text_bytes
from kyverno_mp.values.jsonvalue import Json

_SPACE: Final = " \t\r\n"
_DIGITS: Final = frozenset("0123456789")
_VALUE_BYTES: Final = (240, 72, 40, 30)
"""The memory of a map, a list, an item with a number, and half a string."""
_PORTION: Final = 16 * 1024
_HEX: Final = frozenset("0123456789abcdefABCDEF")


class JsonInvalid(ValueError):
    """The text is not JSON; the message is Go's."""


def decode_json(document: str, charge: Charge = uncharged) -> Json:
    """Decode JSON strictly; numbers become floats, and the last of equal keys wins.

    ``charge`` is called with the steps for reading each character.
    Raises: JsonInvalid.
    """
    if document.count("[") + document.count("{") > JSON_DEPTH_MAX:
        _check_depth(document, charge)
    try:
        value = json.loads(document, parse_int=_to_float, parse_constant=_refuse)
    except OverflowError as error:
        raise JsonInvalid(str(error)) from None
    except (ValueError, RecursionError):
        charge(len(document))
        raise JsonInvalid(error_text(document)) from None
    if "\\ud" in document or "\\uD" in document:
        charge(len(document))
        return without_bytes(value)
    if "e" in document or "E" in document:
        charge(len(document) // 4)
        _check_finite(value, document)
    return value


def decode_parts(data: bytes, parts_max: int) -> Json:
    """Decode bytes with at most ``parts_max`` entries of lists and objects.

    SAFETY: the parser runs without interruption, half a second for 8 MiB of the worst
    text, and no other thread runs during that time. Raises: JsonInvalid.
    """
    if data.count(b",") > parts_max:
        raise JsonInvalid(f"it has more than {parts_max} parts")
    try:
        document = data.decode()
    except UnicodeDecodeError as error:
        raise JsonInvalid("it is not UTF-8") from error
    return decode_json(document)


def _to_float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise OverflowError(_number_error(digits))
    return value


def _number_error(digits: str) -> str:
    return f"json: cannot unmarshal number {digits} into Go value of type float64"


def _refuse(name: str) -> float:
    raise ValueError(name)


def _check_finite(value: Json, document: str) -> None:
    """Reject numbers such as 1e999, which float() converts to infinity."""
    stack = [value]
    while stack:
        item = stack.pop()
        if type(item) is float and math.isinf(item):
            digits = next(
                (word for word in _numbers(document) if math.isinf(float(word))),
                "1e999",
            )
            raise JsonInvalid(_number_error(digits))
        if type(item) is list:
            stack.extend(item)
        elif type(item) is dict:
            stack.extend(item.values())


def _numbers(document: str) -> list[str]:
    cleaned = "".join(char if char in "0123456789+-.eE" else " " for char in document)
    numbers = []
    for word in cleaned.split():
        try:
            float(word)
        except ValueError:
            continue
        numbers.append(word)
    return numbers


def decoded_bytes(document: str) -> int:
    """Return an upper bound for the memory of a decoded JSON text."""
    counts = (
        document.count("{"),
        document.count("["),
        document.count(","),
        document.count('"'),
    )
    return 2 * len(document) * width_of(document) + sum(
        count * size for count, size in zip(counts, _VALUE_BYTES, strict=True)
    )


def _check_depth(document: str, charge: Charge) -> None:
    depth = 0
    in_string = False
    escaped = False
    for at, char in enumerate(document):
        if not at % _PORTION:
            charge(_PORTION // 4)
        if in_string:
            in_string = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            in_string = True
        elif char in "[{":
            depth += 1
            if depth > JSON_DEPTH_MAX:
                raise JsonInvalid("exceeded max depth")
        elif char in "]}":
            depth -= 1


def without_bytes(value: Json) -> Json:
    """Replace invalid characters with U+FFFD, as Go does."""
    if type(value) is str:
        return replaced_bytes(value)
    if type(value) is list:
        return [without_bytes(item) for item in value]
    if type(value) is dict:
        return {without_bytes(key): without_bytes(item) for key, item in value.items()}
    return value


_END: Final = "unexpected end of JSON input"


def error_text(document: str) -> str:
    """Return the error message of Go's scanner for the first invalid byte."""
    scanner = _Scanner(document)
    try:
        scanner.value("looking for beginning of value")
        scanner.space()
        if scanner.at < len(document):
            scanner.fail("after top-level value")
    except JsonInvalid as error:
        return str(error)
    except RecursionError:
        return "exceeded max depth"
    return "invalid JSON"


class _Scanner:
    """A slow second parser that only produces the error message."""

    def __init__(self, document: str) -> None:
        self.text = document
        self.at = 0

    def char(self) -> str:
        if self.at >= len(self.text):
            raise JsonInvalid(_END)
        return self.text[self.at]

    def next(self) -> str:
        """Return the next character. GO: a space ends an unfinished token."""
        return self.text[self.at] if self.at < len(self.text) else " "

    def fail(self, context: str) -> None:
        raise JsonInvalid(f"invalid character {_quote_char(self.next())} {context}")

    def space(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in _SPACE:
            self.at += 1

    def value(self, context: str) -> None:
        self.space()
        char = self.char()
        if char == "{":
            self.members()
        elif char == "[":
            self.elements()
        elif char == '"':
            self.string()
        elif char == "-" or char in _DIGITS:
            self.number()
        elif char in "tfn":
            self.word({"t": "true", "f": "false", "n": "null"}[char])
        else:
            self.fail(context)

    def members(self) -> None:
        self.at += 1
        self.space()
        if self.char() == "}":
            self.at += 1
            return
        while True:
            self.space()
            if self.char() != '"':
                self.fail("looking for beginning of object key string")
            self.string()
            self.space()
            if self.char() != ":":
                self.fail("after object key")
            self.at += 1
            self.value("looking for beginning of value")
            self.space()
            if self.char() == "}":
                self.at += 1
                return
            if self.char() != ",":
                self.fail("after object key:value pair")
            self.at += 1

    def elements(self) -> None:
        self.at += 1
        self.space()
        if self.char() == "]":
            self.at += 1
            return
        while True:
            self.value("looking for beginning of value")
            self.space()
            if self.char() == "]":
                self.at += 1
                return
            if self.char() != ",":
                self.fail("after array element")
            self.at += 1

    def string(self) -> None:
        self.at += 1
        while (char := self.char()) != '"':
            if char < " ":
                self.fail("in string literal")
            self.at += 1
            if char == "\\":
                self.escape()
        self.at += 1

    def escape(self) -> None:
        char = self.next()
        if char == "u":
            for _ in range(4):
                self.at += 1
                if self.next() not in _HEX:
                    self.fail("in \\u hexadecimal character escape")
        elif char not in 'bfnrt\\/"':
            self.fail("in string escape code")
        self.at += 1

    def number(self) -> None:
        if self.text[self.at] == "-":
            self.at += 1
            if self.next() not in _DIGITS:
                self.fail("in numeric literal")
        if self.text[self.at] == "0":
            self.at += 1
        else:
            self.digits()
        if self.text[self.at : self.at + 1] == ".":
            self.at += 1
            if self.next() not in _DIGITS:
                self.fail("after decimal point in numeric literal")
            self.digits()
        if self.text[self.at : self.at + 1] in ("e", "E"):
            self.at += 1
            if self.next() in "+-":
                self.at += 1
            if self.next() not in _DIGITS:
                self.fail("in exponent of numeric literal")
            self.digits()

    def digits(self) -> None:
        while self.text[self.at : self.at + 1] in _DIGITS:
            self.at += 1

    def word(self, word: str) -> None:
        for expected in word[1:]:
            self.at += 1
            if self.next() != expected:
                self.fail(f"in literal {word} (expecting '{expected}')")
        self.at += 1


def _quote_char(char: str) -> str:
    """Quote the first byte of a character, because Go's scanner reads bytes."""
    if char == "'":
        return "'\\''"
    if char == '"':
        return "'\"'"
    short = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\", "\a": "\\a"}
    short |= {"\b": "\\b", "\f": "\\f", "\v": "\\v"}
    if char in short:
        return f"'{short[char]}'"
    byte = text_bytes(char)[0]
    if byte < 0x20 or byte == 0x7F:  # noqa: PLR2004 - control characters
        return f"'\\x{byte:02x}'"
    character = chr(byte)
    return f"'{character}'" if character.isprintable() else f"'\\u{byte:04x}'"

r"""Quote strings like Go's ``%q``.

Room: values. Takes: strings. Gives: quote. Next: expr/cel, expr/assertion, whose error
messages quote values.
May touch: nothing outside its arguments.
Source: Go strconv.Quote: a printable character stays unchanged; other characters become
``\n``, ``\x00``, ``\u00a0`` or ``\U000e0001``; an invalid byte becomes ``\xff``.
"""

from typing import Final

_ESCAPES: Final = {
    '"': '\\"',
    "\\": "\\\\",
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}
_ASCII_MAX: Final = 0x7F
_BMP_MAX: Final = 0xFFFF
_INVALID: Final = range(0xDC80, 0xDD00)
"""The invalid bytes 0x80 to 0xff, as Python's surrogateescape keeps them."""


def quote(string: str) -> str:
    """Return the text in double quotes."""
    if (
        string.isascii()
        and string.isprintable()
        and '"' not in string
        and "\\" not in string
    ):
        return f'"{string}"'
    return f'"{"".join(map(_escaped, string))}"'


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    code = ord(char)
    if code <= _ASCII_MAX:
        return f"\\x{code:02x}"
    if code in _INVALID:
        return f"\\x{code & 0xFF:02x}"
    return f"\\u{code:04x}" if code <= _BMP_MAX else f"\\U{code:08x}"

"""Parse IP addresses like Go's net/netip.

Room: values. Takes: strings. Gives: Address, parse_address. Next: values/go/gourl.py,
expr/cel/functions/network.py. May touch: nothing outside its arguments.
Source: Go 1.26 net/netip (ParseAddr); docs/behaviour/cel 11.
"""

import re
from typing import Final, NamedTuple

from kyverno_mp.values.go.goquote import quote

_FIRST: Final = re.compile(r"[.:%]")
_HEX: Final = re.compile(r"[0-9a-fA-F]*")
_ZERO: Final = b"\x00"
_BYTES: Final = 16
_LAST_IPV4: Final = 12
_OCTETS: Final = 4
_OCTET_MAX: Final = 255
_DIGITS_MAX: Final = 4


class Address(NamedTuple):
    """An address of 4 or 16 bytes, and the zone of an IPv6 address."""

    packed: bytes
    zone: str = ""

    @property
    def is_v4(self) -> bool:
        """Whether the address is IPv4; false for IPv4 within IPv6."""
        return len(self.packed) == _OCTETS


class _Odd(Exception):
    """An error, with the rest of the text from the position of the error."""

    def __init__(self, message: str, at: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.at = at


def parse_address(text: str) -> Address | str:
    """Return the address, or Go's error. Callers ensure that the text is short."""
    try:
        return _parse(text)
    except _Odd as odd:
        at = f" (at {quote(odd.at)})" if odd.at else ""
        return f"ParseAddr({quote(text)}): {odd.message}{at}"


def _parse(text: str) -> Address:
    first = _FIRST.search(text)
    if first is None:
        raise _Odd("unable to parse IP")
    if first.group() == ".":
        return Address(_octets(text))
    if first.group() == "%":
        raise _Odd("missing IPv6 address")
    head, mark, zone = text.partition("%")
    if mark and not zone:
        raise _Odd("zone must be a non-empty string")
    return Address(_groups(head), zone)


def _octets(text: str) -> bytes:
    """Parse ``a.b.c.d``."""
    found: list[int] = []
    digits = ""
    for at, char in enumerate(text):
        if char in "0123456789":
            if digits == "0":
                raise _Odd("IPv4 field has octet with leading zero")
            digits += char
            if int(digits) > _OCTET_MAX:
                raise _Odd("IPv4 field has value >255")
        elif char != ".":
            raise _Odd("unexpected character", text[at:])
        elif not digits or at == len(text) - 1:
            raise _Odd("IPv4 field must have at least one digit", text[at:])
        elif len(found) == _OCTETS - 1:
            raise _Odd("IPv4 address too long")
        else:
            found.append(int(digits))
            digits = ""
    if len(found) < _OCTETS - 1:
        raise _Odd("IPv4 address too short")
    return bytes((*found, int(digits or "0")))


def _groups(text: str) -> bytes:
    """Parse groups of hexadecimal digits, one ``::`` and an IPv4 address at the end."""
    found = bytearray()
    ellipsis = -1
    if text.startswith("::"):
        ellipsis, text = 0, text[2:]
        if not text:
            return bytes(_BYTES)
    while len(found) < _BYTES:
        digits = _digits(text)
        if text[len(digits) : len(digits) + 1] == ".":
            found += _embedded(text, len(found), has_ellipsis=ellipsis >= 0)
            text = ""
            break
        found += int(digits, 16).to_bytes(2)
        text = _after_colon(text[len(digits) :])
        if not text:
            break
        if text[0] == ":":
            if ellipsis >= 0:
                raise _Odd("multiple :: in address", text)
            ellipsis, text = len(found), text[1:]
            if not text:
                break
    if text:
        raise _Odd("trailing garbage after address", text)
    return _filled(bytes(found), ellipsis)


def _digits(text: str) -> str:
    """Return the hexadecimal digits at the beginning."""
    found = _HEX.match(text)
    digits = found.group() if found else ""
    if len(digits) > _DIGITS_MAX:
        raise _Odd("each group must have 4 or less digits", text)
    if not digits:
        named = "each colon-separated field must have at least one digit"
        raise _Odd(named, text)
    return digits


def _after_colon(text: str) -> str:
    """Return the text after the colon that follows a group; "" at the end."""
    if not text:
        return ""
    if text[0] != ":":
        raise _Odd("unexpected character, want colon", text)
    if len(text) == 1:
        raise _Odd("colon must be followed by more characters", text)
    return text[1:]


def _embedded(text: str, place: int, *, has_ellipsis: bool) -> bytes:
    if not has_ellipsis and place != _LAST_IPV4:
        raise _Odd(
            "embedded IPv4 address must replace the final 2 fields of the address", text
        )
    if place > _LAST_IPV4:
        raise _Odd(
            "too many hex fields to fit an embedded IPv4 at the end of the address",
            text,
        )
    return _octets(text)


def _filled(found: bytes, ellipsis: int) -> bytes:
    if len(found) < _BYTES:
        if ellipsis < 0:
            raise _Odd("address string too short")
        return found[:ellipsis] + _ZERO * (_BYTES - len(found)) + found[ellipsis:]
    if ellipsis >= 0:
        raise _Odd("the :: must expand to at least one field of zeros")
    return found

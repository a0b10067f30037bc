"""Parse IP addresses like Go's net/netip.

Room: values. Takes: strings. Gives: Address, parse_address. Next: values/go/gourl.py,
expr/cel/functions/network.py.
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


def parse_address(address: str) -> Address | str:
    """Return the address, or Go's error. Callers ensure that the text is short."""
    try:
        return _parse(address)
    except _Odd as odd:
        at = f" (at {quote(odd.at)})" if odd.at else ""
        return f"ParseAddr({quote(address)}): {odd.message}{at}"


def _parse(address: str) -> Address:
    first = _FIRST.search(address)
    if first is None:
        raise _Odd("unable to parse IP")
    if first.group() == ".":
        return Address(_octets(address))
    if first.group() == "%":
        raise _Odd("missing IPv6 address")
    head, mark, zone = address.partition("%")
    if mark and not zone:
        raise _Odd("zone must be a non-empty string")
    return Address(_groups(head), zone)


def _octets(address: str) -> bytes:
    """Parse ``a.b.c.d``."""
    octets: list[int] = []
    digits = ""
    for at, char in enumerate(address):
        if char in "0123456789":
            if digits == "0":
                raise _Odd("IPv4 field has octet with leading zero")
            digits += char
            if int(digits) > _OCTET_MAX:
                raise _Odd("IPv4 field has value >255")
        elif char != ".":
            raise _Odd("unexpected character", address[at:])
        elif not digits or at == len(address) - 1:
            raise _Odd("IPv4 field must have at least one digit", address[at:])
        elif len(octets) == _OCTETS - 1:
            raise _Odd("IPv4 address too long")
        else:
            octets.append(int(digits))
            digits = ""
    if len(octets) < _OCTETS - 1:
        raise _Odd("IPv4 address too short")
    return bytes((*octets, int(digits or "0")))


def _groups(address: str) -> bytes:
    """Parse groups of hexadecimal digits, one ``::`` and an IPv4 address at the end."""
    data = bytearray()
    ellipsis = -1
    if address.startswith("::"):
        ellipsis, address = 0, address[2:]
        if not address:
            return bytes(_BYTES)
    while len(data) < _BYTES:
        digits = _digits(address)
        if address[len(digits) : len(digits) + 1] == ".":
            data += _embedded(address, len(data), has_ellipsis=ellipsis >= 0)
            address = ""
            break
        data += int(digits, 16).to_bytes(2)
        address = _after_colon(address[len(digits) :])
        if not address:
            break
        if address[0] == ":":
            if ellipsis >= 0:
                raise _Odd("multiple :: in address", address)
            ellipsis, address = len(data), address[1:]
            if not address:
                break
    if address:
        raise _Odd("trailing garbage after address", address)
    return _filled(bytes(data), ellipsis)


def _digits(address: str) -> str:
    """Return the hexadecimal digits at the beginning."""
    match = _HEX.match(address)
    digits = match.group() if match else ""
    if len(digits) > _DIGITS_MAX:
        raise _Odd("each group must have 4 or less digits", address)
    if not digits:
        named = "each colon-separated field must have at least one digit"
        raise _Odd(named, address)
    return digits


def _after_colon(address: str) -> str:
    """Return the text after the colon that follows a group; "" at the end."""
    if not address:
        return ""
    if address[0] != ":":
        raise _Odd("unexpected character, want colon", address)
    if len(address) == 1:
        raise _Odd("colon must be followed by more characters", address)
    return address[1:]


def _embedded(address: str, position: int, *, has_ellipsis: bool) -> bytes:
    if not has_ellipsis and position != _LAST_IPV4:
        raise _Odd(
            "embedded IPv4 address must replace the final 2 fields of the address",
            address,
        )
    if position > _LAST_IPV4:
        raise _Odd(
            "too many hex fields to fit an embedded IPv4 at the end of the address",
            address,
        )
    return _octets(address)


def _filled(data: bytes, ellipsis: int) -> bytes:
    if len(data) < _BYTES:
        if ellipsis < 0:
            raise _Odd("address string too short")
        return data[:ellipsis] + _ZERO * (_BYTES - len(data)) + data[ellipsis:]
    if ellipsis >= 0:
        raise _Odd("the :: must expand to at least one field of zeros")
    return data

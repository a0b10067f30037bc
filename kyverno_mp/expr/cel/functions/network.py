"""Implement IP addresses and CIDR ranges.

Room: expr. Takes: Meter and values. Gives: OVERLOADS. Next: expr/cel/catalogue.py.
Source: k8s apiserver/pkg/cel/library/{ip,cidr}.go; docs/behaviour/cel 11.
"""

import ipaddress
import re
from typing import NamedTuple, TypeAlias

from kyverno_mp.expr.cel.library import function, member
from kyverno_mp.expr.cel.values import CelFailed, Meter, shown
from kyverno_mp.values.go.goaddress import Address, parse_address

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
_TEXT_MAX = 256
_BITS = re.compile(r"[0-9]|[1-9][0-9]+")
_PARSE_COST = 500
_RANGE_COST = 300
_UNSPECIFIED_GLOBAL = ("255.255.255.255",)


class Ip(NamedTuple):
    """An address without a zone."""

    address: _Address

    @property
    def type_name(self) -> str:
        """The name of the type in CEL."""
        return "net.IP"


class Cidr(NamedTuple):
    """An address with a prefix length; host bits may be set."""

    address: _Address
    bits: int

    @property
    def type_name(self) -> str:
        """The name of the type in CEL."""
        return "net.CIDR"

    def network(self) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
        """Return the range with host bits cleared."""
        return ipaddress.ip_network(f"{self.address}/{self.bits}", strict=False)


def _address(literal: str) -> Ip | str:
    # No address is longer than this; a longer string is cut, and then does not parse.
    literal = literal[: _TEXT_MAX + 1]
    parsed = parse_address(literal)
    named = shown(literal)
    if type(parsed) is str:
        return f"IP Address {named} parse error during conversion from string: {parsed}"
    assert type(parsed) is Address
    if parsed.zone:
        return f"IP address {named} with zone value is not allowed"
    address = ipaddress.ip_address(parsed.packed)
    if address.version == 6 and address.ipv4_mapped is not None:  # noqa: PLR2004 - IPv6
        return f"IPv4-mapped IPv6 address {named} is not allowed"
    return Ip(address)


def _ip(_meter: Meter, literal: str) -> Ip:
    parsed = _address(literal)
    if type(parsed) is str:
        raise CelFailed(parsed)
    assert type(parsed) is Ip
    return parsed


def _prefix(literal: str) -> Cidr | str:
    literal = literal[: _TEXT_MAX + 1]
    named = shown(literal)
    parsed = _range(literal)
    if type(parsed) is str:
        head = "network address parse error during conversion from string: "
        return f"{head}netip.ParsePrefix({named}): {parsed}"
    assert type(parsed) is Cidr
    if parsed.address.version == 6 and parsed.address.ipv4_mapped is not None:  # noqa: PLR2004 - IPv6
        return f"IPv4-mapped IPv6 address {named} is not allowed"
    return parsed


def _range(literal: str) -> Cidr | str:
    """Parse ``address/bits``, or return the error of Go's netip.ParsePrefix."""
    head, slash, digits = literal.rpartition("/")
    if not slash:
        return "no '/'"
    parsed = parse_address(head)
    if type(parsed) is str:
        return parsed
    assert type(parsed) is Address
    if parsed.zone:
        return "IPv6 zones cannot be present in a prefix"
    if not _BITS.fullmatch(digits):
        return f"bad bits after slash: {shown(digits)}"
    bits = int(digits)
    if bits > 8 * len(parsed.packed):
        return "prefix length out of range"
    return Cidr(ipaddress.ip_address(parsed.packed), bits)


def _cidr(_meter: Meter, literal: str) -> Cidr:
    parsed = _prefix(literal)
    if type(parsed) is str:
        # KYVERNO: the API server adds the beginning of the text twice.
        raise CelFailed(
            f"network address parse error during conversion from string: {parsed}"
        )
    assert type(parsed) is Cidr
    return parsed


def _is_global_unicast(address: _Address) -> bool:
    return not (
        address.is_unspecified
        or address.is_loopback
        or address.is_multicast
        or address.is_link_local
        or str(address) in _UNSPECIFIED_GLOBAL
    )


def _is_link_local_multicast(address: _Address) -> bool:
    if address.version == 4:  # noqa: PLR2004 - IPv4
        return address in ipaddress.ip_network("224.0.0.0/24")
    return address.packed[0] == 0xFF and address.packed[1] & 0x0F == 0x02  # noqa: PLR2004 - ffx2::/16


def _contains_ip(_meter: Meter, cidr: Cidr, ip: Ip) -> bool:
    if cidr.address.version != ip.address.version:
        return False
    return ip.address in cidr.network()


def _contains_ip_text(meter: Meter, cidr: Cidr, literal: str) -> bool:
    parsed = _address(literal)
    if type(parsed) is str:
        # KYVERNO: cel 11 - the API server discards the error of an invalid address.
        raise CelFailed("no such overload")
    assert type(parsed) is Ip
    return _contains_ip(meter, cidr, parsed)


def _contains_cidr(_meter: Meter, outer: Cidr, inner: Cidr) -> bool:
    if outer.address.version != inner.address.version:
        return False
    return outer.bits <= inner.bits and inner.address in outer.network()


OVERLOADS = (
    function("ip(string) -> IP", _ip, cost=_PARSE_COST),
    function(
        "isIP(string) -> bool", lambda _m, t: type(_address(t)) is Ip, cost=_PARSE_COST
    ),
    function(
        "ip.isCanonical(string) -> bool",
        lambda m, t: str(_ip(m, t).address) == t,
        cost=_PARSE_COST + _RANGE_COST,
    ),
    function("string(IP) -> string", lambda _m, ip: str(ip.address), cost=_RANGE_COST),
    member("family(IP) -> int", lambda _m, ip: ip.address.version),
    member(
        "isUnspecified(IP) -> bool", lambda _m, ip: ip.address.is_unspecified, cost=30
    ),
    member("isLoopback(IP) -> bool", lambda _m, ip: ip.address.is_loopback, cost=30),
    member(
        "isLinkLocalMulticast(IP) -> bool",
        lambda _m, ip: _is_link_local_multicast(ip.address),
        cost=_RANGE_COST,
    ),
    member(
        "isLinkLocalUnicast(IP) -> bool",
        lambda _m, ip: ip.address.is_link_local,
        cost=30,
    ),
    member(
        "isGlobalUnicast(IP) -> bool",
        lambda _m, ip: _is_global_unicast(ip.address),
        cost=_RANGE_COST,
    ),
    function("cidr(string) -> CIDR", _cidr, cost=_PARSE_COST),
    function(
        "isCIDR(string) -> bool",
        lambda _m, t: type(_prefix(t)) is Cidr,
        cost=_PARSE_COST,
    ),
    function(
        "string(CIDR) -> string",
        lambda _m, c: f"{c.address}/{c.bits}",
        cost=_RANGE_COST,
    ),
    member("containsIP(CIDR, IP) -> bool", _contains_ip, cost=_RANGE_COST),
    member(
        "containsIP(CIDR, string) -> bool",
        _contains_ip_text,
        cost=_PARSE_COST + _RANGE_COST,
    ),
    member("containsCIDR(CIDR, CIDR) -> bool", _contains_cidr, cost=_RANGE_COST),
    member(
        "containsCIDR(CIDR, string) -> bool",
        lambda m, c, t: _contains_cidr(m, c, _cidr(m, t)),
        cost=_PARSE_COST + _RANGE_COST,
    ),
    member("ip(CIDR) -> IP", lambda _m, c: Ip(c.address)),
    member(
        "masked(CIDR) -> CIDR",
        lambda _m, c: Cidr(c.network().network_address, c.bits),
        cost=_RANGE_COST,
    ),
    member("prefixLength(CIDR) -> int", lambda _m, c: c.bits),
)

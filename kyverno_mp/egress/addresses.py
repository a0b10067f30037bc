"""Decide which addresses policies are allowed to call.

Room: egress. Takes: UrlRules, a URL, its resolved addresses. Gives: a Target, allowed
addresses. Next: egress/services.py.
Source: docs/behaviour/lessons 4.2 rows 13, 22-24; docs/behaviour/controllers 10.1
(httpBlocklist).

Closed by default: loopback, link-local, private, shared, multicast and reserved ranges,
also when an IPv6 address embeds them. A name on the allow list may resolve to a private
range, as Service names do. A literal address in a closed range is allowed only if a
listed range contains it. A metadata address that serves cloud credentials is allowed
only if a listed range consists of this one address.

The closed ranges are our own list, checked in addition to Python's ``is_global``, which
differs between Python versions.
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from kyverno_mp.errors import ExpressionFailed, SettingInvalid
from kyverno_mp.values.wildcard import matches

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_PORTS: Final = {"http": 80, "https": 443}
_HOST: Final = re.compile(r"[0-9.]*[A-Za-z*?_-][A-Za-z0-9*?._-]*")
"""A host name or a name pattern; digits alone are an incomplete address."""
_EMBEDDING: Final = tuple(
    ipaddress.IPv6Network(network)
    for network in ("64:ff9b::/96", "::ffff:0:0:0/96", "::/96")
)
"""Ranges whose last 32 bits are an embedded IPv4 address: NAT64 (RFC 6052), translated
(RFC 2765) and compatible (RFC 4291) addresses."""
_ISATAP: Final = (0x00005EFE, 0x02005EFE)
"""RFC 5214: the third 32-bit word of an address that embeds an IPv4 address."""
_METADATA: Final = (
    "metadata",
    "metadata.google.internal",
    "metadata.internal",
    "metadata.goog",
    "instance-data",
    "instance-data.ec2.internal",
    "metadata.azure.internal",
    "metadata.tencentyun.com",
    "metadata.packet.net",
    "metadata.platformequinix.com",
)
_SECRETS: Final = frozenset(
    ipaddress.ip_address(address)
    for address in (
        "169.254.169.254",  # AWS, Google, Azure, IBM, Oracle, DigitalOcean, Hetzner
        "169.254.170.2",  # AWS: tasks of ECS
        "169.254.170.23",  # AWS: pod identity of EKS
        "169.254.0.23",  # Tencent
        "169.254.10.10",  # Tencent, older
        "169.254.42.42",  # Scaleway
        "169.254.169.255",  # Linode
        "168.63.129.16",  # Azure: WireServer, in a public range
        "100.100.100.200",  # Alibaba, in the shared range
        "192.0.0.192",  # Oracle Classic, in a range that older Pythons call global
        "fd00:ec2::254",  # AWS
        "fd00:ec2::23",  # AWS: pod identity of EKS
        "fd20:ce::254",  # Google
        "fd00:42::42",  # Scaleway
        "fd00:a9fe:a9fe::1",  # Linode
        "fe80::a9fe:a9fe",  # OpenStack
    )
)
"""Metadata addresses where clouds serve credentials to any caller on a node or pod."""
_THIS_HOST: Final = ipaddress.IPv4Network("0.0.0.0/8")
_CLOSED: Final = tuple(
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "::/128",
        "::1/128",
        "64:ff9b:1::/48",
        "100::/64",
        "100:0:0:1::/64",
        "2001:2::/48",
        "2001:10::/28",
        "2001:20::/28",
        "2001:db8::/32",
        "3fff::/20",
        "5f00::/16",
        "fe80::/10",
        "fec0::/10",
        "ff00::/8",
    )
)
"""IANA's registries of special addresses, as of 2025, without the private ranges,
because a name on the allow list may resolve to a private range.
"""


@dataclass(frozen=True, slots=True)
class Target:
    """The parts of a URL."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class UrlRules:
    """The operator's allow list and blocklist: names with wildcards, and ranges."""

    allowed_names: tuple[str, ...] = ()
    allowed_networks: tuple[Network, ...] = ()
    blocked_names: tuple[str, ...] = _METADATA
    blocked_networks: tuple[Network, ...] = ()
    for_namespaced: bool = False
    """Whether namespaced policies may also call services."""


def read_rules(allow: str, block: str, *, for_namespaced: bool = False) -> UrlRules:
    """Parse lists of names and ranges. Raises: SettingInvalid (``egress.list``)."""
    allowed_names, allowed_networks = _lists(allow)
    blocked_names, blocked_networks = _lists(block)
    return UrlRules(
        allowed_names,
        allowed_networks,
        (*_METADATA, *blocked_names),
        blocked_networks,
        for_namespaced,
    )


def target_of(url: str) -> Target:
    """Parse a URL. Raises: ExpressionFailed (``egress.url``)."""
    if not url.isprintable() or " " in url or "\\" in url:
        raise ExpressionFailed("egress.url", "the URL of the service is not a URL")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ExpressionFailed("egress.url", f"URL {url!r} is not a URL") from error
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ExpressionFailed("egress.url", f"URL {url!r} is not of http or https")
    if parts.username is not None or parts.password is not None:
        raise ExpressionFailed("egress.url", "a URL with credentials is not allowed")
    path = parts.path or "/"
    return Target(
        parts.scheme,
        parts.hostname.rstrip("."),
        port or _PORTS[parts.scheme],
        f"{path}?{parts.query}" if parts.query else path,
    )


def allowed(target: Target, resolved: Sequence[str], rules: UrlRules) -> list[Address]:
    """Return the addresses to connect to, all of which are allowed.

    One denied address denies them all, because a resolver that mixes allowed and denied
    addresses is not trustworthy. Raises: ExpressionFailed (``egress.denied``).
    """
    if any(matches(name, target.host) for name in rules.blocked_names):
        raise _denied(target)
    named = any(matches(name, target.host) for name in rules.allowed_names)
    addresses = [_parse(address) for address in resolved]
    for address in addresses:
        if not _is_open(address, rules, named=named):
            raise _denied(target)
    if not addresses:
        raise _denied(target)
    return addresses


def _is_open(address: Address, rules: UrlRules, *, named: bool) -> bool:
    inner = _unwrapped(address)
    both = (address, inner)
    if _is_in(both, rules.blocked_networks):
        return False
    if not _SECRETS.isdisjoint(both):
        alone = [
            allowed_network
            for allowed_network in rules.allowed_networks
            if allowed_network.num_addresses == 1
        ]
        return _is_in((inner,), alone)
    if _is_in((inner,), rules.allowed_networks):
        return True
    if inner.is_multicast or inner.is_unspecified or inner.is_reserved:
        return False
    if not is_private(address):
        return True
    # An attacker could make a trusted name resolve to this host.
    itself = inner.is_loopback or inner.is_link_local or _within(inner, _THIS_HOST)
    return named and not itself


def is_private(address: Address) -> bool:
    """Return whether an address is in a private or special range."""
    inner = _unwrapped(address)
    # Python treats fec0::/10, the predecessor of fc00::/7, as global.
    old_private = isinstance(inner, ipaddress.IPv6Address) and inner.is_site_local
    return not inner.is_global or old_private or _is_in((address, inner), _CLOSED)


def _is_in(addresses: Iterable[Address], networks: Iterable[Network]) -> bool:
    return any(
        _within(address, network) for network in networks for address in addresses
    )


def _unwrapped(address: Address) -> Address:
    """Return the IPv4 address embedded in an IPv6 address, else the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    number = int(address)
    last = number & 0xFFFFFFFF
    is_isatap = (number >> 32) & 0xFFFFFFFF in _ISATAP
    # "::" and "::1" embed nothing.
    if number > 1 and (is_isatap or _is_in((address,), _EMBEDDING)):
        return ipaddress.IPv4Address(last)
    return address


def _within(address: Address, network: Network) -> bool:
    return address.version == network.version and address in network


def _parse(address: str) -> Address:
    try:
        return ipaddress.ip_address(address.partition("%")[0])
    except ValueError as error:
        raise ExpressionFailed("egress.denied", "not an address") from error


def _lists(setting: str) -> tuple[tuple[str, ...], tuple[Network, ...]]:
    names: list[str] = []
    networks: list[Network] = []
    for entry in filter(None, (part.strip() for part in setting.split(","))):
        try:
            networks.append(ipaddress.ip_network(entry, strict=False))
        except ValueError:
            if not _HOST.fullmatch(entry):
                raise SettingInvalid(
                    "egress.list", f"{entry!r} is neither a host nor a range"
                ) from None
            names.append(entry.lower())
    return tuple(names), tuple(networks)


def _denied(target: Target) -> ExpressionFailed:
    return ExpressionFailed("egress.denied", f"calls to {target.host} are not allowed")

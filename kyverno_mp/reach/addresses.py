"""Judge the addresses of services that policies may call.

Room: reach. Takes: UrlRules, a URL, its resolved addresses. Gives: a Target, allowed
addresses. Next: reach/services.py. May touch: nothing outside its arguments.
Source: spec/anchors.md 4.2 rows 13, 22-24; spec/controllers.md 10.1 (httpBlocklist).

Closed by default: loopback, link-local, private, shared, multicast and reserved ranges,
in every disguise of an IPv6 address. A name on the allow list may be in a private range
(Services of the cluster are); an address opens only by a range that says so.
"""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from kyverno_mp.errors import ExpressionFailed, SettingInvalid
from kyverno_mp.values.wildcard import matches

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_PORTS: Final = {"http": 80, "https": 443}
_HOST: Final = re.compile(r"[0-9.]*[A-Za-z*?_-][A-Za-z0-9*?._-]*")
"""A host's name, or a pattern of names; of digits alone it is a slip in an address."""
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_METADATA: Final = ("metadata.google.internal", "metadata.internal")


@dataclass(frozen=True, slots=True)
class Target:
    """A URL taken apart."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """What the Host header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class UrlRules:
    """What the operator opened and closed: names with wildcards, and ranges."""

    allowed_names: tuple[str, ...] = ()
    allowed_networks: tuple[Network, ...] = ()
    blocked_names: tuple[str, ...] = _METADATA
    blocked_networks: tuple[Network, ...] = ()
    for_namespaced: bool = False
    """Namespaced policies may call services, too."""


def read_rules(allow: str, block: str, *, for_namespaced: bool = False) -> UrlRules:
    """Read comma lists of names and ranges. Raises: SettingInvalid (``reach.list``)."""
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
    """Take a URL apart. Raises: ExpressionFailed (``reach.url``)."""
    if not url.isprintable() or " " in url or "\\" in url:
        raise ExpressionFailed("reach.url", "the URL of the service is not a URL")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ExpressionFailed("reach.url", f"URL {url!r} is not a URL") from error
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ExpressionFailed("reach.url", f"URL {url!r} is not of http or https")
    if parts.username is not None or parts.password is not None:
        raise ExpressionFailed("reach.url", "a URL with credentials is not allowed")
    path = parts.path or "/"
    return Target(
        parts.scheme,
        parts.hostname.rstrip("."),
        port or _PORTS[parts.scheme],
        f"{path}?{parts.query}" if parts.query else path,
    )


def allowed(target: Target, found: Sequence[str], rules: UrlRules) -> list[Address]:
    """Return the addresses to connect to, all of which are allowed.

    One denied address denies them all: the answer of a resolver that mixes them is not
    to be trusted. Raises: ExpressionFailed (``reach.denied``).
    """
    if any(matches(name, target.host) for name in rules.blocked_names):
        raise _denied(target)
    named = any(matches(name, target.host) for name in rules.allowed_names)
    addresses = [_parse(text) for text in found]
    for address in addresses:
        if not _is_open(address, rules, named=named):
            raise _denied(target)
    if not addresses:
        raise _denied(target)
    return addresses


def _is_open(address: Address, rules: UrlRules, *, named: bool) -> bool:
    inner = _unwrapped(address)
    if any(
        _within(one, network)
        for one in (address, inner)
        for network in rules.blocked_networks
    ):
        return False
    if any(_within(inner, network) for network in rules.allowed_networks):
        return True
    if inner.is_multicast or inner.is_unspecified or inner.is_reserved:
        return False
    # Python counts the private range before fc00::/7 among the global addresses.
    old_private = isinstance(inner, ipaddress.IPv6Address) and inner.is_site_local
    if inner.is_global and not old_private:
        return True
    # A name that the operator trusts may still be made to resolve to ourselves.
    return named and not (inner.is_loopback or inner.is_link_local)


def _unwrapped(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address leads to."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    number = int(address)
    if address in _NAT64 or 1 < number < 1 << 32:
        return ipaddress.IPv4Address(number & 0xFFFFFFFF)
    return address


def _within(address: Address, network: Network) -> bool:
    return address.version == network.version and address in network


def _parse(text: str) -> Address:
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError as error:
        raise ExpressionFailed("reach.denied", "an address is no address") from error


def _lists(text: str) -> tuple[tuple[str, ...], tuple[Network, ...]]:
    names: list[str] = []
    networks: list[Network] = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        try:
            networks.append(ipaddress.ip_network(entry, strict=False))
        except ValueError:
            if not _HOST.fullmatch(entry):
                raise SettingInvalid(
                    "reach.list", f"{entry!r} is neither a host nor a range"
                ) from None
            names.append(entry.lower())
    return tuple(names), tuple(networks)


def _denied(target: Target) -> ExpressionFailed:
    return ExpressionFailed("reach.denied", f"calls to {target.host} are not allowed")

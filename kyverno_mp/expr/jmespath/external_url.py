"""Decide whether a URL points to an external address, neither private nor loopback.

Room: expr. Takes: Runtime and a URL, both charged. Gives: a boolean. Next:
expr/jmespath/functions/network.py, which imports this module when the function is
called.
May touch: nothing outside its arguments; names are resolved by ``resolve_host``.
Source: docs/behaviour/engine 9.2 (is_external_url).
"""

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from kyverno_mp.errors import KubeUnavailable
from kyverno_mp.expr.jmespath.interim import fail
from kyverno_mp.expr.scope import Runtime

_PRIVATE: Final = tuple(
    map(
        ipaddress.ip_network,
        ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),
    )
)
_LOOPBACK: Final = tuple(map(ipaddress.ip_network, ("127.0.0.0/8", "::1/128")))


def _address(literal: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    if "%" in literal:
        return None
    try:
        address = ipaddress.ip_address(literal)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _is_inner(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Return whether an address is loopback or private; link-local is external."""
    return any(
        address.version == block.version and address in block
        for block in _PRIVATE + _LOOPBACK
    )


def is_external(runtime: Runtime, url: str) -> bool:
    """Return whether the URL's host is external; may resolve the host name."""
    host = _host(url)
    address = _address(host)
    if address is not None:
        return not _is_inner(address)
    if runtime.resolve_host is None:
        raise fail(f"lookup {host}: no such host")
    runtime.before_waiting()
    try:
        addresses = [_address(literal) for literal in runtime.resolve_host(host)]
    except KubeUnavailable as error:
        # KYVERNO: a name without an address fails the expression, like any other
        # invalid argument of the function.
        raise fail(error.message) from error
    return not any(item is not None and _is_inner(item) for item in addresses)


def _host(url: str) -> str:
    for char in url:
        if char < " " or char == "\x7f":
            raise fail(f'parse "{url}": net/url: invalid control character in URL')
    if url.startswith(":"):
        raise fail(f'parse "{url}": missing protocol scheme')
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise fail(f'parse "{url}": {error}') from error
    host = parts.netloc.rpartition("@")[2]
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]

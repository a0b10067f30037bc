"""Implement functions for URLs and image references.

Room: expr. Takes: Runtime and checked arguments. Gives: function rows. Next: calls.py.
May touch: nothing outside its arguments; names are resolved by ``resolve_host``.
Source: docs/behaviour/engine 9.2 (is_external_url, image_normalize), 3.8.
"""

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed
from kyverno_mp.expr.effects import EFFECT_CLUSTER
from kyverno_mp.expr.jmespath.functions.entry import (
    BOOL,
    STRING,
    FunctionEntry,
    function_error,
)
from kyverno_mp.expr.jmespath.interim import fail
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.limits import URL_CHARACTERS_MAX
from kyverno_mp.values.image import parse_image
from kyverno_mp.values.jsonvalue import Json

_STEPS: Final = 40
_PRIVATE: Final = tuple(
    map(
        ipaddress.ip_network,
        ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),
    )
)
_LOOPBACK: Final = tuple(map(ipaddress.ip_network, ("127.0.0.0/8", "::1/128")))


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    if "%" in text:
        return None
    try:
        address = ipaddress.ip_address(text)
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


def _is_external_url(runtime: Runtime, url: str) -> Json:
    _charge(runtime, url)
    host = _host(url)
    address = _address(host)
    if address is not None:
        return not _is_inner(address)
    if runtime.resolve_host is None:
        raise fail(f"lookup {host}: no such host")
    runtime.before_waiting()
    found = [_address(text) for text in runtime.resolve_host(host)]
    return not any(item is not None and _is_inner(item) for item in found)


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


def _charge(runtime: Runtime, text: str) -> None:
    if len(text) > URL_CHARACTERS_MAX:
        raise BudgetExceeded("expr.url", "URL or image is too long")
    runtime.charge(_STEPS + len(text))
    runtime.charge_bytes(len(text))


def _image_normalize(runtime: Runtime, image: str) -> Json:
    _charge(runtime, image)
    try:
        settings = runtime.images()
        return parse_image(
            image,
            default_registry=settings.default_registry,
            default_registry_mutation=settings.default_registry_mutation,
        ).reference
    except ExpressionFailed as error:
        raise function_error("image_normalize", error.message) from error


FUNCTIONS: Final = (
    FunctionEntry(
        "image_normalize",
        (STRING,),
        _image_normalize,
        STRING,
        "normalizes an image reference",
    ),
    FunctionEntry(
        "is_external_url",
        (STRING,),
        _is_external_url,
        BOOL,
        "determine if a URL points to an external network address",
        effects=EFFECT_CLUSTER,
    ),
)

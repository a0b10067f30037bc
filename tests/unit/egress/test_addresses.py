"""Policies cannot reach the clouds' metadata services in any address notation.

The addresses come from the clouds' own manuals and from IANA's registries of
special-purpose addresses, independent of Python's definition of global addresses.
"""

import ipaddress

import pytest

from kyverno_mp.egress.addresses import UrlRules, allowed, read_rules, target_of
from kyverno_mp.errors import ExpressionFailed

METADATA = [
    "169.254.169.254",
    "169.254.170.2",
    "169.254.170.23",
    "169.254.0.23",
    "168.63.129.16",
    "100.100.100.200",
    "192.0.0.192",
    "fd00:ec2::254",
    "fd00:ec2::23",
    "fd20:ce::254",
    "fe80::a9fe:a9fe",
]
SPECIAL = [
    "0.1.2.3",
    "100.127.255.254",
    "192.0.0.1",
    "192.0.2.1",
    "192.88.99.1",
    "198.19.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "239.1.2.3",
    "240.0.0.1",
    "64:ff9b:1::a00:1",
    "100::1",
    "2001:2::1",
    "2001:10::1",
    "2001:db8::1",
    "3fff::1",
    "5f00::1",
    "fec0::1",
    "ff0e::1",
]


def disguised(text: str) -> list[str]:
    """Return every IPv6 address that maps to an IPv4 address."""
    number = int(ipaddress.IPv4Address(text))
    high, low = number >> 16, number & 0xFFFF
    return [
        f"::ffff:{text}",
        f"::ffff:0:{high:x}:{low:x}",
        f"::{text}",
        f"64:ff9b::{high:x}:{low:x}",
        f"64:ff9b:1::{high:x}:{low:x}",
        f"2002:{high:x}:{low:x}::1",
        f"2001:0:5db8:d822::{high ^ 0xFFFF:x}:{low ^ 0xFFFF:x}",
        f"2606:2800::5efe:{high:x}:{low:x}",
        f"2606:2800::200:5efe:{high:x}:{low:x}",
    ]


IN_DISGUISE = [
    one
    for text in (*METADATA, "127.0.0.1", "0.0.0.1")
    if ":" not in text
    for one in disguised(text)
]


def is_open(address: str, rules: UrlRules, host: str = "x.test") -> bool:
    try:
        return bool(allowed(target_of(f"http://{host}/"), [address], rules))
    except ExpressionFailed:
        return False


@pytest.mark.parametrize("address", [*METADATA, *SPECIAL, *IN_DISGUISE])
def test_special_addresses_are_closed(address: str) -> None:
    assert not is_open(address, UrlRules())


@pytest.mark.parametrize("address", [*METADATA, *IN_DISGUISE])
def test_a_trusted_name_does_not_open_metadata(address: str) -> None:
    """A listed name may be changed to resolve to any address."""
    assert not is_open(address, read_rules("x.test", ""))


def test_encoded_private_address_is_private() -> None:
    for address in disguised("10.0.0.1"):
        assert not is_open(address, UrlRules())


def test_range_opens_metadata_only_as_a_single_address() -> None:
    """The shared range contains Pod addresses, but also a metadata address."""
    wide = read_rules("100.64.0.0/10, 169.254.0.0/16, fd00::/8", "")
    assert is_open("100.64.0.1", wide)
    for address in ("100.100.100.200", "169.254.169.254", "fd00:ec2::254"):
        assert not is_open(address, wide)
        assert is_open(address, read_rules(address, ""))
    assert not is_open("::ffff:169.254.169.254", wide)


@pytest.mark.parametrize(
    "address",
    ["93.184.216.34", "168.63.129.17", "100.128.0.1", "192.0.1.1", "2606:2800:220::1"],
)
def test_neighbours_of_special_addresses_are_open(address: str) -> None:
    assert is_open(address, UrlRules())


@pytest.mark.parametrize(
    "host",
    ["metadata", "metadata.google.internal", "Metadata.Google.INTERNAL"],
)
def test_metadata_names_are_closed_whatever_they_resolve_to(host: str) -> None:
    assert not is_open("93.184.216.34", UrlRules(), host)
    assert not is_open("93.184.216.34", read_rules(host.lower(), ""), host)

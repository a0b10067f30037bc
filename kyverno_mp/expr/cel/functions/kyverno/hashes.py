"""Implement the hashes of policies.kyverno.io: SHA-1, SHA-256 and MD5.

Room: expr. Takes: Meter and values. Gives: OVERLOADS. Next: expr/cel/catalogue.py.
Source: kyverno/sdk cel/libs/hash; docs/behaviour/cel 12.
"""

import hashlib
from collections.abc import Callable, Iterator
from typing import Final

from kyverno_mp.expr.cel.library import Declaration, function
from kyverno_mp.expr.cel.values import Meter, text_bytes
from kyverno_mp.values.go.gotext import text_bytes as utf8

_COST: Final = 60
_BYTES_PER_UNIT: Final = 8
"""MD5, the slowest of the three, hashes about 0.5 bytes per nanosecond; the cost
includes a margin."""


def _hash(name: str) -> Callable[[Meter, str], str]:
    def run(meter: Meter, string: str) -> str:
        meter.charge_bytes(2 * text_bytes(len(string), string))
        data = utf8(string)
        meter.charge(len(data) // _BYTES_PER_UNIT)
        # The policy's author chooses the hash function; no security depends on it here.
        return hashlib.new(name, data, usedforsecurity=False).hexdigest()

    return run


def _declared() -> Iterator[Declaration]:
    for name in ("sha1", "sha256", "md5"):
        for prefix in ("", "hash."):
            signature = f"{prefix}{name}(string) -> string"
            yield function(signature, _hash(name), cost=_COST)


OVERLOADS: Final = tuple(_declared())

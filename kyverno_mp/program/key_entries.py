"""Split the keys of an attestor set into one entry per key, and read an entry's key.

Room: program. Takes: an AttestorSet. Gives: its entries, their keys. Next:
program/images/attestors, program/bodies/manifests.
Source: docs/behaviour/images 1.2 (publicKeys).
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from kyverno_mp.policy.fields.image_verification import (
    Attestor,
    AttestorSet,
    StaticKeyAttestor,
)

_END: Final = "-----END PUBLIC KEY-----"


def expanded(listed: AttestorSet) -> Iterator[Attestor]:
    """Yield one entry for each key in a string of several keys.

    KYVERNO: this precedes counting, so without a count, both of two keys must have
    signed.
    """
    for entry in listed.entries:
        pems = split_keys(entry.keys.public_keys) if entry.keys is not None else []
        if entry.keys is None or len(pems) == 1:
            yield entry
            continue
        for pem in pems:
            keys = msgspec.structs.replace(entry.keys, public_keys=pem)
            yield msgspec.structs.replace(entry, keys=keys)


def key_of(keys: StaticKeyAttestor) -> str:
    """Return the PEM text or the reference of a key."""
    if keys.public_keys:
        return keys.public_keys
    if keys.secret is not None:
        return f"k8s://{keys.secret.namespace}/{keys.secret.name}"
    return keys.kms


def split_keys(pem: str) -> list[str]:
    """Return one string per key; a text with a single key is returned unchanged.

    KYVERNO: text after the last key is dropped only if there are several keys
    (docs/behaviour/images 1.2).
    """
    parts = pem.split(_END)
    if len(parts) <= 2:  # noqa: PLR2004 - one key, and what follows it
        return [pem]
    return [part + _END for part in parts[:-1]]

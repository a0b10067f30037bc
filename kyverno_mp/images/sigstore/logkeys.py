"""Read public keys of transparency logs, by the log's identifier.

Room: images. Takes: PEM strings. Gives: LogKeys. Next:
images/sigstore/rekor.py, images/sigstore/ctlog.py.
Source: docs/behaviour/images 3.5, 3.6; RFC 6962 3.2 (identifier of a log).
"""

import hashlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeAlias

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_der_public_key

from kyverno_mp.images.keys import public_key_bytes

LogKey: TypeAlias = (
    ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey
)
_UNDECODED: Final = "PEM decoding failed"


class Period(NamedTuple):
    """A validity period that includes both ends."""

    start: datetime
    end: datetime

    def has(self, at: datetime) -> bool:
        """Return whether a time is within the period."""
        return self.start <= at <= self.end


EVER: Final = Period(datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))


class DatedKey(NamedTuple):
    """A log's key; it can only have signed entries within the period."""

    key: LogKey
    period: Period = EVER


LogKeys: TypeAlias = Mapping[bytes, DatedKey]
"""Keys by the SHA-256 of their SubjectPublicKeyInfo."""


def log_keys(pems: Iterable[str]) -> dict[bytes, DatedKey]:
    """Return the first key of each PEM text, always valid. Raises: ValueError."""
    keys: dict[bytes, DatedKey] = {}
    for pem in pems:
        der = public_key_bytes(pem)
        if der is None:
            raise ValueError(_UNDECODED)
        keys[log_id(der)] = DatedKey(load_log_key(der))
    return keys


def load_log_key(der: bytes) -> LogKey:
    """Return the key of a SubjectPublicKeyInfo. Raises: ValueError."""
    try:
        key = load_der_public_key(der)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError("the key is not a valid public key") from None
    if not isinstance(
        key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey
    ):
        raise ValueError("unsupported type of key")  # noqa: TRY004 - of the text
    return key


def log_id(der: bytes) -> bytes:
    """Return the identifier of a log with this key."""
    return hashlib.sha256(der).digest()

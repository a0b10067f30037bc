"""Read public keys of transparency logs, by the log's identifier.

Room: images. Takes: PEM strings. Gives: LogKeys, Period, DatedKeys. Next:
images/sigstore/rekor.py, images/sigstore/ctlog.py.
May touch: nothing outside its arguments.
Source: docs/behaviour/images 3.5, 3.6; RFC 6962 3.2 (identifier of a log).
"""

import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, NamedTuple, TypeAlias

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_der_public_key

from kyverno_mp.images.keys import public_key_bytes

LogKey: TypeAlias = (
    ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey
)
LogKeys: TypeAlias = Mapping[bytes, LogKey]
"""Keys by the SHA-256 of their SubjectPublicKeyInfo."""

_UNDECODED: Final = "PEM decoding failed"


class Period(NamedTuple):
    """A validity period that includes both ends."""

    start: datetime
    end: datetime

    def has(self, at: datetime) -> bool:
        """Return whether a time is within the period."""
        return self.start <= at <= self.end


class DatedKeys(dict[bytes, LogKey]):
    """Keys of logs that have validity periods; ``periods`` has one for each key."""

    def __init__(self, logs: Iterable[tuple[bytes, tuple[LogKey, Period]]]) -> None:
        given = dict(logs)
        super().__init__({name: key for name, (key, _) in given.items()})
        self.periods: Mapping[bytes, Period] = {
            name: period for name, (_, period) in given.items()
        }


def is_valid_at(keys: LogKeys, name: bytes, at: datetime) -> bool:
    """Return whether a log's key is valid at a time; keys of PEM always are."""
    return not isinstance(keys, DatedKeys) or keys.periods[name].has(at)


def log_keys(texts: Iterable[str]) -> dict[bytes, LogKey]:
    """Return the first key of each PEM text. Raises: ValueError."""
    found: dict[bytes, LogKey] = {}
    for text in texts:
        der = public_key_bytes(text)
        if der is None:
            raise ValueError(_UNDECODED)
        found[log_id(der)] = load_log_key(der)
    return found


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

"""Hold what both formats of Notation's envelopes share: content and signatures.

Room: images. Takes: keys, signatures, bytes. Gives: Signed, Target, Refused.
Next: images/notation/jws.py, cose.py.
Source: docs/behaviour/images 4 (3).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

X509: Final = "notary.x509"
AUTHORITY: Final = "notary.x509.signingAuthority"
SCHEME: Final = "io.cncf.notary.signingScheme"
EXPIRY: Final = "io.cncf.notary.expiry"
SIGNING_TIME: Final = "io.cncf.notary.signingTime"
TIMESTAMP: Final = "io.cncf.notary.timestampSignature"
AUTHENTIC_TIME: Final = "io.cncf.notary.authenticSigningTime"
NUMBERS: Final = {
    name: number
    for number, name in enumerate(
        ("PS256", "PS384", "PS512", "ES256", "ES384", "ES512"), 1
    )
}
"""The algorithms with upstream's numbers, which appear in messages."""
_HASHES: Final[dict[str, Callable[[], hashes.HashAlgorithm]]] = {
    "256": hashes.SHA256,
    "384": hashes.SHA384,
    "512": hashes.SHA512,
}
_FIELD_BYTES: Final = {"ES256": 32, "ES384": 48, "ES512": 66}


class Refused(Exception):
    """A signature is not valid; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Target:
    """The descriptor that must have been signed."""

    media_type: str
    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class Signed:
    """The content of an envelope whose signature was checked."""

    payload: bytes
    content_type: str
    algorithm: str
    scheme: str
    chain: Sequence[x509.Certificate]
    signing_time: datetime | None = None
    expiry: datetime | None = None
    critical: dict[str, object] = field(default_factory=dict)
    """Extended attributes marked as critical."""
    signature: bytes = b""
    timestamp: bytes = b""
    """An RFC 3161 token over the signature; the token's field itself is not signed."""


def is_signed(
    algorithm: str, leaf: x509.Certificate, signature: bytes, data: bytes
) -> bool:
    """Check raw ECDSA (r and s) or RSA-PSS with the leaf's key.

    Raises: Refused if the algorithm does not fit the key.
    """
    try:
        key = leaf.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise Refused("signature is invalid. Error: unsupported public key") from error
    chosen = _HASHES[algorithm[2:]]()
    try:
        if algorithm in _FIELD_BYTES and isinstance(key, ec.EllipticCurvePublicKey):
            size = _FIELD_BYTES[algorithm]
            if len(signature) != 2 * size:
                return False
            r = int.from_bytes(signature[:size], "big")
            s = int.from_bytes(signature[size:], "big")
            key.verify(encode_dss_signature(r, s), data, ec.ECDSA(chosen))
            return True
        if algorithm not in _FIELD_BYTES and isinstance(key, rsa.RSAPublicKey):
            scheme = padding.PSS(padding.MGF1(chosen), padding.PSS.AUTO)
            key.verify(signature, data, scheme, chosen)
            return True
    except (InvalidSignature, ValueError, UnsupportedAlgorithm):
        return False
    raise Refused("signature is invalid. Error: key is of invalid type")


def is_algorithm(name: str) -> bool:
    """Return whether the algorithm is allowed for signatures."""
    return name in NUMBERS

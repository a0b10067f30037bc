"""Read public keys and check signatures with them.

Room: images. Takes: PEM strings, the name of a hash, bytes. Gives: Check functions.
Next: images/cosign.py.
Source: docs/behaviour/images 1.2 (keys), 3.1 (cert without chain), 3.4.

``cryptography`` does all arithmetic; this module only selects the algorithm.
"""

import base64
import binascii
import re
import warnings
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
)
from cryptography.utils import CryptographyDeprecationWarning

from kyverno_mp.errors import ExpressionFailed

Check: TypeAlias = Callable[[bytes, bytes], str]
"""Takes a signature and the signed bytes; returns "" or the reason for a failure."""


class Unproved(Exception):
    """A signature, certificate or log entry is not valid; the text is the reason."""


class StaticKey(NamedTuple):
    """A public key: its check, and its SubjectPublicKeyInfo in DER."""

    check: Check
    der: bytes


_BEGIN: Final = "-----BEGIN PUBLIC KEY-----"
_END: Final = "-----END PUBLIC KEY-----"
_PGP: Final = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
_KEY: Final = re.compile(
    rf"(?:\A|\n){_BEGIN}[ \t\r]*\n([A-Za-z0-9+/=\s]*?)\n?{_END}", re.ASCII
)
_CERTIFICATE: Final = re.compile(
    r"(?:\A|\n)-----BEGIN CERTIFICATE-----[ \t\r]*\n([A-Za-z0-9+/=\s]*?)\n?"
    r"-----END CERTIFICATE-----",
    re.ASCII,
)
_HASHES: Final[dict[str, Callable[[], hashes.HashAlgorithm]]] = {
    # KYVERNO: "" is the CRD's default.
    "": hashes.SHA256,
    "sha224": hashes.SHA224,
    "sha256": hashes.SHA256,
    "sha384": hashes.SHA384,
    "sha512": hashes.SHA512,
}
SERVICES: Final = {
    "awskms": "AWS KMS",
    "azurekms": "Azure Key Vault",
    "gcpkms": "Google Cloud KMS",
    "hashivault": "HashiCorp Vault",
    "pkcs11": "a PKCS#11 token",
    "gitlab": "GitLab",
}
_UNDECODED: Final = "PEM decoding failed"


def failed(message: str) -> ExpressionFailed:
    """Return the error for an attestor or artefact that fails verification."""
    return ExpressionFailed("image.signature", message)


def static_key(pem: str, algorithm: str) -> StaticKey:
    """Return an inline public key. Raises: ExpressionFailed."""
    chosen = _hash(algorithm)
    if pem.strip().startswith(_PGP):
        reason = "PGP keys are not supported; give a key of cosign as PEM"
        raise failed(f"failed to load public key from PEM: {reason}")
    if not pem.strip().startswith(_BEGIN):
        raise failed(f"failed to load public key from {pem}: {_unread(pem)}")
    prefix = "failed to load public key from PEM"
    der = public_key_bytes(pem)
    if der is None:
        raise failed(f"{prefix}: pem to public key: {_UNDECODED}")
    try:
        key = load_der_public_key(der)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        reason = "the key is not a valid public key"
        raise failed(f"{prefix}: pem to public key: {reason}") from error
    return StaticKey(_check_of(key, chosen, prefix), _der(key))


def public_key_bytes(pem: str) -> bytes | None:
    """Return the bytes of a PEM text's first public key, None if it has none."""
    body = _KEY.search(pem)
    return _decoded(body[1]) if body else None


def certificate_key(encoded: str, algorithm: str) -> StaticKey:
    """Return the key of a policy's ``cert``, PEM or base64 of PEM.

    KYVERNO: only the key is used; validity and issuer are not checked
    (docs/behaviour/images 3.1). Raises: ExpressionFailed.
    """
    chosen = _hash(algorithm)
    try:
        key = policy_certificate(encoded).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise failed(f"failed to load certificate from {encoded}: {error}") from error
    prefix = "failed to load signature from certificate"
    return StaticKey(_check_of(key, chosen, prefix), _der(key))


def policy_certificate(encoded: str) -> x509.Certificate:
    """Return a policy's ``cert``, PEM or base64 of PEM. Raises: ExpressionFailed."""
    try:
        plain = base64.b64decode(encoded, validate=True).decode()
    except (ValueError, UnicodeDecodeError):
        plain = encoded
    try:
        return load_certificates(plain)[0]
    except (ValueError, TypeError) as error:
        reason = f"failed to unmarshal certificate from PEM format: {error}"
        message = f"failed to load certificate from {encoded}: {reason}"
        raise failed(message) from error


def pem_of_key(der: bytes) -> str:
    """Return a SubjectPublicKeyInfo as PEM."""
    body = base64.b64encode(der).decode()
    lines = [body[at : at + 64] for at in range(0, len(body), 64)]
    return "\n".join([_BEGIN, *lines, _END, ""])


def check_of(key: object) -> Check:
    """Return the check, with SHA-256, for a signature by the certificate's key.

    Raises: ExpressionFailed.
    """
    return _check_of(key, hashes.SHA256(), "invalid certificate found on signature")


def load_certificates(pem: str) -> list[x509.Certificate]:
    """Return all certificates in a PEM text, at least one. Raises: ValueError."""
    ders = [_decoded(body) for body in _CERTIFICATE.findall(pem)]
    if not ders or None in ders:
        raise ValueError("error during PEM decoding")
    return [load_certificate(der) for der in ders if der]


def load_certificate(der: bytes) -> x509.Certificate:
    """Parse a certificate in DER. Raises: ValueError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CryptographyDeprecationWarning)
            return x509.load_der_x509_certificate(der)
    except (x509.InvalidVersion, UnsupportedAlgorithm) as error:
        # These errors are not ValueErrors, and the bytes are untrusted.
        raise ValueError(str(error)) from error


def check_algorithm(algorithm: str) -> None:
    """Raise ExpressionFailed for an unknown hash name."""
    _hash(algorithm)


def _hash(algorithm: str) -> hashes.HashAlgorithm:
    make = _HASHES.get(algorithm)
    if make is None:
        raise failed(f"invalid signature algorithm provided {algorithm}")
    return make()


def _unread(reference: str) -> str:
    """Return the reason why a key reference is not followed.

    SAFETY: upstream reads files, environment variables and URLs chosen by the author of
    a policy.
    """
    service = SERVICES.get(reference.strip().partition(":")[0])
    if service is not None:
        reason = f"this version has no provider for keys of {service}"
        if service == SERVICES["awskms"]:
            reason = (
                f"only the service reads keys of {service}, with KYVERNO_MP_AWS_KMS"
            )
        return f"open {reference}: {reason}; give the key inline as PEM"
    scheme, colon, _ = reference.partition("://")
    if colon and scheme == "k8s":
        return "there is no cluster to read the Secret from; give the key inline as PEM"
    if colon and scheme not in ("env", "http", "https"):
        return f"loading URL: unrecognized scheme: {scheme}://"
    reason = "references are not supported; give the key inline as PEM"
    return f"open {reference}: {reason}"


def _decoded(body: str) -> bytes | None:
    try:
        return base64.b64decode("".join(body.split()), validate=True) or None
    except binascii.Error:
        return None


def _der(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _check_of(key: object, chosen: hashes.HashAlgorithm, prefix: str) -> Check:
    if isinstance(key, ec.EllipticCurvePublicKey):
        return _ecdsa(key, chosen)
    if isinstance(key, rsa.RSAPublicKey):
        return _rsa(key, chosen)
    if isinstance(key, ed25519.Ed25519PublicKey):
        return _ed25519(key)
    raise failed(f"{prefix}: unsupported public key type")


def _ecdsa(key: ec.EllipticCurvePublicKey, chosen: hashes.HashAlgorithm) -> Check:
    def check(signature: bytes, data: bytes) -> str:
        try:
            key.verify(signature, data, ec.ECDSA(chosen))
        except (InvalidSignature, ValueError, UnsupportedAlgorithm):
            return "invalid signature when validating ASN.1 encoded signature"
        return ""

    return check


def _rsa(key: rsa.RSAPublicKey, chosen: hashes.HashAlgorithm) -> Check:
    # KYVERNO: only PKCS#1 v1.5 is accepted; PSS fails (docs/behaviour/images 3.4).
    def check(signature: bytes, data: bytes) -> str:
        try:
            key.verify(signature, data, padding.PKCS1v15(), chosen)
        except (InvalidSignature, ValueError, UnsupportedAlgorithm):
            # A ValueError means that the key is too short for the hash.
            return "crypto/rsa: verification error"
        return ""

    return check


def _ed25519(key: ed25519.Ed25519PublicKey) -> Check:
    def check(signature: bytes, data: bytes) -> str:
        try:
            key.verify(signature, data)
        except InvalidSignature:
            return "failed to verify signature"
        return ""

    return check

"""Verify the timestamps of certificate transparency logs in a certificate.

Room: images. Takes: a certificate, its issuer, keys of logs. Gives: nothing, or raises.
Next: images/cosign.py.
Source: docs/behaviour/images 3.6; RFC 6962 3.2, 3.3.

The bytes that a log has signed are assembled here; ``cryptography`` removes the
timestamps from the certificate and checks the signature.
"""

import hashlib
import struct
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.x509.certificate_transparency import (
    LogEntryType,
    SignatureAlgorithm,
    SignedCertificateTimestamp,
)

from kyverno_mp.images.keys import Unproved
from kyverno_mp.images.sigstore.certificates import extensions_of, key_bytes_of
from kyverno_mp.images.sigstore.logkeys import LogKeys
from kyverno_mp.limits import IMAGE_SCTS_MAX

_ABSENT: Final = (
    "certificate does not include required embedded SCT and no detached SCT was set"
)
_NO_KEY: Final = (
    "ctfe public key not found for payload. Check your TUF root (see cosign initialize)"
    " or set a custom key with env var SIGSTORE_CT_LOG_PUBLIC_KEY_FILE"
)
_FAILED: Final = "error verifying embedded SCT"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_HASHES: Final = (hashes.SHA256, hashes.SHA384, hashes.SHA512)
_VERSION_1, _TIMESTAMP, _PRECERT = 0, 0, 1


def check_scts(
    certificate: x509.Certificate, issuer: x509.Certificate | None, keys: LogKeys
) -> None:
    """Require timestamps, each by a known log. Raises: Unproved."""
    timestamps = _scts(certificate)
    if not timestamps:
        raise Unproved(_ABSENT)
    if issuer is None:
        message = "certificate chain must contain at least a certificate and its issuer"
        raise Unproved(message)
    if len(timestamps) > IMAGE_SCTS_MAX:
        raise Unproved(f"{_FAILED}: more than {IMAGE_SCTS_MAX} timestamps")
    if not keys:
        raise Unproved("none of the CTFE keys have been found")
    try:
        body = certificate.tbs_precertificate_bytes
    except ValueError as error:
        raise Unproved(f"{_FAILED}: {error}") from None
    key_hash = hashlib.sha256(key_bytes_of(issuer)).digest()
    for sct in timestamps:
        try:
            signed = _signed(sct, key_hash, body)
        except (ValueError, OverflowError, struct.error) as error:
            # Python cannot represent the time.
            raise Unproved(f"{_FAILED}: {error}") from None
        _check(sct, signed, keys)


def _scts(certificate: x509.Certificate) -> list[SignedCertificateTimestamp]:
    for extension in extensions_of(certificate):
        if isinstance(extension.value, x509.PrecertificateSignedCertificateTimestamps):
            return list(extension.value)
    return []


def _time_of(sct: SignedCertificateTimestamp) -> datetime:
    moment = sct.timestamp
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _signed(sct: SignedCertificateTimestamp, key_hash: bytes, body: bytes) -> bytes:
    milliseconds = (_time_of(sct) - _EPOCH) // timedelta(milliseconds=1)
    extensions = sct.extension_bytes
    return (
        struct.pack(">BBQH", _VERSION_1, _TIMESTAMP, milliseconds, _PRECERT)
        + key_hash
        + len(body).to_bytes(3)
        + body
        + struct.pack(">H", len(extensions))
        + extensions
    )


def _check(sct: SignedCertificateTimestamp, signed: bytes, keys: LogKeys) -> None:
    dated_key = keys.get(sct.log_id)
    if dated_key is None:
        raise Unproved(_NO_KEY)
    key, period = dated_key
    if not period.has(_time_of(sct)):
        raise Unproved(f"{_FAILED}: the log's key was not valid at its time")
    if sct.entry_type is not LogEntryType.PRE_CERTIFICATE:
        raise Unproved(f"{_FAILED}: it is of another kind")
    try:
        algorithm = sct.signature_hash_algorithm
        if not isinstance(algorithm, _HASHES):
            raise Unproved(f"{_FAILED}: insecure algorithm")
        if isinstance(key, ec.EllipticCurvePublicKey):
            if sct.signature_algorithm is not SignatureAlgorithm.ECDSA:
                raise Unproved(f"{_FAILED}: it is no ECDSA signature")
            name = "ECDSA"
            key.verify(sct.signature, signed, ec.ECDSA(algorithm))
        elif isinstance(key, rsa.RSAPublicKey):
            if sct.signature_algorithm is not SignatureAlgorithm.RSA:
                raise Unproved(f"{_FAILED}: it is no RSA signature")
            name = "RSA"
            key.verify(sct.signature, signed, padding.PKCS1v15(), algorithm)
        else:
            raise Unproved(f"{_FAILED}: unsupported type of key")
    except InvalidSignature:
        message = f"{_FAILED}: failed to verify {name} signature"
        raise Unproved(message) from None
    except (ValueError, UnsupportedAlgorithm) as error:
        raise Unproved(f"{_FAILED}: {error}") from None

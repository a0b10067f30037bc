"""Read certificates: PEM strings, names, usages, Fulcio's extensions.

Room: images. Takes: PEM strings, certificates. Gives: certificates, their names, usages
and extensions.
Next: images/sigstore/chains.py, images/sigstore/identity.py.
Source: docs/behaviour/images 3.3, 3.7; Go's crypto/x509 (which names it reads).

``cryptography`` parses. A certificate that it cannot read raises Unproved, because a
registry's certificates are untrusted input.
"""

import warnings
from collections.abc import Iterator
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import (
    CertificatePublicKeyTypes,
)
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.utils import CryptographyDeprecationWarning

from kyverno_mp.images.keys import Unproved, load_certificates

OTHER_NAME: Final = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.7")
_TIMES: Final = ("not_valid_before_utc", "not_valid_after_utc")
_UTF8_STRING: Final = 0x0C
_LONG_FORM: Final = 0x80
_LENGTH_BYTES_MAX: Final = 2
"""A name of more than 64 KiB is rejected."""


def all_certificates(pem: str, most: int) -> list[x509.Certificate]:
    """Return the certificates of a PEM text. Raises: Unproved."""
    if pem.count("-----BEGIN CERTIFICATE-----") > most:
        raise Unproved(f"more than {most} certificates")
    try:
        certificates = load_certificates(pem)
    except (ValueError, TypeError) as error:
        raise Unproved(str(error)) from None
    for certificate in certificates:
        check_readable(certificate)
    return certificates


def check_readable(certificate: x509.Certificate) -> None:
    """Read all parts, because ``cryptography`` parses each part on first access.

    Raises: Unproved.
    """
    extensions_of(certificate)
    try:
        if serial_of(certificate) < 0:
            raise Unproved("x509: negative serial number")
        for part in ("issuer", "subject", "version", *_TIMES):
            getattr(certificate, part)
        signature = certificate.signature
    except (ValueError, TypeError, LookupError, x509.InvalidVersion) as error:
        raise Unproved(f"x509: malformed certificate: {error}") from None
    # SAFETY: the number of unused bits before the signature is not signed. Only one
    # value is canonical, and Go accepts no other.
    if certificate.public_bytes(Encoding.DER)[-len(signature) - 1] != 0:
        raise Unproved("x509: malformed certificate: unused bits of the signature")


def serial_of(certificate: x509.Certificate) -> int:
    """Return the serial number, even an invalid one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        return certificate.serial_number


def extensions_of(certificate: x509.Certificate) -> x509.Extensions:
    """Return the extensions; a damaged extension invalidates the certificate."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CryptographyDeprecationWarning)
            return certificate.extensions
    except (ValueError, TypeError, KeyError, x509.DuplicateExtension) as error:
        raise Unproved(f"x509: invalid extension: {error}") from None
    except (UnsupportedAlgorithm, x509.UnsupportedGeneralNameType) as error:
        raise Unproved(f"x509: invalid extension: {error}") from None


def public_key_of(certificate: x509.Certificate) -> CertificatePublicKeyTypes:
    """Return the key. Raises: Unproved."""
    try:
        return certificate.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise Unproved(f"x509: unusable public key: {error}") from None


def key_bytes_of(certificate: x509.Certificate) -> bytes:
    """Return the SubjectPublicKeyInfo in DER. Raises: Unproved."""
    key = public_key_of(certificate)
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def pem_of(certificate: x509.Certificate) -> str:
    """Return the certificate as PEM."""
    return certificate.public_bytes(Encoding.PEM).decode()


def is_authority(certificate: x509.Certificate) -> bool:
    """Return whether the basic constraints allow a certificate authority."""
    constraints = constraints_of(certificate)
    return constraints is not None and constraints.ca


def constraints_of(certificate: x509.Certificate) -> x509.BasicConstraints | None:
    """Return the basic constraints, if any. Raises: Unproved."""
    for extension in extensions_of(certificate):
        if isinstance(extension.value, x509.BasicConstraints):
            return extension.value
    return None


def key_usage_of(certificate: x509.Certificate) -> x509.KeyUsage | None:
    """Return the key usage, if any. Raises: Unproved."""
    for extension in extensions_of(certificate):
        if isinstance(extension.value, x509.KeyUsage):
            return extension.value
    return None


def usages_of(certificate: x509.Certificate) -> tuple[x509.ObjectIdentifier, ...]:
    """Return the extended key usages; none = any. Raises: Unproved."""
    for extension in extensions_of(certificate):
        if isinstance(extension.value, x509.ExtendedKeyUsage):
            return tuple(extension.value)
    return ()


def raw_extension(certificate: x509.Certificate, oid: str) -> str:
    """Return the bytes of an extension as text, "" if it is absent.

    KYVERNO: Fulcio's first extensions are plain text, without ASN.1
    (docs/behaviour/images 3.7). Raises: Unproved.
    """
    for extension in extensions_of(certificate):
        value = extension.value
        if extension.oid.dotted_string == oid and isinstance(
            value, x509.UnrecognizedExtension
        ):
            return value.value.decode(errors="replace")
    return ""


def subject_names(certificate: x509.Certificate) -> list[str]:
    """Return the alternative names in upstream's order.

    Raises: Unproved.
    """
    names = alternative_names(certificate)
    subjects: list[str] = []
    for kind in (
        x509.DNSName,
        x509.RFC822Name,
        x509.IPAddress,
        x509.UniformResourceIdentifier,
    ):
        subjects += [str(name.value) for name in names if isinstance(name, kind)]
    return [*subjects, *_fulcio_names(names)]


def alternative_names(certificate: x509.Certificate) -> list[x509.GeneralName]:
    """Return the alternative names unchanged. Raises: Unproved."""
    for extension in extensions_of(certificate):
        if isinstance(extension.value, x509.SubjectAlternativeName):
            return list(extension.value)
    return []


def _fulcio_names(names: list[x509.GeneralName]) -> Iterator[str]:
    """Yield Fulcio's name if it is the only otherName."""
    other_names = [name for name in names if isinstance(name, x509.OtherName)]
    if len(other_names) == 1 and other_names[0].type_id == OTHER_NAME:
        name = fulcio_name(other_names[0])
        if name:
            yield name


def fulcio_name(other_name: x509.OtherName) -> str:
    """Return the text of a UTF8String, "" for any other value."""
    data = other_name.value
    if len(data) < 2 or data[0] != _UTF8_STRING:  # noqa: PLR2004 - tag and length
        return ""
    length, start = data[1], 2
    if length & _LONG_FORM:
        size = length & ~_LONG_FORM
        if not 0 < size <= _LENGTH_BYTES_MAX:
            return ""
        length = int.from_bytes(data[2 : 2 + size])
        start = 2 + size
    body = data[start:]
    if len(body) != length:
        return ""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return ""

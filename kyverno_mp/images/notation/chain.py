"""Check the certificate chains of Notation's signatures.

Room: images. Takes: certificates, leaf first. Gives: "" or upstream's message. Next:
images/notation/envelope.py.
Source: docs/behaviour/images 4 (chain rules, revocation).

``cryptography`` checks the certificates' signatures. The rules about chains are
Notation's own and exist in no library.
"""

import json
import warnings
from collections.abc import Sequence
from typing import Final, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import AuthorityInformationAccessOID, ExtensionOID, NameOID
from cryptography.x509.oid import ExtendedKeyUsageOID as Usage

from kyverno_mp.images.keys import Unproved
from kyverno_mp.images.sigstore.certificates import check_readable
from kyverno_mp.limits import IMAGE_NOTARY_CERTIFICATES_MAX

_E = TypeVar("_E", bound=x509.ExtensionType)
_NAMES: Final = {
    NameOID.COUNTRY_NAME: "C",
    NameOID.ORGANIZATION_NAME: "O",
    NameOID.ORGANIZATIONAL_UNIT_NAME: "OU",
    NameOID.LOCALITY_NAME: "L",
    NameOID.STATE_OR_PROVINCE_NAME: "ST",
    NameOID.STREET_ADDRESS: "STREET",
    NameOID.POSTAL_CODE: "POSTALCODE",
    NameOID.COMMON_NAME: "CN",
    NameOID.SERIAL_NUMBER: "SERIALNUMBER",
}
"""In Go's order, last part first."""
_EXCLUDED: Final = {
    Usage.SERVER_AUTH: "ServerAuth",
    Usage.CLIENT_AUTH: "ClientAuth",
    Usage.EMAIL_PROTECTION: "EmailProtection",
    Usage.TIME_STAMPING: "Timestamping",
    Usage.OCSP_SIGNING: "OCSPSigning",
}
_SECURE: Final = (hashes.SHA256, hashes.SHA384, hashes.SHA512)
_ESCAPED: Final = frozenset(',+"\\<>;')
_RSA: Final = {2048: "PS256", 3072: "PS384", 4096: "PS512"}
_EC: Final = {256: "ES256", 384: "ES384", 521: "ES512"}


def load_chain(ders: Sequence[bytes]) -> list[x509.Certificate]:
    """Parse the certificates. Raises: ValueError."""
    if len(ders) > IMAGE_NOTARY_CERTIFICATES_MAX:
        raise ValueError(f"more than {IMAGE_NOTARY_CERTIFICATES_MAX} certificates")
    try:
        with warnings.catch_warnings():
            # A warning about an unusual certificate would reach no user.
            warnings.simplefilter("ignore")
            chain = [x509.load_der_x509_certificate(der) for der in ders]
            for certificate in chain:
                check_readable(certificate)
    except (
        x509.InvalidVersion,
        UnsupportedAlgorithm,
        TypeError,
        Unproved,
    ) as error:
        raise ValueError(str(error)) from error
    return chain


def distinguished_name(name: x509.Name) -> str:
    """Return a name in quotes in Go's notation: CN first, C last."""
    parts = []
    for oid, label in reversed(_NAMES.items()):
        values = [str(attribute.value) for attribute in name if attribute.oid == oid]
        if values:
            parts.append("+".join(f"{label}={_escaped(value)}" for value in values))
    return json.dumps(",".join(parts), ensure_ascii=False)


def algorithm_of(certificate: x509.Certificate) -> str:
    """Return the algorithm required for a leaf's key. Raises: ValueError."""
    try:
        key = certificate.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError("unsupported public key type") from error
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size in _RSA:
            return _RSA[key.key_size]
        raise ValueError(f"rsa key size {key.key_size} bits is not supported")
    if isinstance(key, ec.EllipticCurvePublicKey):
        curve = key.curve
        if isinstance(curve, (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)):
            return _EC[curve.key_size]
        raise ValueError(f"ecdsa key size {curve.key_size} bits is not supported")
    raise ValueError("unsupported public key type")


def check_chain(chain: Sequence[x509.Certificate]) -> str:
    """Return "", or the reason why a chain for code signing is rejected."""
    if len(chain) == 1:
        return _alone(chain[0])
    last = len(chain) - 1
    for index, certificate in enumerate(chain):
        name = distinguished_name(certificate.subject)
        self_reason = _issued(certificate, certificate)
        if index == last:
            if self_reason:
                return (
                    f"root certificate with subject {name} is invalid or not"
                    " self-signed. Certificate chain must end with a valid self-signed"
                    f" root certificate. Error: {self_reason}"
                )
        elif not self_reason:
            kind = "intermediate" if index else "leaf"
            return (
                f"{kind} certificate with subject {name} is self-signed. Certificate"
                f" chain must not contain self-signed {kind} certificate"
            )
        elif reason := _issued(certificate, chain[index + 1]):
            issuer = distinguished_name(chain[index + 1].subject)
            return (
                f"invalid certificates or certificate with subject {name} is not"
                f" issued by {issuer}. Error: {reason}"
            )
        reason = _authority(certificate, index - 1) if index else _leaf(certificate)
        if reason:
            return reason
    return ""


def names_revocation(certificate: x509.Certificate) -> bool:
    """Return whether a certificate names a CRL or an OCSP server."""
    kinds = {extension.oid for extension in certificate.extensions}
    if ExtensionOID.CRL_DISTRIBUTION_POINTS in kinds:
        return True
    access = _extension(certificate, x509.AuthorityInformationAccess)
    ocsp = AuthorityInformationAccessOID.OCSP
    return access is not None and any(
        description.access_method == ocsp for description in access
    )


def _alone(certificate: x509.Certificate) -> str:
    name = distinguished_name(certificate.subject)
    reason = _signed(certificate, certificate)
    if reason:
        return f"invalid self-signed certificate. subject: {name}. Error: {reason}"
    reason = _leaf(certificate)
    return f"invalid self-signed certificate. Error: {reason}" if reason else ""


def _issued(certificate: x509.Certificate, issuer: x509.Certificate) -> str:
    """Return "", or the reason why the issuer's signature is invalid or not allowed."""
    constraints = _extension(issuer, x509.BasicConstraints)
    usage = _extension(issuer, x509.KeyUsage)
    if (
        constraints is None
        or not constraints.ca
        or (usage is not None and not usage.key_cert_sign)
    ):
        return (
            "x509: invalid signature: parent certificate cannot sign this kind of"
            " certificate"
        )
    return _signed(certificate, issuer)


def _signed(certificate: x509.Certificate, issuer: x509.Certificate) -> str:
    try:
        algorithm = certificate.signature_hash_algorithm
        if algorithm is not None and not isinstance(algorithm, _SECURE):
            # SAFETY: with SHA-1 and MD5, collisions allow forged certificates.
            return "x509: cannot verify signature: insecure algorithm"
        certificate.verify_directly_issued_by(issuer)
    except InvalidSignature:
        return "x509: the signature does not match the key of the issuer"
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        return f"x509: {error}"
    return ""


def _leaf(certificate: x509.Certificate) -> str:
    name = distinguished_name(certificate.subject)
    constraints = _extension(certificate, x509.BasicConstraints)
    if constraints is not None and constraints.ca:
        return (
            f"certificate with subject {name}: if the basic constraints extension is"
            " present, the ca field must be set to false"
        )
    reason = _usage_present(certificate, name) or _leaf_usage(certificate, name)
    if reason:
        return reason
    extended = _extension(certificate, x509.ExtendedKeyUsage)
    for usage in extended or ():
        if usage in _EXCLUDED:
            return (
                f"certificate with subject {name}: extended key usage must not contain"
                f" {_EXCLUDED[usage]} eku"
            )
    try:
        algorithm_of(certificate)
    except ValueError as error:
        return f"certificate with subject {name}: {error}"
    return ""


def _authority(certificate: x509.Certificate, depth: int) -> str:
    name = distinguished_name(certificate.subject)
    constraints = _extension(certificate, x509.BasicConstraints)
    if constraints is None or not constraints.ca:
        return (
            f"certificate with subject {name}: ca field in basic constraints must be"
            " present, critical, and set to true"
        )
    length = constraints.path_length
    if length is not None and length < depth:
        return (
            f"certificate with subject {name}: expected path length of {depth} but"
            f" certificate has path length {length} instead"
        )
    reason = _usage_present(certificate, name)
    usage = _extension(certificate, x509.KeyUsage)
    if reason or usage is None or usage.key_cert_sign:
        return reason
    return (
        f"certificate with subject {name}: key usage must have the bit positions for"
        " key cert sign set"
    )


def _usage_present(certificate: x509.Certificate, name: str) -> str:
    for extension in certificate.extensions:
        if extension.oid == ExtensionOID.KEY_USAGE:
            if extension.critical:
                return ""
            problem = "key usage extension must be marked critical"
            return f"certificate with subject {name}: {problem}"
    return f"certificate with subject {name}: key usage extension must be present"


def _leaf_usage(certificate: x509.Certificate, name: str) -> str:
    usage = _extension(certificate, x509.KeyUsage)
    prefix = f"the certificate with subject {name} is invalid. The key usage must"
    if usage is None or not usage.digital_signature:
        return f'{prefix} have the bit positions for "Digital Signature" set'
    agrees = usage.key_agreement
    flags = (
        (usage.key_encipherment, "KeyEncipherment"),
        (usage.data_encipherment, "DataEncipherment"),
        (agrees, "KeyAgreement"),
        (usage.key_cert_sign, "CertSign"),
        (usage.crl_sign, "CRLSign"),
        (agrees and usage.encipher_only, "EncipherOnly"),
        (agrees and usage.decipher_only, "DecipherOnly"),
    )
    wrong = ", ".join(f'"{label}"' for is_set, label in flags if is_set)
    return f'{prefix} be "Digital Signature" only, but found {wrong}' if wrong else ""


def _extension(certificate: x509.Certificate, kind: type[_E]) -> _E | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def _escaped(value: str) -> str:
    """Escape a value by the rules of RFC 2253."""
    last = len(value) - 1
    return "".join(
        f"\\{character}"
        if character in _ESCAPED
        or (at == 0 and character in " #")
        or (at == last and character == " ")
        else character
        for at, character in enumerate(value)
    )

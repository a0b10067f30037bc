"""Convert a certificate or request to the JSON of Go's x509 structures.

Room: expr. Takes: PEM text. Gives: a dict with Go's field names and numbers as floats.
Next: expr/jmespath/functions/certificates.py.
Source: docs/behaviour/engine 9.2 (x509_decode); crypto/x509 Certificate,
CertificateRequest.
"""

import base64
import warnings
from collections.abc import Callable
from datetime import datetime
from ipaddress import IPv4Network, IPv6Network
from typing import Any, Final
from urllib.parse import urlsplit

import re2
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509 import extensions as ext
from cryptography.x509.oid import ExtensionOID, NameOID, SignatureAlgorithmOID

from kyverno_mp.expr.jmespath.interim import fail
from kyverno_mp.values.jsonvalue import Json

_BLOCK: Final = re2.compile(
    r"(?s)-----BEGIN ([^-\n]*)-----\s*\n(.*?)-----END ([^-\n]*)-----"
)
_NAME_FIELDS: Final = {
    NameOID.COUNTRY_NAME: "Country",
    NameOID.ORGANIZATION_NAME: "Organization",
    NameOID.ORGANIZATIONAL_UNIT_NAME: "OrganizationalUnit",
    NameOID.LOCALITY_NAME: "Locality",
    NameOID.STATE_OR_PROVINCE_NAME: "Province",
    NameOID.STREET_ADDRESS: "StreetAddress",
    NameOID.POSTAL_CODE: "PostalCode",
}
_ALGORITHMS: Final = {
    SignatureAlgorithmOID.RSA_WITH_MD5: 2.0,
    SignatureAlgorithmOID.RSA_WITH_SHA1: 3.0,
    SignatureAlgorithmOID.RSA_WITH_SHA256: 4.0,
    SignatureAlgorithmOID.RSA_WITH_SHA384: 5.0,
    SignatureAlgorithmOID.RSA_WITH_SHA512: 6.0,
    SignatureAlgorithmOID.DSA_WITH_SHA1: 7.0,
    SignatureAlgorithmOID.DSA_WITH_SHA256: 8.0,
    SignatureAlgorithmOID.ECDSA_WITH_SHA1: 9.0,
    SignatureAlgorithmOID.ECDSA_WITH_SHA256: 10.0,
    SignatureAlgorithmOID.ECDSA_WITH_SHA384: 11.0,
    SignatureAlgorithmOID.ECDSA_WITH_SHA512: 12.0,
    SignatureAlgorithmOID.RSASSA_PSS: 13.0,
    SignatureAlgorithmOID.ED25519: 16.0,
}
_USAGES: Final = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
)
_EXTENDED: Final = {
    oid: float(number)
    for number, oid in enumerate(
        (
            "2.5.29.37.0",
            "1.3.6.1.5.5.7.3.1",
            "1.3.6.1.5.5.7.3.2",
            "1.3.6.1.5.5.7.3.3",
            "1.3.6.1.5.5.7.3.4",
            "1.3.6.1.5.5.7.3.5",
            "1.3.6.1.5.5.7.3.6",
            "1.3.6.1.5.5.7.3.7",
            "1.3.6.1.5.5.7.3.8",
            "1.3.6.1.5.5.7.3.9",
            "1.3.6.1.4.1.311.10.3.3",
            "2.16.840.1.113730.4.1",
            "1.3.6.1.4.1.311.2.1.22",
            "1.3.6.1.4.1.311.61.1.1",
        )
    )
}
_HANDLED: Final = frozenset(
    {
        ExtensionOID.KEY_USAGE,
        ExtensionOID.BASIC_CONSTRAINTS,
        ExtensionOID.SUBJECT_ALTERNATIVE_NAME,
        ExtensionOID.NAME_CONSTRAINTS,
        ExtensionOID.CRL_DISTRIBUTION_POINTS,
        ExtensionOID.AUTHORITY_KEY_IDENTIFIER,
        ExtensionOID.EXTENDED_KEY_USAGE,
        ExtensionOID.SUBJECT_KEY_IDENTIFIER,
        ExtensionOID.CERTIFICATE_POLICIES,
        ExtensionOID.AUTHORITY_INFORMATION_ACCESS,
    }
)


def decode_pem(pem: str, serial: Callable[[int], int] = int) -> Json:
    """Decode the first PEM block; RSA keys only. ``serial`` converts serial numbers.

    Raises: ExpressionFailed; the message equals upstream's unless it comes from Go's
    library.
    """
    match = _BLOCK.search(pem)
    try:
        body = base64.b64decode("".join(match.group(2).split()), validate=True)
    except (AttributeError, ValueError) as error:
        raise fail("failed to decode PEM block") from error
    assert match is not None
    kind = match.group(1)
    if kind != match.group(3):
        raise fail("failed to decode PEM block")
    if kind not in ("CERTIFICATE", "CERTIFICATE REQUEST"):
        raise fail("PEM block neither contains a CERTIFICATE or CERTIFICATE REQUEST")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CryptographyDeprecationWarning)
            if kind == "CERTIFICATE":
                return _certificate(x509.load_der_x509_certificate(body), serial)
            return _request(x509.load_der_x509_csr(body))
    except (ValueError, x509.InvalidVersion, x509.DuplicateExtension) as error:
        raise fail(f"x509: malformed certificate: {error}") from error


def _common(item: x509.Certificate | x509.CertificateSigningRequest) -> dict[str, Json]:
    try:
        key = item.public_key()
    except Exception as error:
        # Unknown key types raise errors of several classes.
        raise fail("certificate should use rsa algorithm") from error
    if not isinstance(key, RSAPublicKey):
        raise fail("certificate should use rsa algorithm")
    numbers = key.public_numbers()
    info = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return {
        "Raw": _text(item.public_bytes(Encoding.DER)),
        "RawSubjectPublicKeyInfo": _text(info),
        "RawSubject": _text(item.subject.public_bytes()),
        "Signature": _text(item.signature),
        "SignatureAlgorithm": _ALGORITHMS.get(item.signature_algorithm_oid, 0.0),
        "PublicKeyAlgorithm": 1.0,
        "PublicKey": {"N": str(numbers.n), "E": float(numbers.e)},
        "Subject": _name(item.subject),
        "ExtraExtensions": None,
        **_alternative_names(item.extensions),
    }


def _request(request: x509.CertificateSigningRequest) -> Json:
    return {
        **_common(request),
        "RawTBSCertificateRequest": _text(request.tbs_certrequest_bytes),
        "Version": 0.0,
        "Attributes": None,
        "Extensions": _extensions(request.extensions),
    }


def _certificate(certificate: x509.Certificate, serial: Callable[[int], int]) -> Json:
    extensions = certificate.extensions
    unhandled = [
        _oid(extension.oid)
        for extension in extensions
        if extension.critical and extension.oid not in _HANDLED
    ]
    return {
        **_common(certificate),
        "RawTBSCertificate": _text(certificate.tbs_certificate_bytes),
        "RawIssuer": _text(certificate.issuer.public_bytes()),
        "Version": float(certificate.version.value + 1),
        "SerialNumber": float(serial(certificate.serial_number)),
        "Issuer": _name(certificate.issuer),
        "NotBefore": _time(certificate.not_valid_before_utc),
        "NotAfter": _time(certificate.not_valid_after_utc),
        "Extensions": _extensions(extensions),
        "UnhandledCriticalExtensions": unhandled or None,
        **_usage(extensions),
        **_constraints(extensions),
        **_identifiers(extensions),
        **_places(extensions),
        **_policies(extensions),
        **_name_constraints(extensions),
    }


def _text(data: bytes | None) -> str | None:
    return base64.b64encode(data).decode("ascii") if data else None


def _oid(oid: x509.ObjectIdentifier) -> list[float]:
    return [float(part) for part in oid.dotted_string.split(".")]


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _name(name: x509.Name) -> Json:
    subject: dict[str, Json] = dict.fromkeys(_NAME_FIELDS.values())
    subject |= {"CommonName": "", "SerialNumber": "", "ExtraNames": None}
    names: list[Json] = []
    for part in name:
        names.append({"Type": _oid(part.oid), "Value": part.value})
        if part.oid in _NAME_FIELDS:
            field = _NAME_FIELDS[part.oid]
            if subject[field] is None:
                subject[field] = []
            subject[field].append(part.value)
        elif part.oid == NameOID.COMMON_NAME:
            subject["CommonName"] = part.value
        elif part.oid == NameOID.SERIAL_NUMBER:
            subject["SerialNumber"] = part.value
    subject["Names"] = names or None
    return subject


def _extensions(extensions: x509.Extensions) -> Json:
    return [
        {
            "Id": _oid(extension.oid),
            "Critical": extension.critical,
            "Value": _text(extension.value.public_bytes()),
        }
        for extension in extensions
    ] or None


def _value(extensions: x509.Extensions, kind: type[Any]) -> Any:
    """Return the value of an extension, or None if it is absent."""
    try:
        return extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def _alternative_names(extensions: x509.Extensions) -> dict[str, Json]:
    names = _value(extensions, ext.SubjectAlternativeName)

    def of(kind: type[Any]) -> list[Any]:
        return [] if names is None else names.get_values_for_type(kind)

    return {
        "DNSNames": of(x509.DNSName) or None,
        "EmailAddresses": of(x509.RFC822Name) or None,
        "IPAddresses": [str(address) for address in of(x509.IPAddress)] or None,
        "URIs": [_url(url) for url in of(x509.UniformResourceIdentifier)] or None,
    }


def _url(url: str) -> Json:
    parts = urlsplit(url)
    opaque = "" if url.startswith(f"{parts.scheme}:/") else parts.path
    return {
        "Scheme": parts.scheme,
        "Opaque": opaque,
        "User": None,
        "Host": parts.netloc,
        "Path": "" if opaque else parts.path,
        "RawPath": "",
        "OmitHost": False,
        "ForceQuery": False,
        "RawQuery": parts.query,
        "Fragment": parts.fragment,
        "RawFragment": "",
    }


def _usage(extensions: x509.Extensions) -> dict[str, Json]:
    usage = _value(extensions, ext.KeyUsage)
    bits = 0
    if usage is not None:
        bits = sum(1 << bit for bit, name in enumerate(_USAGES) if getattr(usage, name))
        if usage.key_agreement:
            bits += (128 if usage.encipher_only else 0) + (
                256 if usage.decipher_only else 0
            )
    extended = _value(extensions, ext.ExtendedKeyUsage) or ()
    numbers = [_EXTENDED.get(oid.dotted_string) for oid in extended]
    return {
        "KeyUsage": float(bits),
        "ExtKeyUsage": [number for number in numbers if number is not None] or None,
        "UnknownExtKeyUsage": [
            _oid(oid) for oid in extended if oid.dotted_string not in _EXTENDED
        ]
        or None,
    }


def _constraints(extensions: x509.Extensions) -> dict[str, Json]:
    basic = _value(extensions, ext.BasicConstraints)
    length = 0
    if basic is not None:
        length = -1 if basic.path_length is None else basic.path_length
    return {
        "BasicConstraintsValid": basic is not None,
        "IsCA": basic is not None and basic.ca,
        "MaxPathLen": float(length),
        "MaxPathLenZero": basic is not None and length == 0,
    }


def _identifiers(extensions: x509.Extensions) -> dict[str, Json]:
    subject = _value(extensions, ext.SubjectKeyIdentifier)
    authority = _value(extensions, ext.AuthorityKeyIdentifier)
    return {
        "SubjectKeyId": _text(subject.digest) if subject else None,
        "AuthorityKeyId": _text(authority.key_identifier) if authority else None,
    }


def _places(extensions: x509.Extensions) -> dict[str, Json]:
    access = _value(extensions, ext.AuthorityInformationAccess) or ()

    def at(method: str) -> Json:
        return [
            description.access_location.value
            for description in access
            if description.access_method.dotted_string == method
        ] or None

    points = [
        name.value
        for point in _value(extensions, ext.CRLDistributionPoints) or ()
        for name in point.full_name or ()
        if isinstance(name, x509.UniformResourceIdentifier)
    ]
    return {
        "OCSPServer": at("1.3.6.1.5.5.7.48.1"),
        "IssuingCertificateURL": at("1.3.6.1.5.5.7.48.2"),
        "CRLDistributionPoints": points or None,
    }


def _policies(extensions: x509.Extensions) -> dict[str, Json]:
    policies = [
        policy.policy_identifier
        for policy in _value(extensions, ext.CertificatePolicies) or ()
    ]
    return {
        "PolicyIdentifiers": [_oid(oid) for oid in policies] or None,
        "Policies": [oid.dotted_string for oid in policies] or None,
        "PolicyMappings": None,
        "InhibitAnyPolicy": 0.0,
        "InhibitAnyPolicyZero": False,
        "InhibitPolicyMapping": 0.0,
        "InhibitPolicyMappingZero": False,
        "RequireExplicitPolicy": 0.0,
        "RequireExplicitPolicyZero": False,
    }


def _name_constraints(extensions: x509.Extensions) -> dict[str, Json]:
    constraints: dict[str, Json] = {"PermittedDNSDomainsCritical": False}
    limits = _value(extensions, ext.NameConstraints)
    for word, trees in (
        ("Permitted", limits.permitted_subtrees if limits else None),
        ("Excluded", limits.excluded_subtrees if limits else None),
    ):
        for field, kind in (
            ("DNSDomains", x509.DNSName),
            ("EmailAddresses", x509.RFC822Name),
            ("URIDomains", x509.UniformResourceIdentifier),
        ):
            values = [tree.value for tree in trees or () if isinstance(tree, kind)]
            constraints[word + field] = values or None
        constraints[word + "IPRanges"] = [
            {
                "IP": str(tree.value.network_address),
                "Mask": _text(tree.value.netmask.packed),
            }
            for tree in trees or ()
            if isinstance(tree, x509.IPAddress)
            and isinstance(tree.value, (IPv4Network, IPv6Network))
        ] or None
    if limits is not None:
        extension = extensions.get_extension_for_class(ext.NameConstraints)
        constraints["PermittedDNSDomainsCritical"] = extension.critical
    return constraints

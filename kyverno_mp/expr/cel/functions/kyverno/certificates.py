"""Implement ``x509.decode``.

Room: expr. Takes: Meter and values. Gives: OVERLOADS. Next: expr/cel/catalogue.py.
Source: kyverno/sdk cel/libs/x509; docs/behaviour/cel 12.
"""

from typing import Final

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed
from kyverno_mp.expr.cel.library import function
from kyverno_mp.expr.cel.values import CelFailed, Meter, Value
from kyverno_mp.limits import CERTIFICATE_CHARACTERS_MAX

_COST: Final = 10_000
"""Decoding a small certificate takes 0.5 ms, as in JMESPath's x509_decode."""
_CHARACTER_COST: Final = 40
_CHARACTER_BYTES: Final = 32
_INT64: Final = 1 << 64
_KEPT: Final = (
    "Raw",
    "RawTBSCertificate",
    "RawSubjectPublicKeyInfo",
    "RawSubject",
    "RawIssuer",
    "Signature",
    "PublicKeyAlgorithm",
    "PublicKey",
    "SerialNumber",
    "Issuer",
    "NotBefore",
    "NotAfter",
    "KeyUsage",
    "Extensions",
    "ExtraExtensions",
    "ExtKeyUsage",
    "BasicConstraintsValid",
    "IsCA",
    "MaxPathLen",
    "MaxPathLenZero",
    "AuthorityKeyId",
    "OCSPServer",
    "IssuingCertificateURL",
    "DNSNames",
    "EmailAddresses",
    "IPAddresses",
    "PermittedDNSDomainsCritical",
    "PermittedDNSDomains",
    "ExcludedDNSDomains",
    "PermittedIPRanges",
    "ExcludedIPRanges",
    "PermittedEmailAddresses",
    "ExcludedEmailAddresses",
    "PermittedURIDomains",
    "ExcludedURIDomains",
    "CRLDistributionPoints",
    "PolicyIdentifiers",
)
"""KYVERNO: Subject, SignatureAlgorithm and Version of Go's Certificate are missing."""


def _decode(meter: Meter, pem: str) -> Value:
    if len(pem) > CERTIFICATE_CHARACTERS_MAX:
        raise BudgetExceeded("expr.certificate", "certificate is too long")
    meter.charge(_CHARACTER_COST * len(pem))
    meter.hold(_CHARACTER_BYTES * len(pem))
    # PERF: importing the library takes 50 ms, which would slow the start of the CLI.
    from kyverno_mp.expr.jmespath.certificate_document import decode_pem

    try:
        document = decode_pem(pem, _int64)
    except ExpressionFailed as error:
        raise CelFailed(error.message.partition(": error parsing")[0]) from error
    if "SerialNumber" not in document:
        return document  # A certificate request.
    return {name: document.get(name) for name in _KEPT}


def _int64(number: int) -> int:
    """KYVERNO: return the low 64 bits as a signed number."""
    low = number % _INT64
    return low - _INT64 if low >= _INT64 >> 1 else low


OVERLOADS: Final = (function("x509.decode(string) -> dyn", _decode, cost=_COST),)

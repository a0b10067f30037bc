"""Match certificates with the identities of an ImageValidatingPolicy.

Room: images. Takes: certificates, Identities. Gives: ``has_identity``. Next:
cosign.py.
Source: docs/behaviour/images 8 (identities); cosign pkg/cosign/verify.go
(CheckCertificatePolicy).
"""

from collections.abc import Sequence
from typing import Final

from cryptography import x509

from kyverno_mp.images.keys import Unproved, failed
from kyverno_mp.images.sigstore.certificates import raw_extension, subject_names
from kyverno_mp.images.sigstore.identity import check_extensions, searches
from kyverno_mp.program.ports import Identity

_ISSUER: Final = "1.3.6.1.4.1.57264.1.1"
_NAMING: Final = 4
"""The fields of an Identity that name a subject or an issuer."""


def check_identities(identities: Sequence[Identity]) -> None:
    """Require that every identity has a criterion. Raises: ExpressionFailed.

    SAFETY: upstream treats an empty identity or an empty list as any signer.
    """
    if not identities or not all(any(identity[:_NAMING]) for identity in identities):
        raise failed("keyless needs identities with an issuer or a subject")


def has_identity(certificate: x509.Certificate, identities: Sequence[Identity]) -> bool:
    """Return whether a certificate has one of the identities.

    KYVERNO: values are exact, without wildcards. An expression replaces the value and
    matches any part of it. Raises: Unproved.
    """
    issuer, names = raw_extension(certificate, _ISSUER), subject_names(certificate)
    return any(
        _matches([issuer], identity.issuer, identity.issuer_reg_exp, "issuer")
        and _matches(names, identity.subject, identity.subject_reg_exp, "subject")
        and _has_extensions(certificate, identity)
        for identity in identities
    )


def _has_extensions(certificate: x509.Certificate, identity: Identity) -> bool:
    """Return whether the certificate has the extensions, as in verifyImages rules."""
    try:
        check_extensions(certificate, identity)
    except Unproved:
        return False
    return True


def _matches(values: Sequence[str], exact: str, pattern: str, noun: str) -> bool:
    if pattern:
        return any(searches(pattern, value, noun) for value in values)
    return not exact or exact in values

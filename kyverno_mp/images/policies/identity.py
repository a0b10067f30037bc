"""Match certificates with the identities of an ImageValidatingPolicy.

Room: images. Takes: certificates, Identities. Gives: ``has_identity``. Next:
cosign.py. May touch: nothing outside its arguments.
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


def check_identities(wanted: Sequence[Identity]) -> None:
    """Require that every identity has a criterion. Raises: ExpressionFailed.

    SAFETY: upstream treats an empty identity or an empty list as any signer.
    """
    if not wanted or not all(any(one[:_NAMING]) for one in wanted):
        raise failed("keyless needs identities with an issuer or a subject")


def has_identity(certificate: x509.Certificate, wanted: Sequence[Identity]) -> bool:
    """Return whether a certificate has one of the identities.

    KYVERNO: values are exact, without wildcards. An expression replaces the value and
    matches any part of it. Raises: Unproved.
    """
    issuer, names = raw_extension(certificate, _ISSUER), subject_names(certificate)
    return any(
        _matches([issuer], one.issuer, one.issuer_reg_exp, "issuer")
        and _matches(names, one.subject, one.subject_reg_exp, "subject")
        and _has_extensions(certificate, one)
        for one in wanted
    )


def _has_extensions(certificate: x509.Certificate, identity: Identity) -> bool:
    """Return whether the certificate has the extensions, as in verifyImages rules."""
    try:
        check_extensions(certificate, identity)
    except Unproved:
        return False
    return True


def _matches(found: Sequence[str], exact: str, pattern: str, what: str) -> bool:
    if pattern:
        return any(searches(pattern, one, what) for one in found)
    return not exact or exact in found

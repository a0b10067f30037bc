"""Build the chain from a certificate to a trusted one by Go's rules.

Room: images. Takes: a certificate, trusted and other certificates, a time, a usage.
Gives: the chain. Next: images/cosign.py, images/sigstore/timestamps.py.
Source: docs/behaviour/images 3.3; Go's crypto/x509 (Certificate.Verify);
docs/behaviour/images 10.2 (CVE-2026-32280: bounded chains).

``cryptography`` checks each signature. The rules about which certificate can sign which
are here, because ``cryptography``'s validator follows the Web PKI profile and rejects
private chains.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID

from kyverno_mp.images.keys import Unproved
from kyverno_mp.images.sigstore.certificates import (
    constraints_of,
    extensions_of,
    key_bytes_of,
    key_usage_of,
    usages_of,
)
from kyverno_mp.limits import IMAGE_CHAIN_CHECKS_MAX, IMAGE_CHAIN_LENGTH_MAX

CODE_SIGNING: Final = ExtendedKeyUsageOID.CODE_SIGNING
ANY: Final = ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE
_UNKNOWN: Final = "x509: certificate signed by unknown authority"
_UNHANDLED: Final = "x509: unhandled critical extension"
_HASHES: Final = (hashes.SHA256, hashes.SHA384, hashes.SHA512)
_KNOWN: Final = frozenset(
    {
        ExtensionOID.BASIC_CONSTRAINTS,
        ExtensionOID.KEY_USAGE,
        ExtensionOID.SUBJECT_ALTERNATIVE_NAME,
        ExtensionOID.CRL_DISTRIBUTION_POINTS,
        ExtensionOID.AUTHORITY_KEY_IDENTIFIER,
        ExtensionOID.EXTENDED_KEY_USAGE,
        ExtensionOID.SUBJECT_KEY_IDENTIFIER,
        ExtensionOID.CERTIFICATE_POLICIES,
    }
)


def verified_chain(
    leaf: x509.Certificate,
    roots: Sequence[x509.Certificate],
    intermediates: Sequence[x509.Certificate],
    at: datetime,
    usage: x509.ObjectIdentifier = CODE_SIGNING,
) -> list[x509.Certificate]:
    """Return the first chain from the leaf to one of ``roots``, possibly the leaf.

    All certificates of the chain are valid ``at`` that time.
    Raises: Unproved with Go's text.
    """
    search = _Search(roots, intermediates, at)
    _check_alone(leaf, at)
    chains = [[leaf]] if leaf in roots else search.chains([leaf])
    if not chains:
        raise Unproved(search.reason or _UNKNOWN)
    for chain in chains:
        if _allows(chain, usage):
            return chain
    message = "x509: certificate specifies an incompatible key usage"
    raise Unproved(message)


@dataclass(slots=True)
class _Search:
    """One search; ``checks``: number of signatures checked so far."""

    roots: Sequence[x509.Certificate]
    intermediates: Sequence[x509.Certificate]
    at: datetime
    checks: int = 0
    reason: str = ""

    def chains(self, below: list[x509.Certificate]) -> list[list[x509.Certificate]]:
        """Return the complete chains that continue an incomplete one."""
        complete = [
            [*below, root]
            for root in self.roots
            if self._signs(root, below, is_trusted=True)
        ]
        if len(below) < IMAGE_CHAIN_LENGTH_MAX - 1:
            for intermediate in self.intermediates:
                if self._signs(intermediate, below, is_trusted=False):
                    complete += self.chains([*below, intermediate])
        return complete

    def _signs(
        self,
        issuer: x509.Certificate,
        below: list[x509.Certificate],
        *,
        is_trusted: bool,
    ) -> bool:
        child = below[-1]
        if child.issuer != issuer.subject or _is_among(issuer, below):
            return False
        self.checks += 1
        if self.checks > IMAGE_CHAIN_CHECKS_MAX:
            message = "x509: signature check attempts limit reached while verifying"
            raise Unproved(f"{message} certificate chain")
        try:
            _check_signature(child, issuer)
            _check_issuer(issuer, below, self.at, is_trusted=is_trusted)
        except Unproved as error:
            self.reason = self.reason or str(error)
            return False
        return True


def _is_among(issuer: x509.Certificate, below: list[x509.Certificate]) -> bool:
    """Return whether a chain already has a certificate with this subject and key."""
    key = key_bytes_of(issuer)
    return any(
        certificate.subject == issuer.subject and key_bytes_of(certificate) == key
        for certificate in below
    )


def _check_signature(child: x509.Certificate, issuer: x509.Certificate) -> None:
    constraints = constraints_of(issuer)
    is_modern = issuer.version is x509.Version.v3
    usage = key_usage_of(issuer)
    if (
        (constraints is None and is_modern)
        or (constraints is not None and not constraints.ca)
        or (usage is not None and not usage.key_cert_sign)
    ):
        message = "x509: invalid signature: parent certificate cannot sign this kind of"
        raise Unproved(f"{message} certificate")
    try:
        algorithm = child.signature_hash_algorithm
        # Ed25519 has no separate hash.
        if algorithm is not None and not isinstance(algorithm, _HASHES):
            message = "x509: cannot verify signature: insecure algorithm"
            raise Unproved(f"{message} {algorithm.name}")
        child.verify_directly_issued_by(issuer)
    except InvalidSignature:
        raise Unproved(f"{_UNKNOWN}: verification failure") from None
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        message = "x509: cannot verify signature"
        raise Unproved(f"{message}: {error}") from None


def _check_alone(certificate: x509.Certificate, at: datetime) -> None:
    """Check a certificate without its chain: extensions and validity."""
    for extension in extensions_of(certificate):
        # SAFETY: a constraint that is not supported here is an error, even if it is not
        # marked as critical.
        constrains = extension.oid in (
            ExtensionOID.NAME_CONSTRAINTS,
            ExtensionOID.POLICY_CONSTRAINTS,
            ExtensionOID.INHIBIT_ANY_POLICY,
        )
        if constrains or (extension.critical and extension.oid not in _KNOWN):
            raise Unproved(_UNHANDLED)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if at < begin or at > end:
        message = "x509: certificate has expired or is not yet valid: current time"
        way, bound = ("before", begin) if at < begin else ("after", end)
        raise Unproved(f"{message} {_text(at)} is {way} {_text(bound)}")


def _check_issuer(
    issuer: x509.Certificate,
    below: list[x509.Certificate],
    at: datetime,
    *,
    is_trusted: bool,
) -> None:
    _check_alone(issuer, at)
    constraints = constraints_of(issuer)
    if not is_trusted and (constraints is None or not constraints.ca):
        message = "x509: certificate is not authorized to sign other certificates"
        raise Unproved(message)
    if constraints is None or constraints.path_length is None:
        return
    if len(below) - 1 > constraints.path_length:
        message = "x509: too many intermediates for path length constraint"
        raise Unproved(message)


def _allows(chain: list[x509.Certificate], usage: x509.ObjectIdentifier) -> bool:
    """Return whether all certificates of the chain allow the usage."""
    if usage == ANY:
        return True
    for certificate in chain:
        usages = usages_of(certificate)
        if usages and usage not in usages and ANY not in usages:
            return False
    return True


def check_valid_at(
    certificate: x509.Certificate, issuers: Sequence[x509.Certificate], at: datetime
) -> None:
    """Require that a certificate and its issuers are valid at a proved time.

    Raises: Unproved with Cosign's text.
    """
    for name, checked in (
        ("", certificate),
        *(("issuing CA ", each) for each in issuers),
    ):
        begin, end = checked.not_valid_before_utc, checked.not_valid_after_utc
        if end < at:
            message = (
                f"certificate expired before observed time: {_text(end)} is before"
            )
            raise Unproved(f"{name}{message} {_text(at)}")
        if begin > at:
            message = "certificate was issued after observed time:"
            raise Unproved(f"{name}{message} {_text(begin)} is after {_text(at)}")


def _text(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")

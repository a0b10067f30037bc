"""Verify the certificate, log entry and signature of a keyless signed manifest.

Room: images. Takes: an object's annotations, a policy's identity, the trust root.
Gives: the signer's name, or raises. Next: images/manifests/verifier.py.
May touch: the network through the given trust root.
Source: docs/behaviour/images 7 (keyless).

SAFETY: upstream accepts the log entry alone, so a self-signed certificate with the
right name passes. Here the certificate must chain to the roots, be valid at the log's
time and have the issuer that the policy names, and its key must have made the
signature.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from cryptography import x509

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.images.bundles.material import parse_material
from kyverno_mp.images.keys import Unproved, check_of
from kyverno_mp.images.sigstore.certificates import (
    all_certificates,
    pem_of,
    public_key_of,
    raw_extension,
    subject_names,
)
from kyverno_mp.images.sigstore.chains import check_valid_at, verified_chain
from kyverno_mp.images.sigstore.rekor import parse_bundle, verified_bundle
from kyverno_mp.images.sigstore.rekor_entry import Signed
from kyverno_mp.images.terms import TrustRoot
from kyverno_mp.limits import IMAGE_CERTIFICATES_MAX
from kyverno_mp.policy.fields.image_verification import KeylessAttestor

_ISSUER = "1.3.6.1.4.1.57264.1.1"


class Signature(NamedTuple):
    """One signature of an object: base64, PEM, and JSON of the log's bundle."""

    encoded: str
    data: bytes
    certificate: str
    bundle: str


def verified_signer(
    signature: Signature,
    message: bytes,
    keyless_attestor: KeylessAttestor,
    trust: TrustRoot,
    deadline_ns: int,
) -> str:
    """Return the signer's name. Raises: Unproved, ExpressionFailed (no trust root)."""
    if not signature.certificate or not signature.bundle:
        raise Unproved("the signature has no certificate, or no entry of a log")
    certificate = all_certificates(signature.certificate, IMAGE_CERTIFICATES_MAX)[0]
    promise = parse_bundle(signature.bundle)
    if promise is None:
        raise Unproved("the signature has no entry of a log")
    signed = Signed(signature.encoded, message, pem_of(certificate))
    at = verified_bundle(promise, signed, trust.rekor_keys(deadline_ns))
    roots, intermediates = _authorities(keyless_attestor.roots, trust, at, deadline_ns)
    chain = verified_chain(certificate, roots, intermediates, at)
    check_valid_at(certificate, chain[1:], at)
    try:
        check = check_of(public_key_of(certificate))
    except ExpressionFailed as error:
        raise Unproved(error.message) from None
    reason = check(signature.data, message)
    if reason:
        raise Unproved(reason)
    return _checked_name(certificate, keyless_attestor)


def _authorities(
    pem: str, trust: TrustRoot, at: datetime, deadline_ns: int
) -> tuple[Sequence[x509.Certificate], Sequence[x509.Certificate]]:
    """Return the policy's or the trust root's roots, and the intermediates.

    An authority of the trust root only vouches for certificates within its period.
    """
    data = trust.target("trusted_root.json", deadline_ns)
    authorities = parse_material(data).authorities
    intermediates = [
        intermediate
        for authority in authorities
        for intermediate in authority.intermediates
    ]
    if pem:
        return all_certificates(pem, IMAGE_CERTIFICATES_MAX), intermediates
    valid = [authority for authority in authorities if authority.period.has(at)]
    return [root for authority in valid for root in authority.roots], intermediates


def _checked_name(
    certificate: x509.Certificate, keyless_attestor: KeylessAttestor
) -> str:
    issuer = raw_extension(certificate, _ISSUER)
    if keyless_attestor.issuer and issuer != keyless_attestor.issuer:
        raise Unproved(f"the issuer is {issuer}, not {keyless_attestor.issuer}")
    names = subject_names(certificate)
    if not keyless_attestor.subject or keyless_attestor.subject not in names:
        listed = ", ".join(names)
        raise Unproved(
            f"signature has been verified, but signer name `{listed}` does not match"
            f" `{keyless_attestor.subject}`"
        )
    return keyless_attestor.subject

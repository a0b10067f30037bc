"""Build the Terms of a Cosign attestor, and select signatures by their content.

Room: images. Takes: CosignQuery, a trust root, verified signatures. Gives: Terms,
payloads. Next: review.py. May touch: the network through the trust root.
Source: docs/behaviour/images 8, 3; Kyverno
pkg/image/verifiers/ivpol/cosign/{opts,verifier}.go.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from cryptography import x509

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.images.bundles.material import Material, parse_material
from kyverno_mp.images.bundles.verify import trusted_chain
from kyverno_mp.images.cosign import Verified
from kyverno_mp.images.keys import (
    StaticKey,
    Unproved,
    certificate_key,
    failed,
    policy_certificate,
    static_key,
)
from kyverno_mp.images.policies.identity import check_identities, has_identity
from kyverno_mp.images.policies.trust import PolicyRoot
from kyverno_mp.images.sigstore.certificates import all_certificates
from kyverno_mp.images.sigstore.chains import verified_chain
from kyverno_mp.images.sigstore.ctlog import check_scts
from kyverno_mp.images.sigstore.logkeys import LogKeys, log_keys
from kyverno_mp.images.sigstore.proof import Terms
from kyverno_mp.images.sigstore.rekor_entry import Signed
from kyverno_mp.images.sigstore.timestamps import authority_of
from kyverno_mp.limits import IMAGE_CERTIFICATES_MAX, IMAGE_CHAIN_LENGTH_MAX
from kyverno_mp.program.image_policies.ports import CosignQuery
from kyverno_mp.program.ports import LogTerms
from kyverno_mp.values.jsonvalue import Json

_CHAIN_MAX: Final = IMAGE_CHAIN_LENGTH_MAX - 1
_NO_LOG: Final = LogTerms()


def material_of(trust: PolicyRoot, deadline_ns: int) -> Material:
    """Return the trusted root's keys and certificates. Raises: ExpressionFailed."""
    prefix = "failed to get trusted root for bundle verification"
    try:
        return parse_material(trust.target("trusted_root.json", deadline_ns))
    except Unproved as error:
        raise failed(f"{prefix}: {error}") from None
    except ExpressionFailed as error:
        raise failed(f"{prefix}: {error.message}") from error


def terms_of_policy(
    cosign_query: CosignQuery,
    trust: PolicyRoot,
    now: datetime,
    deadline_ns: int,
    search: Callable[[Signed], bytes],
) -> Terms:
    """Return the requirements on a signature; the first error wins.

    KYVERNO: the TUF repository must be readable even if nothing is read from it.
    Raises: ExpressionFailed.
    """
    trust.check(deadline_ns)
    log = cosign_query.log
    if log is not None and not log.url:
        raise failed("getting Rekor public keys:  rekor URL must be provided")
    effective_log = log or _NO_LOG
    terms = Terms(
        now=now,
        log=_rekor(effective_log, trust, deadline_ns),
        authority=authority_of(effective_log.tsa_chain)
        if effective_log.tsa_chain
        else None,
        # KYVERNO: without a log, a signature must include its log entry.
        search=None if log is None else search,
    )
    if cosign_query.identities is not None:
        terms = _keyless(cosign_query, trust, terms, deadline_ns)
    else:
        scts = (
            None
            if effective_log.ignores_scts
            else _ctlog(effective_log, trust, deadline_ns)
        )
        terms = _keyed(cosign_query, replace(terms, scts=scts))
    return replace(terms, log=None) if effective_log.is_ignored else terms


def _rekor(log_terms: LogTerms, trust: PolicyRoot, deadline_ns: int) -> LogKeys:
    if not log_terms.key:
        return trust.rekor_keys(deadline_ns)
    try:
        return log_keys([log_terms.key])
    except ValueError as error:
        raise failed(f"failed to parse rekor public keys: {error}") from None


def _ctlog(log_terms: LogTerms, trust: PolicyRoot, deadline_ns: int) -> LogKeys:
    if not log_terms.scts_key:
        return trust.ctlog_keys(deadline_ns)
    try:
        return log_keys([log_terms.scts_key])
    except ValueError as error:
        raise failed(f"failed to parse ctlog public keys: {error}") from None


def _keyless(
    cosign_query: CosignQuery, trust: PolicyRoot, terms: Terms, deadline_ns: int
) -> Terms:
    """KYVERNO: only the trusted root is used, not the policy's keys and roots."""
    check_identities(cosign_query.identities or ())
    material = material_of(trust, deadline_ns)

    def chain_of(certificate: x509.Certificate) -> Sequence[x509.Certificate]:
        return trusted_chain(certificate, material, certificate.not_valid_before_utc)

    ignores = cosign_query.log is not None and cosign_query.log.ignores_scts
    return replace(
        terms,
        chain_of=chain_of,
        log=material.logs,
        scts=None if ignores else material.ctlogs,
    )


def _keyed(cosign_query: CosignQuery, terms: Terms) -> Terms:
    if cosign_query.key is not None:
        if cosign_query.key:
            return replace(
                terms,
                key=static_key(cosign_query.key, cosign_query.algorithm),
                scts=None,
            )
        if cosign_query.kms:
            # This raises an error which says that references are not followed.
            return replace(
                terms, key=static_key(cosign_query.kms, cosign_query.algorithm)
            )
    elif cosign_query.certificate:
        return replace(terms, key=_certified(cosign_query, terms), scts=None)
    elif cosign_query.chain:
        prefix = "failed to load certificates: error creating root cert pool"
        try:
            roots = all_certificates(cosign_query.chain, IMAGE_CERTIFICATES_MAX)
        except Unproved:
            raise failed(prefix) from None
        return replace(terms, roots=tuple(roots))
    # SAFETY: an attestor that names no signer trusts no signer.
    raise failed("the attestor names no key, certificate or identity")


def _certified(cosign_query: CosignQuery, terms: Terms) -> StaticKey:
    """Return the certificate's key; a given chain must lead to the certificate.

    Unlike for verifyImages rules, the chain is checked with the keys of logs.
    """
    key = certificate_key(cosign_query.certificate, "sha256")
    if not cosign_query.chain:
        return key
    count = cosign_query.chain.count("-----BEGIN CERTIFICATE-----")
    if count > _CHAIN_MAX:
        message = (
            f"certificate chain too long ({count}), maximum allowed is {_CHAIN_MAX}"
        )
        raise failed(message)
    prefix = "failed to load validate certificate chain"
    certificate = policy_certificate(cosign_query.certificate)
    try:
        certificates = all_certificates(cosign_query.chain, _CHAIN_MAX)
        begin = certificate.not_valid_before_utc
        verified = verified_chain(
            certificate, certificates[-1:], certificates[:-1], begin
        )
        if terms.scts is not None:
            check_scts(certificate, verified[1] if verified[1:] else None, terms.scts)
    except Unproved as error:
        raise failed(f"{prefix}: {error}") from None
    return key


def identified(
    verified: Sequence[Verified], cosign_query: CosignQuery
) -> list[Verified]:
    """Return the signatures by an identity, at least one. Raises: ExpressionFailed."""
    identities = cosign_query.identities
    if identities is None:
        return list(verified)
    chosen = []
    for signature in verified:
        try:
            if signature.certificate is not None and has_identity(
                signature.certificate, identities
            ):
                chosen.append(signature)
        except Unproved as error:
            raise failed(str(error)) from None
    if not chosen:
        raise failed(
            "no matching signatures: none of the expected identities matched what was"
            " in the certificate"
        )
    return chosen


def annotated(
    verified: Sequence[Verified], cosign_query: CosignQuery
) -> list[Verified]:
    """Return the signatures with the annotations, at least one.

    KYVERNO: the layer's annotations are compared, which are not signed: they select
    among signatures but prove nothing (docs/behaviour/images 8). Raises:
    ExpressionFailed.
    """
    chosen = [
        signature
        for signature in verified
        if _has(signature.annotations, cosign_query.annotations)
    ]
    if not chosen:
        raise failed("no signature matched the required annotations")
    return chosen


def _has(annotations: Mapping[str, Json], required: Sequence[tuple[str, str]]) -> bool:
    return all(annotations.get(key) == value for key, value in required)

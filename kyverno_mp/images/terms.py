"""Build the Terms of one attestor from its strings, in upstream's order.

Room: images. Takes: a SignatureQuery, a TrustRoot. Gives: Terms.
Next: images/verifier.py. May touch: the network through the given TrustRoot.
Source: docs/behaviour/images 3.1 (the first error wins), 3.8.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, NoReturn, Protocol

from cryptography import x509

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.images.keys import (
    StaticKey,
    Unproved,
    certificate_key,
    check_algorithm,
    failed,
    policy_certificate,
    static_key,
)
from kyverno_mp.images.sigstore.certificates import all_certificates
from kyverno_mp.images.sigstore.chains import verified_chain
from kyverno_mp.images.sigstore.ctlog import check_scts
from kyverno_mp.images.sigstore.logkeys import LogKeys, log_keys
from kyverno_mp.images.sigstore.proof import UNTRUSTED, Terms
from kyverno_mp.images.sigstore.rekor_entry import Signed
from kyverno_mp.images.sigstore.timestamps import Authority, authority_of
from kyverno_mp.limits import IMAGE_CERTIFICATES_MAX, IMAGE_CHAIN_LENGTH_MAX
from kyverno_mp.program.ports import SignatureQuery

_POOL: Final = "error creating root cert pool"
_CHAIN_MAX: Final = IMAGE_CHAIN_LENGTH_MAX - 1


class TrustRoot(Protocol):
    """The certificates and keys for policies that name none."""

    def fulcio_roots(self, deadline_ns: int) -> Sequence[x509.Certificate]:
        """Return the roots of the certificate authority. Raises: ExpressionFailed."""

    def rekor_keys(self, deadline_ns: int) -> LogKeys:
        """Return the keys of the transparency logs. Raises: ExpressionFailed."""

    def ctlog_keys(self, deadline_ns: int) -> LogKeys:
        """Return the certificate transparency logs' keys. Raises: ExpressionFailed."""

    def target(self, name: str, deadline_ns: int) -> bytes:
        """Return a verified file of the repository. Raises: ExpressionFailed."""


class NoTrustRoot:
    """An empty trust root, which trusts nothing."""

    def _refused(self, *_: object, **__: object) -> NoReturn:
        message = "no TUF repository is configured, and the policy names no keys"
        raise failed(message)

    fulcio_roots = rekor_keys = ctlog_keys = target = _refused


def terms_of(
    signature_query: SignatureQuery,
    trust: TrustRoot,
    now: datetime,
    deadline_ns: int,
    search: Callable[[Signed], bytes] | None = None,
    tick: Callable[[], None] = lambda: None,
) -> Terms:
    """Return the requirements on a signature. Raises: ExpressionFailed."""
    roots = _pool(signature_query.roots, "failed to load Root certificates")
    check_algorithm(signature_query.algorithm)
    key = _key(signature_query)
    if key is None and signature_query.chain:
        roots = _pool(signature_query.chain, "failed to load certificates")
    elif key is None and not signature_query.is_keyless:
        # SAFETY: with the trust root alone, any signer would pass.
        raise failed("the attestor names no key, certificate or identity")
    elif key is None and not roots:
        try:
            roots = tuple(trust.fulcio_roots(deadline_ns))
        except ExpressionFailed as error:
            message = f"failed to get roots from fulcio: {error.message}"
            raise failed(message) from error
    return Terms(
        now=now,
        key=key,
        roots=roots,
        log=_log(signature_query, trust, deadline_ns),
        scts=_scts(signature_query, key, trust, deadline_ns),
        authority=_authority(signature_query),
        search=search,
        tick=tick,
    )


def _key(signature_query: SignatureQuery) -> StaticKey | None:
    if signature_query.key:
        return static_key(signature_query.key, signature_query.algorithm)
    if not signature_query.certificate:
        return None
    key = certificate_key(signature_query.certificate, signature_query.algorithm)
    if signature_query.chain:
        _check_policy_chain(
            policy_certificate(signature_query.certificate), signature_query.chain
        )
    return key


def _pool(pem: str, prefix: str) -> tuple[x509.Certificate, ...]:
    if not pem:
        return ()
    try:
        return tuple(all_certificates(pem, IMAGE_CERTIFICATES_MAX))
    except Unproved as error:
        reason = str(error) if "more than" in str(error) else _POOL
        raise failed(f"{prefix}: {reason}") from None


def _check_policy_chain(certificate: x509.Certificate, chain: str) -> None:
    """Verify a policy's ``cert`` below its ``certChain``.

    KYVERNO: this never succeeds, because it runs before ``ctlog`` is read. Without a
    log's timestamp it fails, and with one it has no key to verify it
    (docs/behaviour/images 3.1).
    """
    count = chain.count("-----BEGIN CERTIFICATE-----")
    if count > _CHAIN_MAX:
        message = (
            f"certificate chain too long ({count}), maximum allowed is {_CHAIN_MAX}"
        )
        raise failed(message)
    try:
        certificates = all_certificates(chain, _CHAIN_MAX)
    except Unproved as error:
        raise failed(f"failed to load certificate chain: {error}") from None
    begin = certificate.not_valid_before_utc
    prefix = "failed to load validate certificate chain"
    try:
        verified = verified_chain(
            certificate, certificates[-1:], certificates[:-1], begin
        )
    except Unproved as error:
        message = f"{prefix}: cert verification failed: {error}{UNTRUSTED}"
        raise failed(message) from None
    try:
        check_scts(certificate, verified[1] if verified[1:] else None, {})
    except Unproved as error:
        raise failed(f"{prefix}: {error}") from None


def _log(
    signature_query: SignatureQuery, trust: TrustRoot, deadline_ns: int
) -> LogKeys | None:
    if signature_query.logs.is_ignored:
        return None
    prefix = "failed to load Rekor public keys"
    try:
        if signature_query.logs.key:
            return log_keys([signature_query.logs.key])
        return trust.rekor_keys(deadline_ns)
    except ValueError as error:
        message = f"{prefix}: failed to get rekor public keys: {error}"
        raise failed(message) from None
    except ExpressionFailed as error:
        raise failed(f"{prefix}: {error.message}") from error


def _scts(
    signature_query: SignatureQuery,
    key: StaticKey | None,
    trust: TrustRoot,
    deadline_ns: int,
) -> LogKeys | None:
    """Return the keys; the trust root's are used only to verify a certificate."""
    if signature_query.logs.ignores_scts:
        return None
    prefix = "failed to load CTLogs public keys"
    try:
        if signature_query.logs.scts_key:
            return log_keys([signature_query.logs.scts_key])
        return trust.ctlog_keys(deadline_ns) if key is None else None
    except ValueError as error:
        message = f"{prefix}: failed to get transparency log public keys: {error}"
        raise failed(message) from None
    except ExpressionFailed as error:
        raise failed(f"{prefix}: {error.message}") from error


def _authority(signature_query: SignatureQuery) -> Authority | None:
    return (
        authority_of(signature_query.logs.tsa_chain)
        if signature_query.logs.tsa_chain
        else None
    )

"""Match the certificate of a signature with the identity that a policy names.

Room: images. Takes: certificates, an Identity. Gives: nothing, or raises.
Next: images/verifier.py.
Source: docs/behaviour/images 3.7.
"""

from collections.abc import Sequence
from typing import Final

from cryptography import x509

from kyverno_mp.images.keys import Unproved, failed
from kyverno_mp.images.sigstore.certificates import raw_extension, subject_names
from kyverno_mp.program.ports import Identity
from kyverno_mp.values.go.regex import compile_regex
from kyverno_mp.values.wildcard import matches

_ISSUER: Final = "1.3.6.1.4.1.57264.1.1"
_NAMES: Final = {
    "oidcIssuer": _ISSUER,
    "githubWorkflowTrigger": "1.3.6.1.4.1.57264.1.2",
    "githubWorkflowSha": "1.3.6.1.4.1.57264.1.3",
    "githubWorkflowName": "1.3.6.1.4.1.57264.1.4",
    "githubWorkflowRepository": "1.3.6.1.4.1.57264.1.5",
    "githubWorkflowRef": "1.3.6.1.4.1.57264.1.6",
}
_OIDS: Final = frozenset(_NAMES.values())


def require_identity(
    certificates: Sequence[x509.Certificate | None], identity: Identity
) -> None:
    """Require that one of the certificates has the identity.

    KYVERNO: without criteria, every certificate passes. Raises: ExpressionFailed.
    """
    if not any(identity):
        return
    reasons = []
    for certificate in certificates:
        if certificate is None:
            raise failed("certificate not found")
        try:
            _check(certificate, identity)
        except Unproved as error:
            reasons.append(str(error))
        else:
            return
    raise failed("; ".join(reasons) or "invalid signature")


def _check(certificate: x509.Certificate, identity: Identity) -> None:
    if identity.subject or identity.subject_reg_exp:
        names = subject_names(certificate)
        # SAFETY: upstream accepts a certificate without names for every subject.
        if not _is_subject(names, identity):
            expected = identity.subject or identity.subject_reg_exp
            message = f"subject mismatch: expected {expected}, received"
            raise Unproved(f"{message} {', '.join(names)}")
    if identity.issuer or identity.issuer_reg_exp:
        _check_issuer(raw_extension(certificate, _ISSUER), identity)
    check_extensions(certificate, identity)


def check_extensions(certificate: x509.Certificate, identity: Identity) -> None:
    """Require Fulcio's extensions; values may have wildcards. Raises: Unproved."""
    for key, value in identity.extensions:
        oid = _NAMES.get(key, key)
        if oid not in _OIDS:
            raise Unproved(f"invalid certificate extension {key}")
        actual = raw_extension(certificate, oid)
        if not matches(value, actual):
            message = f"extension mismatch: expected {value} for key {key}"
            raise Unproved(f"{message}, received {actual}")


def _is_subject(names: list[str], identity: Identity) -> bool:
    """Return whether any name matches the pattern or the expression."""
    is_subject = bool(identity.subject) and any(
        matches(identity.subject, name) for name in names
    )
    if identity.subject_reg_exp:
        tests = [
            searches(identity.subject_reg_exp, name, "subject") for name in ("", *names)
        ]
        is_subject = is_subject or any(tests[1:])
    return is_subject


def _check_issuer(issuer: str, identity: Identity) -> None:
    """KYVERNO: the pattern and the expression must both match."""
    expected = identity.issuer
    holds = not expected or matches(expected, issuer)
    if holds and identity.issuer_reg_exp:
        expected = identity.issuer_reg_exp
        holds = searches(expected, issuer, "issuer")
    if not holds:
        message = f"issuer mismatch: expected {expected}, received {issuer}"
        raise Unproved(message)


def searches(pattern: str, value: str, noun: str) -> bool:
    """Return whether an expression matches part of the text. Raises: Unproved."""
    regex = compile_regex(pattern, captures=False)
    if regex.compiled is None:
        reason = regex.error_text(pattern)
        raise Unproved(f"invalid regexp for {noun}: {pattern} : {reason}")
    return regex.compiled.search(value) is not None

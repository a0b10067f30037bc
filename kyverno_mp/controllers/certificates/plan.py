"""Decide which certificates must be renewed at a given time, as a pure function.

Room: controllers. Takes: the Secrets as stored, the time. Gives: CaPlan, TlsPlan.
Next: controllers/certificates/reconcile.py acts on them.
Source: docs/behaviour/controllers 4; Kyverno pkg/tls/renewer.go at v1.18.2.

Upstream overwrites a user's Secret that contains a chain (14.37). Here, a Secret
without our label is never written, and a chain is parsed as the leaf, then the
intermediates.
"""

import base64
import binascii
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from kyverno_mp.controllers.certificates.rules import (
    CERTIFICATE,
    KEY,
    LEGACY_CERTIFICATE,
    MANAGED_BY,
    MANAGER,
    SECRET_TYPE,
    CertificateRules,
)
from kyverno_mp.limits import CERTIFICATE_KEYS_KEPT_MAX
from kyverno_mp.values.jsonvalue import Json

_BEGIN: Final = b"-----BEGIN CERTIFICATE-----"
_END: Final = b"-----END CERTIFICATE-----"
PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


@dataclass(frozen=True, slots=True)
class Stored:
    """A Secret as stored; ``raw`` is None if it does not exist."""

    raw: Json | None
    managed: bool
    right_type: bool
    key: PrivateKey | None
    certificates: tuple[x509.Certificate, ...]
    pem: bytes


@dataclass(frozen=True, slots=True)
class CaPlan:
    """The plan for the authority.

    ``make``: whether to add a new authority to ``remaining`` in the bundle.
    """

    make: bool
    remaining: tuple[x509.Certificate, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class TlsPlan:
    """The plan for the server. ``make``: whether it needs a new certificate."""

    make: bool
    problem: str = ""


def read_secret(raw: Json | None) -> Stored:
    """Parse a Secret; treat unreadable parts as missing."""
    if raw is None:
        return Stored(
            None, managed=True, right_type=True, key=None, certificates=(), pem=b""
        )
    data = raw.get("data") or {}
    labels = (raw.get("metadata") or {}).get("labels") or {}
    pem = _bytes_of(data.get(CERTIFICATE)) or _bytes_of(data.get(LEGACY_CERTIFICATE))
    return Stored(
        raw,
        managed=labels.get(MANAGED_BY) == MANAGER,
        right_type=raw.get("type") == SECRET_TYPE,
        key=_key_of(_bytes_of(data.get(KEY))),
        certificates=certificates_of(pem),
        pem=pem,
    )


def plan_ca(stored: Stored, now: datetime, rules: CertificateRules) -> CaPlan:
    """Check the authority: one certificate must last longer than ``renew_before``."""
    soon = now + rules.renew_before
    remaining = tuple(
        certificate
        for certificate in stored.certificates
        if certificate.not_valid_after_utc >= soon
    )
    if not stored.managed:
        problem = "" if remaining else _not_ours(rules.ca_name)
        return CaPlan(make=False, remaining=stored.certificates, problem=problem)
    # Without the authority's key, the server's certificate cannot be renewed.
    if remaining and stored.key is not None and stored.right_type:
        return CaPlan(make=False, remaining=remaining)
    still_valid = tuple(
        one for one in stored.certificates if one.not_valid_after_utc > now
    )
    # When upstream creates a new authority, it drops authorities that expire soon, so
    # callers briefly distrust replicas that still serve the old certificate.
    return CaPlan(make=True, remaining=still_valid)


def plan_tls(
    stored: Stored,
    bundle: Sequence[x509.Certificate],
    now: datetime,
    rules: CertificateRules,
) -> TlsPlan:
    """Check the server's certificate against the bundle that callers trust."""
    good = (
        stored.key is not None
        and is_trusted(stored.certificates, bundle, now)
        and stored.certificates[0].not_valid_after_utc >= now + rules.renew_before
        and (not stored.managed or _names_fit(stored.certificates[0], rules))
    )
    if good and (stored.right_type or not stored.managed):
        return TlsPlan(make=False)
    if not stored.managed:
        trusted = is_trusted(stored.certificates, bundle, now)
        return TlsPlan(make=False, problem="" if trusted else _not_ours(rules.tls_name))
    return TlsPlan(make=True)


def is_trusted(
    chain: Sequence[x509.Certificate],
    bundle: Iterable[x509.Certificate],
    now: datetime,
) -> bool:
    """Return whether ``chain`` links its first certificate to the bundle now."""
    if not chain:
        return False
    trusted = [one for one in bundle if _is_valid(one, now)]
    for index, one in enumerate(chain):
        if not _is_valid(one, now):
            return False
        if any(_signed_by(one, issuer) for issuer in trusted):
            return True
        if index + 1 == len(chain) or not _signed_by(one, chain[index + 1]):
            return False
    return False


def certificates_of(pem: bytes) -> tuple[x509.Certificate, ...]:
    """Return the certificates in a PEM text; skip broken ones, as upstream does."""
    found: list[x509.Certificate] = []
    for block in pem.split(_BEGIN)[1:]:
        body, end, _ = block.partition(_END)
        try:
            with warnings.catch_warnings():
                # Upstream's authorities have serial number 0.
                warnings.simplefilter("ignore")
                found.append(
                    x509.load_pem_x509_certificate(_BEGIN + body + end + b"\n")
                )
        except ValueError:
            continue
    return tuple(found)


def _names_fit(leaf: x509.Certificate, rules: CertificateRules) -> bool:
    """Return whether the certificate names the Service, whose name may have changed."""
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return False
    return set(rules.dns_names) <= set(names.value.get_values_for_type(x509.DNSName))


def _is_valid(certificate: x509.Certificate, now: datetime) -> bool:
    return certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc


def _signed_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


@lru_cache(maxsize=CERTIFICATE_KEYS_KEPT_MAX)
def _key_of(pem: bytes) -> PrivateKey | None:
    """Return the private key of a PEM text, or None if it is unreadable.

    PERF: checking an RSA key takes 40 ms of CPU, and a replica without the lease reads
    two keys each second.
    """
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    return key if isinstance(key, PrivateKey) else None


def _bytes_of(text: Json) -> bytes:
    try:
        return base64.b64decode(text, validate=True) if type(text) is str else b""
    except (binascii.Error, ValueError):
        return b""


def _not_ours(name: str) -> str:
    return (
        f"Secret {name}: tls is not valid but certificates are not managed by kyverno,"
        " we can't renew them"
    )

"""Verify one signature of Notation, as a function over bytes.

Room: images. Takes: an envelope, trusted certificates, the expected target, the time.
Gives: nothing, or a Refused with upstream's reason. Next: images/notation/reader.py.
Source: docs/behaviour/images 4 (3 to 6).

The formats are in jws.py and cose.py. This module does the other checks in upstream's
order: the signature, the rules of the chain, trust, expiry, validity, revocation and
the signed target.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from cryptography import x509

from kyverno_mp.images.keys import Unproved
from kyverno_mp.images.notation import cose, jws
from kyverno_mp.images.notation.chain import (
    algorithm_of,
    check_chain,
    distinguished_name,
    names_revocation,
)
from kyverno_mp.images.notation.records import NUMBERS, X509, Refused, Signed, Target
from kyverno_mp.images.sigstore.timestamps import verified_token
from kyverno_mp.limits import IMAGE_ENVELOPE_BYTES_MAX
from kyverno_mp.values.go.gojson import JsonInvalid, decode_json
from kyverno_mp.values.go.gotext import json_string

_PLUGIN: Final = "io.cncf.notary.verificationPlugin"
_PAYLOAD: Final = "application/vnd.cncf.notary.payload.v1+json"
_RFC1123: Final = "%a, %d %b %Y %H:%M:%S %z"


def check_envelope(
    media_type: str,
    blob: bytes,
    trusted: Sequence[x509.Certificate],
    target: Target,
    now: datetime,
    stamping: Sequence[x509.Certificate] = (),
) -> datetime:
    """Check that a trusted chain signed the target; return the end of its validity.

    ``stamping``: the timestamp authorities; if any is given, the time that they prove
    replaces ``now``, except for the expiry. Raises: Refused.
    """
    if len(blob) > IMAGE_ENVELOPE_BYTES_MAX:
        raise Refused(f"the envelope has more than {IMAGE_ENVELOPE_BYTES_MAX} bytes")
    signed = _opened(media_type, blob)
    _check_integrity(signed)
    _check_authenticity(signed, trusted)
    _check_expiry(signed, now)
    at = _stamped(signed, stamping) if stamping else now
    _check_times(signed, at)
    _check_target(signed.payload, target)
    ends = [certificate.not_valid_after_utc for certificate in signed.chain]
    return min(ends if signed.expiry is None else [*ends, signed.expiry])


def _opened(media_type: str, blob: bytes) -> Signed:
    if media_type == jws.MEDIA_TYPE:
        return jws.opened(blob)
    if media_type == cose.MEDIA_TYPE:
        return cose.opened(blob)
    printed = json_string(media_type, escape_html=False)
    raise Refused(
        "unable to parse the digital signature, error : signature envelope format with"
        f" media type {printed} is not supported"
    )


def _check_integrity(signed: Signed) -> None:
    if not signed.payload:
        raise Refused("content not present")
    if signed.signing_time is None:
        raise Refused("signing-time not present")
    if signed.expiry is not None and signed.expiry <= signed.signing_time:
        raise Refused("expiry cannot be equal or before the signing time")
    reason = check_chain(signed.chain)
    if reason:
        raise Refused(f"certificate-chain is invalid, {reason}")
    try:
        algorithm = algorithm_of(signed.chain[0])
    except ValueError as error:
        raise Refused(str(error)) from error
    if algorithm != signed.algorithm:
        raise Refused(
            "mismatch between signature algorithm derived from signing certificate"
            f" ({NUMBERS[algorithm]}) and signing algorithm specified"
            f" ({NUMBERS[signed.algorithm]}s)"
        )
    if signed.content_type != _PAYLOAD:
        printed = json_string(signed.content_type, escape_html=False)
        raise Refused(f"payload content type {printed} not supported")
    if _PLUGIN in signed.critical:
        raise Refused("plugin unsupported due to nil verifier.pluginManager")


def _check_authenticity(signed: Signed, trusted: Sequence[x509.Certificate]) -> None:
    if signed.scheme != X509 or not trusted:
        # A policy cannot name certificates of signing authorities.
        raise Refused("no trusted certificates are found to verify authenticity")
    if not any(certificate in trusted for certificate in signed.chain):
        raise Refused(
            "the signature's certificate chain does not contain any trusted certificate"
        )


def _check_expiry(signed: Signed, now: datetime) -> None:
    if signed.expiry is not None and now >= signed.expiry:
        expiry = signed.expiry.strftime(_RFC1123)
        raise Refused(f'digital signature has expired on "{expiry}"')


def _stamped(signed: Signed, stamping: Sequence[x509.Certificate]) -> datetime:
    """Return the time at which an authority stamped the signature. Raises: Refused."""
    if not signed.timestamp:
        message = "no timestamp countersignature was found in the signature envelope"
        raise Refused(message)
    try:
        return verified_token(signed.timestamp, signed.signature, stamping)
    except Unproved as error:
        message = f"failed to verify the timestamp countersignature with error: {error}"
        raise Refused(message) from None


def _check_times(signed: Signed, now: datetime) -> None:
    for certificate in signed.chain:
        name = distinguished_name(certificate.subject)
        if now < certificate.not_valid_before_utc:
            moment = certificate.not_valid_before_utc.strftime(_RFC1123)
            raise Refused(
                f"verification time is before certificate {name} validity period, it"
                f' will be valid from "{moment}"'
            )
        if now > certificate.not_valid_after_utc:
            moment = certificate.not_valid_after_utc.strftime(_RFC1123)
            raise Refused(
                f"verification time is after certificate {name} validity period, it"
                f' was expired at "{moment}"'
            )
    for certificate in signed.chain[:-1]:
        if names_revocation(certificate):
            # SAFETY: revocation is not checked here, so its state is unknown.
            name = distinguished_name(certificate.subject)
            raise Refused(
                f"signing certificate with subject {name} revocation status is unknown"
            )


def _check_target(payload: bytes, target: Target) -> None:
    try:
        content = decode_json(payload.decode())
    except (JsonInvalid, UnicodeDecodeError) as error:
        raise Refused(str(error)) from error
    artifact = content.get("targetArtifact") if type(content) is dict else None
    fields = artifact if type(artifact) is dict else {}
    has = (fields.get("mediaType"), fields.get("digest"), fields.get("size"))
    if has != (target.media_type, target.digest, float(target.size)):
        raise Refused("content descriptor mismatch")

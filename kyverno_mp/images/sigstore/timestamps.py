"""Verify an RFC 3161 timestamp over a signature.

Room: images. Takes: a response of a timestamp authority, the signed bytes, the
authority's certificates. Gives: the time. Next: images/cosign.py.
Source: docs/behaviour/images 3.1 (limits), 3.3 (step 1); RFC 3161 2.3, 2.4.2.

``rfc3161-client`` parses and verifies; our chain rules apply in addition to its own.
The library is imported for the first timestamp, because few signatures have one.
"""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID

from kyverno_mp.images.keys import Unproved, failed, load_certificate
from kyverno_mp.images.sigstore.certificates import (
    all_certificates,
    check_readable,
    extensions_of,
    is_authority,
    serial_of,
    usages_of,
)
from kyverno_mp.images.sigstore.chains import ANY, verified_chain
from kyverno_mp.limits import (
    IMAGE_CERTIFICATES_MAX,
    IMAGE_CHAIN_LENGTH_MAX,
    IMAGE_TIMESTAMP_BYTES_MAX,
)

if TYPE_CHECKING:
    from rfc3161_client import TimeStampResponse

_STAMPING: Final = ExtendedKeyUsageOID.TIME_STAMPING
_CHAIN: Final = "error while verifying with chain: pkcs7: failed to verify"
_PARSE: Final = "error parsing response into Timestamp"
_LENGTH_BYTES_MAX: Final = 3
_GRANTED: Final = bytes.fromhex("3003020100")
"""The status of a response with a token."""
_SHA: Final = {
    "2.16.840.1.101.3.4.2.1": hashlib.sha256,
    "2.16.840.1.101.3.4.2.2": hashlib.sha384,
    "2.16.840.1.101.3.4.2.3": hashlib.sha512,
}


@dataclass(frozen=True, slots=True)
class Authority:
    """The certificates of a timestamp authority that a policy trusts."""

    leaf: x509.Certificate | None
    intermediates: tuple[x509.Certificate, ...]
    roots: tuple[x509.Certificate, ...]


def authority_of(pem: str) -> Authority:
    """Return the certificates of a ``tsaCertChain``. Raises: ExpressionFailed."""
    count = pem.count("-----BEGIN CERTIFICATE-----")
    if count > IMAGE_CHAIN_LENGTH_MAX:
        raise failed(
            f"TSA certificate chain contains too many certificates ({count}), maximum"
            f" allowed is {IMAGE_CHAIN_LENGTH_MAX}"
        )
    try:
        certificates = all_certificates(pem, IMAGE_CERTIFICATES_MAX)
        authorities = [
            certificate for certificate in certificates if is_authority(certificate)
        ]
    except Unproved as error:
        raise failed(f"error splitting tsa certificates: {error}") from None
    leaves = [
        certificate for certificate in certificates if certificate not in authorities
    ]
    if len(leaves) > 1:
        message = "certificate chain must contain at most one TSA certificate"
        raise failed(message)
    roots = tuple(
        authority for authority in authorities if authority.subject == authority.issuer
    )
    intermediates = tuple(
        certificate for certificate in authorities if certificate not in roots
    )
    return Authority(leaves[0] if leaves else None, intermediates, roots)


def verified_timestamp(
    response: bytes, signed: bytes, authority: Authority
) -> datetime:
    """Return the time at which the authority stamped the bytes. Raises: Unproved."""
    if len(response) > IMAGE_TIMESTAMP_BYTES_MAX:
        raise Unproved(f"{_PARSE}: more than {IMAGE_TIMESTAMP_BYTES_MAX} bytes")
    if not authority.roots:
        raise Unproved("no TSA root certificate(s) provided to verify timestamp")
    try:
        answer = _decoded(response)
        signer = _signer(answer, _certificates(answer), authority)
        at = answer.tst_info.gen_time
        if at.tzinfo is None:
            at = at.replace(tzinfo=UTC)
        _check_chain(signer, authority, at)
        _check_usage(signer, authority)
        _check_message(answer, signed)
        _verify(answer, signer, authority)
    except (ValueError, TypeError, OverflowError, LookupError) as error:
        # The parts of a response are parsed on first access.
        raise Unproved(f"{_PARSE}: {error}") from None
    return at


def verified_token(
    token: bytes, signed: bytes, roots: Sequence[x509.Certificate]
) -> datetime:
    """Return the time of a bare token, verified against trusted certificates.

    The token's own certificates are the intermediates. Raises: Unproved.
    """
    if len(token) > IMAGE_TIMESTAMP_BYTES_MAX:
        raise Unproved(f"{_PARSE}: more than {IMAGE_TIMESTAMP_BYTES_MAX} bytes")
    response = _value(0x30, _GRANTED + token)
    try:
        certificates = _certificates(_decoded(response))
        intermediates = [
            certificate
            for certificate in certificates
            if is_authority(certificate) and certificate not in roots
        ]
    except (ValueError, TypeError, OverflowError, LookupError) as error:
        raise Unproved(f"{_PARSE}: {error}") from None
    return verified_timestamp(
        response, signed, Authority(None, tuple(intermediates), tuple(roots))
    )


def _value(tag: int, content: bytes) -> bytes:
    """Encode a value in DER."""
    length = len(content)
    if length < 0x80:  # noqa: PLR2004 - the short form
        return bytes((tag, length)) + content
    size = (length.bit_length() + 7) // 8
    return bytes((tag, 0x80 | size)) + length.to_bytes(size) + content


def _decoded(response: bytes) -> "TimeStampResponse":
    from rfc3161_client import decode_timestamp_response

    answer = decode_timestamp_response(_in_order(response))
    if answer.status != 0:
        raise Unproved(f"{_PARSE}: the authority has refused to answer")
    return answer


def _in_order(response: bytes) -> bytes:
    """Sort the certificates of a response, as DER requires but authorities forget.

    The certificates are not signed. A response with another structure is unchanged.
    """
    at = 0
    # TimeStampResp; the token, after the status; the content, after its type;
    # SignedData.
    for skipped in (1, 1, 0, 3):
        start, _ = _span(response, at)
        at = start
        for _ in range(skipped):
            at = sum(_span(response, at))
    if response[at : at + 1] != b"\xa0":
        # The response has no certificates.
        return response
    start, length = _span(response, at)
    end, parts, at = start + length, [], start
    while at < end:
        after = sum(_span(response, at))
        parts.append(response[at:after])
        at = after
    if at != end:
        raise ValueError("the certificates are not DER")
    return response[:start] + b"".join(sorted(parts)) + response[end:]


def _span(data: bytes, at: int) -> tuple[int, int]:
    """Return the start and the length of a DER value's content."""
    header = data[at : at + 2]
    if len(header) < 2:  # noqa: PLR2004 - tag and length
        raise ValueError("the response is cut off")
    length, start = header[1], at + 2
    if length & 0x80:
        size = length & 0x7F
        if not 0 < size <= _LENGTH_BYTES_MAX:
            raise ValueError("the response is not DER")
        length = int.from_bytes(data[start : start + size])
        start += size
    if start + length > len(data):
        raise ValueError("the response is cut off")
    return start, length


def _certificates(answer: "TimeStampResponse") -> list[x509.Certificate]:
    encoded = answer.signed_data.certificates
    if len(encoded) > IMAGE_CERTIFICATES_MAX:
        raise Unproved(f"{_PARSE}: more than {IMAGE_CERTIFICATES_MAX} certificates")
    certificates = [load_certificate(der) for der in sorted(encoded)]
    for certificate in certificates:
        check_readable(certificate)
    return certificates


def _signer(
    answer: "TimeStampResponse",
    certificates: Sequence[x509.Certificate],
    authority: Authority,
) -> x509.Certificate:
    infos = list(answer.signed_data.signer_infos)
    if len(infos) != 1:
        raise Unproved(f"{_PARSE}: {len(infos)} signers instead of one")
    candidates = certificates or (
        [authority.leaf] if authority.leaf is not None else []
    )
    if not candidates:
        message = "leaf certificate must be present in the TSR or as a verify option"
        raise Unproved(message)
    signer = infos[0]
    for certificate in candidates:
        if (
            certificate.issuer == signer.issuer
            and serial_of(certificate) == signer.serial_number
        ):
            return certificate
    raise Unproved(f"{_PARSE}: pkcs7: No certificate for signer")


def _check_chain(signer: x509.Certificate, authority: Authority, at: datetime) -> None:
    intermediates = authority.intermediates
    try:
        verified_chain(signer, authority.roots, intermediates, at, ANY)
    except Unproved as error:
        raise Unproved(f"{_CHAIN} certificate chain: {error}") from None


def _check_usage(signer: x509.Certificate, authority: Authority) -> None:
    """Require the usages of RFC 3161 2.3, and the policy's certificate."""
    prefix = "failed to verify TSA certificate"
    critical = any(
        extension.critical
        for extension in extensions_of(signer)
        if extension.oid == ExtensionOID.EXTENDED_KEY_USAGE
    )
    if not critical:
        raise Unproved(f"{prefix}: certificate must set EKU to critical")
    if authority.leaf is not None and authority.leaf != signer:
        message = "certificate embedded in the TSR does not match the provided TSA"
        raise Unproved(f"{message} certificate")
    if usages_of(signer) != (_STAMPING,):
        message = "leaf certificate EKU is not set to TimeStamping as required"
        raise Unproved(f"failed to verify EKU on leaf certificate: {message}")
    for intermediate in authority.intermediates:
        usages = usages_of(intermediate)
        if usages and _STAMPING not in usages and ANY not in usages:
            message = "intermediate certificate does not allow Timestamping usage"
            raise Unproved(
                f"failed to verify EKU on intermediate certificate: {message}"
            )


def _check_message(answer: "TimeStampResponse", signed: bytes) -> None:
    imprint = answer.tst_info.message_imprint
    make = _SHA.get(imprint.hash_algorithm.dotted_string)
    if make is None:
        message = "Time-Stamp response uses unknown hash function"
        raise Unproved(f"{_PARSE}: {message}")
    if not hmac.compare_digest(make(signed).digest(), imprint.message):
        raise Unproved("hashed messages don't match")


def _verify(
    answer: "TimeStampResponse", signer: x509.Certificate, authority: Authority
) -> None:
    """Verify the signature of the response. Raises: Unproved."""
    from rfc3161_client import VerificationError, VerifierBuilder

    verifier = VerifierBuilder(
        tsa_certificate=signer,
        intermediates=list(authority.intermediates),
        roots=list(authority.roots),
    ).build()
    try:
        is_valid = verifier.verify(answer, answer.tst_info.message_imprint.message)
    except (VerificationError, ValueError, TypeError) as error:
        raise Unproved(f"{_PARSE}: {error}") from None
    if is_valid is not True:
        raise Unproved(f"{_PARSE}: the signature does not verify")

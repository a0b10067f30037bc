"""Open Notation's COSE envelopes: check the signature, then read the signed content.

Room: images. Takes: the bytes of an envelope. Gives: Signed. Next:
images/notation/envelope.py.
Source: docs/behaviour/images 4 (3); RFC 9052 4.2, 4.4.

``cbor2`` encodes and decodes. Only an envelope's tags are accepted, because some of its
decoders build large objects from small inputs.
"""

import io
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import cbor2
from cryptography.x509 import Certificate

from kyverno_mp.images.notation.chain import load_chain
from kyverno_mp.images.notation.records import (
    AUTHENTIC_TIME,
    AUTHORITY,
    EXPIRY,
    SCHEME,
    SIGNING_TIME,
    TIMESTAMP,
    X509,
    Refused,
    Signed,
    is_signed,
)
from kyverno_mp.limits import IMAGE_NOTARY_CERTIFICATES_MAX

MEDIA_TYPE: Final = "application/cose"
_SIGN1, _EPOCH = 18, 1
_ALGORITHM, _CRITICAL, _CONTENT_TYPE, _X5CHAIN = 1, 2, 3, 33
_DEPTH_MAX: Final = 8
_PARTS: Final = 4
_ALGORITHMS: Final = {
    -37: "PS256",
    -38: "PS384",
    -39: "PS512",
    -7: "ES256",
    -35: "ES384",
    -36: "ES512",
}
_SYSTEM: Final = frozenset(
    (
        _ALGORITHM,
        _CRITICAL,
        _CONTENT_TYPE,
        EXPIRY,
        SCHEME,
        SIGNING_TIME,
        AUTHENTIC_TIME,
    )
)


def opened(blob: bytes) -> Signed:
    """Return an envelope's content if its own leaf signed it. Raises: Refused."""
    message = _decoded(blob)
    parts = message.value if isinstance(message, cbor2.CBORTag) else None
    is_sign1 = isinstance(message, cbor2.CBORTag) and message.tag == _SIGN1
    if not is_sign1 or type(parts) is not list or len(parts) != _PARTS:
        raise _unparsed("cbor: invalid COSE_Sign1_Tagged object")
    protected, header, payload, signature = parts
    if (
        any(type(part) is not bytes for part in (protected, payload, signature))
        or type(header) is not dict
    ):
        raise _unparsed("cbor: invalid COSE_Sign1_Tagged object")
    headers = _decoded(protected)
    if type(headers) is not dict:
        raise _unparsed("cbor: protected header: require map type")
    if any(type(label) not in (int, str) for label in (*headers, *header)):
        # In Python, a CBOR simple value equals an integer.
        raise _unparsed("cbor: header label: require int / tstr type")
    chain = _chain(header.get(_X5CHAIN))
    algorithm = _ALGORITHMS.get(_number(headers.get(_ALGORITHM)))
    if algorithm is None:
        raise Refused("signature is invalid. Error: algorithm not supported")
    data = cbor2.dumps(["Signature1", protected, b"", payload])
    if not signature or not is_signed(algorithm, chain[0], signature, data):
        raise Refused("signature is invalid. Error: verification error")
    raw_stamp = header.get(TIMESTAMP)
    stamp = raw_stamp if type(raw_stamp) is bytes else b""
    signed = _signed(headers, payload, algorithm, chain)
    return replace(signed, signature=signature, timestamp=stamp)


class _Tags(dict[int, Callable[[Any, bool], Any]]):
    """The decoders of the accepted tags."""

    def __missing__(self, tag: int) -> Callable[[Any, bool], Any]:
        raise cbor2.CBORDecodeError(f"tag {tag} is not supported")


_TAGS: Final = _Tags(
    {
        _SIGN1: lambda value, _: cbor2.CBORTag(_SIGN1, value),
        _EPOCH: lambda value, _: cbor2.CBORTag(_EPOCH, value),
    }
)


def _decoded(data: bytes) -> Any:
    """Decode one item that spans all bytes. Raises: Refused."""
    stream = io.BytesIO(data)
    try:
        value = cbor2.CBORDecoder(
            stream,
            semantic_decoders=_TAGS,
            # Otherwise the decoder reads ahead, and trailing bytes go unnoticed.
            read_size=1,
            max_depth=_DEPTH_MAX,
            allow_indefinite=False,
            allow_duplicate_keys=False,
        ).decode()
    except (cbor2.CBORDecodeError, ValueError, TypeError, MemoryError) as error:
        raise _unparsed(str(error)) from error
    if stream.tell() != len(data):
        raise _unparsed("cbor: bytes of extraneous data")
    return value


def _unparsed(reason: str) -> Refused:
    return Refused(f"unable to parse the digital signature, error : {reason}")


def _number(value: object) -> int:
    return value if type(value) is int else 0


def _chain(listed: object) -> list[Certificate]:
    if type(listed) is not list or not listed:
        raise Refused("certificate chain is not present")
    if len(listed) > IMAGE_NOTARY_CERTIFICATES_MAX:
        raise Refused(f"more than {IMAGE_NOTARY_CERTIFICATES_MAX} certificates")
    if any(type(der) is not bytes for der in listed):
        raise Refused("certificate chain is not present")
    try:
        return load_chain(listed)
    except ValueError as error:
        raise Refused("malformed leaf certificate") from error


def _signed(
    headers: dict[Any, Any],
    payload: bytes,
    algorithm: str,
    chain: list[Certificate],
) -> Signed:
    content_type = headers.get(_CONTENT_TYPE)
    if _CONTENT_TYPE not in headers:
        raise Refused("missing content type")
    if type(content_type) is not str:
        raise Refused("content type should be of 'tstr' type")
    scheme = headers.get(SCHEME)
    if type(scheme) is not str:
        raise Refused("invalid signingScheme")
    critical = _critical(headers, scheme)
    if scheme not in (X509, AUTHORITY):
        raise Refused(f"unsupported signingScheme: {scheme}")
    label = SIGNING_TIME if scheme == X509 else AUTHENTIC_TIME
    return Signed(
        payload=payload,
        content_type=content_type,
        algorithm=algorithm,
        scheme=scheme,
        chain=chain,
        signing_time=_time(headers, label, "signingTime"),
        expiry=_time(headers, EXPIRY, "expiry") if EXPIRY in headers else None,
        critical=critical,
    )


def _critical(headers: Mapping[Any, Any], scheme: str) -> dict[str, object]:
    """Return the critical extended attributes; the known headers must be critical.

    KYVERNO: an unknown critical attribute does not fail (docs/behaviour/images 4).
    """
    listed = headers.get(_CRITICAL)
    if type(listed) is not list or not listed:
        raise Refused("invalid crit header")
    if any(type(name) not in (str, int) or name not in headers for name in listed):
        raise Refused("a header is marked critical but not present")
    required = {SCHEME}
    if scheme == AUTHORITY:
        required.add(AUTHENTIC_TIME)
    if EXPIRY in headers:
        required.add(EXPIRY)
    required.difference_update(listed)
    if required:
        missing = " ".join(sorted(required))
        raise Refused(f"these required headers are not marked as critical: [{missing}]")
    return {str(name): headers[name] for name in listed if name not in _SYSTEM}


def _time(headers: Mapping[Any, Any], label: str, name: str) -> datetime:
    value = headers.get(label)
    if value is None:
        raise Refused(f'invalid {name}: protected header "{label}" is missing')
    if not isinstance(value, cbor2.CBORTag) or value.tag != _EPOCH:
        raise Refused(f"invalid {name}: only Tag `1` Datetime CBOR object is supported")
    if type(value.value) not in (int, float):
        raise Refused(f"invalid {name}: invalid timeValue type")
    try:
        return datetime.fromtimestamp(value.value, UTC)
    except (OverflowError, ValueError, OSError) as error:
        raise Refused(f"invalid {name}: {error}") from error

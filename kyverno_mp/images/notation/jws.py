"""Open Notation's JWS envelopes: check the signature, then read the signed content.

Room: images. Takes: the bytes of an envelope. Gives: Signed. Next:
images/notation/envelope.py.
Source: docs/behaviour/images 4 (3).
"""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final

from cryptography.x509 import Certificate

from kyverno_mp.images.documents import base64_bytes
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
    is_algorithm,
    is_signed,
)
from kyverno_mp.limits import IMAGE_NOTARY_CERTIFICATES_MAX
from kyverno_mp.values.go.gojson import JsonInvalid, decode_json
from kyverno_mp.values.jsonvalue import Json

MEDIA_TYPE: Final = "application/jose+json"
_DEFINED: Final = frozenset(
    ("alg", "cty", "crit", EXPIRY, SCHEME, SIGNING_TIME, AUTHENTIC_TIME)
)
_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII
)
_ZERO_YEAR: Final = 1


def opened(blob: bytes) -> Signed:
    """Return an envelope's content if its own leaf signed it. Raises: Refused."""
    envelope = _envelope(blob)
    header = envelope.get("header")
    fields: Mapping[str, Json] = header if type(header) is dict else {}
    chain = _chain(fields.get("x5c"))
    parts = [_text(envelope, name) for name in ("protected", "payload", "signature")]
    protected, payload, signature = map(_base64url, parts)
    headers = _object(protected)
    algorithm = headers.get("alg")
    if type(algorithm) is not str or not is_algorithm(algorithm):
        raise Refused(
            f"signature is invalid. Error: signing method {algorithm} is invalid"
        )
    data = f"{parts[0]}.{parts[1]}".encode()
    if not is_signed(algorithm, chain[0], signature, data):
        library = "rsa" if algorithm.startswith("PS") else "ecdsa"
        raise Refused(
            f"signature is invalid. Error: crypto/{library}: verification error"
        )
    stamp = base64_bytes(fields.get(TIMESTAMP)) or b""
    signed = _signed(headers, payload, algorithm, chain)
    return replace(signed, signature=signature, timestamp=stamp)


def _envelope(blob: bytes) -> dict[str, Json]:
    prefix = "unable to parse the digital signature, error"
    try:
        value = decode_json(blob.decode())
    except (JsonInvalid, UnicodeDecodeError) as error:
        raise Refused(f"{prefix} : {error}") from error
    if type(value) is not dict:
        raise Refused(f"{prefix} : the envelope is not a JSON object")
    return value


def _chain(listed: Json) -> list[Certificate]:
    if type(listed) is not list or not listed:
        raise Refused("certificate chain is not present")
    if len(listed) > IMAGE_NOTARY_CERTIFICATES_MAX:
        raise Refused(f"more than {IMAGE_NOTARY_CERTIFICATES_MAX} certificates")
    try:
        ders = [base64.b64decode(encoded, validate=True) for encoded in listed]
        if any(
            base64.b64encode(der).decode() != encoded
            for der, encoded in zip(ders, listed, strict=True)
        ):
            raise Refused("malformed leaf certificate")
        return load_chain(ders)
    except (binascii.Error, TypeError, ValueError) as error:
        raise Refused("malformed leaf certificate") from error


def _text(envelope: Mapping[str, Json], name: str) -> str:
    value = envelope.get(name)
    return value if type(value) is str else ""


def _base64url(encoded: str) -> bytes:
    """Decode base64url; only the canonical encoding is accepted."""
    try:
        data = base64.b64decode(
            encoded + "=" * (-len(encoded) % 4), b"-_", validate=True
        )
    except (binascii.Error, ValueError) as error:
        raise Refused("signature is invalid. Error: illegal base64 data") from error
    if base64.urlsafe_b64encode(data).rstrip(b"=") != encoded.encode():
        raise Refused("signature is invalid. Error: illegal base64 data")
    return data


def _object(data: bytes) -> dict[str, Json]:
    prefix = "jws envelope protected header can't be decoded"
    try:
        value = decode_json(data.decode())
    except (JsonInvalid, UnicodeDecodeError) as error:
        raise Refused(f"{prefix}: {error}") from error
    if type(value) is not dict:
        raise Refused(f"{prefix}: it is not a JSON object")
    return value


def _signed(
    headers: dict[str, Json],
    payload: bytes,
    algorithm: str,
    chain: list[Certificate],
) -> Signed:
    scheme, content_type = headers.get(SCHEME), headers.get("cty")
    times = {
        name: _time(headers.get(name))
        for name in (EXPIRY, SIGNING_TIME, AUTHENTIC_TIME)
    }
    if scheme == X509:
        _forbid(times, AUTHENTIC_TIME, scheme)
    elif scheme == AUTHORITY:
        _forbid(times, SIGNING_TIME, scheme)
        if times[AUTHENTIC_TIME] is None:
            raise Refused(
                f'"{AUTHENTIC_TIME}" header must be present for {X509} signing scheme'
            )
    else:
        name = "" if scheme is None else scheme
        raise Refused(f"unsupported SigningScheme: `{name}`")
    critical = _critical(headers, times, scheme)
    return Signed(
        payload=payload,
        content_type=content_type if type(content_type) is str else "",
        algorithm=algorithm,
        scheme=scheme,
        chain=chain,
        signing_time=times[SIGNING_TIME if scheme == X509 else AUTHENTIC_TIME],
        expiry=times[EXPIRY],
        critical=critical,
    )


def _forbid(times: Mapping[str, datetime | None], name: str, scheme: str) -> None:
    if times[name] is not None:
        raise Refused(
            f'"{name}" header must not be present for {scheme} signing scheme'
        )


def _critical(
    headers: dict[str, Json], times: Mapping[str, datetime | None], scheme: str
) -> dict[str, object]:
    """Return the critical extended attributes; the known headers must be critical.

    KYVERNO: an unknown critical attribute does not fail (docs/behaviour/images 4).
    """
    listed = headers.get("crit")
    if type(listed) is not list or not listed:
        raise Refused('missing "crit" header')
    required = {SCHEME}
    if times[EXPIRY] is not None:
        required.add(EXPIRY)
    if scheme == AUTHORITY:
        required.add(AUTHENTIC_TIME)
    extended: dict[str, object] = {}
    for name in listed:
        if type(name) is str and name in required:
            required.discard(name)
        elif type(name) is not str or name in _DEFINED or name not in headers:
            raise Refused(f'"{name}" header is marked critical but not present')
        else:
            extended[name] = headers[name]
    if required:
        missing = " ".join(sorted(required))
        raise Refused(f"these required headers are not marked as critical: [{missing}]")
    return extended


def _time(value: Json) -> datetime | None:
    if value is None:
        return None
    match = _TIME.fullmatch(value) if type(value) is str else None
    if match is None:
        raise Refused(
            f"jws envelope protected header can't be decoded: {value} is not a time"
        )
    try:
        zone = "+00:00" if match[3] == "Z" else match[3]
        moment = datetime.fromisoformat(match[1] + (match[2] or "")[:7] + zone)
    except ValueError as error:
        raise Refused(
            f"jws envelope protected header can't be decoded: {error}"
        ) from error
    return None if moment.year == _ZERO_YEAR else moment

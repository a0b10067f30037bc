"""Verify Cosign's signatures and attestations, as functions over bytes.

Room: images. Takes: the layers of a signature manifest, a Check, a digest, the time.
Gives: verified payloads, or reasons. Next: images/verifier.py.
May touch: nothing outside its arguments.
Source: docs/behaviour/images 3.2, 3.3, 3.7 (annotations), 2.5 (statements).

Nothing unsigned decides: the digest and the annotations that count are read from the
bytes whose signature was checked.
"""

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from kyverno_mp.images.keys import Check, failed, load_certificates
from kyverno_mp.limits import (
    IMAGE_ENVELOPE_SIGNATURES_MAX,
    REGISTRY_JSON_PARTS_MAX,
)
from kyverno_mp.values.gojson import JsonInvalid, decode_json, decode_parts
from kyverno_mp.values.gotext import go_type
from kyverno_mp.values.jsonvalue import Json

SIGNATURE: Final = "dev.cosignproject.cosign/signature"
_CERTIFICATE: Final = "dev.sigstore.cosign/certificate"
_BUNDLE: Final = "dev.sigstore.cosign/bundle"
_IN_TOTO: Final = "application/vnd.in-toto+json"
_CUSTOM: Final = "https://cosign.sigstore.dev/attestation/v1"


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a signature manifest; ``problem``: why it could not be read."""

    digest: str
    payload: bytes
    annotations: Mapping[str, Json]
    problem: str = ""


def verified_payloads(
    layers: Sequence[Layer], digest: str, check: Check, now: datetime
) -> list[dict[str, Json]]:
    """Return the payloads with a good signature that claims ``digest``.

    Raises: ExpressionFailed if there is none.
    """
    if not layers:
        raise failed("no signatures found")

    def verify(layer: Layer) -> dict[str, Json]:
        return _payload(layer, digest, check, now)

    found, reasons = _good(layers, verify)
    if not found:
        raise failed(f"no matching signatures: {reasons}")
    return found


def verified_statements(
    layers: Sequence[Layer], digest: str, check: Check, now: datetime
) -> list[dict[str, Json]]:
    """Return the in-toto statements about ``digest`` with a good signature.

    Raises: ExpressionFailed if there is none.
    """

    def verify(layer: Layer) -> dict[str, Json]:
        return _statement(layer, digest, check, now)

    found, reasons = _good(layers, verify)
    if not found:
        raise failed(f"no matching attestations: {reasons}")
    return found


def check_annotations(
    payloads: Iterable[Mapping[str, Json]], wanted: Mapping[str, str]
) -> None:
    """Require one payload whose ``optional`` has all pairs. Raises: ExpressionFailed.

    KYVERNO: a number never equals, and an attestation has no such annotations
    (docs/behaviour/images 3.7).
    """
    for payload in payloads:
        optional = payload.get("optional")
        has = optional if type(optional) is dict else {}
        if all(
            type(has.get(key)) is str and has[key] == text
            for key, text in wanted.items()
        ):
            return
    raise failed("no signature matched the required annotations")


def _good(
    layers: Sequence[Layer], verify: Callable[[Layer], dict[str, Json]]
) -> tuple[list[dict[str, Json]], str]:
    found: list[dict[str, Json]] = []
    reasons: list[str] = []
    for layer in layers:
        try:
            found.append(verify(layer))
        except _Refused as error:
            reasons.append(str(error))
    return found, "\n ".join(reasons)


class _Refused(Exception):
    """One signature is dropped; the text says why."""


def _payload(layer: Layer, digest: str, check: Check, now: datetime) -> dict[str, Json]:
    signature = _signature(layer)
    reason = check(signature, layer.payload)
    if reason:
        raise _Refused(reason)
    payload = _json(layer.payload)
    critical = payload.get("critical")
    image = critical.get("image") if type(critical) is dict else None
    claimed = image.get("docker-manifest-digest") if type(image) is dict else None
    if claimed != digest:
        shown = claimed if type(claimed) is str else ""
        raise _Refused(f"invalid or missing digest in claim: {shown}")
    _check_certificate(layer, now)
    return payload


def _signature(layer: Layer) -> bytes:
    if layer.problem:
        raise _Refused(layer.problem)
    _check_bundle(layer)
    text = layer.annotations.get(SIGNATURE)
    if type(text) is not str:
        raise _Refused(
            f'signature layer {layer.digest} is missing "{SIGNATURE}" annotation'
        )
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _Refused("the signature is not base64") from None


def _check_bundle(layer: Layer) -> None:
    """KYVERNO: a damaged bundle fails even where the log is ignored."""
    text = layer.annotations.get(_BUNDLE)
    if text is None or text == "":
        return
    try:
        bundle = decode_json(text) if type(text) is str else None
    except JsonInvalid:
        bundle = None
    if type(bundle) is not dict:
        raise _Refused("unmarshaling bundle: it is not a JSON object")


def _check_certificate(layer: Layer, now: datetime) -> None:
    """KYVERNO: a certificate beside a good key must be valid now, and no more."""
    text = layer.annotations.get(_CERTIFICATE)
    if text is None or text == "":
        return
    try:
        certificate = load_certificates(text if type(text) is str else "")[0]
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    except ValueError as error:
        raise _Refused(f"the certificate is unreadable: {error}") from None
    if now > end:
        raise _Refused("expected a signed timestamp to verify an expired certificate")
    if now < begin:
        raise _Refused("the certificate is not valid yet")


def _statement(
    layer: Layer, digest: str, check: Check, now: datetime
) -> dict[str, Json]:
    _signature(layer)
    envelope = _json(layer.payload)
    kind = envelope.get("payloadType")
    if kind != _IN_TOTO:
        shown = kind if type(kind) is str else ""
        text = f"invalid payloadType {shown} on envelope. Expected {_IN_TOTO}"
        raise _Refused(text)
    body = _signed_body(envelope, check)
    # A trusted signer made it; it may be a list of all packages.
    statement = _json(body, len(body))
    _check_predicate(statement)
    if not _is_about(statement, digest):
        raise _Refused("no matching subject digest found")
    _check_certificate(layer, now)
    return _shown(statement)


def _signed_body(envelope: Mapping[str, Json], check: Check) -> bytes:
    """Return the body of an envelope that at least one signature holds."""
    signatures = envelope.get("signatures")
    if type(signatures) is not list or not signatures:
        raise _Refused("no signature found")
    body = _base64(envelope.get("payload"))
    if body is None:
        raise _Refused(
            "unable to base64 decode payload (is payload in the right format?)"
        )
    if len(signatures) > IMAGE_ENVELOPE_SIGNATURES_MAX:
        raise _Refused(
            f"more than {IMAGE_ENVELOPE_SIGNATURES_MAX} signatures of one envelope"
        )
    signed = b"DSSEv1 %d %s %d %s" % (len(_IN_TOTO), _IN_TOTO.encode(), len(body), body)
    for one in signatures:
        signature = _base64(one.get("sig") if type(one) is dict else None)
        if signature and not check(signature, signed):
            return body
    raise _Refused("accepted signatures do not match threshold, Found: 0, Expected 1")


def _base64(text: Json) -> bytes | None:
    """Decode standard or URL-safe base64, as envelopes allow."""
    if type(text) is not str:
        return None
    for altchars in (None, b"-_"):
        try:
            return base64.b64decode(text, altchars=altchars, validate=True)
        except (binascii.Error, ValueError):
            continue
    return None


def _check_predicate(statement: Mapping[str, Json]) -> None:
    predicate = statement.get("predicate")
    if predicate is None or type(predicate) in (dict, str):
        return
    raise _Refused(f"could not parse predicate with type {go_type(predicate)}")


def _is_about(statement: Mapping[str, Json], digest: str) -> bool:
    subjects = statement.get("subject")
    for subject in subjects if type(subjects) is list else []:
        digests = subject.get("digest") if type(subject) is dict else None
        found = digests.get("sha256") if type(digests) is dict else None
        if type(found) is str and f"sha256:{found}" == digest:
            return True
    return False


def _shown(statement: dict[str, Json]) -> dict[str, Json]:
    """Return the statement as conditions see it: ``type`` is its predicateType."""
    shown = {**statement, "type": statement.get("predicateType")}
    predicate = statement.get("predicate")
    if statement.get("_type") == _CUSTOM and type(predicate) is dict:
        data = predicate.get("Data")
        try:
            inner = decode_json(data) if type(data) is str else None
        except JsonInvalid:
            inner = None
        if type(inner) is dict:
            shown["predicate"] = {**predicate, "Data": inner}
    return shown


def _json(data: bytes, parts_max: int = REGISTRY_JSON_PARTS_MAX) -> dict[str, Json]:
    try:
        value = decode_parts(data, parts_max)
    except JsonInvalid:
        value = None
    if type(value) is not dict:
        raise _Refused("the payload is not a JSON object")
    return value

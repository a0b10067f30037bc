"""Verify Cosign's signatures and attestations without I/O.

Room: images. Takes: the layers of a signature manifest, Terms, a digest.
Gives: verified payloads with their certificates, or reasons. Next: images/verifier.py.
Source: docs/behaviour/images 3.2, 3.3, 3.7 (annotations), 2.5 (statements).

No decision depends on unsigned data: the digest and the required annotations are read
from the bytes whose signature was checked.
"""

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from cryptography import x509

from kyverno_mp.images.keys import Check, Unproved, failed
from kyverno_mp.images.sigstore.proof import Layer, Terms, read_proof
from kyverno_mp.limits import (
    IMAGE_ENVELOPE_SIGNATURES_MAX,
    REGISTRY_JSON_PARTS_MAX,
)
from kyverno_mp.values.go.gojson import JsonInvalid, decode_json, decode_parts
from kyverno_mp.values.go.gotext import go_type
from kyverno_mp.values.jsonvalue import Json

_IN_TOTO: Final = "application/vnd.in-toto+json"
_CUSTOM: Final = "https://cosign.sigstore.dev/attestation/v1"


class Verified(NamedTuple):
    """A signed payload or statement, and the certificate of its signature.

    ``annotations``: the layer's annotations, which are not signed.
    """

    content: dict[str, Json]
    certificate: x509.Certificate | None
    annotations: Mapping[str, Json] = {}


def verified_payloads(
    layers: Sequence[Layer], digest: str, terms: Terms
) -> list[Verified]:
    """Return the payloads with a valid signature for ``digest``.

    Raises: ExpressionFailed if none is found.
    """
    if not layers:
        raise failed("no signatures found")

    def verify(layer: Layer) -> Verified:
        return _payload(layer, digest, terms)

    payloads, reasons = _good(layers, verify)
    if not payloads:
        raise failed(f"no matching signatures: {reasons}")
    return payloads


def verified_statements(
    layers: Sequence[Layer], digest: str, terms: Terms
) -> list[Verified]:
    """Return the in-toto statements about ``digest`` with a valid signature.

    Raises: ExpressionFailed if none is found.
    """

    def verify(layer: Layer) -> Verified:
        return _statement(layer, digest, terms)

    statements, reasons = _good(layers, verify)
    if not statements:
        raise failed(f"no matching attestations: {reasons}")
    return statements


def check_annotations(
    payloads: Iterable[Mapping[str, Json]], annotations: Mapping[str, str]
) -> None:
    """Require a payload with all pairs in ``optional``. Raises: ExpressionFailed.

    KYVERNO: a number never matches, and attestations have no such annotations
    (docs/behaviour/images 3.7).
    """
    for payload in payloads:
        optional = payload.get("optional")
        has = optional if type(optional) is dict else {}
        if all(
            type(has.get(key)) is str and has[key] == value
            for key, value in annotations.items()
        ):
            return
    raise failed("no signature matched the required annotations")


def _good(
    layers: Sequence[Layer], verify: Callable[[Layer], Verified]
) -> tuple[list[Verified], str]:
    verified: list[Verified] = []
    reasons: list[str] = []
    for layer in layers:
        try:
            verified.append(verify(layer))
        except Unproved as error:
            reasons.append(str(error))
    return verified, "\n ".join(reasons)


def _payload(layer: Layer, digest: str, terms: Terms) -> Verified:
    proof = read_proof(layer, terms)
    signer = proof.signer(terms)
    reason = signer.check(proof.signature, layer.payload)
    if reason:
        raise Unproved(reason)
    payload = _json(layer.payload)
    critical = payload.get("critical")
    image = critical.get("image") if type(critical) is dict else None
    claimed = image.get("docker-manifest-digest") if type(image) is dict else None
    if claimed != digest:
        printed = claimed if type(claimed) is str else ""
        raise Unproved(f"invalid or missing digest in claim: {printed}")
    proof.check_time(signer, terms)
    return Verified(payload, proof.certificate, layer.annotations)


def _statement(layer: Layer, digest: str, terms: Terms) -> Verified:
    proof = read_proof(layer, terms)
    signer = proof.signer(terms)
    envelope = _json(layer.payload)
    kind = envelope.get("payloadType")
    if kind != _IN_TOTO:
        printed = kind if type(kind) is str else ""
        message = f"invalid payloadType {printed} on envelope. Expected {_IN_TOTO}"
        raise Unproved(message)
    body = _signed_body(envelope, signer.check, terms)
    # A trusted signer created the statement, which may list thousands of packages.
    statement = _json(body, len(body))
    _check_predicate(statement)
    if not _is_about(statement, digest):
        raise Unproved("no matching subject digest found")
    proof.check_time(signer, terms)
    return Verified(_shown(statement), proof.certificate, layer.annotations)


def _signed_body(envelope: Mapping[str, Json], check: Check, terms: Terms) -> bytes:
    """Return an envelope's body if at least one of its signatures is valid."""
    signatures = envelope.get("signatures")
    if type(signatures) is not list or not signatures:
        raise Unproved("no signature found")
    body = _base64(envelope.get("payload"))
    if body is None:
        raise Unproved(
            "unable to base64 decode payload (is payload in the right format?)"
        )
    if len(signatures) > IMAGE_ENVELOPE_SIGNATURES_MAX:
        raise Unproved(
            f"more than {IMAGE_ENVELOPE_SIGNATURES_MAX} signatures of one envelope"
        )
    signed = b"DSSEv1 %d %s %d %s" % (len(_IN_TOTO), _IN_TOTO.encode(), len(body), body)
    for entry in signatures:
        terms.tick()
        signature = _base64(entry.get("sig") if type(entry) is dict else None)
        if signature and not check(signature, signed):
            return body
    raise Unproved("accepted signatures do not match threshold, Found: 0, Expected 1")


def _base64(encoded: Json) -> bytes | None:
    """Decode standard or URL-safe base64, as envelopes allow."""
    if type(encoded) is not str:
        return None
    for altchars in (None, b"-_"):
        try:
            return base64.b64decode(encoded, altchars=altchars, validate=True)
        except (binascii.Error, ValueError):
            continue
    return None


def _check_predicate(statement: Mapping[str, Json]) -> None:
    predicate = statement.get("predicate")
    if predicate is None or type(predicate) in (dict, str):
        return
    raise Unproved(f"could not parse predicate with type {go_type(predicate)}")


def _is_about(statement: Mapping[str, Json], digest: str) -> bool:
    subjects = statement.get("subject")
    for subject in subjects if type(subjects) is list else []:
        digests = subject.get("digest") if type(subject) is dict else None
        hex_digest = digests.get("sha256") if type(digests) is dict else None
        if type(hex_digest) is str and f"sha256:{hex_digest}" == digest:
            return True
    return False


def _shown(statement: dict[str, Json]) -> dict[str, Json]:
    """Return the statement for conditions, whose ``type`` is its predicateType."""
    document = {**statement, "type": statement.get("predicateType")}
    predicate = statement.get("predicate")
    if statement.get("_type") == _CUSTOM and type(predicate) is dict:
        data = predicate.get("Data")
        try:
            inner = decode_json(data) if type(data) is str else None
        except JsonInvalid:
            inner = None
        if type(inner) is dict:
            document["predicate"] = {**predicate, "Data": inner}
    return document


def _json(data: bytes, parts_max: int = REGISTRY_JSON_PARTS_MAX) -> dict[str, Json]:
    try:
        value = decode_parts(data, parts_max)
    except JsonInvalid:
        value = None
    if type(value) is not dict:
        raise Unproved("the payload is not a JSON object")
    return value

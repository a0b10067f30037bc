"""No mutation of a signed byte verifies: property over every signed artefact.

A sample of the mutations runs by default; ``KYVERNO_MP_TEST_ALL_MUTATIONS=1`` runs all
of them (over 100,000, some minutes). A failure means: an attacker can change signed
content.
"""

import base64
import datetime as dt
import itertools
import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pytest

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.images.cosign import verified_payloads, verified_statements
from kyverno_mp.images.keys import Unproved
from kyverno_mp.images.sigstore.proof import Layer, Terms
from kyverno_mp.images.sigstore.rekor import verified_search
from kyverno_mp.images.sigstore.rekor_entry import Signed
from kyverno_mp.images.sigstore.timestamps import authority_of, verified_timestamp
from tests.images.rig import (
    DIGEST,
    NOW,
    SIGNED,
    Sigstore,
    b64,
    der,
    pem,
    pem_of,
    same,
)

_FULL: Final = bool(os.environ.get("KYVERNO_MP_TEST_ALL_MUTATIONS"))
_SAMPLE: Final = 150
_AT: Final = SIGNED + dt.timedelta(minutes=5)
_SIGNATURE: Final = "dev.cosignproject.cosign/signature"
_CERTIFICATE: Final = "dev.sigstore.cosign/certificate"
_CHAIN: Final = "dev.sigstore.cosign/chain"
_BUNDLE: Final = "dev.sigstore.cosign/bundle"

RIG: Final = Sigstore()
TERMS: Final = Terms(
    now=NOW,
    roots=(RIG.root.certificate,),
    log=RIG.rekor_keys,
    scts=RIG.ctlog_keys,
)
UNLOGGED: Final = replace(TERMS, log=None)
SIGNER: Final = RIG.leaf()
LAYER: Final = RIG.layer(SIGNER)
YOUNG: Final = RIG.leaf(
    begin=NOW - dt.timedelta(days=1), end=NOW + dt.timedelta(days=1)
)
YOUNG_LAYER: Final = RIG.layer(YOUNG, at=None)


def mutations(data: bytes) -> Iterator[bytes]:
    """Yield all one-byte changes (bits flipped, removed, doubled) and a truncation."""
    every = [one for at in range(len(data)) for one in _at(data, at)]
    if _FULL:
        yield from every
        return
    chooser = random.Random(len(data))
    yield from chooser.sample(every, min(_SAMPLE, len(every)))


def _at(data: bytes, at: int) -> Iterator[bytes]:
    head, one, tail = data[:at], data[at], data[at + 1 :]
    for bit in range(8):
        yield head + bytes([one ^ (1 << bit)]) + tail
    for other in (0, 0x30, 0xFF):
        if other != one and (one ^ other).bit_count() > 1:
            yield head + bytes([other]) + tail
    if tail[:1] != bytes([one]):
        yield head + tail
        yield head + bytes([one, one]) + tail
    if tail:
        yield head


def held(layer: Layer, terms: Terms = TERMS) -> bool:
    try:
        return bool(verified_payloads([layer], DIGEST, terms))
    except ExpressionFailed:
        return False


def annotated(layer: Layer, name: str, text: str) -> Layer:
    return replace(layer, annotations={**layer.annotations, name: text})


def bundle(**changes: Any) -> Layer:
    given = json.loads(str(LAYER.annotations[_BUNDLE]))
    payload = {**given["Payload"], **changes.pop("payload", {})}
    text = json.dumps({**given, **changes, "Payload": payload})
    return annotated(LAYER, _BUNDLE, text)


def _bundle_of(layer: Layer) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(str(layer.annotations[_BUNDLE]))
    return found


def _decoded(text: Any) -> bytes:
    return base64.b64decode(text)


_CASES: Final[dict[str, tuple[bytes, Callable[[bytes], bool]]]] = {
    "payload": (LAYER.payload, lambda d: held(replace(LAYER, payload=d))),
    "payload, no log": (
        YOUNG_LAYER.payload,
        lambda d: held(replace(YOUNG_LAYER, payload=d), UNLOGGED),
    ),
    "signature": (
        _decoded(LAYER.annotations[_SIGNATURE]),
        lambda d: held(annotated(LAYER, _SIGNATURE, b64(d))),
    ),
    "signature, no log": (
        _decoded(YOUNG_LAYER.annotations[_SIGNATURE]),
        lambda d: held(annotated(YOUNG_LAYER, _SIGNATURE, b64(d)), UNLOGGED),
    ),
    "certificate": (
        der(SIGNER.certificate),
        lambda d: held(annotated(LAYER, _CERTIFICATE, pem_of(d))),
    ),
    "certificate, no log": (
        der(YOUNG.certificate),
        lambda d: held(annotated(YOUNG_LAYER, _CERTIFICATE, pem_of(d)), UNLOGGED),
    ),
    "intermediate": (
        der(RIG.middle.certificate),
        lambda d: held(annotated(LAYER, _CHAIN, pem_of(d) + pem(RIG.root.certificate))),
    ),
    "promise": (
        _decoded(_bundle_of(LAYER)["SignedEntryTimestamp"]),
        lambda d: held(bundle(SignedEntryTimestamp=b64(d))),
    ),
    "entry": (
        _decoded(_bundle_of(LAYER)["Payload"]["body"]),
        lambda d: held(bundle(payload={"body": b64(d)})),
    ),
    "log id": (
        bytes.fromhex(_bundle_of(LAYER)["Payload"]["logID"]),
        lambda d: held(bundle(payload={"logID": d.hex()})),
    ),
}


@pytest.mark.parametrize("name", sorted(_CASES))
def test_signatures(name: str) -> None:
    data, holds = _CASES[name]
    assert holds(data)
    for changed in mutations(data):
        assert not holds(changed), (name, changed)


def test_times_and_places_in_the_log() -> None:
    payload = _bundle_of(LAYER)["Payload"]
    for name, other in (
        ("integratedTime", payload["integratedTime"] + 1),
        ("integratedTime", payload["integratedTime"] - 1),
        ("integratedTime", 2**60),
        ("integratedTime", float(payload["integratedTime"])),
        ("integratedTime", str(payload["integratedTime"])),
        ("logIndex", payload["logIndex"] + 1),
        ("logIndex", -1),
        ("logID", payload["logID"].upper()),
    ):
        assert not held(bundle(payload={name: other})), (name, other)


def test_timestamps_of_certificate_logs() -> None:
    """It is changed before the certificate is signed, so only the log detects it."""
    seen: list[bytes] = []

    def kept(data: bytes) -> bytes:
        seen.append(data)
        return data

    assert held(RIG.layer(RIG.leaf(change=kept)))
    # The signatures are random, so a list fits only its own certificate.
    for changed in _changes_of_lists(seen[0]):
        assert not held(RIG.layer(RIG.leaf(change=changed)))


def _changes_of_lists(example: bytes) -> Iterator[Callable[[bytes], bytes]]:
    """Yield functions that change one bit, or drop or duplicate one byte."""
    places = list(itertools.product(range(len(example) - 2), range(10)))
    if not _FULL:
        places = random.Random(1).sample(places, _SAMPLE)
    for at, kind in places:
        yield partial(_changed, at=at, kind=kind)


def _changed(data: bytes, at: int, kind: int) -> bytes:
    head, one, tail = data[:at], data[at], data[at + 1 :]
    if kind < 8:
        return head + bytes([one ^ (1 << kind)]) + tail
    longer = head + tail if kind == 8 else head + bytes([one, one]) + tail
    return longer if longer != data else same(head)


@pytest.mark.parametrize("kind", ["dsse", "intoto", "intoto 0.0.2"])
def test_attestations(kind: str) -> None:
    """Unsigned parts (spaces of the envelope) can only change without a log."""
    layer = RIG.attestation(SIGNER, kind=kind)
    stated = verified_statements([layer], DIGEST, TERMS)[0].content
    assert stated["predicate"] == {"author": "alice"}
    body = _decoded(_bundle_of(layer)["Payload"]["body"])
    for changed in mutations(layer.payload):
        assert not _stated(replace(layer, payload=changed)), changed
    for changed in mutations(body):
        given = _bundle_of(layer)
        given["Payload"]["body"] = b64(changed)
        other = annotated(layer, _BUNDLE, json.dumps(given))
        assert not _stated(other), changed


def _stated(layer: Layer) -> bool:
    try:
        return bool(verified_statements([layer], DIGEST, TERMS))
    except ExpressionFailed:
        return False


def test_answers_of_a_log() -> None:
    body = _decoded(_bundle_of(LAYER)["Payload"]["body"])
    signed = Signed(
        str(LAYER.annotations[_SIGNATURE]), LAYER.payload, pem(SIGNER.certificate)
    )
    answer = json.dumps([RIG.found(body, _AT, others=5)]).encode()

    def found(data: bytes) -> dt.datetime | None:
        try:
            return verified_search(data, signed, RIG.rekor_keys)
        except Unproved:
            return None

    assert found(answer) == _AT
    for changed in mutations(answer):
        # Only unsigned parts can change, such as an unknown field's name.
        assert found(changed) in (None, _AT), changed


def test_timestamps_of_authorities() -> None:
    authority = authority_of(pem(RIG.tsa.certificate, RIG.tsa_root.certificate))
    response = RIG.timestamp(b"signature", _AT)

    def stamped(data: bytes, signed: bytes = b"signature") -> dt.datetime | None:
        try:
            return verified_timestamp(data, signed, authority)
        except Unproved:
            return None

    assert stamped(response) == _AT
    assert stamped(response, b"other") is None
    for changed in mutations(response):
        # The version of the structure and the names of its parts are not signed.
        assert stamped(changed) in (None, _AT), changed

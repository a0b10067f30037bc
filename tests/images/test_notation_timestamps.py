"""Only a timestamp proves when a Notation envelope was signed.

A failure means: a signature of an expired certificate counts, or an attacker chose its
time.
"""

import base64
import datetime as dt
import json
import random
from typing import Final

import cbor2
import pytest
from cryptography import x509

from kyverno_mp import limits
from kyverno_mp.images.notation.envelope import check_envelope
from kyverno_mp.images.notation.records import Refused, Target
from tests.image_rig import OCI, digest_of
from tests.images import notation_rig as notation
from tests.images import rig

_LABEL: Final = "io.cncf.notary.timestampSignature"
_STATUS: Final = bytes.fromhex("3003020100")
_BODY: Final = b"manifest"
_OWN: Final = rig.Sigstore()
_AT: Final = notation.SIGNED + dt.timedelta(minutes=1)
_CHAIN: Final = notation.chain(end=notation.SIGNED + dt.timedelta(days=100))
_LATER: Final = notation.NOW
_DIGEST: Final = digest_of(_BODY)
_TARGET: Final = Target(OCI, _DIGEST, len(_BODY))


def token(signature: bytes, at: dt.datetime = _AT, own: rig.Sigstore = _OWN) -> bytes:
    return own.timestamp(signature, at).partition(_STATUS)[2]


def signature_of(form: str, blob: bytes) -> bytes:
    if form == notation.COSE:
        found: bytes = cbor2.loads(blob).value[3]
        return found
    text = json.loads(blob)["signature"]
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def with_token(form: str, blob: bytes, given: bytes) -> bytes:
    if form == notation.COSE:
        parts = list(cbor2.loads(blob).value)
        parts[1] = {**parts[1], _LABEL: given}
        return cbor2.dumps(cbor2.CBORTag(18, parts))
    envelope = json.loads(blob)
    envelope["header"][_LABEL] = base64.b64encode(given).decode()
    return json.dumps(envelope).encode()


def made(form: str) -> bytes:
    return notation.ENVELOPES[form](_CHAIN, notation.payload(_DIGEST, len(_BODY)))


def reason(
    form: str,
    blob: bytes,
    now: dt.datetime = _LATER,
    stamping: tuple[x509.Certificate, ...] = (_OWN.tsa_root.certificate,),
) -> str:
    try:
        check_envelope(form, blob, [_CHAIN.root], _TARGET, now, stamping)
    except Refused as error:
        return str(error)
    return ""


@pytest.fixture(params=notation.ENVELOPES)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_expired_certificate_with_a_timestamp(form: str) -> None:
    blob = made(form)
    stamped = with_token(form, blob, token(signature_of(form, blob)))
    assert not reason(form, stamped)
    assert "was expired at" in reason(form, stamped, stamping=())
    assert "no timestamp countersignature" in reason(form, blob)
    # KYVERNO: if time authorities are named, a valid certificate needs a timestamp,
    # too.
    assert "no timestamp countersignature" in reason(form, blob, now=_AT)


def test_useless_timestamps(form: str) -> None:
    blob = made(form)
    signature = signature_of(form, blob)
    early = _AT - dt.timedelta(days=3650)
    for at, text in ((_LATER, "was expired at"), (early, "not yet valid")):
        stamped = with_token(form, blob, token(signature, at))
        assert text in reason(form, stamped)


def test_invalid_timestamps(form: str) -> None:
    blob = made(form)
    signature = signature_of(form, blob)
    for given in (
        b"junk",
        token(b"another signature"),
        token(signature, own=rig.Sigstore()),
        token(signature)[:-1],
        b"0" * (limits.IMAGE_TIMESTAMP_BYTES_MAX + 1),
    ):
        text = reason(form, with_token(form, blob, given))
        assert "timestamp countersignature" in text


def test_token_mutation_changes_no_accepted_time() -> None:
    """The certificates beside the signature are not signed, and prove nothing."""
    form = notation.JWS
    blob = made(form)
    late = token(signature_of(form, blob), _LATER)
    chooser = random.Random(len(late))
    for at in chooser.sample(range(len(late)), 200):
        changed = bytearray(late)
        changed[at] ^= 1 << chooser.randrange(8)
        assert reason(form, with_token(form, blob, bytes(changed)))

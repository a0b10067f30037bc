"""Certificates, logs and timestamps prove only what they are meant to prove."""

import base64
import datetime as dt
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from kyverno_mp import limits
from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.images.cosign import verified_payloads
from kyverno_mp.images.keys import Unproved
from kyverno_mp.images.sigstore.chains import verified_chain
from kyverno_mp.images.sigstore.identity import require_identity
from kyverno_mp.images.sigstore.log_search import proposed_entries
from kyverno_mp.images.sigstore.logkeys import DatedKey, Period
from kyverno_mp.images.sigstore.proof import Layer, Terms
from kyverno_mp.images.sigstore.rekor import verified_search
from kyverno_mp.images.sigstore.rekor_entry import Signed
from kyverno_mp.images.sigstore.timestamps import authority_of
from kyverno_mp.images.terms import NoTrustRoot, terms_of
from kyverno_mp.program.ports import Identity, LogTerms, SignatureQuery
from tests.image_rig import payload_for
from tests.images.rig import (
    DIGEST,
    ISSUER,
    NOW,
    SIGNED,
    SUBJECT,
    Issued,
    Sigstore,
    extension,
    hashedrekord,
    issue,
    names,
    pem,
    pem_key,
    sign,
    usage,
)

RIG: Final = Sigstore()
TERMS: Final = Terms(
    now=NOW,
    roots=(RIG.root.certificate,),
    log=RIG.rekor_keys,
    scts=RIG.ctlog_keys,
)
_AT: Final = SIGNED + dt.timedelta(minutes=5)
_CHAIN: Final = "dev.sigstore.cosign/chain"
_BUNDLE: Final = "dev.sigstore.cosign/bundle"
_STAMP: Final = "dev.sigstore.cosign/rfc3161timestamp"


def reason(run: Callable[[], object]) -> str:
    with pytest.raises((ExpressionFailed, Unproved)) as caught:
        run()
    return str(getattr(caught.value, "message", caught.value))


def verdict(layer: Layer, terms: Terms = TERMS) -> str:
    try:
        verified_payloads([layer], DIGEST, terms)
    except ExpressionFailed as error:
        return error.message
    return ""


def test_valid_signature() -> None:
    assert verdict(RIG.layer(RIG.leaf())) == ""


def test_a_certificate_without_names_fails_every_subject() -> None:
    """SAFETY: upstream accepts it for any subject."""
    leaf = issue("", RIG.middle, is_authority=False, extensions=[extension(1, ISSUER)])
    for wanted in (Identity(subject="*"), Identity(subject_reg_exp=".*")):
        text = reason(partial(require_identity, [leaf.certificate], wanted))
        assert text.startswith("subject mismatch: expected")
    require_identity([leaf.certificate], Identity(issuer=ISSUER))


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (Identity(), ""),
        (Identity(subject=SUBJECT, issuer=ISSUER), ""),
        (Identity(subject="*@example.com"), ""),
        (Identity(subject_reg_exp="^me@"), ""),
        (Identity(subject="x", subject_reg_exp="^me@"), ""),
        (Identity(subject="x"), "subject mismatch: expected x, received"),
        (Identity(subject=SUBJECT, subject_reg_exp="["), "invalid regexp for subject"),
        (Identity(issuer=ISSUER, issuer_reg_exp="z"), "issuer mismatch: expected z"),
        (Identity(extensions=(("githubWorkflowRef", "main"),)), ""),
        (Identity(extensions=(("1.3.6.1.4.1.57264.1.6", "m*"),)), ""),
        (
            Identity(extensions=(("githubWorkflowRef", "x"),)),
            "extension mismatch: expected x for key githubWorkflowRef, received main",
        ),
        (Identity(extensions=(("x", "y"),)), "invalid certificate extension x"),
    ],
)
def test_identities(wanted: Identity, text: str) -> None:
    leaf = RIG.leaf(extension(1, ISSUER), extension(6, "main")).certificate

    def run() -> None:
        require_identity([leaf], wanted)

    if text:
        assert reason(run).startswith(text)
    else:
        run()


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        (x509.DNSName("a.example"), "a.example"),
        (x509.UniformResourceIdentifier("https://a/b"), "https://a/*"),
        (
            x509.OtherName(
                x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.7"), b"\x0c\x03me!"
            ),
            "me!",
        ),
    ],
)
def test_names(name: x509.GeneralName, subject: str) -> None:
    leaf = RIG.leaf(san=names(name)).certificate
    require_identity([leaf], Identity(subject=subject))
    assert "mismatch" in reason(
        lambda: require_identity([leaf], Identity(subject="other"))
    )


def test_invalid_utf_8_name_is_no_name() -> None:
    kind = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.7")
    for data in (b"\x13\x03me!", b"\x0c\x01\xff", b"\x0c\x00"):
        leaf = RIG.leaf(san=names(x509.OtherName(kind, data))).certificate
        assert reason(partial(require_identity, [leaf], Identity(subject="?*")))


def _below(*authorities: Issued, **given: Any) -> tuple[list[x509.Certificate], Issued]:
    leaf = RIG.leaf(by=authorities[-1], scts=0, **given)
    return [one.certificate for one in authorities], leaf


def _constraints() -> tuple[Any, bool]:
    allowed = x509.NameConstraints([x509.DNSName("example.com")], None)
    return allowed, False


def _chains() -> dict[str, tuple[list[x509.Certificate], Issued, str]]:
    server = usage(ExtendedKeyUsageOID.SERVER_AUTH)
    signing = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    unknown = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\5\0")
    tall = [RIG.root]
    for number in range(limits.IMAGE_CHAIN_LENGTH_MAX):
        tall.append(issue(f"level {number}", tall[-1]))
    wide = [issue("same", RIG.root) for _ in range(limits.IMAGE_CHAIN_CHECKS_MAX + 1)]
    unknown_text = "certificate signed by unknown authority"
    return {
        "good": (*_below(issue("a", RIG.root)), ""),
        "other usage": (
            *_below(issue("a", RIG.root, extensions=[server])),
            "incompatible key usage",
        ),
        "no authority": (
            *_below(issue("a", RIG.root, is_authority=False)),
            "cannot sign this kind",
        ),
        "may not sign": (
            *_below(issue("a", RIG.root, extensions=[(signing, True)])),
            "cannot sign this kind",
        ),
        "path": (
            *_below(low := issue("a", RIG.root, path_length=0), issue("b", low)),
            "too many intermediates",
        ),
        "names": (
            *_below(issue("a", RIG.root, extensions=[_constraints()])),
            "unhandled critical extension",
        ),
        "critical": (
            *_below(issue("a", RIG.root, extensions=[(unknown, True)])),
            "unhandled critical extension",
        ),
        "not critical": (
            *_below(issue("a", RIG.root, extensions=[(unknown, False)])),
            "",
        ),
        "not yet": (
            *_below(issue("a", RIG.root, begin=NOW)),
            "has expired or is not yet valid",
        ),
        "as tall as may be": (
            *_below(*tall[1 : limits.IMAGE_CHAIN_LENGTH_MAX - 1]),
            "",
        ),
        "too tall": (
            *_below(*tall[1 : limits.IMAGE_CHAIN_LENGTH_MAX]),
            unknown_text,
        ),
        "too wide": (
            [one.certificate for one in wide],
            _below(issue("same", RIG.root))[1],
            "signature check attempts limit",
        ),
        "same name": (
            [issue("a", RIG.root).certificate],
            _below(issue("a", RIG.root))[1],
            unknown_text,
        ),
    }


@pytest.mark.parametrize("name", sorted(_chains()))
def test_chains(name: str) -> None:
    others, leaf, text = _chains()[name]
    begin = leaf.certificate.not_valid_before_utc

    def run() -> list[x509.Certificate]:
        return verified_chain(leaf.certificate, [RIG.root.certificate], others, begin)

    if text:
        assert text in reason(run)
    else:
        assert run()[-1] == RIG.root.certificate


def test_chain_beside_a_signature_is_bounded() -> None:
    many = pem(RIG.root.certificate) * (limits.IMAGE_CERTIFICATES_MAX + 1)
    layer = RIG.layer(RIG.leaf())
    layer = replace(layer, annotations={**layer.annotations, _CHAIN: many})
    text = f"more than {limits.IMAGE_CERTIFICATES_MAX} certificates"
    assert text in verdict(layer)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (limits.IMAGE_SCTS_MAX, ""),
        (limits.IMAGE_SCTS_MAX + 1, "more than 20 timestamps"),
        (0, "does not include required embedded SCT"),
    ],
)
def test_timestamps_of_certificate_logs(count: int, text: str) -> None:
    found = verdict(RIG.layer(RIG.leaf(scts=count)))
    assert (text in found) if text else found == ""


def test_a_timestamp_is_bound_to_the_issuer() -> None:
    """The log contains a certificate of this issuer, not of another with its name."""
    twin = issue("middle", RIG.root, extensions=[usage()])
    leaf = RIG.leaf()
    other = RIG.leaf(by=twin, change=lambda _: _list_of(leaf))
    layer = RIG.layer(other)
    chain = pem(twin.certificate, RIG.root.certificate)
    layer = replace(layer, annotations={**layer.annotations, _CHAIN: chain})
    assert "failed to verify ECDSA signature" in verdict(layer)


def _list_of(leaf: Issued) -> bytes:
    for one in leaf.certificate.extensions:
        if one.oid.dotted_string == "1.3.6.1.4.1.11129.2.4.2":
            value: bytes = one.value.public_bytes()
            return value[3:] if value[1] & 0x80 else value[2:]
    raise AssertionError


def _signed(layer: Layer, signer: Issued) -> Signed:
    text = str(layer.annotations["dev.cosignproject.cosign/signature"])
    return Signed(text, layer.payload, pem(signer.certificate))


def _entry(signer: Issued, layer: Layer) -> bytes:
    signed = _signed(layer, signer)
    return hashedrekord(layer.payload, base64.b64decode(signed.signature), signed.pem)


def test_log_is_searched_without_a_bundle() -> None:
    signer = RIG.leaf()
    layer = RIG.layer(signer, at=None)
    body = _entry(signer, layer)
    early = RIG.found(body, _AT, others=3)
    late = RIG.found(body, _AT + dt.timedelta(days=9))
    asked: list[Signed] = []

    def search(signed: Signed) -> bytes:
        asked.append(signed)
        return json.dumps([late, early]).encode()

    assert verdict(layer, replace(TERMS, search=search)) == ""
    (proposed,) = proposed_entries(asked[0])
    assert json.loads(json.dumps(proposed)) == json.loads(body)


def test_a_log_cannot_answer_with_the_entry_of_another_signature() -> None:
    """SAFETY: upstream accepts any entry that the log has signed."""
    signer, other = RIG.leaf(), RIG.leaf()
    layer = RIG.layer(signer, at=None)
    for owner, stranger in ((other, RIG.layer(other)), (signer, RIG.layer(signer))):
        body = _entry(owner, stranger)
        answer = json.dumps([RIG.found(body, _AT)]).encode()
        search = partial(verified_search, answer, _signed(layer, signer))
        text = reason(partial(search, RIG.rekor_keys))
        assert "does not match signature being verified" in text


@pytest.mark.parametrize(("seconds", "holds"), [(0, True), (-1, False)])
def test_a_retired_log_cannot_answer(seconds: int, *, holds: bool) -> None:
    signer = RIG.leaf()
    layer = RIG.layer(signer, at=None)
    answer = json.dumps([RIG.found(_entry(signer, layer), _AT)]).encode()
    period = Period(_AT - dt.timedelta(days=1), _AT + dt.timedelta(seconds=seconds))
    keys = {name: DatedKey(one.key, period) for name, one in RIG.rekor_keys.items()}
    terms = replace(TERMS, log=keys, search=lambda _signed: answer)
    text = "" if holds else "rekor log public key not valid at payload integrated time"
    found = verdict(layer, terms)
    assert text in found
    assert (not found) is holds


def test_a_log_cannot_prove_another_payload() -> None:
    signer = RIG.leaf()
    layer = RIG.layer(signer)
    payload = payload_for(DIGEST, other="x")
    moved = replace(layer, payload=payload)
    assert "matching bundle to payload" in verdict(moved)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"[]", "signature not found in transparency log"),
        (b"null", "signature not found in transparency log"),
        (b"<", "the answer is not JSON"),
        (b"{}", "the answer is not a list"),
        (b"[1]", "the answer is not a list of objects"),
        (b'[{"a": 1}]', "an entry is not an object"),
        (b'[{"a": {}}]', "no valid tlog entries found with proposed entry"),
    ],
)
def test_log_answers(answer: bytes, text: str) -> None:
    signed = Signed("AA==", b"", "")
    assert text in reason(lambda: verified_search(answer, signed, RIG.rekor_keys))


def test_log_answer_size_is_bounded() -> None:
    signer = RIG.leaf()
    layer = RIG.layer(signer)
    entry = RIG.found(_entry(signer, layer), _AT)
    signed = _signed(layer, signer)
    many = json.dumps([entry] * limits.IMAGE_LOG_ENTRIES_MAX).encode()
    assert verified_search(many, signed, RIG.rekor_keys) == _AT
    more = json.dumps([entry] * (limits.IMAGE_LOG_ENTRIES_MAX + 1)).encode()
    text = reason(lambda: verified_search(more, signed, RIG.rekor_keys))
    assert f"more than {limits.IMAGE_LOG_ENTRIES_MAX} entries" in text
    deep = RIG.found(_entry(signer, layer), _AT, others=limits.IMAGE_LOG_PROOF_MAX)
    answer = json.dumps([deep]).encode()
    assert verified_search(answer, signed, RIG.rekor_keys) == _AT
    deep = RIG.found(_entry(signer, layer), _AT, others=limits.IMAGE_LOG_PROOF_MAX + 1)
    text = reason(
        lambda: verified_search(json.dumps([deep]).encode(), signed, RIG.rekor_keys)
    )
    assert f"more than {limits.IMAGE_LOG_PROOF_MAX}" in text


def test_bundle_size_is_bounded() -> None:
    layer = RIG.layer(RIG.leaf())
    text = str(layer.annotations[_BUNDLE]) + " " * limits.IMAGE_LOG_BYTES_MAX
    layer = replace(layer, annotations={**layer.annotations, _BUNDLE: text})
    assert f"more than {limits.IMAGE_LOG_BYTES_MAX} bytes" in verdict(layer)


def _stamped(response: bytes, **given: Any) -> Layer:
    layer = RIG.layer(RIG.leaf(**given), at=None)
    text = json.dumps({"SignedRFC3161Timestamp": base64.b64encode(response).decode()})
    return replace(layer, annotations={**layer.annotations, _STAMP: text})


def test_timestamp_replaces_the_log() -> None:
    authority = authority_of(pem(RIG.tsa.certificate, RIG.tsa_root.certificate))
    terms = replace(TERMS, log=None, authority=authority)
    signer = RIG.leaf()
    layer = RIG.layer(signer, at=None)
    signature = base64.b64decode(_signed(layer, signer).signature)
    for at, text in (
        (_AT, ""),
        (_AT + dt.timedelta(days=1), "with timestamp: certificate expired before"),
        (_AT - dt.timedelta(days=1), "with timestamp: certificate was issued after"),
    ):
        response = base64.b64encode(RIG.timestamp(signature, at)).decode()
        found = json.dumps({"SignedRFC3161Timestamp": response})
        stamped = replace(layer, annotations={**layer.annotations, _STAMP: found})
        assert text in verdict(stamped, terms)
        assert bool(text) == bool(verdict(stamped, terms))
    large = _stamped(b"x" * (limits.IMAGE_TIMESTAMP_BYTES_MAX + 1))
    assert "more than" in verdict(large, terms)
    assert "hashed messages" in verdict(_stamped(RIG.timestamp(b"x", _AT)), terms)


_QUERY: Final = SignatureQuery(
    "app",
    roots=pem(RIG.root.certificate),
    is_keyless=True,
    logs=LogTerms(key=pem_key(RIG.rekor), scts_key=pem_key(RIG.ctlog)),
)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (
            _QUERY._replace(roots="x"),
            "failed to load Root certificates: error creating",
        ),
        (_QUERY._replace(roots=""), "failed to get roots from fulcio: no TUF"),
        (
            _QUERY._replace(roots="", is_keyless=False),
            "the attestor names no key, certificate or identity",
        ),
        (_QUERY._replace(chain="x"), "failed to load certificates: error creating"),
        (_QUERY._replace(logs=LogTerms()), "failed to load Rekor public keys: no TUF"),
        (
            _QUERY._replace(logs=LogTerms(is_ignored=True)),
            "failed to load CTLogs public keys: no TUF",
        ),
        (
            _QUERY._replace(logs=LogTerms(key="x")),
            "failed to load Rekor public keys: failed to get rekor public keys: PEM",
        ),
        (
            _QUERY._replace(roots=pem(RIG.root.certificate) * 101),
            "failed to load Root certificates: more than 100",
        ),
        (
            _QUERY._replace(
                certificate=pem(RIG.leaf().certificate),
                chain=pem(RIG.root.certificate) * 12,
            ),
            "certificate chain too long (12), maximum allowed is 11",
        ),
        (
            _QUERY._replace(
                certificate=pem(RIG.leaf(scts=0).certificate),
                chain=pem(RIG.middle.certificate, RIG.root.certificate),
            ),
            "failed to load validate certificate chain: certificate does not include",
        ),
        (
            _QUERY._replace(
                certificate=pem(RIG.leaf().certificate),
                chain=pem(RIG.middle.certificate, RIG.root.certificate),
            ),
            "failed to load validate certificate chain: none of the CTFE keys",
        ),
        (
            _QUERY._replace(
                logs=_QUERY.logs._replace(tsa_chain=pem(RIG.root.certificate) * 13)
            ),
            "TSA certificate chain contains too many certificates (13)",
        ),
    ],
)
def test_requirements(asked: SignatureQuery, text: str) -> None:
    assert reason(lambda: terms_of(asked, NoTrustRoot(), NOW, 0)).startswith(text)


def test_requirements_of_a_policy() -> None:
    terms = terms_of(_QUERY, NoTrustRoot(), NOW, 0)
    assert verdict(RIG.layer(RIG.leaf()), terms) == ""
    stranger = Sigstore()
    assert "cert verification failed" in verdict(
        RIG.layer(RIG.leaf()), replace(terms, roots=(stranger.root.certificate,))
    )
    assert "rekor log public key not found" in verdict(
        RIG.layer(RIG.leaf()), replace(terms, log=stranger.rekor_keys)
    )
    assert "ctfe public key not found" in verdict(
        RIG.layer(RIG.leaf()), replace(terms, scts=stranger.ctlog_keys)
    )


def test_certificate_without_a_signer_is_rejected() -> None:
    """Another key than the certificate's cannot sign for it."""
    signer = RIG.leaf()
    layer = RIG.layer(signer, at=None)
    forged = sign(RIG.leaf().key, layer.payload)
    text = base64.b64encode(forged).decode()
    name = "dev.cosignproject.cosign/signature"
    layer = replace(layer, annotations={**layer.annotations, name: text})
    assert "invalid signature" in verdict(layer, replace(TERMS, log=None))


def test_valid_signature_has_an_expiry() -> None:
    """A signature with a stamp of a log or an authority stays valid permanently."""
    ends: list[dt.datetime] = []
    end = NOW + dt.timedelta(minutes=3)
    leaf = RIG.leaf(end=end)
    assert verdict(RIG.layer(leaf), replace(TERMS, hold=ends.append)) == ""
    assert ends == []
    terms = replace(TERMS, log=None, hold=ends.append)
    assert verdict(RIG.layer(leaf, at=None), terms) == ""
    assert ends == [end]

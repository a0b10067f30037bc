"""A Sigstore bundle verifies only if identity, log, time and image are all proven.

A failure means: an image counts as signed by a signer who never signed it.
"""

import base64
import copy
import datetime as dt
import json
import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from cryptography import x509

from kyverno_mp import limits
from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.images.bundles.bundle import parse
from kyverno_mp.images.bundles.material import parse_material
from kyverno_mp.images.bundles.reader import verified_bundles
from kyverno_mp.images.bundles.verify import Demands, check_bundle
from kyverno_mp.images.keys import Unproved
from kyverno_mp.images.terms import NoTrustRoot
from kyverno_mp.program.ports import Identity, LogTerms, SignatureQuery
from tests.images import bundle_rig, rig

_ALL = "KYVERNO_MP_TEST_ALL_MUTATIONS"
_SAMPLE = 800
WHO = Identity(issuer=rig.ISSUER, subject=rig.SUBJECT)
Change = Callable[[Any], object]


@pytest.fixture(scope="module")
def own() -> rig.Sigstore:
    return rig.Sigstore()


def reason(
    own: rig.Sigstore,
    made: dict[str, Any] | bytes,
    who: Identity = WHO,
    *,
    needs_log: bool = True,
    image: str = rig.DIGEST,
    **period: dict[str, str],
) -> str:
    """Return the reason why a bundle is not valid, "" if it is valid."""
    root = json.dumps(bundle_rig.trusted_root(own, **period)).encode()
    data = made if isinstance(made, bytes) else json.dumps(made).encode()
    demands = Demands(image, who, needs_log=needs_log)
    try:
        check_bundle(parse(data), parse_material(root), demands)
    except Unproved as error:
        return str(error) or "?"
    return ""


def test_valid_bundle_of_each_format(own: rig.Sigstore) -> None:
    assert not reason(own, bundle_rig.bundle(own))
    assert not reason(own, bundle_rig.message(own, b"image"))
    assert reason(own, bundle_rig.message(own, b"another image"))
    assert "does not match any digest" in reason(
        own, bundle_rig.bundle(own), image=f"sha256:{'0' * 64}"
    )


@pytest.mark.parametrize("version", ["0.1", "0.2"])
def test_older_versions_contain_a_chain(own: rig.Sigstore, version: str) -> None:
    made = bundle_rig.bundle(own)
    made["mediaType"] = bundle_rig.OLD + version
    material = made["verificationMaterial"]
    chain = {"certificates": [material.pop("certificate")]}
    material["x509CertificateChain"] = chain
    if version == "0.1":
        del material["tlogEntries"][0]["inclusionProof"]
    assert not reason(own, made)
    made["mediaType"] = bundle_rig.V3
    assert "cannot be X.509 certificate chain" in reason(own, made)


def _entry(made: Any) -> Any:
    return made["verificationMaterial"]["tlogEntries"][0]


def _stranger(own: rig.Sigstore) -> rig.Sigstore:
    """Return a deployment with the same authority and another log."""
    return rig.Sigstore(root=own.root)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda m: m.pop("mediaType"), "unsupported media type: "),
        (lambda m: m.update(mediaType="x"), "unsupported media type: x"),
        (lambda m: m.pop("dsseEnvelope"), "missing messageSignature"),
        (lambda m: m["dsseEnvelope"].update(payloadType="text/plain"), "verify"),
        (lambda m: m["dsseEnvelope"].update(signatures=[]), "one signature"),
        (
            lambda m: m["verificationMaterial"].pop("certificate"),
            "missing verification material",
        ),
        (lambda m: m["verificationMaterial"].update(tlogEntries=[]), "not enough"),
        (
            lambda m: m["verificationMaterial"]["tlogEntries"].append(_entry(m)),
            "duplicate tlog entries",
        ),
        (lambda m: _entry(m).pop("inclusionProof"), "inclusion proof missing"),
        (
            lambda m: _entry(m)["inclusionProof"].pop("checkpoint"),
            "missing checkpoint",
        ),
        # SAFETY: a time without a log's signature does not count.
        (lambda m: _entry(m).pop("inclusionPromise"), "time of the entry is not"),
        (lambda m: _entry(m).update(integratedTime="1"), "unable to verify SET"),
        (lambda m: _entry(m).update(integratedTime="-1"), "not an integer"),
        (lambda m: _entry(m)["inclusionProof"].update(hashes=[]), "wrong proof size"),
        (
            lambda m: _entry(m)["logId"].update(keyId=rig.b64(b"x" * 32)),
            "public key not found",
        ),
    ],
)
def test_changes_that_invalidate_a_bundle(
    own: rig.Sigstore, change: Change, text: str
) -> None:
    made = copy.deepcopy(bundle_rig.bundle(own))
    change(made)
    assert text in reason(own, made)


def test_key_is_not_an_identity(own: rig.Sigstore) -> None:
    made = bundle_rig.bundle(own)
    del made["verificationMaterial"]["certificate"]
    made["verificationMaterial"]["publicKey"] = {"hint": "x"}
    assert "no trust root vouches" in reason(own, made)


def test_foreign_log_or_checkpoint(own: rig.Sigstore) -> None:
    """The entry, the promise or the checkpoint comes from an untrusted log."""
    other = _stranger(own)
    other.middle = own.middle
    signer = own.leaf()
    made, foreign = (bundle_rig.bundle(one, signer) for one in (own, other))
    assert reason(own, foreign)
    mixed = copy.deepcopy(made)
    proof = _entry(mixed)["inclusionProof"]
    theirs = _entry(foreign)["inclusionProof"]["checkpoint"]["envelope"]
    head, _, tail = proof["checkpoint"]["envelope"].rpartition("\u2014")
    signed = theirs.rpartition("\u2014")[2]
    proof["checkpoint"]["envelope"] = f"{head}\u2014{signed}"
    assert tail != signed
    assert "not signed by the log" in reason(own, mixed)
    mixed = copy.deepcopy(made)
    _entry(mixed)["inclusionPromise"] = _entry(foreign)["inclusionPromise"]
    assert "SET" in reason(own, mixed)


def test_entry_of_another_signature(own: rig.Sigstore) -> None:
    signer = own.leaf()
    made = bundle_rig.bundle(own, signer)
    other = bundle_rig.bundle(own, signer, predicate={"x": 1})
    made["verificationMaterial"]["tlogEntries"] = [_entry(other)]
    assert "log signature does not match" in reason(own, made)


def test_times(own: rig.Sigstore) -> None:
    late = rig.SIGNED + dt.timedelta(minutes=11)
    assert "expired" in reason(own, bundle_rig.bundle(own, at=late))
    made = bundle_rig.stamped(own, bundle_rig.bundle(own), bundle_rig.AT)
    assert not reason(own, made)
    # Every proven time must be within the certificate's validity.
    made = bundle_rig.stamped(own, bundle_rig.bundle(own), late)
    assert "expired" in reason(own, made)
    ended = {"start": "2020-01-01T00:00:00Z", "end": "2021-01-01T00:00:00Z"}
    made = bundle_rig.bundle(own)
    assert "not trusted at the time" in reason(own, made, log=ended)
    assert "no certificate authority" in reason(own, made, ca=ended)


def test_without_a_log_only_a_timestamp_proves_the_time(own: rig.Sigstore) -> None:
    made = bundle_rig.bundle(own)
    assert "threshold not met" in reason(own, made, needs_log=False)
    made = bundle_rig.stamped(own, made, bundle_rig.AT)
    assert not reason(own, made, needs_log=False)
    ended = {"start": "2020-01-01T00:00:00Z", "end": "2021-01-01T00:00:00Z"}
    assert "threshold" in reason(own, made, needs_log=False, tsa=ended)
    other = bundle_rig.stamped(own, bundle_rig.bundle(own), bundle_rig.AT)
    material = made["verificationMaterial"]
    material["timestampVerificationData"] = other["verificationMaterial"][
        "timestampVerificationData"
    ]
    assert "threshold" in reason(own, made, needs_log=False)


def test_foreign_authority(own: rig.Sigstore) -> None:
    stranger = rig.issue("middle", rig.issue("root"))
    made = bundle_rig.bundle(own, own.leaf(by=stranger))
    assert "failed to verify leaf certificate" in reason(own, made)
    self_signed = rig.issue(
        "",
        is_authority=False,
        extensions=[rig.usage(), rig.names(), rig.extension(1, rig.ISSUER)],
    )
    assert reason(own, bundle_rig.bundle(own, self_signed))


@pytest.mark.parametrize(
    ("who", "holds"),
    [
        (WHO, True),
        (Identity(issuer=rig.ISSUER, subject="you@example.com"), False),
        (Identity(issuer="https://other", subject=rig.SUBJECT), False),
        # KYVERNO: wildcards are not supported here.
        (Identity(issuer=rig.ISSUER, subject="*@example.com"), False),
        (Identity(issuer_reg_exp="^https://", subject_reg_exp="^me@"), True),
        (Identity(issuer_reg_exp="^https://", subject_reg_exp="^you@"), False),
        (WHO._replace(subject_reg_exp="^you@"), False),
        (WHO._replace(extensions=(("oidcIssuer", "https://*"),)), True),
        (WHO._replace(extensions=(("githubWorkflowRef", "refs/heads/main"),)), False),
        (WHO._replace(extensions=(("unknown", "*"),)), False),
        # SAFETY: half an identity does not count as an identity.
        (Identity(issuer=rig.ISSUER), False),
        (Identity(subject=rig.SUBJECT), False),
        (Identity(), False),
    ],
)
def test_identities(own: rig.Sigstore, who: Identity, holds: bool) -> None:  # noqa: FBT001 - a column
    assert (not reason(own, bundle_rig.bundle(own), who)) is holds


def test_compared_name_of_a_certificate(own: rig.Sigstore) -> None:
    uri = x509.UniformResourceIdentifier("https://ci.example/a")
    both = own.leaf(san=rig.names(x509.RFC822Name(rig.SUBJECT), uri))
    assert reason(own, bundle_rig.bundle(own, both))
    who = WHO._replace(subject="https://ci.example/a")
    assert not reason(own, bundle_rig.bundle(own, both), who)
    dns = own.leaf(san=rig.names(x509.DNSName(rig.SUBJECT)))
    assert "no subject" in reason(own, bundle_rig.bundle(own, dns))


def test_bounds(own: rig.Sigstore) -> None:
    blob = b" " * (limits.IMAGE_BUNDLE_BYTES_MAX + 1)
    assert str(limits.IMAGE_BUNDLE_BYTES_MAX) in reason(own, blob)
    made = bundle_rig.bundle(own)
    listed = [_entry(made)] * (limits.IMAGE_BUNDLE_PARTS_MAX + 1)
    made["verificationMaterial"]["tlogEntries"] = listed
    assert "too long" in reason(own, made)
    assert reason(own, b"[" * 100_000)


def test_base64_must_be_canonical(own: rig.Sigstore) -> None:
    """Otherwise unsigned bytes could be inserted into a bundle."""
    made = bundle_rig.message(own, b"image")
    holder = made["messageSignature"]["messageDigest"]
    other = made["messageSignature"]
    for at, name in ((holder, "digest"), (other, "signature")):
        right = at[name]
        if not right.endswith("="):
            continue
        last = right.rstrip("=")[-1]
        at[name] = right.replace(last + "=", chr(ord(last) + 1) + "=", 1)
        assert base64.b64decode(at[name]) == base64.b64decode(right)
        assert "unused bits" in reason(own, made)
        at[name] = right


def test_a_checkpoint_and_a_number_have_one_spelling(own: rig.Sigstore) -> None:
    made = bundle_rig.message(own, b"image")
    assert not reason(own, made)
    proof = _entry(made)["inclusionProof"]
    right = proof["logIndex"]
    proof["logIndex"] = f"0{right}"
    assert "not an integer" in reason(own, made)
    proof["logIndex"] = right
    text = proof["checkpoint"]["envelope"]
    for odd in (text[:-1] + "\f", text + "n", text[:-1], text + "\n"):
        proof["checkpoint"]["envelope"] = odd
        assert "the checkpoint is malformed" in reason(own, made)
    head, _, encoded = text.rstrip("\n").rpartition(" ")
    data = base64.b64decode(encoded)
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    bare = encoded.rstrip("=")
    if bare == encoded:
        return
    other = digits[digits.index(bare[-1]) ^ 1]
    respelled = bare[:-1] + other + encoded[len(bare) :]
    assert base64.b64decode(respelled) == data
    proof["checkpoint"]["envelope"] = f"{head} {respelled}\n"
    assert "the checkpoint is malformed" in reason(own, made)


def test_no_bundle_is_trusted_without_a_trust_root(own: rig.Sigstore) -> None:
    given = parse(json.dumps(bundle_rig.bundle(own)).encode())
    asked = SignatureQuery("i", identity=WHO, logs=LogTerms(), form="SigstoreBundle")
    with pytest.raises(ExpressionFailed, match="failed to get trusted root"):
        verified_bundles([given], asked, rig.DIGEST, NoTrustRoot(), 0)


@pytest.mark.filterwarnings("ignore::UserWarning")  # names that are too long
@pytest.mark.parametrize("form", ["statement", "message"])
def test_no_mutation_verifies(own: rig.Sigstore, form: str) -> None:
    """All bytes except the version count."""
    made = (
        bundle_rig.bundle(own)
        if form == "statement"
        else bundle_rig.message(own, b"image")
    )
    blob = json.dumps(made, separators=(",", ":"), ensure_ascii=False).encode()
    assert not reason(own, blob)
    start = blob.index(b'"verificationMaterial"')
    places = [
        (at, to)
        for at in range(start, len(blob))
        for to in range(256)
        if to != blob[at]
    ]
    if not os.environ.get(_ALL):
        places = random.Random(form).sample(places, _SAMPLE)
    for at, to in places:
        changed = bytearray(blob)
        changed[at] = to
        if not _same(bytes(changed), blob):
            assert reason(own, bytes(changed)), (at, to, blob[at - 20 : at + 20])


def _same(changed: bytes, blob: bytes) -> bool:
    """Return whether the JSON texts differ only in formatting."""
    try:
        return bool(json.loads(changed) == json.loads(blob))
    except ValueError:
        return False

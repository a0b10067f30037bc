"""A keyless signed manifest needs a trusted certificate, a log entry and the signer."""

import base64
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.images.manifests.verifier import ManifestVerifier
from kyverno_mp.images.sigstore.logkeys import LogKeys
from kyverno_mp.policy.fields.image_verification import KeylessAttestor
from kyverno_mp.program.ports import ManifestQuery
from tests.images import bundle_rig, manifest_rig, rig
from tests.images.test_manifests import MAP

WHO = KeylessAttestor(issuer=rig.ISSUER, subject=rig.SUBJECT)


class Trust:
    """The trust root of a test Sigstore."""

    def __init__(self, own: rig.Sigstore, **period: dict[str, str]) -> None:
        self._own = own
        self._period = period

    def fulcio_roots(self, _deadline_ns: int) -> Sequence[x509.Certificate]:
        return [self._own.root.certificate]

    def rekor_keys(self, _deadline_ns: int) -> LogKeys:
        return self._own.rekor_keys

    def ctlog_keys(self, _deadline_ns: int) -> LogKeys:
        return self._own.ctlog_keys

    def target(self, _name: str, _deadline_ns: int) -> bytes:
        found = bundle_rig.trusted_root(self._own, **self._period)
        return json.dumps(found).encode()


@pytest.fixture(scope="module")
def own() -> rig.Sigstore:
    return rig.Sigstore()


def signed(own: rig.Sigstore, signer: rig.Issued) -> dict[str, Any]:
    """Return an object with signature, certificate and log entry."""
    message = manifest_rig.of_objects(MAP)
    signature = rig.sign(signer.key, message)
    made = manifest_rig.annotated(MAP, message, signature)
    held = rig.pem(signer.certificate)
    body = rig.hashedrekord(message, signature, held)
    entry = own.bundle(body, bundle_rig.AT)
    for name, text in (("certificate", held), ("bundle", entry)):
        place = f"{manifest_rig.DOMAIN}/{name}"
        made["metadata"]["annotations"][place] = manifest_rig.encoded(text.encode())
    return made


def verdict(
    own: rig.Sigstore,
    made: dict[str, Any],
    who: KeylessAttestor = WHO,
    **period: dict[str, str],
) -> str:
    """Return the signer, or a text that begins with an exclamation mark."""
    asked = ManifestQuery(made, manifest_rig.DOMAIN, keyless=who)
    try:
        answer = ManifestVerifier(Trust(own, **period)).verify(asked, 0)
    except ExpressionFailed as error:
        return f"! {error.message}"
    return answer.signer if answer.is_verified else f"! {answer.diff}"


def test_signer(own: rig.Sigstore) -> None:
    made = signed(own, own.leaf())
    assert verdict(own, made) == rig.SUBJECT
    made["data"]["a"] = "9"
    assert "data.a" in verdict(own, made)


def test_a_self_signed_certificate_does_not_pass(own: rig.Sigstore) -> None:
    """SAFETY: upstream trusts the log entry and reads the name from any certificate."""
    extensions = [rig.usage(), rig.names(), rig.extension(1, rig.ISSUER)]
    own_made = rig.issue("", is_authority=False, extensions=extensions)
    assert verdict(own, signed(own, own_made)).startswith("! ")
    stranger = rig.issue("middle", rig.issue("root"))
    assert verdict(own, signed(own, own.leaf(by=stranger))).startswith("! ")


@pytest.mark.parametrize(
    "who",
    [
        # SAFETY: upstream does not check the issuer.
        KeylessAttestor(issuer="https://other", subject=rig.SUBJECT),
        KeylessAttestor(issuer=rig.ISSUER, subject="you@example.com"),
        KeylessAttestor(issuer=rig.ISSUER),
        KeylessAttestor(),
    ],
)
def test_other_identities_do_not_pass(own: rig.Sigstore, who: KeylessAttestor) -> None:
    assert verdict(own, signed(own, own.leaf()), who).startswith("! ")


def test_roots_of_the_policy(own: rig.Sigstore) -> None:
    made = signed(own, own.leaf())
    ours = rig.pem(own.root.certificate, own.middle.certificate)
    theirs = rig.pem(rig.issue("root").certificate)
    who = KeylessAttestor(issuer=rig.ISSUER, subject=rig.SUBJECT, roots=ours)
    assert verdict(own, made, who) == rig.SUBJECT
    who = KeylessAttestor(issuer=rig.ISSUER, subject=rig.SUBJECT, roots=theirs)
    assert verdict(own, made, who).startswith("! ")


@pytest.mark.parametrize(
    ("hours", "holds"), [((-1, 1), True), ((-2, -1), False), ((1, 2), False)]
)
def test_retired_authority_vouches_for_no_later_certificate(
    own: rig.Sigstore,
    hours: tuple[int, int],
    holds: bool,  # noqa: FBT001 - a column
) -> None:
    """An authority is retired because others may have its key."""
    start, end = ((bundle_rig.AT + timedelta(hours=one)).isoformat() for one in hours)
    period = {"start": start, "end": end}
    found = verdict(own, signed(own, own.leaf()), ca=period)
    assert (found == rig.SUBJECT) is holds


@pytest.mark.parametrize("name", ["certificate", "bundle"])
def test_each_part_is_required(own: rig.Sigstore, name: str) -> None:
    made = signed(own, own.leaf())
    place = f"{manifest_rig.DOMAIN}/{name}"
    other = signed(own, own.leaf())["metadata"]["annotations"][place]
    annotations = made["metadata"]["annotations"]
    annotations[place] = other
    assert verdict(own, made).startswith("! ")
    annotations[place] = base64.b64encode(b"x").decode()
    assert verdict(own, made).startswith("! ")
    del annotations[place]
    assert "provide a key" in verdict(own, made)


def test_foreign_log(own: rig.Sigstore) -> None:
    stranger = rig.Sigstore(root=own.root)
    assert verdict(own, signed(stranger, own.leaf())).startswith("! ")


_ROOT = rig.issue("root")
_MIDDLE = rig.issue("middle", _ROOT)
_LEAF = rig.issue("leaf", _MIDDLE, is_authority=False, extensions=[rig.usage()])
_SELF_SIGNED = rig.issue("leaf", is_authority=False, extensions=[rig.usage()])
_EXPIRED = rig.issue(
    "leaf",
    _MIDDLE,
    is_authority=False,
    extensions=[rig.usage()],
    end=rig.NOW - timedelta(days=1),
)
_SERVER = rig.issue(
    "leaf",
    _MIDDLE,
    is_authority=False,
    extensions=[rig.usage(ExtendedKeyUsageOID.SERVER_AUTH)],
)
_CHAIN = rig.pem(_MIDDLE.certificate, _ROOT.certificate)


def _below_chain(
    signer: rig.Issued,
    chain: str,
    *,
    pinned: rig.Issued | None = None,
    shown: rig.Issued | None = None,
) -> str:
    """Return "" if the object is verified, else the reason.

    ``pinned``: the certificate in the policy. ``shown``: that of the object, if it is
    not the signer's.
    """
    message = manifest_rig.of_objects(MAP)
    made = manifest_rig.annotated(MAP, message, rig.sign(signer.key, message))
    if pinned is None:
        text = rig.pem((shown or signer).certificate)
        place = f"{manifest_rig.DOMAIN}/certificate"
        made["metadata"]["annotations"][place] = manifest_rig.encoded(text.encode())
    query = ManifestQuery(
        made,
        manifest_rig.DOMAIN,
        certificate=rig.pem(pinned.certificate) if pinned else "",
        chain=chain,
    )
    verifier = ManifestVerifier(now=lambda: rig.NOW)
    try:
        return "" if verifier.verify(query, 0).is_verified else "differs"
    except ExpressionFailed as error:
        return error.message


@pytest.mark.parametrize("is_pinned", [False, True])
@pytest.mark.parametrize(
    ("signer", "chain", "reason"),
    [
        (_LEAF, _CHAIN, ""),
        (_LEAF, rig.pem(_MIDDLE.certificate), ""),
        (_SELF_SIGNED, _CHAIN, "unknown authority"),
        (_LEAF, rig.pem(_ROOT.certificate), "unknown authority"),
        (_LEAF, rig.pem(rig.issue("root").certificate), "unknown authority"),
        (_EXPIRED, _CHAIN, "expired"),
        (_SERVER, _CHAIN, "usage"),
        (_LEAF, "no certificate", "PEM"),
    ],
)
def test_the_chain_of_a_policy_vouches_for_the_signer(
    signer: rig.Issued, chain: str, reason: str, *, is_pinned: bool
) -> None:
    """It does so now, because no log has seen the signature."""
    refusal = _below_chain(signer, chain, pinned=signer if is_pinned else None)
    assert (reason in refusal) if reason else not refusal


def test_a_certificate_of_the_chain_needs_the_signature_of_its_key() -> None:
    assert _below_chain(_SELF_SIGNED, _CHAIN, shown=_LEAF)
    assert _below_chain(_SELF_SIGNED, _CHAIN, pinned=_LEAF)
    assert not _below_chain(_LEAF, _CHAIN, shown=_LEAF)

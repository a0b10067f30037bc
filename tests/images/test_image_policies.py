"""ImageValidatingPolicies: possible attestors, and what an attestation proves.

A failure means: an image counts as signed by a signer who has not signed it.
"""

import datetime as dt
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import pytest
from cryptography import x509

from kyverno_mp import limits
from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.images.policies.review import PolicyReader, PolicyReview
from kyverno_mp.images.policies.trust import PolicyTrust
from kyverno_mp.images.sigstore.logkeys import LogKeys
from kyverno_mp.program.image_policies.ports import (
    CosignQuery,
    ImageQuery,
    NotaryQuery,
    TufQuery,
)
from kyverno_mp.program.ports import Identity, LogTerms
from kyverno_mp.registry.client import Client
from kyverno_mp.registry.credentials import Credentials
from tests.image_rig import (
    Contents,
    Repository,
    Signer,
    digest_of,
    payload_for,
    serving,
)
from tests.images import bundle_rig, notation_rig, rig

_LATER_NS: Final = 2**62
_WHO: Final = (Identity(subject=rig.SUBJECT, issuer=rig.ISSUER),)
_UNLOGGED: Final = LogTerms(
    is_ignored=True, url="http://log.example", ignores_scts=True
)
_KIND: Final = "https://example.com/review/v1"
_ARTEFACT: Final = "sbom/example"


class Trust:
    """The trust root of a test Sigstore."""

    def __init__(self, own: rig.Sigstore) -> None:
        self._own = own
        self.reads = 0

    def fulcio_roots(self, _deadline_ns: int) -> Sequence[x509.Certificate]:
        return (self._own.root.certificate,)

    def rekor_keys(self, _deadline_ns: int) -> LogKeys:
        return self._own.rekor_keys

    def ctlog_keys(self, _deadline_ns: int) -> LogKeys:
        return self._own.ctlog_keys

    def target(self, _name: str, _deadline_ns: int) -> bytes:
        ctlog = {
            "logId": {"keyId": rig.b64(next(iter(self._own.ctlog_keys)))},
            "publicKey": {"rawBytes": rig.b64(rig.spki(self._own.ctlog))},
        }
        found = {**bundle_rig.trusted_root(self._own), "ctlogs": [ctlog]}
        return json.dumps(found).encode()

    def check(self, _deadline_ns: int) -> None:
        self.reads += 1


def _unreachable(*_: Any) -> tuple[int, bytes]:
    raise AssertionError("nothing may be asked")


class Place:
    """One image in a registry, and a review of it."""

    def __init__(self, contents: Contents, host: str) -> None:
        self.contents = contents
        self.own = rig.Sigstore()
        self.trust = Trust(self.own)
        self.repository = Repository("app")
        self.digest = self.repository.image()
        self.asked = ImageQuery(f"{host}/app:v1")
        self.body = self.repository.manifests[0][1]

    def review(self, now: dt.datetime = rig.NOW) -> PolicyReview:
        self.repository.load(self.contents)
        client = Client(lambda _registry: Credentials(), user_agent="test")
        return PolicyReader(
            client=lambda _access: client,
            now=lambda: now,
            until=lambda _given: _LATER_NS,
            trust=PolicyTrust(self.trust, _unreachable),
            send=_unreachable,
            tenants_send=_unreachable,
        ).begin()

    def keyless(self, *, change: Callable[[Any], Any] = lambda layer: layer) -> None:
        """Attach a signature with certificate, SCT and log entry."""
        layer = self.own.layer(self.own.leaf(), payload_for(self.digest))
        self.repository.attach_layers(self.digest, "sig", [change(layer)])

    def verdict(self, asked: CosignQuery | NotaryQuery, **given: Any) -> str:
        try:
            self.review(**given).verify(self.asked, asked, 0)
        except ExpressionFailed as error:
            return error.message
        return ""


@pytest.fixture
def place() -> Iterator[Place]:
    contents = Contents()
    with serving(contents, is_canned=False) as host:
        yield Place(contents, host)


def test_key(place: Place) -> None:
    signer, stranger = Signer(), Signer()
    place.repository.sign(place.digest, signer)
    assert not place.verdict(CosignQuery(signer.pem, log=_UNLOGGED))
    assert place.verdict(CosignQuery(stranger.pem, log=_UNLOGGED))
    # KYVERNO: the TUF repository must be readable even for a key without logs.
    assert place.trust.reads


def test_signature_needs_an_entry_unless_logs_are_ignored(place: Place) -> None:
    signer = Signer()
    place.repository.sign(place.digest, signer)
    assert "rekor client not provided" in place.verdict(CosignQuery(signer.pem))


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (CosignQuery(), "names no key"),
        (CosignQuery(""), "names no key"),
        (CosignQuery("", kms="awskms:///key"), "the service reads keys of AWS KMS"),
        (CosignQuery(certificate="", chain=""), "names no key"),
        (CosignQuery(identities=()), "keyless needs identities"),
        (CosignQuery(identities=(Identity(),)), "keyless needs identities"),
        (CosignQuery(identities=(*_WHO, Identity())), "keyless needs identities"),
        (CosignQuery("x", log=LogTerms()), "rekor URL must be provided"),
        (CosignQuery(chain="junk", log=_UNLOGGED), "error creating root cert pool"),
        (NotaryQuery(), "needs certificates"),
        (NotaryQuery("junk"), "error during PEM decoding"),
    ],
)
def test_empty_identity_matches_no_signer(
    place: Place, asked: CosignQuery | NotaryQuery, text: str
) -> None:
    place.keyless()
    if isinstance(asked, CosignQuery) and asked.log is None:
        asked = asked._replace(log=_UNLOGGED)
    assert text in place.verdict(asked)


@pytest.mark.parametrize(
    ("identity", "holds"),
    [
        (Identity(rig.SUBJECT, "", rig.ISSUER), True),
        (Identity(subject=rig.SUBJECT), True),
        (Identity(issuer=rig.ISSUER), True),
        (Identity(subject="*@example.com"), False),
        (Identity(issuer="https://*"), False),
        (Identity(rig.SUBJECT, "", "https://other.example"), False),
        (Identity("other", "me@.*", "other", "issuer"), True),
        (Identity(rig.SUBJECT, "^you@"), False),
    ],
)
def test_identities(place: Place, identity: Identity, holds: bool) -> None:  # noqa: FBT001 - a column
    place.keyless()
    assert (not place.verdict(CosignQuery(identities=(identity,)))) is holds


def test_any_listed_identity_suffices(place: Place) -> None:
    place.keyless()
    others = (Identity(subject="a@example.com"), *_WHO)
    assert not place.verdict(CosignQuery(identities=others))


def test_certificate_without_names_has_no_subject(place: Place) -> None:
    signer = rig.issue(
        "",
        place.own.middle,
        is_authority=False,
        extensions=[rig.usage(), rig.extension(1, rig.ISSUER)],
        begin=rig.SIGNED,
        end=rig.SIGNED + dt.timedelta(minutes=10),
    )
    layer = place.own.layer(signer, payload_for(place.digest))
    place.repository.attach_layers(place.digest, "sig", [layer])
    ignored = LogTerms(url="http://log.example", ignores_scts=True)
    text = place.verdict(CosignQuery(identities=_WHO, log=ignored))
    assert "none of the expected identities" in text


def test_only_the_trusted_root_is_used(place: Place) -> None:
    """A stranger's certificate authority, log and certificate log do not count."""
    place.keyless()
    place.trust = Trust(rig.Sigstore())
    assert "rekor log public key" in place.verdict(CosignQuery(identities=_WHO))
    stranger = rig.Sigstore()
    stranger.rekor = place.own.rekor
    place.trust = Trust(stranger)
    assert "cert verification failed" in place.verdict(CosignQuery(identities=_WHO))
    stranger.root, stranger.middle = place.own.root, place.own.middle
    assert "ctfe public key" in place.verdict(CosignQuery(identities=_WHO))
    stranger.ctlog = place.own.ctlog
    assert not place.verdict(CosignQuery(identities=_WHO))


def test_chain_is_optional(place: Place) -> None:
    """The authorities come from the trusted root."""

    def bare(layer: Any) -> Any:
        kept = dict(layer.annotations)
        del kept["dev.sigstore.cosign/chain"]
        return replace(layer, annotations=kept)

    place.keyless(change=bare)
    assert not place.verdict(CosignQuery(identities=_WHO))


def test_annotations_restrict_accepted_signatures(place: Place) -> None:
    place.keyless(
        change=lambda layer: replace(
            layer, annotations={**layer.annotations, "env": "prod"}
        )
    )
    asked = CosignQuery(identities=_WHO, annotations=(("env", "prod"),))
    assert not place.verdict(asked)
    other = asked._replace(annotations=(("env", "test"),))
    assert "required annotations" in place.verdict(other)


def _bundled(place: Place, made: dict[str, Any]) -> None:
    blob = json.dumps(made).encode()
    referrer = (bundle_rig.V3, "application/json", blob)
    notation_rig.refer(place.contents, "app", place.body, referrer)


def _subject(place: Place) -> list[dict[str, Any]]:
    return [{"name": "i", "digest": {"sha256": place.digest[7:]}}]


def test_bundle_replaces_tags(place: Place) -> None:
    """If a bundle exists, signatures under tags do not count."""
    place.keyless()
    _bundled(place, bundle_rig.bundle(place.own, subject=_subject(place)))
    asked = CosignQuery(identities=_WHO)
    assert not place.verdict(asked)
    key = CosignQuery(rig.pem_key(place.own.rekor), log=_UNLOGGED)
    assert "by identity only" in place.verdict(key)
    assert "multiple identities" in place.verdict(CosignQuery(identities=_WHO * 2))
    _bundled(place, bundle_rig.bundle(rig.Sigstore(), subject=_subject(place)))
    assert "no matching signatures" in place.verdict(asked)


def test_a_bundle_needs_the_certificate_log(place: Place) -> None:
    signer = place.own.leaf(scts=0)
    _bundled(place, bundle_rig.bundle(place.own, signer, subject=_subject(place)))
    asked = CosignQuery(identities=_WHO)
    assert "SCT" in place.verdict(asked)
    ignored = LogTerms(url="http://log.example", ignores_scts=True)
    assert not place.verdict(asked._replace(log=ignored))


def test_bundle_without_a_log_must_be_valid_now(place: Place) -> None:
    _bundled(place, bundle_rig.bundle(place.own, subject=_subject(place)))
    ignored = LogTerms(url="http://log.example", is_ignored=True)
    asked = CosignQuery(identities=_WHO, log=ignored)
    assert "certificate has expired" in place.verdict(asked)
    young = rig.SIGNED + dt.timedelta(minutes=1)
    assert not place.verdict(asked, now=young)


def test_bundle_about_another_image(place: Place) -> None:
    _bundled(place, bundle_rig.bundle(place.own))
    text = place.verdict(CosignQuery(identities=_WHO))
    assert "does not match any digest in statement" in text


def test_statements(place: Place) -> None:
    made = place.own.attestation(place.own.leaf(), subject=_subject(place))
    place.repository.attach_layers(place.digest, "att", [made])
    asked, review = CosignQuery(identities=_WHO), place.review()
    ((kind, payload),) = review.statements(place.asked, asked, _KIND, 0)
    assert (kind, payload["predicate"]) == (_KIND, {"author": "alice"})
    with pytest.raises(ExpressionFailed, match="not found, found"):
        review.statements(place.asked, asked, "https://example.com/other", 0)
    with pytest.raises(ExpressionFailed, match="invalid predicate type"):
        review.statements(place.asked, asked, "other", 0)
    ignored = asked._replace(log=_UNLOGGED)
    with pytest.raises(ExpressionFailed, match="bundle verification failed"):
        review.statements(place.asked, ignored, _KIND, 0)


def _artefact(place: Place, made: notation_rig.Chain, about: bytes = b"") -> None:
    (manifest,) = notation_rig.refer(
        place.contents,
        "app",
        place.body,
        (_ARTEFACT, "text/json", b'{"a": 1}'),
        about=about,
    )
    target = notation_rig.payload(digest_of(manifest), len(manifest))
    envelope = notation_rig.jws(made, target)
    signature = (notation_rig.SIGNATURE, notation_rig.JWS, envelope)
    notation_rig.refer(place.contents, "app", manifest, signature)


def test_signed_artifact(place: Place) -> None:
    chain, stranger = notation_rig.chain(), notation_rig.chain()
    _artefact(place, chain)
    review, asked = place.review(notation_rig.NOW), NotaryQuery(chain.root_pem)
    digest = review.referrer(place.asked, asked, _ARTEFACT, 0)
    assert review.document(place.asked, digest, 0) == {"a": 1}
    other = NotaryQuery(stranger.root_pem)
    with pytest.raises(ExpressionFailed, match="does not contain any trusted"):
        review.referrer(place.asked, other, _ARTEFACT, 0)
    with pytest.raises(ExpressionFailed, match="no attestations found"):
        review.referrer(place.asked, asked, "sbom/other", 0)


@pytest.mark.parametrize("given", ["", " \n", "junk"])
def test_time_authorities_without_a_certificate(place: Place, given: str) -> None:
    """Otherwise an expression without a value would disable timestamps."""
    chain = notation_rig.chain()
    _artefact(place, chain)
    review, asked = place.review(notation_rig.NOW), NotaryQuery(chain.root_pem, given)
    with pytest.raises(ExpressionFailed, match="failed to parse tsaCerts"):
        review.referrer(place.asked, asked, _ARTEFACT, 0)


def test_signed_artifact_about_another_image(place: Place) -> None:
    """The list of referrers is not signed; upstream believes it."""
    chain = notation_rig.chain()
    _artefact(place, chain, about=b"another image")
    with pytest.raises(ExpressionFailed, match="is not about"):
        place.review(notation_rig.NOW).referrer(
            place.asked, NotaryQuery(chain.root_pem), _ARTEFACT, 0
        )


def test_a_failed_read_is_not_repeated_in_a_review(place: Place) -> None:
    """All policies of a review see one image, or the same failure."""
    review = place.review()
    path = ("GET", "/v2/app/manifests/v1")
    place.contents.once[path] = place.contents.missing(path[1])
    for _ in range(2):
        with pytest.raises(ExpressionFailed, match="MANIFEST_UNKNOWN"):
            review.data(place.asked, 0)
    assert place.review().data(place.asked, 0)["digest"] == place.digest


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (TufQuery(path="/etc/passwd"), "is not read"),
        (TufQuery(path="https://x.example/root.json"), "is not read"),
        (TufQuery("file:///root"), "Failed to initialize TUF client"),
        (TufQuery("https://x.example", "%%"), "Failed to base64 decode"),
        (TufQuery("https://x.example/all?x="), "Failed to initialize TUF client"),
        (TufQuery("https://x.example/all#"), "Failed to initialize TUF client"),
    ],
)
def test_rejected_roots(place: Place, asked: TufQuery, text: str) -> None:
    trust = PolicyTrust(place.trust, _unreachable)
    with pytest.raises(ExpressionFailed, match=text):
        trust.root(asked, is_tenants=False)


@pytest.mark.parametrize(
    "prefix", ["../../../secret?", "../../../secret#", "..", "%2e%2e/", "a/b-", "\n"]
)
def test_tag_prefix_is_part_of_a_tag(place: Place, prefix: str) -> None:
    """The author of a policy must not choose a path of the server."""
    signer = Signer()
    place.contents.answers["GET", "/secret"] = (403, {}, b"internal")
    asked = CosignQuery(signer.pem, log=_UNLOGGED, tag_prefix=prefix)
    assert "the tag of the signatures is invalid" in place.verdict(asked)
    place.repository.sign(place.digest, signer)
    tag, signed = place.repository.manifests.pop()
    place.repository.manifests.append((f"own-{tag}", signed))
    assert not place.verdict(asked._replace(tag_prefix="own-"))


def test_each_repository_has_its_own_root(place: Place) -> None:
    trust = PolicyTrust(place.trust, _unreachable)
    assert trust.root(None, is_tenants=False) is place.trust
    assert trust.root(TufQuery(), is_tenants=False) is place.trust
    first = TufQuery("https://a.example")
    known = trust.root(first, is_tenants=False)
    assert trust.root(first, is_tenants=False) is known
    assert trust.root(first, is_tenants=True) is not known
    for number in range(limits.IMAGE_TRUST_ROOTS_MAX):
        trust.root(TufQuery(f"https://{number}.example"), is_tenants=False)
    assert trust.root(first, is_tenants=False) is not known


def test_the_documents_of_a_review_are_bounded(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker keeps them until it answers; users who create Pods choose the images."""
    assert place.review().data(place.asked, 0)["digest"] == place.digest
    monkeypatch.setattr("kyverno_mp.images.policies.review.IMAGE_POLICY_BYTES_MAX", 10)
    with pytest.raises(ExpressionFailed, match="too large"):
        place.review().data(place.asked, 0)


def _root_of(own: rig.Sigstore) -> str:
    return Trust(own).target("", 0).decode()


class Unread(Trust):
    """A TUF repository that must not be read."""

    def check(self, _deadline_ns: int) -> None:
        raise ExpressionFailed("images.trust", "the TUF repository was read")

    def target(self, _name: str, _deadline_ns: int) -> bytes:
        raise ExpressionFailed("images.trust", "the TUF repository was read")


@pytest.mark.parametrize("bundled", [True, False])
def test_trusted_root_of_the_policy(place: Place, *, bundled: bool) -> None:
    """An own Sigstore without TUF repository could not be used, or all would be."""
    own, stranger = place.own, rig.Sigstore()
    if bundled:
        _bundled(place, bundle_rig.bundle(own, subject=_subject(place)))
    else:
        place.keyless()
    place.trust = Unread(stranger)
    tuf = TufQuery("https://tuf.example")
    asked = CosignQuery(identities=_WHO, tuf=tuf, trusted_root=_root_of(own))
    assert not place.verdict(asked)
    assert place.verdict(asked._replace(trusted_root=_root_of(stranger)))
    # The common root would do, but it is not asked.
    place.trust = Trust(own)
    assert place.verdict(asked._replace(trusted_root=_root_of(stranger)))


def test_key_with_a_trusted_root_needs_its_log(place: Place) -> None:
    signer = place.own.leaf()
    layer = place.own.layer(signer, payload_for(place.digest))
    place.repository.attach_layers(place.digest, "sig", [layer])
    key = rig.pem_key(signer.key)
    place.trust = Unread(place.own)
    assert not place.verdict(CosignQuery(key, trusted_root=_root_of(place.own)))
    others = _root_of(rig.Sigstore())
    assert "rekor log public key" in place.verdict(
        CosignQuery(key, trusted_root=others)
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is empty"),
        ("junk", "parsing inline trustedRoot JSON"),
        ("[]", "it is not a JSON object"),
        ('{"tlogs": [{"publicKey": {}}]}', "logId is missing"),
        (
            " " * (limits.IMAGE_TRUSTED_ROOT_BYTES_MAX + 1),
            (
                "inline trustedRoot JSON is too large (1048577 bytes), maximum allowed"
                " is 1048576 bytes"
            ),
        ),
    ],
    ids=["empty", "junk", "list", "log", "large"],
)
def test_invalid_trusted_root(place: Place, text: str, reason: str) -> None:
    """The common root would take its place."""
    place.keyless()
    found = place.verdict(CosignQuery(identities=_WHO, trusted_root=text))
    assert found.startswith("failed to resolve trusted material: ")
    assert reason in found


EXTENSIONS: list[tuple[str, str, bool]] = [
    ("githubWorkflowRepository", "octo/app", True),
    ("1.3.6.1.4.1.57264.1.5", "octo/*", True),
    ("githubWorkflowRepository", "octo/other", False),
    ("githubWorkflowRef", "?*", False),
    ("nowhere", "*", False),
]


@pytest.mark.parametrize(("name", "value", "holds"), EXTENSIONS)
@pytest.mark.parametrize("bundled", [True, False])
def test_certificate_extensions(
    place: Place, name: str, value: str, *, holds: bool, bundled: bool
) -> None:
    """A workflow of another repository would be an attestor."""
    given = (rig.extension(1, rig.ISSUER), rig.extension(5, "octo/app"))
    signer = place.own.leaf(*given)
    if bundled:
        made = bundle_rig.bundle(place.own, signer, subject=_subject(place))
        _bundled(place, made)
    else:
        layer = place.own.layer(signer, payload_for(place.digest))
        place.repository.attach_layers(place.digest, "sig", [layer])
    who = _WHO[0]._replace(extensions=((name, value),))
    assert (not place.verdict(CosignQuery(identities=(who,)))) is holds


def test_extensions_identify_no_signer(place: Place) -> None:
    """The issuer of a certificate chooses its extensions."""
    place.keyless()
    who = Identity(extensions=(("oidcIssuer", "*"),))
    assert "keyless needs identities" in place.verdict(CosignQuery(identities=(who,)))


def _with(own: rig.Sigstore, field: str, period: Any) -> str:
    """Return a trusted root in which the first entry of a field has a period."""
    root = json.loads(_root_of(own))
    (one,) = root[field]
    holder = one.get("publicKey", one)
    holder["validFor"] = period
    return json.dumps(root)


class Of(Trust):
    """A TUF repository with another trusted root."""

    def __init__(self, own: rig.Sigstore, text: str) -> None:
        super().__init__(own)
        self._text = text

    def target(self, _name: str, _deadline_ns: int) -> bytes:
        return self._text.encode()


def _ends(at: dt.datetime) -> dict[str, str]:
    return {"start": "2020-01-01T00:00:00Z", "end": at.isoformat()}


def _starts(at: dt.datetime) -> dict[str, str]:
    return {"start": at.isoformat()}


_SECOND: Final = dt.timedelta(seconds=1)
_LOGGED: Final = bundle_rig.AT
PERIODS: list[tuple[str, dict[str, str], str]] = [
    ("tlogs", _ends(_LOGGED), ""),
    ("tlogs", _ends(_LOGGED - _SECOND), "not valid at payload integrated time"),
    ("tlogs", _starts(_LOGGED), ""),
    ("tlogs", _starts(_LOGGED + _SECOND), "not valid at payload integrated time"),
    ("ctlogs", _ends(rig.SIGNED), ""),
    ("ctlogs", _ends(rig.SIGNED - _SECOND), "the log's key was not valid"),
    ("ctlogs", _starts(rig.SIGNED + _SECOND), "the log's key was not valid"),
]


@pytest.mark.parametrize("given", ["policy", "mirror"])
@pytest.mark.parametrize(("field", "period", "text"), PERIODS)
def test_retired_log_key_accepts_no_new_entries(
    place: Place, given: str, field: str, period: dict[str, str], text: str
) -> None:
    place.keyless()
    root = _with(place.own, field, period)
    asked = CosignQuery(identities=_WHO)
    if given == "policy":
        asked = asked._replace(trusted_root=root)
    else:
        place.trust = Of(place.own, root)
    found = place.verdict(asked)
    assert text in found
    assert bool(found) is bool(text)


@pytest.mark.parametrize(("field", "period", "text"), PERIODS[:4])
def test_retired_log_and_a_key(
    place: Place, field: str, period: dict[str, str], text: str
) -> None:
    signer = place.own.leaf()
    layer = place.own.layer(signer, payload_for(place.digest))
    place.repository.attach_layers(place.digest, "sig", [layer])
    root = _with(place.own, field, period)
    found = place.verdict(CosignQuery(rig.pem_key(signer.key), trusted_root=root))
    assert text in found
    assert bool(found) is bool(text)


@pytest.mark.parametrize(
    "period",
    [
        {"start": "2020-01-01T00:00:00"},
        {"start": "2020-01-01"},
        {"start": "2020-01-01T00:00:00Z", "end": "2999-01-01T00:00:00"},
        {"start": 5},
        {"start": "2020-01-01T00:00:00Z", "end": 5},
        {"start": "x"},
        "2020-01-01T00:00:00Z",
        [],
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "field", ["tlogs", "ctlogs", "certificateAuthorities", "timestampAuthorities"]
)
@pytest.mark.parametrize("bundled", [True, False])
def test_incomparable_validity_period(
    place: Place, field: str, period: Any, *, bundled: bool
) -> None:
    """Otherwise the policy would not be evaluated, or the period never ends."""
    if bundled:
        _bundled(place, bundle_rig.bundle(place.own, subject=_subject(place)))
    else:
        place.keyless()
    root = _with(place.own, field, period)
    found = place.verdict(CosignQuery(identities=_WHO, trusted_root=root))
    assert "parsing inline trustedRoot JSON: error creating trusted root" in found
    place.trust = Of(place.own, root)
    found = place.verdict(CosignQuery(identities=_WHO))
    assert found.startswith("failed to get trusted root for bundle verification: ")

"""Images in a registry are verified only by their referrers."""

import datetime as dt
import json
import threading
from collections.abc import Iterator
from math import inf
from pathlib import Path

import pytest

from kyverno_mp import limits
from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.images.cache import HIT, MISS, STORED, CacheOptions, ImageCache
from kyverno_mp.images.serving import ServedReview
from kyverno_mp.images.verifier import ImageReview
from kyverno_mp.program.ports import RegistryAccess, SignatureQuery
from kyverno_mp.registry.client import Client
from kyverno_mp.registry.credentials import Credentials
from kyverno_mp.values.jsonvalue import Json
from tests.image_rig import OCI, Contents, Repository, digest_of, serving
from tests.images import notation_rig as rig

_LATER_NS = 2**62
_TYPE = "sbom/example"


class Place:
    """One repository with one image."""

    def __init__(self, contents: Contents, host: str) -> None:
        self.contents = contents
        self.image = f"{host}/app:v1"
        repository = Repository("app")
        self.digest = repository.image()
        repository.load(contents)
        self.body = repository.manifests[0][1]
        self.chain = rig.chain()
        client = Client(lambda _registry: Credentials(), user_agent="test")
        self.review = ImageReview(
            lambda _access: client, self._now, lambda _given: _LATER_NS
        )

    def _now(self) -> dt.datetime:
        return rig.NOW

    def envelope(self, body: bytes, made: rig.Chain | None = None) -> bytes:
        target = rig.payload(digest_of(body), len(body))
        return rig.jws(made or self.chain, target)

    def signed(self, *envelopes: bytes) -> None:
        listed = [(rig.SIGNATURE, rig.JWS, one) for one in envelopes]
        rig.refer(self.contents, "app", self.body, *listed)

    def asked(self, certificate: str | None = None) -> SignatureQuery:
        pem = self.chain.root_pem if certificate is None else certificate
        return SignatureQuery(
            self.image, certificate=pem, form="Notary", predicate_type=_TYPE
        )

    def verify(self) -> str:
        try:
            return self.review.verify(self.asked(), 0)
        except ExpressionFailed as error:
            return error.message

    def statements(self) -> str:
        try:
            return json.dumps(list(self.review.statements(self.asked(), 0)))
        except ExpressionFailed as error:
            return error.message


@pytest.fixture
def place() -> Iterator[Place]:
    contents = Contents()
    with serving(contents, is_canned=False) as host:
        yield Place(contents, host)


def test_signed_image(place: Place) -> None:
    place.signed(place.envelope(place.body))
    assert place.verify() == place.digest


def test_empty_certificate_list_accepts_no_signer(place: Place) -> None:
    place.signed(place.envelope(place.body))
    with pytest.raises(ExpressionFailed, match="type Notary needs certificates"):
        place.review.verify(place.asked(""), 0)


def test_moved_tag_is_not_followed(place: Place) -> None:
    """The first resolved digest is the verified one."""
    first = place.review.digest(place.image, RegistryAccess(), 0)
    other = Repository("app")
    other.image(salt="other")
    other.load(place.contents)
    place.signed(place.envelope(place.body))
    assert place.verify() == first


def test_a_registry_cannot_name_another_digest(place: Place) -> None:
    """The digest is computed; upstream trusts the header of a HEAD response."""
    place.signed(place.envelope(place.body))
    headers = {"Content-Type": OCI, "Docker-Content-Digest": place.digest}
    path = ("GET", "/v2/app/manifests/v1")
    place.contents.answers[path] = (200, headers, b'{"other": true}')
    assert "no signature is associated with" in place.verify()


def test_at_most_ten_signatures_are_tried(place: Place) -> None:
    bad = [
        place.envelope(place.body + b" " * number)
        for number in range(1, limits.IMAGE_NOTARY_SIGNATURES_MAX + 1)
    ]
    good = place.envelope(place.body)
    place.signed(*bad[1:], good)
    assert place.verify() == place.digest
    place.signed(*bad, good)
    assert "The configured limit of 10 signatures" in place.verify()


def test_too_many_referrers(place: Place) -> None:
    good = place.envelope(place.body)
    place.signed(*[good] * limits.IMAGE_REFERRERS_MAX)
    assert place.verify() == place.digest
    place.signed(*[good] * (limits.IMAGE_REFERRERS_MAX + 1))
    assert "too many referrers found, max limit is 50" in place.verify()


def test_a_signature_manifest_without_layers(place: Place) -> None:
    """Upstream crashes."""
    made = rig.refer(place.contents, "app", place.body, (rig.SIGNATURE, rig.JWS, b"x"))
    empty = json.dumps({**json.loads(made[0]), "layers": []}).encode()
    path = f"/v2/app/manifests/{digest_of(made[0])}"
    place.contents.answers["GET", path] = (200, {"Content-Type": OCI}, empty)
    assert "unable to retrieve digital signature with digest" in place.verify()


def _attested(
    place: Place, *, kind: str = _TYPE, listed: str = _TYPE, about: bytes = b""
) -> None:
    """Attach a signed attestation of type ``kind``, listed as ``listed``."""
    subject = place.body
    contents = place.contents
    (manifest,) = rig.refer(
        contents, "app", subject, (kind, "text/json", b'{"a": 1}'), about=about
    )
    tag = f"/v2/app/manifests/{digest_of(subject).replace(':', '-')}"
    status, headers, index = contents.answers["GET", tag]
    renamed = index.replace(kind.encode(), listed.encode())
    contents.answers["GET", tag] = (status, headers, renamed)
    envelope = place.envelope(manifest)
    rig.refer(contents, "app", manifest, (rig.SIGNATURE, rig.JWS, envelope))


def test_signed_attestation(place: Place) -> None:
    _attested(place)
    (statement,) = json.loads(place.statements())
    assert (statement["type"], statement["predicate"]) == (_TYPE, {"a": 1})


def test_attestation_of_another_image_is_rejected(place: Place) -> None:
    """Any user who can push can list it here; upstream accepts it."""
    _attested(place, about=b"another image")
    assert place.statements() == f"the attestation is not about {place.digest}"


def test_attestation_of_another_type_is_rejected(place: Place) -> None:
    """The list of referrers is not signed; upstream trusts its types."""
    _attested(place, kind="review/example", listed=_TYPE)
    assert place.statements() == f"the attestation is not of type {_TYPE}"


def test_attestation_without_signature_is_rejected(place: Place) -> None:
    rig.refer(place.contents, "app", place.body, (_TYPE, "text/json", b"{}"))
    assert place.statements().startswith("no signature is associated with")


@pytest.mark.parametrize("expires", [False, True])
def test_result_is_cached_only_while_valid(
    place: Place,
    tmp_path: Path,
    expires: bool,  # noqa: FBT001 - a parameter
) -> None:
    end = min(one.not_valid_after_utc for one in place.chain.certificates)
    headers: dict[str, Json] = {}
    if expires:
        end = rig.NOW + dt.timedelta(hours=1)
        names = ["io.cncf.notary.signingScheme", "io.cncf.notary.expiry"]
        shown = end.strftime("%Y-%m-%dT%H:%M:%SZ")
        headers = {"crit": names, "io.cncf.notary.expiry": shown}
    target = rig.payload(place.digest, len(place.body))
    place.signed(rig.jws(place.chain, target, **headers))
    assert place.verify() == place.digest
    assert place.review.valid_s() == (end - rig.NOW).total_seconds()
    # The count continues from one call to the next.
    assert place.review.valid_s() == inf
    events: list[str] = []
    now_ns = [1]
    cache = ImageCache(
        CacheOptions(tmp_path, 10, 10**9), events.append, lambda: now_ns[0]
    )
    served = ServedReview(place.review, cache, {}, threading.Lock())
    left_ns = int((end - rig.NOW).total_seconds() * 1e9)
    for later_ns in (0, left_ns - 1, left_ns):
        now_ns[0] = 1 + later_ns
        assert served.verify(place.asked(), 0) == place.digest
    assert events == [MISS, MISS, STORED, HIT, MISS, MISS, STORED]

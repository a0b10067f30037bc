"""Public keys in Secrets: the readable Secrets of each policy, and their messages.

A failure means: a namespaced policy reads Secrets of other namespaces, a signature by
a removed key is accepted, or a message contains the content of a Secret.
"""

import base64
import datetime as dt
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import dsa, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from kyverno_mp import limits
from kyverno_mp.errors import (
    DeadlinePassed,
    ExpressionFailed,
    KubeRefused,
    KubeUnavailable,
)
from kyverno_mp.images import key_secrets
from kyverno_mp.images.cache import CacheOptions, ImageCache
from kyverno_mp.images.key_secrets import SecretKeyReader, key_providers
from kyverno_mp.images.manifests.verifier import ManifestVerifier
from kyverno_mp.images.policies.cached import CachedPolicyReview
from kyverno_mp.images.policies.review import PolicyReader
from kyverno_mp.images.policies.trust import PolicyTrust
from kyverno_mp.images.references import referenced_key
from kyverno_mp.images.serving import ServedReview
from kyverno_mp.images.verifier import ImageReview
from kyverno_mp.policy.fields.image_verification import (
    Attestor,
    AttestorSet,
    ImageVerification,
    Rekor,
    SecretReference,
    StaticKeyAttestor,
)
from kyverno_mp.program.image_policies.ports import CosignQuery, ImageQuery
from kyverno_mp.program.images.attestors import BlockReader, verify_sets
from kyverno_mp.program.ports import (
    LogTerms,
    ManifestQuery,
    RegistryAccess,
    SignatureQuery,
)
from kyverno_mp.registry.client import Client
from kyverno_mp.registry.credentials import Credentials
from kyverno_mp.webhook.live import named_secrets_of
from tests.image_rig import Contents, Repository, Signer, serving
from tests.images import manifest_rig, rig
from tests.images.test_image_policies import Trust
from tests.images.test_manifests import MAP
from tests.unit.kube.fake_api import running
from tests.waiting import HANG_S

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
_LATER_NS = 2**62
_NO_LOG = LogTerms(is_ignored=True)
_KEY = "cosign.pub"
_REFERENCE = "k8s://keys/cosign"
Secrets = dict[tuple[str, str], Any]


def secret(text: str, name: str = _KEY) -> dict[str, Any]:
    return {"data": {name: base64.b64encode(text.encode()).decode()}}


class Reader:
    """Reads Secrets from a dictionary, and records the reads."""

    def __init__(self, known: Secrets) -> None:
        self.known = known
        self.read: list[tuple[str, str]] = []
        self.error: Exception | None = None

    def __call__(self, namespace: str, name: str, _deadline_ns: int) -> Any:
        self.read.append((namespace, name))
        if self.error is not None:
            raise self.error
        return self.known.get((namespace, name))


def told(read: Callable[[], object]) -> str:
    with pytest.raises(ExpressionFailed) as caught:
        read()
    return caught.value.message


def reader_of(content: Any) -> SecretKeyReader:
    return SecretKeyReader(Reader({("keys", "cosign"): content}))


def pem_of(key: Any, form: Any = PublicFormat.SubjectPublicKeyInfo) -> str:
    text: bytes = key.public_key().public_bytes(Encoding.PEM, form)
    return text.decode()


def test_first_public_key_of_the_secret_is_used() -> None:
    one, other = Signer(), Signer()
    found = reader_of(secret(one.pem + other.pem))(_REFERENCE, None, 0)
    assert found == one.pem
    key = rsa.generate_private_key(65537, 2048)
    found = reader_of(secret(pem_of(key, PublicFormat.PKCS1)))(_REFERENCE, None, 0)
    # KYVERNO: this form of PEM is accepted only behind a reference.
    assert found == pem_of(key)


_PRIVATE = rsa.generate_private_key(65537, 2048)
_PRIVATE_PEM = _PRIVATE.private_bytes(
    Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()
).decode()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, 'checking if secret exists: secrets "cosign" not found'),
        ({}, "PEM decoding failed"),
        ({"data": {}}, "PEM decoding failed"),
        ({"data": {_KEY: 5}}, "PEM decoding failed"),
        ({"data": {_KEY: "%%secret-word"}}, "PEM decoding failed"),
        (secret("secret-word"), "PEM decoding failed"),
        (secret(Signer().pem, "cosign.key"), "PEM decoding failed"),
        (secret(_PRIVATE_PEM), "unknown Public key PEM file type"),
        (
            secret("-----BEGIN SECRETWORD-----\nAA==\n-----END SECRETWORD-----"),
            "unknown Public key PEM file type",
        ),
        (
            secret("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----"),
            "not a valid public key",
        ),
        (secret(pem_of(dsa.generate_private_key(1024))), "unsupported public key type"),
    ],
)
def test_secrets_without_a_key_reveal_no_content(content: Any, reason: str) -> None:
    read = reader_of(content)
    text = told(lambda: referenced_key(_REFERENCE, None, {"k8s": read}, _LATER_NS))
    assert text.startswith(f"failed to load public key from {_REFERENCE}: ")
    assert reason in text
    assert "secret-word" not in text.lower().replace("secretword", "secret-word")
    assert not any(line in text for line in _PRIVATE_PEM.splitlines()[1:-1])


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("k8s://cosign", "in the format k8s://<namespace>/<secret>"),
        ("k8s://a/b/c", "in the format k8s://<namespace>/<secret>"),
        ("k8s:keys/cosign", "in the format k8s://<namespace>/<secret>"),
        ("k8s:///cosign", "the namespace or the name of the Secret is invalid"),
        ("k8s://keys/", "the namespace or the name of the Secret is invalid"),
        ("k8s://../cosign", "the namespace or the name of the Secret is invalid"),
        ("k8s://keys/..", "the namespace or the name of the Secret is invalid"),
        ("k8s://keys/cosign%2f..", "the namespace or the name of the Secret is"),
        ("k8s://keys/cosign?watch=1", "the namespace or the name of the Secret is"),
        ("k8s://Keys/cosign", "the namespace or the name of the Secret is invalid"),
    ],
)
def test_references_that_name_no_secret(reference: str, reason: str) -> None:
    reader = Reader({})
    assert reason in told(lambda: SecretKeyReader(reader)(reference, None, 0))
    assert reader.read == []


def test_namespaced_policy_reads_only_its_namespace() -> None:
    """SAFETY: the check includes keys that were read earlier for another policy."""
    signer = Signer()
    known: Secrets = {("keys", "cosign"): secret(signer.pem)}
    reader = Reader(known)
    read = SecretKeyReader(reader)
    assert read(_REFERENCE, None, 0) == signer.pem
    reason = "a namespaced policy can only refer to Secrets in its own namespace"
    for tenant in ("other", "key", "keys2", ""):
        assert told(lambda tenant=tenant: read(_REFERENCE, tenant, 0)) == reason  # type: ignore[misc]
    assert read(_REFERENCE, "keys", 0) == signer.pem
    assert reader.read == [("keys", "cosign")]


def test_a_secret_is_read_again_after_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = Signer(), Signer()
    reader = Reader({("keys", "cosign"): secret(one.pem)})
    read = SecretKeyReader(reader)
    now = [10**9]
    monkeypatch.setattr(key_secrets, "monotonic_ns", lambda: now[0])
    assert read(_REFERENCE, None, 0) == one.pem
    reader.known["keys", "cosign"] = secret(other.pem)
    now[0] += 59 * 10**9
    assert read(_REFERENCE, None, 0) == one.pem
    now[0] += 2 * 10**9
    assert read(_REFERENCE, None, 0) == other.pem
    # Failures are kept for a second only: a new Secret takes effect after it.
    now[0] += 61 * 10**9
    reader.known.clear()
    assert "not found" in told(lambda: read(_REFERENCE, None, 0))
    reader.known["keys", "cosign"] = secret(one.pem)
    now[0] += 10**9 - 1
    assert "not found" in told(lambda: read(_REFERENCE, None, 0))
    now[0] += 1
    assert read(_REFERENCE, None, 0) == one.pem


_FAILING: list[tuple[Any, Exception | None]] = [
    (None, None),
    (secret("no key"), None),
    (None, KubeRefused("kube.forbidden", "forbidden")),
]


@pytest.mark.parametrize(("content", "error"), _FAILING)
def test_a_failed_read_is_not_repeated_for_each_entry_and_image(
    place: "Place",
    content: Any,
    error: Exception | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tenant's policy cannot multiply the reads of one Secret without a key."""
    monkeypatch.setattr(key_secrets, "monotonic_ns", lambda: 10**9)
    place.reader.known["keys", "cosign"] = content
    place.reader.error = error
    keys = StaticKeyAttestor(rekor=Rekor(ignore_tlog=True), public_keys=_REFERENCE)
    entries = tuple(Attestor(keys=keys) for _ in range(10))
    several = ImageVerification(attestors=(AttestorSet(count=1, entries=entries),))
    review = ServedReview(place.review(), None, {}, threading.Lock())
    texts = set()
    for _ in range(5):
        reader = BlockReader(several, review, 0, True, "keys")
        failures = verify_sets(reader, place.image)
        assert failures
        assert not any(one.is_outage for one in failures)
        texts.add(tuple(one.text for one in failures))
    assert len(texts) == 1
    assert place.reader.read == [("keys", "cosign")]


@pytest.mark.parametrize(("content", "error"), _FAILING)
def test_a_failed_read_is_not_repeated_for_each_manifest(
    content: Any, error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_secrets, "monotonic_ns", lambda: 10**9)
    signer = Signer()
    message = manifest_rig.of_objects(MAP)
    signed = manifest_rig.annotated(MAP, message, signer.sign(message))
    reader = Reader({("keys", "cosign"): content})
    reader.error = error
    verifier = ManifestVerifier(providers=key_providers(reader))
    asked = ManifestQuery(signed, "cosign.sigstore.dev", key=_REFERENCE, tenant="keys")
    texts = {told(lambda: verifier.verify(asked, 0)) for _ in range(10)}
    assert len(texts) == 1
    assert reader.read == [("keys", "cosign")]


def test_failed_read_is_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_secrets, "monotonic_ns", lambda: 10**9)
    signer = Signer()
    reader = Reader({("keys", "cosign"): secret(signer.pem)})
    reader.error = KubeUnavailable("kube.unavailable", "no answer")
    read = SecretKeyReader(reader)
    with pytest.raises(KubeUnavailable):
        read(_REFERENCE, None, 0)
    reader.error = None
    assert read(_REFERENCE, None, 0) == signer.pem


class Gate(Reader):
    """A reader whose first read waits until it is released."""

    def __init__(self, known: Secrets) -> None:
        super().__init__(known)
        self.began, self.released = threading.Event(), threading.Event()
        self.first_error: Exception | None = None

    def __call__(self, namespace: str, name: str, deadline_ns: int) -> Any:
        found = super().__call__(namespace, name, deadline_ns)
        if len(self.read) == 1:
            self.began.set()
            assert self.released.wait(HANG_S)
            if self.first_error is not None:
                raise self.first_error
        return found


@pytest.mark.parametrize(
    ("content", "error", "reads"),
    [
        (secret(Signer().pem), None, 1),
        (None, None, 1),
        # A thread whose deadline is later does not share the failure.
        (secret(Signer().pem), DeadlinePassed("kube.deadline", "too late"), 2),
    ],
)
def test_threads_share_a_read(
    content: Any,
    error: Exception | None,
    reads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(key_secrets, "monotonic_ns", lambda: 10**9)
    gate = Gate({("keys", "cosign"): content})
    gate.first_error = error
    read = SecretKeyReader(gate)

    def result() -> str:
        try:
            return read(_REFERENCE, "keys", 0)
        except (ExpressionFailed, DeadlinePassed) as failure:
            return failure.message

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(result)
        assert gate.began.wait(HANG_S)
        # One whose deadline has passed does not wait for the other thread.
        with pytest.raises(DeadlinePassed, match="checking if secret exists: "):
            read(_REFERENCE, "keys", 1)
        second = pool.submit(result)
        gate.released.set()
        texts = [first.result(HANG_S), second.result(HANG_S)]
    assert len(gate.read) == reads
    assert (texts[0] == texts[1]) == (error is None)
    # No thread waits for a read that has ended.
    assert result() == texts[1]


def test_failures_evict_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_secrets, "monotonic_ns", lambda: 10**9)
    monkeypatch.setattr(key_secrets, "IMAGE_KEY_SECRETS_MAX", 1)
    monkeypatch.setattr(key_secrets, "IMAGE_KEY_FAILURES_MAX", 2)
    assert limits.IMAGE_KEY_FAILURES_MAX >= 2
    reader = Reader({("keys", "cosign"): secret(Signer().pem)})
    read = SecretKeyReader(reader)
    key = read(_REFERENCE, None, 0)
    for name in ("a", "b", "c", "c", "b", "a"):
        told(lambda name=name: read(f"k8s://keys/{name}", None, 0))  # type: ignore[misc]
    assert read(_REFERENCE, None, 0) == key
    assert [name for _, name in reader.read] == ["cosign", "a", "b", "c", "a"]


def test_cached_keys_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_secrets, "IMAGE_KEY_SECRETS_MAX", 2)
    assert limits.IMAGE_KEY_SECRETS_MAX >= 2
    names = ("a", "b", "c")
    reader = Reader({("keys", name): secret(Signer().pem) for name in names})
    read = SecretKeyReader(reader)
    for name in (*names, "c", "b", "a"):
        read(f"k8s://keys/{name}", None, 0)
    assert [name for _, name in reader.read] == ["a", "b", "c", "a"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (KubeRefused("kube.refused", "forbidden"), ExpressionFailed),
        (KubeUnavailable("kube.unavailable", "no answer"), KubeUnavailable),
        (DeadlinePassed("kube.deadline", "too late"), DeadlinePassed),
    ],
)
def test_missing_permission_is_a_failure_and_an_outage_an_error(
    error: Exception, kind: type[Exception]
) -> None:
    reader = Reader({})
    reader.error = error
    providers = key_providers(reader)
    with pytest.raises(kind, match="checking if secret exists: "):
        referenced_key(_REFERENCE, None, providers, 0)


def test_secret_of_a_cluster() -> None:
    signer = Signer()
    with running() as api:
        api.put("/api/v1/namespaces/keys/secrets/cosign", **secret(signer.pem))
        read = SecretKeyReader(named_secrets_of(api.client()))
        assert read(_REFERENCE, None, 0) == signer.pem
        assert "not found" in told(lambda: read("k8s://keys/gone", None, 0))
        api.fault("GET .*/secrets/other", 403)
        text = told(lambda: read("k8s://keys/other", None, 0))
        assert text.startswith("checking if secret exists: ")
        with pytest.raises(DeadlinePassed):
            read("k8s://keys/late", None, 1)


@pytest.fixture
def contents() -> Contents:
    return Contents()


@pytest.fixture
def host(contents: Contents) -> Iterator[str]:
    with serving(contents, is_canned=False) as found:
        yield found


class Place:
    """A signed and attested image, and a Secret with the key."""

    def __init__(self, contents: Contents, host: str) -> None:
        self.signer = Signer()
        repository = Repository("app")
        self.digest = repository.image()
        repository.sign(self.digest, self.signer)
        repository.attest(self.digest, self.signer, "t", {"a": 1})
        repository.load(contents)
        self.image = f"{host}/app:v1"
        self.reader = Reader({("keys", "cosign"): secret(self.signer.pem)})
        client = Client(lambda _registry: Credentials(), user_agent="test")
        self.client = lambda _access: client
        self.asked = SignatureQuery(self.image, key=_REFERENCE, logs=_NO_LOG)

    def review(self) -> ImageReview:
        return ImageReview(
            self.client,
            lambda: NOW,
            lambda _given: _LATER_NS,
            providers=key_providers(self.reader),
        )


@pytest.fixture
def place(contents: Contents, host: str) -> Place:
    return Place(contents, host)


def block(**entry: Any) -> ImageVerification:
    keys = StaticKeyAttestor(rekor=Rekor(ignore_tlog=True), **entry)
    return ImageVerification(attestors=(AttestorSet(entries=(Attestor(keys=keys),)),))


@pytest.mark.parametrize(
    "entry",
    [
        {"public_keys": _REFERENCE},
        {"secret": SecretReference(name="cosign", namespace="keys")},
        {"kms": _REFERENCE},
    ],
)
def test_reference_formats(place: Place, entry: dict[str, Any]) -> None:
    def failures(namespace: str) -> list[str]:
        reader = BlockReader(
            block(**entry), place.review(), 0, bool(namespace), namespace
        )
        return [one.text for one in verify_sets(reader, place.image)]

    assert failures("") == []
    assert failures("keys") == []
    (text,) = failures("other")
    assert text == (
        f".attestors[0].entries[0].keys: failed to load public key from {_REFERENCE}:"
        " a namespaced policy can only refer to Secrets in its own namespace"
    )
    place.reader.known["keys", "cosign"] = secret(Signer().pem)
    (text,) = failures("")
    assert "no matching signatures" in text
    place.reader.error = KubeUnavailable("kube.unavailable", "no answer")
    reader = BlockReader(block(**entry), place.review(), 0)
    (failure,) = verify_sets(reader, place.image)
    assert failure.is_outage


@pytest.mark.parametrize("form", ["Notary", "SigstoreBundle"])
def test_types_without_keys_read_no_secret(place: Place, form: str) -> None:
    asked = place.asked._replace(form=form)
    assert place.review().with_key(asked, 0) == asked
    assert place.reader.read == []


@pytest.mark.parametrize("kind", ["signature", "statements"])
def test_cached_result_is_bound_to_the_key_in_the_secret(
    place: Place, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result by a key that was removed from the Secret is no longer valid."""
    now = [10**9]
    monkeypatch.setattr(key_secrets, "monotonic_ns", lambda: now[0])
    ends: list[str] = []
    cache = ImageCache(CacheOptions(tmp_path, 100, 60))
    review = place.review()
    flights: dict[Any, Any] = {}

    def run(**changes: Any) -> object:
        now[0] += 61 * 10**9
        served = ServedReview(
            review,
            cache,
            flights,
            threading.Lock(),
            on_verified=lambda labels, _seconds: ends.append(labels[0]),
        )
        asked = place.asked._replace(predicate_type="t", **changes)
        if kind == "signature":
            return served.verify(asked, 0)
        return served.statements(asked, 0)

    run()
    run()
    # The key by another name and for another policy yields an equal result.
    run(key=place.signer.pem)
    run(is_tenants=True, namespace="keys")
    assert ends.count("verified") == 2
    place.reader.known["keys", "cosign"] = secret(Signer().pem)
    assert "no matching" in told(run)
    place.reader.known.clear()
    assert "not found" in told(run)
    with pytest.raises(ExpressionFailed, match="its own namespace"):
        run(is_tenants=True, namespace="other")


def _nothing(*_: Any) -> tuple[int, bytes]:
    raise AssertionError("nothing may be asked")


@pytest.mark.parametrize("is_kept", [False, True])
def test_key_of_an_image_validating_policy(
    place: Place,
    tmp_path: Path,
    is_kept: bool,  # noqa: FBT001 - a column
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [10**9]
    monkeypatch.setattr(key_secrets, "monotonic_ns", lambda: now[0])
    reader = PolicyReader(
        client=place.client,
        now=lambda: rig.NOW,
        until=lambda _given: _LATER_NS,
        trust=PolicyTrust(Trust(rig.Sigstore()), _nothing),
        providers=key_providers(place.reader),
    )
    log = LogTerms(is_ignored=True, url="http://log.example", ignores_scts=True)
    attestor = CosignQuery(key="", kms=_REFERENCE, log=log)
    cache = ImageCache(CacheOptions(tmp_path, 100, 60)) if is_kept else None

    def verify(namespace: str = "") -> None:
        access = RegistryAccess(is_tenants=bool(namespace))
        review = CachedPolicyReview(reader.begin(), cache, lambda *_: None)
        review.verify(ImageQuery(place.image, access, namespace), attestor, 0)

    verify()
    verify("keys")
    text = told(lambda: verify("other"))
    assert text.endswith("can only refer to Secrets in its own namespace")
    reader.begin().verify(ImageQuery(place.image), attestor, 0)
    now[0] += 61 * 10**9
    place.reader.known["keys", "cosign"] = secret(Signer().pem)
    assert "no matching signatures" in told(verify)


def test_attestor_data_has_precedence_over_a_reference(place: Place) -> None:
    reader = PolicyReader(
        client=place.client,
        now=lambda: rig.NOW,
        until=lambda _given: _LATER_NS,
        trust=PolicyTrust(Trust(rig.Sigstore()), _nothing),
        providers=key_providers(place.reader),
    )
    asked = ImageQuery(place.image)
    for attestor in (
        CosignQuery(key=place.signer.pem, kms=_REFERENCE),
        CosignQuery(kms=_REFERENCE, identities=()),
        CosignQuery(kms=_REFERENCE, certificate="x"),
    ):
        assert reader.begin().with_key(asked, attestor, 0) == attestor
    assert place.reader.read == []


def test_key_of_a_signed_manifest() -> None:
    signer = Signer()
    message = manifest_rig.of_objects(MAP)
    signed = manifest_rig.annotated(MAP, message, signer.sign(message))
    reader = Reader({("keys", "cosign"): secret(signer.pem)})
    verifier = ManifestVerifier(providers=key_providers(reader))
    asked = ManifestQuery(signed, "cosign.sigstore.dev", key=_REFERENCE)
    assert verifier.verify(asked, 0).is_verified
    assert verifier.verify(asked._replace(tenant="keys"), 0).is_verified
    text = told(lambda: verifier.verify(asked._replace(tenant="other"), 0))
    assert text == (
        "failed to verify signature: failed to judge signature type from public key"
        f" configuration: failed to load public key from {_REFERENCE}: a namespaced"
        " policy can only refer to Secrets in its own namespace"
    )
    other = Reader({("keys", "cosign"): secret(Signer().pem)})
    verifier = ManifestVerifier(providers=key_providers(other))
    assert "verification failed for 1 signature" in told(
        lambda: verifier.verify(asked, 0)
    )
    other.error = KubeUnavailable("kube.unavailable", "no answer")
    verifier = ManifestVerifier(providers=key_providers(other))
    with pytest.raises(KubeUnavailable, match="no answer"):
        verifier.verify(asked, 0)

"""Allowed signers: attestors with values from variables, and strangers."""

from pathlib import Path

import pytest
import yaml
from cryptography import x509

from kyverno_mp.images.sigstore.proof import Layer
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.webhook import images as served
from tests.image_rig import Contents, Repository, payload_for
from tests.images.rig import ISSUER, SUBJECT, Issued, Sigstore, extension, names
from tests.unit.webhook.images.test_images import Webhooks, contents, host, pod, policy

__all__ = ["contents", "host"]

_LOG: dict[str, Json] = {"url": "https://rekor.sigstore.dev"}
_ANYONE = "{{ signer }}"


@pytest.fixture
def sigstore(monkeypatch: pytest.MonkeyPatch) -> Sigstore:
    """Use a test Sigstore deployment as the trust root of the service."""
    rig = Sigstore()

    class Trust:
        def __init__(self, *_: object) -> None:
            pass

        def fulcio_roots(self, _deadline_ns: int) -> list[x509.Certificate]:
            return [rig.root.certificate]

        def rekor_keys(self, _deadline_ns: int) -> object:
            return rig.rekor_keys

        def ctlog_keys(self, _deadline_ns: int) -> object:
            return rig.ctlog_keys

    monkeypatch.setattr(served, "trust_root", Trust)
    return rig


def _stranger(rig: Sigstore) -> Issued:
    address = names(x509.RFC822Name("stranger@other.example"))
    return rig.leaf(extension(1, "https://other.example"), san=address)


def _signed_by(contents: Contents, rig: Sigstore, signer: Issued) -> None:
    repository = Repository("app")
    digest = repository.image()
    repository.attach_layers(digest, "sig", [rig.layer(signer, payload_for(digest))])
    repository.load(contents)


def _with_signer(blocks: dict[str, Json]) -> str:
    """Return the policy; ``{{ signer }}`` is empty for objects without the label."""
    found = yaml.safe_load(policy("p", blocks)[4:])
    path = "request.object.metadata.labels.team || ''"
    entry = {"name": "signer", "variable": {"jmesPath": path}}
    found["spec"]["rules"][0]["context"] = [entry]
    return "---\n" + yaml.safe_dump(found)


_KEYLESS: dict[str, Json] = {"issuer": "*", "subject": "*", "rekor": _LOG}
_EMPTY: list[tuple[str, Json]] = [
    ("key", {"keys": {"publicKeys": _ANYONE}}),
    ("certificate", {"certificates": {"cert": _ANYONE}}),
    ("chain", {"certificates": {"certChain": _ANYONE}}),
    ("issuer", {"keyless": {**_KEYLESS, "issuer": _ANYONE}}),
    ("subject", {"keyless": {**_KEYLESS, "subject": _ANYONE}}),
    ("blank", {"keyless": {**_KEYLESS, "subject": f" {_ANYONE} "}}),
    ("expression", {"keyless": {**_KEYLESS, "subjectRegExp": _ANYONE}}),
    ("roots", {"keyless": {**_KEYLESS, "roots": _ANYONE}}),
    ("annotation", {"keyless": _KEYLESS, "annotations": {"by": _ANYONE}}),
    ("nested", {"attestor": {"entries": [{"keys": {"publicKeys": _ANYONE}}]}}),
]


@pytest.mark.parametrize(("what", "entry"), _EMPTY, ids=[name for name, _ in _EMPTY])
def test_attestor_that_becomes_empty_accepts_no_signer(
    contents: Contents,
    host: str,
    tmp_path: Path,
    sigstore: Sigstore,
    what: str,
    entry: dict[str, Json],
) -> None:
    _signed_by(contents, sigstore, _stranger(sigstore))
    given: dict[str, Json] = {
        "imageReferences": [f"{host}/*"],
        "attestors": [{"entries": [entry]}],
    }
    done = Webhooks(_with_signer(given), tmp_path / what).mutate(pod(f"{host}/app:v1"))
    assert not done.allowed
    assert "is empty after the substitution" in " ".join(done.message.split())


def test_identity_from_a_variable_is_required(
    contents: Contents, host: str, tmp_path: Path, sigstore: Sigstore
) -> None:
    """Repositories and URLs can be empty: then they do not restrict the signer."""
    entry = {
        "keyless": {"issuer": ISSUER, "subject": _ANYONE, "rekor": _LOG},
        "repository": "{{ request.object.metadata.labels.place || '' }}",
    }
    given: dict[str, Json] = {
        "imageReferences": [f"{host}/*"],
        "attestors": [{"entries": [entry]}],
    }
    webhooks = Webhooks(_with_signer(given), tmp_path / "c")
    asked = pod(f"{host}/app:v1")
    asked["metadata"]["labels"] = {"team": SUBJECT}
    for signer, allowed in ((_stranger(sigstore), False), (sigstore.leaf(), True)):
        _signed_by(contents, sigstore, signer)
        assert webhooks.mutate(asked).allowed is allowed


@pytest.mark.parametrize("first", [True, False])
def test_statement_by_an_unknown_signer_satisfies_no_condition(
    contents: Contents,
    host: str,
    tmp_path: Path,
    sigstore: Sigstore,
    first: bool,  # noqa: FBT001 - a parameter
) -> None:
    repository = Repository("app")
    digest = repository.image()
    subject = [{"name": "i", "digest": {"sha256": digest[7:]}}]

    def stated(signer: Issued, kind: str, critical: int) -> Layer:
        return sigstore.attestation(
            signer,
            predicateType=kind,
            predicate={"critical": critical, "found": critical},
            subject=subject,
        )

    foreign = stated(_stranger(sigstore), "other", 0)
    own_other = stated(sigstore.leaf(), "own", 0)
    real = stated(sigstore.leaf(), "scan", 9)
    layers = [foreign, own_other, real] if first else [real, foreign, own_other]
    repository.attach_layers(digest, "att", layers)
    repository.load(contents)

    def allowed(critical: int) -> bool:
        keyless = {"issuer": ISSUER, "subject": SUBJECT, "rekor": _LOG}
        condition = {
            "key": "{{ scan.critical }}",
            "operator": "Equals",
            "value": critical,
        }
        attestation = {
            "name": "scan",
            "type": "scan",
            "attestors": [{"entries": [{"keyless": keyless}]}],
            "conditions": [{"all": [condition]}],
        }
        given = {"imageReferences": [f"{host}/*"], "attestations": [attestation]}
        webhooks = Webhooks(policy("p", given), tmp_path / str(critical))
        return webhooks.mutate(pod(f"{host}/app:v1")).allowed

    assert allowed(9)
    assert not allowed(0)

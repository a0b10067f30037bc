"""Rules with ``validate.manifests``: counts, nesting, messages, constant denials."""

import base64
from datetime import UTC, datetime
from typing import Any

import pytest

from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.errors import DeadlinePassed
from kyverno_mp.images.key_secrets import key_providers
from kyverno_mp.images.manifests.verifier import ManifestVerifier
from kyverno_mp.policy.capabilities import missing_capability
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy, Policy
from kyverno_mp.policy.reading.decode import decode
from kyverno_mp.program.engine import Clock, Engine, link_policy
from kyverno_mp.program.ports import (
    OFFLINE,
    ClusterData,
    ManifestAnswer,
    ManifestQuery,
)
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import ERROR, FAIL, PASS
from tests.image_rig import Signer
from tests.images import manifest_rig as rig
from tests.images.test_manifests import MAP

ONE, OTHER = Signer(), Signer()
_VERIFYING = ClusterData(manifests=ManifestVerifier())


def policy(*sets: dict[str, Any], **more: Any) -> ClusterPolicy:
    manifests = {"attestors": list(sets), **more}
    document = decode(
        {
            "apiVersion": "kyverno.io/v1",
            "kind": "ClusterPolicy",
            "metadata": {"name": "signed"},
            "spec": {
                "rules": [
                    {
                        "name": "r",
                        "match": {"any": [{"resources": {"kinds": ["ConfigMap"]}}]},
                        "validate": {
                            "failureAction": "Enforce",
                            "manifests": manifests,
                        },
                    }
                ]
            },
        }
    )
    assert isinstance(document, ClusterPolicy)
    return document


def key(*signers: Signer) -> dict[str, Any]:
    return {"keys": {"publicKeys": "".join(one.pem for one in signers)}}


def judged(
    document: ClusterPolicy | Policy,
    target: dict[str, Any],
    ports: ClusterData = _VERIFYING,
    **more: Any,
) -> tuple[str, str]:
    """Return status and message of the only result."""
    clock = Clock(lambda: datetime(2026, 1, 1, tzinfo=UTC), lambda: 0)
    engine = Engine(ports, clock)
    linked = link_policy(compile_policy(document, verifies=True))
    request = Request(
        operation=more.pop("operation", "CREATE"),
        kind="ConfigMap",
        version="v1",
        object=target,
        **more,
    )
    (one,) = engine.explain(linked, engine.open(request)).results
    return one.status, one.message


def signed_by(*signers: Signer) -> dict[str, Any]:
    message = rig.of_objects(MAP)
    return rig.annotated(MAP, message, *(one.sign(message) for one in signers))


def test_counts_and_texts() -> None:
    both = {"entries": [key(ONE), key(OTHER)]}
    status, text = judged(policy({**both, "count": 1}), signed_by(OTHER))
    assert status == PASS
    assert text == (
        "verified manifest signatures; manifest verification succeeded; verifiedCount"
        " 1; requiredCount 1; message singed by a valid signer: "
    )
    status, text = judged(policy(both), signed_by(OTHER))
    assert status == ERROR
    assert text.startswith(
        "error occurred during manifest verification: .attestors[0].entries[0].keys:"
    )
    assert judged(policy(both), signed_by(ONE, OTHER))[0] == PASS
    assert judged(policy({"entries": [key(ONE, OTHER)]}), signed_by(ONE))[0] == ERROR
    assert judged(policy({**both, "count": 3}), signed_by(ONE, OTHER))[0] == FAIL
    assert judged(policy(both, {"entries": [key(Signer())]}), signed_by(ONE, OTHER))[
        0
    ] == (ERROR)


def test_entries_do_not_share_state() -> None:
    """SAFETY: upstream shares options, so one entry's key is used for the next."""
    entries = [key(ONE), {"annotations": {}}]
    status, text = judged(policy({"entries": entries}), signed_by(ONE))
    assert status == ERROR
    assert ".attestors[0].entries[1]: failed to verify signature" in text


def test_nested_sets() -> None:
    nested = {"attestor": {"entries": [key(ONE)]}}
    assert judged(policy({"entries": [nested]}), signed_by(ONE))[0] == PASS
    status, text = judged(policy({"entries": [nested]}), signed_by(OTHER))
    assert status == ERROR
    assert "failed to verify signature; .attestors[0].entries[0].attestor: " in text
    bad = {"attestor": {"count": "x"}}
    assert missing_capability(
        policy({"entries": [bad]}).spec.rules[0], verifies=True
    ).endswith(".attestor")


def test_annotations_of_the_object() -> None:
    entry = {**key(ONE), "annotations": {"team": "a"}}
    status, text = judged(policy({"entries": [entry]}), signed_by(ONE))
    assert status == ERROR
    assert "annotations mismatch:  does not match expected value a for key team" in text


def test_an_update_of_an_unsigned_object_is_verified() -> None:
    """An unsigned old object is no reason to admit an unsigned new one."""
    status, _ = judged(
        policy({"entries": [key(ONE)]}), MAP, operation="UPDATE", old_object=MAP
    )
    assert status == FAIL


def test_without_a_verifier_nothing_passes() -> None:
    status, text = judged(policy({"entries": [key(ONE)]}), signed_by(ONE), OFFLINE)
    assert status == ERROR
    assert "manifests are not verified here" in text


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        # SAFETY: upstream accepts any signer.
        (
            {"keys": {"kms": "awskms://a"}},
            "validate.manifests.attestors.keys without publicKeys or secret",
        ),
        (
            {"certificates": {"rekor": {"url": "https://e.com"}}},
            "attestors.certificates without cert or certChain",
        ),
        ({**key(ONE), "repository": "r"}, "attestors.repository"),
        (
            {"attestor": {"entries": [{"keys": {"kms": "a"}}]}},
            "attestors.keys without publicKeys or secret",
        ),
    ],
)
def test_unsupported_fields_are_rejected_by_name(
    entry: dict[str, Any], name: str
) -> None:
    rule = policy({"entries": [entry]}).spec.rules[0]
    assert missing_capability(rule, verifies=True).endswith(name)
    assert missing_capability(rule) == "validate.manifests"


def test_repository_is_rejected_by_name() -> None:
    rule = policy({"entries": [key(ONE)]}, repository="r").spec.rules[0]
    assert missing_capability(rule, verifies=True) == "validate.manifests.repository"


@pytest.mark.parametrize(
    "text", ["file.pub", "k8s://a/b", "-----BEGIN PUBLIC KEY-----"]
)
def test_invalid_keys(text: str) -> None:
    entry = {"keys": {"publicKeys": text}}
    status, found = judged(policy({"entries": [entry]}), signed_by(ONE))
    assert status == ERROR
    assert "failed to judge signature type from public key configuration" in found


def test_a_pgp_key_is_named_by_its_kind() -> None:
    """Upstream verifies PGP signatures of manifests; ours is never a pass."""
    lines = ["-----BEGIN {}-----", "", "mDMEZ", "-----END {}-----"]
    text = "\n".join(one.format("PGP PUBLIC KEY BLOCK") for one in lines)
    entry = {"keys": {"publicKeys": text}}
    status, found = judged(policy({"entries": [entry]}), signed_by(ONE))
    assert status == ERROR
    assert "PGP keys are not supported; give a key of cosign as PEM" in found
    assert "mDMEZ" not in found


def test_key_from_a_secret() -> None:
    """SAFETY: upstream ignores ``secret``, and accepts any signer."""
    pem = base64.b64encode(ONE.pem.encode()).decode()

    def read(namespace: str, name: str, _deadline_ns: int) -> Any:
        assert (namespace, name) == ("b", "a")
        return {"data": {"cosign.pub": pem}}

    ports = ClusterData(manifests=ManifestVerifier(providers=key_providers(read)))
    for keys in (
        {"secret": {"name": "a", "namespace": "b"}},
        {"publicKeys": "k8s://b/a"},
    ):
        document = policy({"entries": [{"keys": keys}]})
        assert missing_capability(document.spec.rules[0], verifies=True) == ""
        assert judged(document, signed_by(ONE), ports)[0] == PASS
        assert judged(document, signed_by(OTHER), ports)[0] == ERROR
        status, text = judged(document, signed_by(ONE))
        assert status == ERROR
        assert "there is no cluster to read the Secret from" in text


class Unreachable:
    """A trust root behind a network that is down."""

    def verify(self, _asked: ManifestQuery, _deadline_ns: int) -> ManifestAnswer:
        raise DeadlinePassed("registry.deadline", "it did not answer")


def test_outage_is_a_rule_error() -> None:
    ports = ClusterData(manifests=Unreachable())
    status, text = judged(policy({"entries": [key(ONE)]}), signed_by(ONE), ports)
    assert status == ERROR
    assert text.endswith(".attestors[0].entries[0].keys: it did not answer")


def test_only_the_first_key_of_a_text_with_several_is_read() -> None:
    """KYVERNO: the others begin with a line break and count as names of files."""
    entries = {"entries": [key(ONE, OTHER)]}
    status, text = judged(policy(entries), signed_by(ONE, OTHER))
    assert status == ERROR
    assert "entries[1].keys: the key begins with white space" in text
    assert judged(policy({**entries, "count": 1}), signed_by(ONE, OTHER))[0] == PASS
    separate = {"entries": [key(ONE), key(OTHER)]}
    assert judged(policy(separate), signed_by(ONE, OTHER))[0] == PASS

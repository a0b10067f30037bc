"""A rule that cannot be evaluated yet names the missing capability."""

from typing import Any

import msgspec
import pytest

from kyverno_mp.policy.capabilities import missing_capability
from kyverno_mp.policy.documents.cluster_policy import Rule


@pytest.mark.parametrize(
    ("body", "missing"),
    [
        ({"validate": {"pattern": {}}}, ""),
        ({"mutate": {"patchStrategicMerge": {"spec": {}}}}, ""),
        ({"generate": {"kind": "ConfigMap"}}, ""),
        ({"verifyImages": [{}]}, "verifyImages"),
        ({"validate": {"cel": {}}}, ""),
        ({"validate": {"manifests": {"attestors": [{}]}}}, "validate.manifests"),
    ],
)
def test_rule(body: dict[str, Any], missing: str) -> None:
    rule = msgspec.convert({"name": "r", "match": {}, **body}, Rule)
    assert missing_capability(rule) == missing


def _keys(**given: Any) -> dict[str, Any]:
    return {"keys": {"publicKeys": "k", "rekor": {"ignoreTlog": True}, **given}}


def _set(*entries: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"entries": list(entries)}]


_CHAIN = {"certChain": "c", "rekor": {"ignoreTlog": True}}


@pytest.mark.parametrize(
    ("block", "missing"),
    [
        ({}, ""),
        ({"attestors": _set(_keys())}, ""),
        ({"attestors": _set({"attestor": {"entries": [_keys()]}})}, ""),
        ({"attestors": _set(_keys(), {"keyless": {}})}, ""),
        (
            {"attestors": _set({})},
            "attestors without keys, certificates or keyless",
        ),
        (
            {"attestors": _set({"certificates": {"rekor": {"ignoreTlog": True}}})},
            "attestors.certificates without cert or certChain",
        ),
        ({"image": "a*", "attestors": _set(_keys())}, ""),
        ({"imageReferences": ["a*"], "annotations": {"a": "b"}}, ""),
        (
            {"image": "a*", "annotations": {"a": "b"}, "attestors": _set(_keys())},
            "image with annotations",
        ),
        ({"image": "a*", "annotations": {"a": "b"}, "key": "k"}, ""),
        (
            {"attestors": _set({"attestor": {"entries": [{}]}})},
            "attestors without keys, certificates or keyless",
        ),
        ({"attestors": _set(_keys(rekor={"pubkey": "p"}))}, ""),
        ({"attestors": _set(_keys(ctlog={"tsaCertChain": "c"}))}, ""),
        ({"attestors": _set({"certificates": _CHAIN})}, ""),
        ({"key": "k"}, ""),
        ({"issuer": "i", "subject": "s", "roots": "r"}, ""),
        ({"key": "k", "subject": "s"}, "subject without issuer"),
        ({"subject": "s"}, "subject without issuer"),
        ({"issuer": "i", "additionalExtensions": {"a": "b"}}, "additionalExtensions"),
        ({"type": "Notary"}, ""),
        ({"type": "SigstoreBundle"}, ""),
        ({"attestations": [{"type": "t"}]}, ""),
        (
            {"attestations": [{"attestors": _set({"attestor": {"entries": []}})}]},
            "",
        ),
        (
            {"attestations": [{"attestors": _set({"attestor": {"entries": [{}]}})}]},
            "attestations.attestors without keys, certificates or keyless",
        ),
        ({"attestations": [{"attestors": _set(_keys())}]}, ""),
    ],
)
def test_signatures_the_command_line_cannot_verify(
    block: dict[str, Any], missing: str
) -> None:
    """A rule is rejected as a whole if it needs something unsupported.

    The server rejects all of these rules.
    """
    given = {"name": "r", "match": {}, "verifyImages": [block]}
    rule = msgspec.convert(given, Rule)
    expected = f"verifyImages.{missing}" if missing else ""
    assert missing_capability(rule, verifies=True) == expected
    assert missing_capability(rule) == "verifyImages"

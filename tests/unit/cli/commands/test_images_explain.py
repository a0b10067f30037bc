"""``images explain`` shows the found data, the matching attestor, the failed check."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.image_rig import Repository, Signer
from tests.layout_rig import write_layout
from tests.unit.cli.conftest import Command

_IMAGE = "ghcr.io/org/app"
_TYPE = "https://example.com/review/v1"


def _entry(signer: Signer, **given: Any) -> dict[str, Any]:
    keys = {"publicKeys": signer.pem, "rekor": {"ignoreTlog": True}, **given}
    return {"keys": keys}


def _policy(folder: Path, *blocks: dict[str, Any]) -> Path:
    rule = {
        "name": "verify",
        "match": {"any": [{"resources": {"kinds": ["Pod"], "names": ["none"]}}]},
        "verifyImages": [
            {"imageReferences": ["ghcr.io/*"], "failureAction": "Enforce", **one}
            for one in blocks
        ],
    }
    file = folder / "policy.yaml"
    text = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "signed"},
        "spec": {"rules": [rule]},
    }
    file.write_text(yaml.safe_dump(text))
    return file


def _layout(folder: Path, *signers: Signer) -> tuple[Path, str]:
    repository = Repository("org/app")
    digest = repository.image()
    for signer in signers:
        repository.sign(digest, signer)
        repository.attest(digest, signer, _TYPE, {"author": "alice"})
    write_layout(folder / "layout", repository)
    return folder / "layout", digest


def _explained(command: Command, policy: Path, layout: Path) -> tuple[int, Any]:
    done = command(
        "images", "explain", f"{_IMAGE}:v1", "-p", policy, "--layout", layout,
        "-o", "json",
    )  # fmt: skip
    return done.code, json.loads(done.out)


def test_signed_image(command: Command, tmp_path: Path) -> None:
    signer = Signer()
    layout, digest = _layout(tmp_path, signer)
    policy = _policy(tmp_path, {"attestors": [{"entries": [_entry(signer)]}]})
    code, found = _explained(command, policy, layout)
    assert code == 0
    assert found["image"] == f"{_IMAGE}:v1"
    assert found["found"]["digest"] == digest
    assert len(found["found"]["signatures"]) == 1
    assert [one["predicateType"] for one in found["found"]["attestations"]] == [_TYPE]
    assert found["found"]["problems"] == []
    [block] = found["blocks"]
    assert block["matches"]
    [step] = block["steps"]
    assert step["holds"]
    assert step["attestor"].startswith("key SHA256:")
    assert [one["status"] for one in block["results"]] == ["pass"]


def test_failed_attestor_and_check_are_named(command: Command, tmp_path: Path) -> None:
    signer, other = Signer(), Signer()
    layout, _ = _layout(tmp_path, signer)
    entries = [_entry(other), _entry(signer, rekor={"pubkey": other.pem, "url": "x"})]
    policy = _policy(
        tmp_path,
        {"attestors": [{"count": 1, "entries": entries}]},
        {"imageReferences": ["docker.io/*"], "attestors": [{"entries": entries}]},
    )
    code, found = _explained(command, policy, layout)
    assert code == 1
    first, second = found["blocks"]
    checks = [(step["holds"], step["check"]) for step in first["steps"]]
    assert checks == [(False, "signature"), (False, "transparency log")]
    [one] = first["steps"][0]["signatures"]
    assert "invalid signature when validating" in one["reason"]
    assert [one["status"] for one in first["results"]] == ["fail"]
    assert not second["matches"]
    assert (second["steps"], second["results"]) == ([], [])


def test_attestations(command: Command, tmp_path: Path) -> None:
    signer = Signer()
    layout, _ = _layout(tmp_path, signer)
    condition = {"key": "{{ author }}", "operator": "Equals", "value": "bob"}
    attestation = {
        "type": _TYPE,
        "attestors": [{"entries": [_entry(signer)]}],
        "conditions": [{"all": [condition]}],
    }
    policy = _policy(tmp_path, {"attestations": [attestation]})
    code, found = _explained(command, policy, layout)
    assert code == 1
    [block] = found["blocks"]
    [step] = block["steps"]
    assert (step["asksFor"], step["holds"]) == (_TYPE, True)
    assert "attestation checks failed" in block["results"][0]["message"]


def test_text_output_is_complete(command: Command, tmp_path: Path) -> None:
    signer = Signer()
    layout, digest = _layout(tmp_path, signer)
    policy = _policy(tmp_path, {"attestors": [{"entries": [_entry(Signer())]}]})
    done = command(
        "images", "explain", f"{_IMAGE}:v1", "-p", policy, "--layout", layout
    )
    assert done.code == 1
    for text in (
        f"  digest        {digest}",
        "  signatures    1",
        _TYPE,
        "policy signed, rule verify, block 1: matches ghcr.io/*",
        "does not hold",
        "fails (signature): invalid signature",
        "  fail: failed to verify image",
    ):
        assert text in done.out


def test_missing_image(command: Command, tmp_path: Path) -> None:
    signer = Signer()
    layout, _ = _layout(tmp_path, signer)
    policy = _policy(tmp_path, {"attestors": [{"entries": [_entry(signer)]}]})
    done = command(
        "images", "explain", "ghcr.io/org/none:v2", "-p", policy, "--layout", layout
    )
    assert done.code == 1
    assert "problem       digest: GET https://ghcr.io/v2/org/none/manifests/v2" in (
        done.out
    )


@pytest.mark.parametrize("what", ["layout", "policy", "rules", "image"])
def test_unusable_input(command: Command, tmp_path: Path, what: str) -> None:
    signer = Signer()
    layout, _ = _layout(tmp_path, signer)
    policy = _policy(tmp_path, {"attestors": [{"entries": [_entry(signer)]}]})
    image = f"{_IMAGE}:v1"
    if what == "layout":
        layout = tmp_path / "none"
    elif what == "policy":
        policy = tmp_path / "none.yaml"
    elif what == "rules":
        raw = yaml.safe_load(policy.read_text())
        raw["spec"]["rules"][0].pop("verifyImages")
        raw["spec"]["rules"][0]["validate"] = {"pattern": {"a": "b"}}
        policy.write_text(yaml.safe_dump(raw))
    else:
        image = "Not An Image"
    done = command("images", "explain", image, "-p", policy, "--layout", layout)
    assert done.code == (2 if what == "layout" else 1)
    assert done.err.startswith("Error: ")


def test_unsupported_kind_is_named(command: Command, tmp_path: Path) -> None:
    """Otherwise, an ImageValidatingPolicy's author would search it for a mistake."""
    text = {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": "ImageValidatingPolicy",
        "metadata": {"name": "signed"},
        "spec": {
            "attestors": [{"name": "a", "notary": {"certs": {"value": "pem"}}}],
            "validations": [{"expression": "true"}],
        },
    }
    policy = tmp_path / "policy.yaml"
    policy.write_text(yaml.safe_dump(text))
    done = command("images", "explain", f"{_IMAGE}:v1", "-p", policy)
    assert done.code == 1
    assert "ImageValidatingPolicies" in done.err
    assert "kyverno-mp apply" in done.err


@pytest.mark.parametrize("name", ["apply", "test"])
def test_apply_and_test_verify_against_an_image_layout(
    command: Command, tmp_path: Path, name: str
) -> None:
    signer = Signer()
    layout, digest = _layout(tmp_path, signer)
    raw = yaml.safe_load(
        _policy(tmp_path, {"attestors": [{"entries": [_entry(signer)]}]}).read_text()
    )
    raw["spec"]["rules"][0]["match"]["any"][0]["resources"].pop("names")
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(raw))
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web"},
        "spec": {"containers": [{"name": "c", "image": f"{_IMAGE}:v1"}]},
    }
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(pod))
    if name == "apply":
        done = command(
            "apply", tmp_path / "policy.yaml", "-r", tmp_path / "pod.yaml",
            "--image-layout", layout, "--policy-report",
        )  # fmt: skip
        assert f"verified image signatures for {_IMAGE}:v1" in done.out
    else:
        result = {
            "policy": "signed",
            "rule": "verify",
            "resources": ["web"],
            "kind": "Pod",
            "result": "pass",
        }
        test = {
            "apiVersion": "cli.kyverno.io/v1alpha1",
            "kind": "Test",
            "metadata": {"name": "t"},
            "policies": ["policy.yaml"],
            "resources": ["pod.yaml"],
            "results": [result],
        }
        (tmp_path / "kyverno-test.yaml").write_text(yaml.safe_dump(test))
        done = command("test", tmp_path, "--image-layout", layout)
    assert done.code == 0, done.out + done.err
    assert digest

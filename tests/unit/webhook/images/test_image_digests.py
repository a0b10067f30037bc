"""``validationConfigurations`` of ImageValidatingPolicies, as reviews answer them.

A failure means: Kyverno's webhook for digests gets no answer during a take-over, or an
image is admitted that the policy does not allow.
"""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.errors import RegistryUnavailable
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.values.kubernetes.image import ImageSettings
from kyverno_mp.webhook.http_errors import HttpError
from tests.unit.webhook.cel.test_cel_policies import compiled, exception, message
from tests.unit.webhook.images.test_image_policies import (
    Registry,
    Server,
    Stub,
    pod,
    policy,
    registry,
)

__all__ = ("registry",)
TRUE = {"expression": "true"}
ON = {"mutateDigest": True, "verifyDigest": True, "required": True}
OFF = dict.fromkeys(ON, False)
ANY = [{"glob": "*"}]


def configured(**changes: bool) -> dict[str, Any]:
    return {"validationConfigurations": {**OFF, **changes}}


def patch_of(response: dict[str, Any]) -> list[dict[str, Any]]:
    assert response["allowed"] is True, response
    if "patch" not in response:
        return []
    found: list[dict[str, Any]] = json.loads(base64.b64decode(response["patch"]))
    return found


def server_of(folder: Path, stub: Stub, *policies: dict[str, Any]) -> Server:
    return Server(compiled(*policies), folder, stub.begin)


def test_a_tag_gets_the_digest_of_the_registry(
    registry: Registry, tmp_path: Path
) -> None:
    """Neither signature nor validation matters here; the validating webhook does."""
    server = Server(compiled(policy("p", signer=None)), tmp_path, registry.begin)
    response = server.ask("/ivpol/mutate/p", pod(registry.image))
    value = f"{registry.image}@{registry.digest}"
    expected = {"op": "replace", "path": "/spec/containers/0/image", "value": value}
    assert patch_of(response) == [expected]
    assert "warnings" not in response
    signed = Server(
        compiled(policy("p", signer=registry.signer, **configured(**ON))),
        tmp_path,
        registry.begin,
    )
    assert signed.ask("/ivpol/validate/p", pod(value))["allowed"] is True
    assert "does not have a digest" in message(
        signed.ask("/ivpol/validate/p", pod(registry.image))
    )


def test_every_kind_of_container_and_its_copies(tmp_path: Path) -> None:
    server = server_of(tmp_path, Stub(), policy("p", TRUE))
    spec = {
        "initContainers": [{"name": "i", "image": "reg.example/i:1"}],
        "containers": [
            {"name": "a", "image": "reg.example/a"},
            {"name": "b", "image": "reg.example/b@sha256:" + 64 * "0"},
        ],
        "ephemeralContainers": [{"name": "e", "image": "nginx:1"}],
    }
    given = {**pod(), "spec": spec}
    found = {one["path"]: one["value"] for one in patch_of(_mutated(server, given))}
    assert found == {
        "/spec/initContainers/0/image": "reg.example/i:1@x",
        "/spec/containers/0/image": "reg.example/a:latest@x",
        "/spec/ephemeralContainers/0/image": "docker.io/nginx:1@x",
    }
    template = {"metadata": {"name": "d"}, "spec": {"template": {"spec": spec}}}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", **template}
    kind = {"group": "apps", "version": "v1", "kind": "Deployment"}
    resource = {"group": "apps", "version": "v1", "resource": "deployments"}
    response = server.ask("/ivpol/mutate/p", deployment, kind=kind, resource=resource)
    assert {one["path"] for one in patch_of(response)} == {
        path.replace("/spec", "/spec/template/spec", 1) for path in found
    }


def _mutated(server: Server, given: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return server.ask("/ivpol/mutate/p", given, **changes)


@pytest.mark.parametrize(
    ("glob", "value"),
    [
        ("docker.io/nginx:*", "docker.io/nginx:1@x"),
        # Only the reference as written is selected, so it is kept.
        ("nginx:1", "nginx:1@x"),
        ("docker.io/nginx:1", "docker.io/nginx:1@x"),
        ("docker.io/other:*", None),
    ],
)
def test_what_is_pinned_stays_selected(
    glob: str, value: str | None, tmp_path: Path
) -> None:
    """Otherwise, the digest would take the image out of the policy."""
    stub = Stub()
    never = {"expression": "images.containers.size() == 0", "message": "selected"}
    given = policy("p", never, matchImageReferences=[{"glob": glob}])
    server = server_of(tmp_path, stub, given)
    patch = patch_of(_mutated(server, pod("nginx:1")))
    assert [one["value"] for one in patch] == ([] if value is None else [value])
    for one in patch:
        text = message(server.ask("/ivpol/validate/p", pod(one["value"])))
        assert text == "Policy p failed: selected"


@pytest.mark.parametrize(
    ("spec", "pinned"),
    [
        (configured(), []),
        (configured(mutateDigest=True), ["reg.example/a:1@x"]),
        ({"validationConfigurations": {}}, ["reg.example/a:1@x"]),
        (
            {
                "matchConditions": [
                    {"name": "c", "expression": "has(object.metadata.labels)"}
                ]
            },
            [],
        ),
        ({"matchImageReferences": [{"glob": "other/*"}]}, []),
    ],
)
def test_which_policies_pin(
    spec: dict[str, Any], pinned: list[str], tmp_path: Path
) -> None:
    server = server_of(tmp_path, Stub(), policy("p", TRUE, **spec))
    patch = patch_of(_mutated(server, pod("reg.example/a:1")))
    assert [one["value"] for one in patch] == pinned


def test_a_full_exception_exempts(tmp_path: Path) -> None:
    given = exception("p", kind="ImageValidatingPolicy")
    server = server_of(tmp_path, Stub(), policy("p", TRUE), given)
    assert patch_of(_mutated(server, pod("reg.example/a:1"))) == []


@pytest.mark.parametrize(
    ("actions", "allowed", "warns"),
    [(["Deny"], False, False), (["Audit"], True, False), (["Warn"], True, True)],
)
def test_a_silent_registry_denies_as_the_actions_say(
    actions: list[str], *, allowed: bool, warns: bool, tmp_path: Path
) -> None:
    """It must not let an image through unpinned, where the policy denies."""
    stub = Stub(RegistryUnavailable("registry.down", "no answer"))
    given = policy("p", TRUE, failurePolicy="Ignore", validationActions=actions)
    response = _mutated(server_of(tmp_path, stub, given), pod("reg.example/a:1"))
    text = (
        "Policy p error: failed to update digest: failed to resolve digest for image "
        "reg.example/a:1: no answer"
    )
    assert response["allowed"] is allowed
    assert response.get("warnings", []) == ([text] if warns else [])
    if not allowed:
        assert message(response) == text


def test_one_failure_leaves_the_other_patches(tmp_path: Path) -> None:
    class Half(Stub):
        def data(self, query: Any, deadline_ns: int) -> Any:
            if "bad" in query.image:
                raise RegistryUnavailable("registry.down", "no answer")
            return super().data(query, deadline_ns)

    given = policy("p", TRUE, validationActions=["Warn"])
    images = ("reg.example/bad:1", "reg.example/good:1")
    response = _mutated(server_of(tmp_path, Half(), given), pod(*images))
    assert [one["path"] for one in patch_of(response)] == ["/spec/containers/1/image"]


def test_deletions_and_objects_of_others_stay(tmp_path: Path) -> None:
    stub = Stub()
    namespaced = policy("q", TRUE, namespace="a")
    server = server_of(tmp_path, stub, policy("p", TRUE), namespaced)
    gone = _mutated(server, pod("reg.example/a:1"), operation="DELETE")
    assert patch_of(gone) == []
    elsewhere = pod("reg.example/a:1", namespace="b")
    for path in ("/nivpol/mutate/q", "/nivpol-mutate-keys/a/q"):
        assert patch_of(server.ask(path, elsewhere, namespace="b")) == []
    assert stub.read == []
    for path in ("/nivpol/mutate/q", "/nivpol-mutate-keys/a/q"):
        assert len(patch_of(server.ask(path, pod("reg.example/a:1")))) == 1
    with pytest.raises(HttpError):
        server.ask("/ivpol/mutate/unknown", pod("reg.example/a:1"))


def test_the_operators_registry_is_used(tmp_path: Path) -> None:
    images = ImageSettings("mirror.example", default_registry_mutation=True)
    settings = ClusterData().settings()._replace(images=images)
    data = ClusterData(settings=lambda: settings)
    server = Server(compiled(policy("p", TRUE)), tmp_path, Stub().begin, data)
    (found,) = patch_of(_mutated(server, pod("nginx:1")))
    assert found["value"] == "mirror.example/nginx:1@x"


@pytest.mark.parametrize("image", ["reg.example/a:1", "reg.example/a"])
def test_verify_digest_refuses_tags(image: str, tmp_path: Path) -> None:
    stub = Stub()
    spec = configured(verifyDigest=True)
    server = server_of(tmp_path, stub, policy("p", TRUE, **spec))
    text = message(server.ask("/ivpol/validate/p", pod(image)))
    assert text == f"Policy p failed: image {image} does not have a digest"
    assert stub.read == []
    pinned = pod(f"{image}@sha256:{64 * '0'}")
    assert server.ask("/ivpol/validate/p", pinned)["allowed"] is True


def test_required_needs_a_verification(registry: Registry, tmp_path: Path) -> None:
    """A validation that is true proves nothing; another policy's signature does."""
    spec = configured(required=True)
    claims = policy("a", TRUE, **spec)
    signed = policy("z", signer=registry.signer, **configured())
    image = registry.image
    alone = Server(compiled(claims), tmp_path, registry.begin)
    assert message(alone.ask("/ivpol/validate/a", pod(image))) == (
        f"Policy a failed: image {image} is not verified: no policy performed a "
        "signature or attestation check on it"
    )
    both = Server(compiled(claims, signed), tmp_path, registry.begin)
    assert both.ask("/ivpol/validate/a/z", pod(image))["allowed"] is True
    # Only policies of the same review count.
    assert both.ask("/ivpol/validate/a", pod(image))["allowed"] is False


def test_a_failed_check_is_no_verification(registry: Registry, tmp_path: Path) -> None:
    lenient = {"expression": "verifyImageSignatures(images.containers[0], "}
    lenient["expression"] += "[attestors.us]) >= 0"
    given = policy("p", lenient, signer=type(registry.signer)())
    given["spec"] |= configured(required=True)
    server = Server(compiled(given), tmp_path, registry.begin)
    assert message(server.ask("/ivpol/validate/p", pod(registry.image))).startswith(
        f"Policy p failed: image {registry.image} failed signature or attestation "
        "verification"
    )

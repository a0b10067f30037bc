"""The image record of an object that several webhook paths verify."""

import json
from pathlib import Path

import pytest
import yaml

from kyverno_mp import limits
from kyverno_mp.values.jsonvalue import Json
from tests.image_rig import Contents, Signer
from tests.unit.webhook.images.test_images import (
    ANNOTATION,
    SCOPED,
    Answered,
    Webhooks,
    block,
    contents,
    host,
    pod,
    policy,
    scoped,
    signed,
)

__all__ = ["contents", "host"]
_IGNORE = {"failurePolicy": "Ignore"}
_FAIL_PATH, _IGNORE_PATH = b"/mutate/fail", b"/mutate/ignore"
_CHECKS = (b"/validate/fail", b"/validate/ignore")
_NEVER: dict[str, Json] = {
    "preconditions": {"all": [{"key": "a", "operator": "Equals", "value": "b"}]}
}


def _skipped(name: str, given: dict[str, Json], **spec: Json) -> str:
    """Return a policy whose rule is skipped immediately."""
    found = yaml.safe_load(policy(name, given, **spec)[4:])
    found["spec"]["rules"][0].update(_NEVER)
    return "---\n" + yaml.safe_dump(found)


def _admitted(webhooks: Webhooks, given: dict[str, Json]) -> Answered:
    """Call the mutating paths as the API server does."""
    done = webhooks.ask(_FAIL_PATH, given)
    assert done.allowed, done.message
    return webhooks.ask(_IGNORE_PATH, done.object)


def _forged(*references: str) -> dict[str, str]:
    entries = {"verify": dict.fromkeys(references, "pass")}
    record = {"version": 1, "policies": {"/a": entries, "/b": entries}}
    return {
        ANNOTATION: json.dumps(dict.fromkeys(references, "pass")),
        SCOPED: json.dumps(record),
    }


def test_record_has_the_images_of_both_paths(
    contents: Contents, host: str, tmp_path: Path
) -> None:
    one, other = Signer(), Signer()
    digests = [signed(contents, one, "one"), signed(contents, other, "other")]
    policies = policy("a", block(f"{host}/one", one)).replace("/one/*", "/one*")
    policies += policy("b", block(f"{host}/other", other), **_IGNORE).replace(
        "/other/*", "/other*"
    )
    webhooks = Webhooks(policies, tmp_path / "c")
    done = _admitted(webhooks, pod(f"{host}/one:v1", f"{host}/other:v1"))
    assert done.outcomes == {
        f"{host}/one@{digests[0]}": "pass",
        f"{host}/other@{digests[1]}": "pass",
    }
    for path in _CHECKS:
        assert webhooks.ask(path, done.object).allowed


def test_later_path_hides_no_earlier_failure(
    contents: Contents, host: str, tmp_path: Path
) -> None:
    """A fine-grained policy with failurePolicy Ignore comes after the shared path."""
    signer = Signer()
    reference = f"{host}/app@{signed(contents, signer)}"
    away = block(host, Signer(), repository="127.0.0.1:9/app")
    policies = policy("a", away, **_IGNORE) + policy(
        "b", block(host, signer), **_IGNORE
    )
    webhooks = Webhooks(policies, tmp_path / "c")
    first = webhooks.ask(_IGNORE_PATH, pod(reference))
    assert first.outcomes == {reference: "fail"}
    last = webhooks.ask_route("/mutate/ignore/finegrained/b", first.object)
    assert last.outcomes == {reference: "fail"}


def test_audited_failure_of_an_earlier_path_denies_nothing_later(
    contents: Contents, host: str, tmp_path: Path
) -> None:
    signer = Signer()
    reference = f"{host}/app@{signed(contents, signer)}"
    audited = block(host, Signer(), failureAction="Audit", mutateDigest=False)
    policies = policy("a", audited) + policy("b", block(host, signer), **_IGNORE)
    webhooks = Webhooks(policies, tmp_path / "c")
    done = _admitted(webhooks, pod(reference))
    assert done.outcomes == {reference: "pass"}


@pytest.mark.parametrize("mode", ["Fail", "Ignore"])
def test_unwritten_records_are_removed(
    contents: Contents, host: str, tmp_path: Path, mode: str
) -> None:
    """The first path ran before: the record may contain only its images."""
    digest = signed(contents, Signer())
    reference, foreign = f"{host}/app@{digest}", f"docker.io/app@{digest}"
    policies = _skipped("a", block(host, Signer())) + _skipped(
        "b", block(host, Signer()), **_IGNORE
    )
    webhooks = Webhooks(policies, tmp_path / "c")
    given = pod(reference, **_forged(reference, foreign))
    done = _admitted(webhooks, given)
    assert not {ANNOTATION, SCOPED} & {*done.object["metadata"].get("annotations", {})}
    path = f"/mutate/{mode.lower()}".encode()
    left = webhooks.ask(path, given).object["metadata"].get("annotations", {})
    assert foreign not in left.get(ANNOTATION, "") + left.get(SCOPED, "")


def _record(images: Json) -> str:
    """Return the record in which policy ``a`` has these images."""
    policies = {"/a": {"verify": images}}
    return json.dumps({"version": 1, "policies": policies})


@pytest.mark.parametrize(
    "what",
    [
        *("entries", "characters", "json", "kind", "policies", "rules", "images"),
        *("version", "status", "type", "policy", "flat"),
    ],
)
def test_forged_record_is_dropped(
    contents: Contents, host: str, tmp_path: Path, what: str
) -> None:
    reference = f"{host}/app@{signed(contents, Signer())}"
    entries = {f"{host}/{n}": "pass" for n in range(limits.IMAGE_RECORD_ENTRIES_MAX)}
    text = {
        "entries": _record({reference: "pass", **entries}),
        "characters": _record({reference: "pass"})
        + " " * limits.IMAGE_RECORD_CHARACTERS_MAX,
        "json": "{",
        "kind": "[]",
        "policies": json.dumps({"version": 1, "policies": ["/a"]}),
        "rules": json.dumps({"version": 1, "policies": {"/a": ["verify"]}}),
        "images": _record([reference]),
        "version": _record({reference: "pass"}).replace("1", "2", 1),
        "status": _record({reference: "maybe"}),
        "type": _record({reference: ["pass"]}),
        "policy": scoped(reference)[SCOPED],
        "flat": json.dumps({reference: "pass"}),
    }[what]
    policies = policy("a", block(host, Signer())) + _skipped(
        "b", block(host, Signer()), **_IGNORE
    )
    webhooks = Webhooks(policies, tmp_path / "c")
    done = webhooks.ask(_IGNORE_PATH, pod(reference, **{SCOPED: text}))
    assert not done.object["metadata"].get("annotations")
    kept = {SCOPED: _record({reference: "pass"})}
    done = webhooks.ask(_IGNORE_PATH, pod(reference, **kept))
    assert done.outcomes == {reference: "pass"}, "so is what an earlier path writes"


def _of_namespace(text: str) -> str:
    """Return a policy that belongs to the namespace of the Pod."""
    found = yaml.safe_load(text[4:])
    found["kind"] = "Policy"
    found["metadata"]["namespace"] = "default"
    return "---\n" + yaml.safe_dump(found)


def test_namespaced_policy_does_not_verify_for_a_cluster_policy(
    contents: Contents, host: str, tmp_path: Path
) -> None:
    """The path of the cluster policy gave the API server no answer."""
    tenant, operator = Signer(), Signer()
    reference = f"{host}/app@{signed(contents, tenant)}"
    own = _of_namespace(policy("own", block(host, tenant)))
    strict = policy("strict", block(host, operator), **_IGNORE)
    webhooks = Webhooks(own + strict, tmp_path / "c")
    done = webhooks.ask(_FAIL_PATH, pod(reference))
    assert done.allowed
    assert done.outcomes == {reference: "pass"}
    # The tenant's check passes, but the check of the cluster policy does not.
    assert webhooks.ask(_CHECKS[0], done.object).allowed
    checked = webhooks.ask(_CHECKS[1], done.object)
    assert not checked.allowed
    assert f"unverified image {reference}" in checked.message
    assert not webhooks.ask(
        _CHECKS[1], webhooks.ask(_IGNORE_PATH, done.object).object
    ).allowed


@pytest.mark.parametrize("spec", [{}, _IGNORE])
def test_cluster_policy_verifies_for_itself(
    contents: Contents, host: str, tmp_path: Path, spec: dict[str, Json]
) -> None:
    """It does so on the path of the namespaced policy and on a later path."""
    signer = Signer()
    reference = f"{host}/app@{signed(contents, signer)}"
    own = _of_namespace(policy("own", block(host, signer)))
    webhooks = Webhooks(own + policy("strict", block(host, signer), **spec), tmp_path)
    done = _admitted(webhooks, pod(reference))
    assert done.outcomes == {reference: "pass"}
    for path in _CHECKS:
        assert webhooks.ask(path, done.object).allowed
    # What earlier versions wrote is removed.
    forged = {"kyverno.io/verify-images-of-namespace": json.dumps([reference])}
    again = _admitted(webhooks, pod(reference, **forged))
    assert again.object == done.object

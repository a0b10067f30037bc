"""The image record of an object when rules disagree about an image."""

import json
from pathlib import Path

import pytest
import yaml

from kyverno_mp.errors import DeadlinePassed, KubeUnavailable
from kyverno_mp.program.plans.mutation_plan import MutationPlan
from kyverno_mp.program.rule_gate import RuleGate
from kyverno_mp.values.jsonvalue import Json
from tests.image_rig import OCI, Contents, Repository, Signer
from tests.unit.webhook.images.test_images import (
    ANNOTATION,
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

_AWAY = "127.0.0.1:9/app"
"""A location of signatures that cannot be read."""
_IGNORE = {"failurePolicy": "Ignore"}
_MUTATE, _VALIDATE = b"/mutate/ignore", b"/validate/ignore"


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_pass_hides_no_error_of_another_policy(
    contents: Contents, host: str, tmp_path: Path, names: tuple[str, str]
) -> None:
    signer = Signer()
    digest = signed(contents, signer)
    strict = policy(names[0], block(host, Signer(), repository=_AWAY), **_IGNORE)
    lax = policy(names[1], block(host, signer), **_IGNORE)
    webhooks = Webhooks("".join(sorted((strict, lax))), tmp_path / "c")
    done = webhooks.ask(_MUTATE, pod(f"{host}/app:v1"))
    assert done.allowed
    assert done.outcomes[f"{host}/app@{digest}"] == "fail"
    assert not webhooks.ask(_VALIDATE, done.object).allowed


def test_digest_reference_hides_no_error_of_the_tag(
    contents: Contents, host: str, tmp_path: Path
) -> None:
    signer = Signer()
    digest = signed(contents, signer)
    strict = block(host, Signer(), repository=_AWAY, mutateDigest=False)
    policies = policy("a", strict, **_IGNORE) + policy(
        "b", block(host, signer), **_IGNORE
    )
    webhooks = Webhooks(policies, tmp_path / "c")
    done = webhooks.ask(_MUTATE, pod(f"{host}/app:v1"))
    assert done.outcomes[f"{host}/app@{digest}"] == "fail"


def test_unchanged_image_hides_no_error_of_a_new_one(
    contents: Contents, host: str, tmp_path: Path
) -> None:
    reference = f"{host}/app@{signed(contents, Signer())}"
    policies = policy("p", block(host, Signer(), repository=_AWAY), **_IGNORE)
    webhooks = Webhooks(policies, tmp_path / "c")
    old, new = pod(reference), pod(reference)
    new["spec"]["initContainers"] = [{"name": "i", "image": reference}]
    asked = {"operation": "UPDATE", "oldObject": old}
    done = webhooks.ask(_MUTATE, new, **asked)
    assert done.outcomes == {reference: "fail"}
    assert not webhooks.ask(_VALIDATE, done.object, **asked).allowed


def test_rule_that_raises_is_recorded_as_failed(
    contents: Contents, host: str, tmp_path: Path
) -> None:
    signer = Signer()
    digest = signed(contents, signer)
    broken = block(
        host, signer, annotations={"by": "{{ request.object.metadata.labels.none }}"}
    )
    policies = policy("a", block(host, signer), **_IGNORE) + policy(
        "b", broken, **_IGNORE
    )
    webhooks = Webhooks(policies, tmp_path / "c")
    done = webhooks.ask(_MUTATE, pod(f"{host}/app:v1"))
    assert done.allowed
    assert done.outcomes == {f"{host}/app@{digest}": "fail"}


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_audited_failure_denies_nothing_to_others(
    contents: Contents, host: str, tmp_path: Path, names: tuple[str, str]
) -> None:
    signer = Signer()
    digest = signed(contents, signer)
    audited = policy(
        names[0], block(host, Signer(), failureAction="Audit", mutateDigest=False)
    )
    enforced = policy(names[1], block(host, signer))
    webhooks = Webhooks("".join(sorted((audited, enforced))), tmp_path / "c")
    done = webhooks.mutate(pod(f"{host}/app@{digest}"))
    assert done.outcomes == {f"{host}/app@{digest}": "pass"}
    assert webhooks.validate(done.object).allowed


@pytest.mark.parametrize("mutates", [True, False])
@pytest.mark.parametrize("mode", ["Fail", "Ignore"])
def test_all_blocks_verify_the_same_digest(
    contents: Contents,
    host: str,
    tmp_path: Path,
    mode: str,
    mutates: bool,  # noqa: FBT001 - a parameter
) -> None:
    """Registries may answer by credentials, so the recorded digest is verified."""
    one, other = Signer(), Signer()
    repository = Repository("app")
    first = repository.image("v1", "first")
    repository.sign(first, one)
    second = repository.image("v1", "second")
    repository.sign(second, other)
    repository.load(contents)
    content = next(body for tag, body in repository.manifests if tag == "v1")
    path = "/v2/app/manifests/v1"
    contents.once["GET", path] = (200, {"Content-Type": OCI}, content)
    access: dict[str, Json] = {"secrets": ["other"]}
    blocks = (
        block(host, one),
        block(host, other, imageRegistryCredentials=access, mutateDigest=mutates),
    )
    path_of = mode.lower().encode()
    webhooks = Webhooks(policy("p", *blocks, failurePolicy=mode), tmp_path / "c")
    done = webhooks.ask(b"/mutate/" + path_of, pod(f"{host}/app:v1"))
    assert contents.once == {}
    assert done.allowed is (mode == "Ignore")
    if mode == "Ignore":
        assert done.images == [f"{host}/app:v1@{first}"]
        assert done.outcomes[f"{host}/app@{first}"] == "fail"
        assert not webhooks.ask(b"/validate/" + path_of, done.object).allowed


def _vouching(host: str, signer: Signer) -> str:
    """Return a namespaced Policy of an earlier path with a separate signer."""
    found = yaml.safe_load(policy("tenant", block(host, signer))[4:])
    found["kind"] = "Policy"
    found["metadata"]["namespace"] = "default"
    return "---\n" + yaml.safe_dump(found)


def _asking(given: dict[str, Json], **rule: Json) -> str:
    """Return a ClusterPolicy of the later path with a call to the API server."""
    found = yaml.safe_load(policy("cluster", given, **_IGNORE)[4:])
    call = {"name": "x", "apiCall": {"urlPath": "/api/v1/namespaces"}}
    found["spec"]["rules"][0].update(context=[call], **rule)
    return "---\n" + yaml.safe_dump(found)


def test_earlier_policy_does_not_verify_for_a_skipped_one(
    contents: Contents, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The namespaced Policy verified another signer than the ClusterPolicy requires."""
    signer = Signer()
    reference = f"{host}/app@{signed(contents, signer)}"
    policies = _asking(block(host, Signer())) + _vouching(host, signer)
    webhooks = Webhooks(policies, tmp_path / "c")
    given = webhooks.mutate(pod(reference))
    assert given.outcomes == {reference: "pass"}

    def late(*_: object) -> None:
        raise DeadlinePassed("x", "late")

    monkeypatch.setattr(MutationPlan, "run", late)
    done = webhooks.ask(_MUTATE, given.object)
    assert done.allowed
    assert ANNOTATION not in done.object["metadata"].get("annotations", {})
    assert not webhooks.ask(_VALIDATE, done.object).allowed
    assert webhooks.validate(done.object).allowed


def test_unchanged_image_keeps_its_record_if_a_policy_is_skipped(
    contents: Contents, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signer = Signer()
    reference = f"{host}/app@{signed(contents, signer)}"
    policies = _asking(block(host, signer)) + _vouching(host, signer)
    webhooks = Webhooks(policies, tmp_path / "c")
    old = pod(reference, **scoped(reference, policy="/cluster"))
    asked = {"operation": "UPDATE", "oldObject": old}
    given = webhooks.ask(b"/mutate/fail", pod(reference), **asked)

    def late(*_: object) -> None:
        raise DeadlinePassed("x", "late")

    monkeypatch.setattr(MutationPlan, "run", late)
    done = webhooks.ask(_MUTATE, given.object, **asked)
    assert done.outcomes == {reference: "pass"}


def test_earlier_policy_does_not_verify_for_one_whose_call_fails(
    contents: Contents, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signer = Signer()
    reference = f"{host}/app@{signed(contents, signer)}"
    policies = _asking(block(host, Signer())) + _vouching(host, signer)
    webhooks = Webhooks(policies, tmp_path / "c")
    given = webhooks.mutate(pod(reference))

    def away(*_: object) -> None:
        raise KubeUnavailable("x", "away")

    monkeypatch.setattr(RuleGate, "refusal", away)
    done = webhooks.ask(_MUTATE, given.object)
    assert done.allowed
    assert done.outcomes == {reference: "fail"}


_NEVER: dict[str, Json] = {
    "preconditions": {"all": [{"key": "a", "operator": "Equals", "value": "b"}]}
}


def _skipped(name: str, given: dict[str, Json], **spec: Json) -> str:
    """Return a policy whose rule is skipped immediately."""
    found = yaml.safe_load(policy(name, given, **spec)[4:])
    found["spec"]["rules"][0].update(_NEVER)
    return "---\n" + yaml.safe_dump(found)


def test_forged_record_is_removed_if_a_rule_is_skipped(
    contents: Contents, host: str, tmp_path: Path
) -> None:
    reference = f"{host}/app@{signed(contents, Signer())}"
    forged = {ANNOTATION: json.dumps({reference: "pass"}), "note": "kept"}
    webhooks = Webhooks(_skipped("p", block(host, Signer())), tmp_path / "c")
    done = webhooks.mutate(pod(reference, **forged))
    assert done.allowed
    assert done.object["metadata"]["annotations"] == {"note": "kept"}


def test_skipped_rule_keeps_the_record_of_another_path(
    contents: Contents, host: str, tmp_path: Path
) -> None:
    signer = Signer()
    signed(contents, signer)
    policies = policy("a", block(host, signer)) + _skipped(
        "b", block(host, signer), **_IGNORE
    )
    webhooks = Webhooks(policies, tmp_path / "c")
    done = webhooks.mutate(pod(f"{host}/app:v1"))
    again = webhooks.ask(_MUTATE, done.object)
    assert webhooks.validate(again.object).allowed


def test_forged_record_is_removed_if_a_review_is_late(
    contents: Contents, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = f"{host}/app@{signed(contents, Signer())}"
    asking = yaml.safe_load(policy("q", block(host, Signer()), **_IGNORE)[4:])
    call = {"name": "x", "apiCall": {"urlPath": "/api/v1/namespaces"}}
    asking["spec"]["rules"][0]["context"] = [call]
    policies = _skipped("p", block(host, Signer()), **_IGNORE)
    policies += "---\n" + yaml.safe_dump(asking)
    webhooks = Webhooks(policies, tmp_path / "c")

    def late(*_: object) -> None:
        raise DeadlinePassed("x", "late")

    monkeypatch.setattr(MutationPlan, "run", late)
    forged = {ANNOTATION: json.dumps({reference: "pass"})}
    done = webhooks.ask(_MUTATE, pod(reference, **forged))
    assert done.allowed
    assert ANNOTATION not in done.object["metadata"].get("annotations", {})

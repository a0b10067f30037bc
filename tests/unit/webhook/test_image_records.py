"""What the record of an object says when rules disagree about an image."""

from pathlib import Path

import pytest

from tests.image_rig import Contents, Signer
from tests.unit.webhook.test_images import (
    Webhooks,
    block,
    contents,
    host,
    pod,
    policy,
    signed,
)

__all__ = ["contents", "host"]

_AWAY = "127.0.0.1:9/app"
"""A place of signatures that nobody can read."""
_IGNORE = {"failurePolicy": "Ignore"}
_MUTATE, _VALIDATE = b"/mutate/ignore", b"/validate/ignore"


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_a_pass_hides_no_error_of_another_policy(
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


def test_a_digest_form_hides_no_error_of_the_tag(
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


def test_an_unchanged_image_hides_no_error_of_a_new_one(
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


def test_a_rule_that_raises_is_recorded_as_failed(
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
def test_an_audited_failure_denies_nothing_to_others(
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

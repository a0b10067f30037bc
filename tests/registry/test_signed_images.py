"""Images signed in Cosign's format in a real registry are verified by ``apply``."""

from pathlib import Path

import pytest
import yaml

from kyverno_mp.registry.client import Client
from kyverno_mp.registry.credentials import Credentials
from tests.image_rig import Repository, Signer, signed_policy
from tests.registry.conftest import Cli, Registry
from tests.waiting import far_ns


@pytest.mark.parametrize("is_ours", [True, False])
def test_signed_image(
    cli: Cli,
    registry: Registry,
    tmp_path: Path,
    is_ours: bool,  # noqa: FBT001 - a parameter
) -> None:
    signer = Signer()
    repository = Repository(f"team/app-{is_ours}".lower())
    digest = repository.image()
    repository.sign(digest, signer if is_ours else Signer())
    client = Client(lambda _host: Credentials(), user_agent="test")
    until = far_ns()
    repository.push(client, registry.host, until)
    image = registry.image(f"{repository.name}:v1")
    policy, pod = tmp_path / "policy.yaml", tmp_path / "pod.yaml"
    policy.write_text(signed_policy(registry.host, signer))
    pod.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "web", "namespace": "d"},
                "spec": {"containers": [{"name": "c", "image": image}]},
            }
        )
    )
    done = cli("apply", policy, "-r", pod, "--policy-report")
    report = yaml.safe_load(done.out[done.out.find("apiVersion:") :])
    results = sorted(row["result"] for row in report["results"])
    assert done.code == int(not is_ours)
    assert results == (["pass", "pass"] if is_ours else ["fail", "fail"])
    texts = [row["message"] for row in report["results"]]
    expected = (
        f"verified image signatures for {image}"
        if is_ours
        else f"unverified image {registry.image(repository.name)}@{digest}"
    )
    assert expected in texts

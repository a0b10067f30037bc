"""The commands of docs/install.md and docs/operate.md, exactly as written there.

A failure means: a command on the page fails for its readers. test_deploy.py tests the
installation itself. ``docker`` does nothing here.
"""

import json
from collections.abc import Iterator

import pytest
import yaml

from tests.e2e.conftest import Cluster
from tests.e2e.control_plane import ControlPlane
from tests.e2e.installation import Installation, installation, until
from tests.e2e.reader import Reader

PAGE = "install.md"
WEBHOOKS = "validatingwebhookconfigurations,mutatingwebhookconfigurations"
pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def cluster_with_node(cluster: Cluster, plane: ControlPlane) -> Iterator[Installation]:
    with installation(plane, cluster.kubectl) as made:
        yield made


@pytest.fixture(scope="module")
def reader(
    cluster: Cluster, plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Reader:
    return Reader(plane, cluster.kubectl, tmp_path_factory.mktemp("checkout"))


def webhooks(found: Installation) -> set[str]:
    return set(found.kubectl("get", WEBHOOKS, "-o", "name").split())


def pod(*, privileged: bool) -> str:
    container = {
        "name": "web",
        "image": "registry.example.com/web:1",
        "securityContext": {
            "privileged": privileged,
            "allowPrivilegeEscalation": privileged,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    meta = {"name": "web", "namespace": "default"}
    spec = {"containers": [container]}
    return json.dumps(
        {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
    )


def test_installed_server_denies(
    cluster_with_node: Installation, reader: Reader
) -> None:
    """The sample policies are in force when the last command ends."""
    reader.follow(PAGE, "## Build the image and install")
    create = ("create", "--dry-run=server", "-f", "-")
    refused = cluster_with_node.run(*create, text=pod(privileged=True))
    assert "pod-privileged-containers" in refused.stderr
    cluster_with_node.kubectl(*create, text=pod(privileged=False))


def test_webhooks_deleted_in_an_emergency_are_restored(
    cluster_with_node: Installation, reader: Reader
) -> None:
    """The command deletes all of them; running pods register them again."""
    before = webhooks(cluster_with_node)
    assert before
    reader.follow("operate.md", "## When no pod answers")
    until(lambda: webhooks(cluster_with_node) == before, "they are registered again")


def test_uninstall_keeps_a_copy_of_the_policies(
    cluster_with_node: Installation, reader: Reader
) -> None:
    reader.follow(PAGE, "## Uninstall")
    saved = yaml.safe_load((reader.folder / "policies-backup.yaml").read_text())
    names = {one["metadata"]["name"] for one in saved["items"]}
    assert "pod-privileged-containers" in names
    until(lambda: not webhooks(cluster_with_node), "all configurations are gone")
    assert "kyverno.io" not in cluster_with_node.kubectl("get", "crd", "-o", "name")

"""deploy/chart on a real API server: installed, upgraded, uninstalled, installed again.

The last test installs it over a release of Kyverno's chart (docs/upgrade.md, "With
Helm").

A failure means: an uninstall deletes the policies of a cluster, or what it leaves keeps
the next installation out. A control plane of its own, because Helm takes no objects
over that it has not created.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.conftest import Cluster
from tests.e2e.control_plane import ControlPlane
from tests.e2e.installation import DEPLOY, DEPLOYMENT, policy, until
from tests.e2e.kyverno_before import Certificates, objects
from tests.e2e.prepared import running_plane
from tests.packages.tools import Missing, find_helm

pytestmark = pytest.mark.timeout(1200)
NAMESPACE = "policy-system"
OURS = (
    "deployments,services,configmaps,serviceaccounts,roles,rolebindings,networkpolicies"
)
OF_CLUSTER = "clusterroles,clusterrolebindings,priorityclasses"
LABEL = "app.kubernetes.io/name=kyverno-mp"


class Helm:
    """helm and kubectl, as administrator of one control plane."""

    def __init__(self, plane: ControlPlane, helm: str, kubectl: Path) -> None:
        self._config = f"--kubeconfig={plane.kubeconfig}"
        self._helm, self._kubectl = helm, str(kubectl)

    def helm(self, *arguments: str, namespace: str = NAMESPACE) -> None:
        where = ("--namespace", namespace)
        self._run(self._helm, arguments[0], "kyverno", *arguments[1:], *where)

    def kubectl(self, *arguments: str, text: str = "") -> str:
        return self._run(self._kubectl, *arguments, text=text)

    def names(self, *arguments: str) -> list[str]:
        return self.kubectl("get", *arguments, "-o", "name").split()

    def _run(self, *words: str, text: str = "") -> str:
        done = subprocess.run(
            [*words, self._config],
            input=text or None,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Helm]:
    try:
        program = find_helm()
    except Missing as missing:
        pytest.skip(str(missing))
    with running_plane(tmp_path_factory.mktemp("helm")) as plane:
        found = Helm(plane, program, cluster.kubectl)
        found.helm("install", str(DEPLOY / "chart"), "--create-namespace")
        yield found


def deployment(found: Helm) -> dict[str, Any]:
    text = found.kubectl("-n", NAMESPACE, "get", f"deployment/{DEPLOYMENT}", "-o=json")
    read: dict[str, Any] = json.loads(text)
    return read


def test_upgrade_applies_changed_values(installed: Helm) -> None:
    chart = str(DEPLOY / "chart")
    value = "admissionController.replicas=1"
    installed.helm("upgrade", chart, "--reuse-values", "--set", value)
    found = deployment(installed)
    assert found["spec"]["replicas"] == 1
    assert found["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"


def test_policies_survive_an_uninstall(installed: Helm) -> None:
    """Everything else is deleted; the chart can be installed again over the rest."""
    definitions = set(installed.names("customresourcedefinitions"))
    assert len(definitions) == len(list((DEPLOY.parent / "config/crds").glob("*.yaml")))
    raw = policy("kept", "app", "ConfigMap")
    installed.kubectl("apply", "-f", "-", text=json.dumps(raw))
    installed.helm("uninstall", "--wait")
    assert set(installed.names("customresourcedefinitions")) == definitions
    kept = ["clusterpolicy.kyverno.io/kept"]
    assert installed.names("clusterpolicies") == kept
    assert installed.names(OURS, "-n", NAMESPACE, "-l", LABEL) == []
    assert installed.names(OF_CLUSTER, "-l", LABEL) == []
    installed.helm("install", str(DEPLOY / "chart"))
    assert installed.names("clusterpolicies") == kept
    assert deployment(installed)["spec"]["replicas"] == 3


def kyvernos_chart(folder: Path) -> Path:
    """Write a chart with the objects of Kyverno's chart, which Helm installs."""
    left_out = ("Namespace", "Secret", "Lease")
    empty = Certificates(b"", b"", b"", b"")
    given = [one for one in objects(empty) if one["kind"] not in left_out]
    for one in given:
        # Helm writes these itself.
        for name in ("release-name", "release-namespace"):
            one["metadata"].get("annotations", {}).pop(f"meta.helm.sh/{name}", None)
    (folder / "templates").mkdir(parents=True)
    (folder / "all.yaml").write_text(yaml.safe_dump_all(given))
    (folder / "templates" / "all.yaml").write_text('{{ .Files.Get "all.yaml" }}')
    about = {"apiVersion": "v2", "name": "kyverno", "version": "3.8.2"}
    (folder / "Chart.yaml").write_text(yaml.safe_dump(about))
    return folder


def established(found: Helm) -> bool:
    name = "customresourcedefinition/clusterpolicies.kyverno.io"
    status = json.loads(found.kubectl("get", name, "-o=json")).get("status") or {}
    conditions = status.get("conditions") or []
    return any(
        one["type"] == "Established" and one["status"] == "True" for one in conditions
    )


@pytest.fixture(scope="module")
def kyvernos(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Helm]:
    """Yield a cluster with a release of Kyverno's chart, and a policy."""
    try:
        program = find_helm()
    except Missing as missing:
        pytest.skip(str(missing))
    with running_plane(tmp_path_factory.mktemp("kyvernos")) as plane:
        found = Helm(plane, program, cluster.kubectl)
        chart = kyvernos_chart(tmp_path_factory.mktemp("chart") / "kyverno")
        found.helm("install", str(chart), "--create-namespace", namespace="kyverno")
        raw = json.dumps(policy("kept", "app", "ConfigMap"))
        until(lambda: established(found), "the kind ClusterPolicy")
        found.kubectl("apply", "-f", "-", text=raw)
        yield found


def test_installation_over_kyvernos_release(kyvernos: Helm) -> None:
    """Policies stay; objects of Kyverno alone are deleted; a rollback restores them."""
    chart, kept = str(DEPLOY / "chart"), ["clusterpolicy.kyverno.io/kept"]
    definitions = set(kyvernos.names("customresourcedefinitions"))
    with pytest.raises(AssertionError, match="would delete the CustomResource"):
        kyvernos.helm("upgrade", chart, "--set=crds.install=false", namespace="kyverno")
    assert set(kyvernos.names("customresourcedefinitions")) == definitions

    kyvernos.helm("upgrade", chart, namespace="kyverno")
    assert set(kyvernos.names("customresourcedefinitions")) >= definitions
    assert kyvernos.names("clusterpolicies") == kept
    deployments = kyvernos.names("deployments", "-n", "kyverno")
    assert deployments == [f"deployment.apps/{DEPLOYMENT}"]
    text = kyvernos.kubectl(
        "-n", "kyverno", "get", f"deployment/{DEPLOYMENT}", "-o=json"
    )
    spec = json.loads(text)["spec"]["template"]["spec"]
    assert "initContainers" not in spec
    assert spec["containers"][0]["readinessProbe"]["httpGet"]["scheme"] == "HTTP"

    kyvernos.helm("rollback", "1", namespace="kyverno")
    assert len(kyvernos.names("deployments", "-n", "kyverno")) == 4
    assert kyvernos.names("clusterpolicies") == kept

    kyvernos.helm("upgrade", chart, namespace="kyverno")
    # The definitions have the annotation now, so this is safe.
    kyvernos.helm("upgrade", chart, "--set=crds.install=false", namespace="kyverno")
    assert kyvernos.names("clusterpolicies") == kept

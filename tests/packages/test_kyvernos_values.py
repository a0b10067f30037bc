"""Values of Kyverno's chart: converted, or rejected with an error that names them.

A failure means: users who migrate with a values file get pods that never become ready,
or settings that silently have no effect.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.packages.rendered import ROOT, documents_of
from tests.packages.test_chart import ADMISSION, CHART, KUBERNETES, container, run

GIVEN = """
nameOverride: ~
admissionController:
  replicas: 5
  priorityClassName: ~
  tracing: {enabled: true}
  startupProbe: {httpGet: {path: /health/liveness, port: 9443, scheme: HTTPS}}
  container:
    image: {registry: reg.kyverno.io, repository: kyverno/kyverno, tag: v1.18.2}
    resources: {limits: {memory: 1Gi}}
backgroundController: {replicas: 2}
reportsController: {replicas: 2}
features:
  policyExceptions: {enabled: true, namespace: "*"}
  admissionReports: {enabled: false}
webhooksCleanup: {enabled: true}
"""
LOST = {
    "nameOverride": "not needed",
    "admissionController.tracing": "not in this chart",
    "admissionController.startupProbe": "kyverno-mp answers probes on another port;"
    " the default fits",
    "admissionController.container.image.registry": "the registry of Kyverno; set the"
    " one with your image",
    "admissionController.container.image.repository": "the image of Kyverno; set that"
    " of kyverno-mp",
    "admissionController.container.image.tag": "the image of Kyverno; set that of"
    " kyverno-mp",
    "features.admissionReports": "not in this chart",
    "webhooksCleanup": "not needed",
}


def convert(file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deploy.values", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_each_value_is_converted_or_reported(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(GIVEN)
    done = convert(file)
    assert done.returncode == 0
    lines = [line.removeprefix("left out: ") for line in done.stderr.splitlines()]
    assert dict(line.split(": ", 1) for line in lines) == LOST
    assert yaml.safe_load(done.stdout) == {
        "admissionController": {
            "replicas": 5,
            "container": {"resources": {"limits": {"memory": "1Gi"}}},
        },
        "backgroundController": {"replicas": 2},
        "reportsController": {"replicas": 2},
        "features": {"policyExceptions": {"enabled": True, "namespace": "*"}},
    }


def test_helm_accepts_the_converted_values(helm: str, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(GIVEN)
    kept = tmp_path / "kept.yaml"
    kept.write_text(convert(file).stdout)
    done = run(helm, "template", "kyverno", str(CHART), *KUBERNETES, "-f", str(kept))
    assert done.returncode == 0, done.stderr
    found = documents_of(done.stdout)
    assert found["Deployment", ADMISSION]["spec"]["replicas"] == 5
    assert "kyverno-mp:" in container(found)["image"]
    assert "--enablePolicyException=true" in container(found)["args"]
    assert container(found)["startupProbe"]["httpGet"]["port"] == "metrics-port"


def test_empty_values_are_accepted(tmp_path: Path) -> None:
    """``helm get values`` writes null for a release without values."""
    (tmp_path / "none.yaml").write_text("null\n")
    assert convert(tmp_path / "none.yaml").stdout == "{}\n"
    (tmp_path / "list.yaml").write_text("[1]\n")
    assert "not a file of values" in convert(tmp_path / "list.yaml").stderr


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            "admissionController.container.image.repository=kyverno/kyverno",
            "admissionController.container.image.repository is an image of Kyverno",
        ),
        (
            "admissionController.readinessProbe.httpGet.scheme=HTTPS",
            "admissionController.readinessProbe is a probe of Kyverno",
        ),
        (
            "backgroundController.image.repository=kyverno/background-controller",
            "backgroundController.image.repository is an image of Kyverno",
        ),
        (
            "cleanupController.livenessProbe.httpGet.scheme=HTTPS",
            "cleanupController.livenessProbe is a probe of Kyverno",
        ),
    ],
)
def test_values_that_break_the_pods_are_rejected(
    helm: str, value: str, text: str
) -> None:
    done = run(helm, "template", "a", str(CHART), *KUBERNETES, "--set", value)
    assert done.returncode != 0
    assert text in done.stderr

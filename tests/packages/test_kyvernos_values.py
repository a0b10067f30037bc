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
  metering: {tlsKeyAlgorithm: ECDSA}
  tracing: {enabled: true, address: c, creds: ""}
  profiling: {enabled: false}
  startupProbe: {httpGet: {path: /health/liveness, port: 9443, scheme: HTTPS}}
  livenessProbe: {periodSeconds: 90}
  container:
    image: {registry: reg.kyverno.io, repository: kyverno/kyverno, tag: v1.18.2}
    resources: {limits: {memory: 1Gi}}
backgroundController:
  replicas: 3
  enabled: false
  dnsPolicy: ClusterFirst
reportsController:
  podDisruptionBudget: {enabled: false}
  resources: {limits: {memory: 256Mi}}
features:
  policyExceptions: {enabled: true, namespace: "*"}
  admissionReports: {enabled: false}
  loging: {format: json}
webhooksCleanup: {enabled: true}
"""
OTHER_PORT = "kyverno-mp answers probes on another port; the default fits"
IMAGE = "the image of Kyverno; set that of kyverno-mp"
LOST = {
    "admissionController.livenessProbe": OTHER_PORT,
    "admissionController.container.image.registry": "the registry of Kyverno; set the"
    " one with your image",
    "admissionController.container.image.tag": IMAGE,
    "backgroundController.replicas": "it acts only with split=true; --split keeps it",
    "reportsController.resources": "a limit of memory below 512Mi ends the pods; raise"
    " it",
    "features.loging": "no value of this chart or of Kyverno's; did you mean"
    " features.logging?",
}
NOTED = {
    "default: admissionController.startupProbe": "the default of Kyverno's chart; ours"
    " stays",
    "default: admissionController.container.image.repository": IMAGE,
    "not needed: admissionController.metering.tlsKeyAlgorithm": "metrics have the"
    " certificate of the webhook (tlsKeyAlgorithm), or that of metering.tlsSecret",
    "not needed: webhooksCleanup": "no hook Job; Kubernetes deletes the webhook"
    " configurations with the ClusterRole that owns them",
}


def convert(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deploy.values", *options, str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_each_value_is_converted_or_reported(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(GIVEN)
    done = convert(file)
    assert done.returncode == 1
    lost = {f"left out: {path}": reason for path, reason in LOST.items()}
    told = dict(line.rsplit(": ", 1) for line in done.stderr.splitlines())
    assert told == {**lost, **NOTED}
    assert yaml.safe_load(done.stdout) == {
        "admissionController": {
            "replicas": 5,
            "tracing": {"enabled": True, "address": "c", "creds": ""},
            "container": {"resources": {"limits": {"memory": "1Gi"}}},
        },
        "backgroundController": {"enabled": False},
        "features": {
            "policyExceptions": {"enabled": True, "namespace": "*"},
            "admissionReports": {"enabled": False},
        },
    }
    assert convert(file, "--leave-out").returncode == 0


def test_split_keeps_the_values_of_the_other_controllers(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("backgroundController: {replicas: 3, tolerations: [{key: a}]}")
    done = convert(file, "--split")
    assert (done.returncode, done.stderr) == (0, "")
    kept = {"replicas": 3, "tolerations": [{"key": "a"}]}
    assert yaml.safe_load(done.stdout) == {"split": True, "backgroundController": kept}


def test_null_removes_a_user_that_the_platform_sets(tmp_path: Path) -> None:
    """Elsewhere, null in Kyverno's values means the default."""
    file = tmp_path / "values.yaml"
    context = "podSecurityContext: {runAsUser: ~, fsGroup: ~}"
    file.write_text(f"admissionController: {{replicas: ~, {context}}}")
    done = convert(file)
    assert done.returncode == 0
    kept = {"podSecurityContext": {"runAsUser": None, "fsGroup": None}}
    assert yaml.safe_load(done.stdout) == {"admissionController": kept}


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
            "reportsController.image.repository=kyverno/reports-controller",
            "reportsController.image.repository is an image of Kyverno",
        ),
        (
            "reportsController.readinessProbe.httpGet.scheme=HTTPS",
            "reportsController.readinessProbe is a probe of Kyverno",
        ),
        (
            "admissionController.hostNetwork=true",
            "admissionController.hostNetwork needs admissionController.dnsPolicy",
        ),
        ("admissionController.replicas=0", "admissionController.replicas is 0"),
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

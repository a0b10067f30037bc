"""Overlays over deploy/: the base changes nothing, and the namespace can be changed."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.packages.rendered import (
    DEPLOY,
    Document,
    Key,
    assert_all_in,
    documents_of,
    manifest,
)

# The first run may have to compile kubectl.
pytestmark = pytest.mark.timeout(1200)


def build(kubectl: str, folder: Path) -> dict[Key, Document]:
    done = subprocess.run(
        [kubectl, "kustomize", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return documents_of(done.stdout)


def overlay(folder: Path, text: str) -> Path:
    base = os.path.relpath(DEPLOY, folder)
    (folder / "kustomization.yaml").write_text(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
        f"resources: [{base}]\n{text}"
    )
    return folder


def test_base_equals_the_manifest(kubectl: str) -> None:
    assert build(kubectl, DEPLOY) == manifest("install.yaml")


def test_namespace_transformer_applies_everywhere(kubectl: str, tmp_path: Path) -> None:
    """This includes the filters: otherwise others could use an exempt namespace."""
    found = build(kubectl, overlay(tmp_path, "namespace: policy-system\n"))
    assert_all_in(found, "policy-system")
    assert ("Namespace", "policy-system") in found
    assert ("Namespace", "kyverno") not in found
    assert len(found) == len(manifest("install.yaml"))


def test_images_and_replicas_can_be_changed(kubectl: str, tmp_path: Path) -> None:
    text = (
        "images: [{name: kyverno-mp, newName: registry.example.com/kyverno-mp}]\n"
        "replicas: [{name: kyverno-admission-controller, count: 5}]\n"
    )
    found = build(kubectl, overlay(tmp_path, text))
    spec = found["Deployment", "kyverno-admission-controller"]["spec"]
    assert spec["replicas"] == 5
    image = spec["template"]["spec"]["containers"][0]["image"]
    assert image.startswith("registry.example.com/kyverno-mp:")


def test_documented_overlay_enables_the_dashboard(kubectl: str, tmp_path: Path) -> None:
    """The overlay is docs/dashboard.md's manifest, with the real path to the base."""
    page = (DEPLOY.parent / "docs" / "dashboard.md").read_text()
    _, _, after = page.partition("# kustomization.yaml: the dashboard\n")
    text, _, _ = after.partition("```")
    base = os.path.relpath(DEPLOY, tmp_path)
    assert text.count("  - deploy\n") == 1
    text = text.replace("  - deploy\n", f"  - {base}\n")
    (tmp_path / "kustomization.yaml").write_text(text)
    found = build(kubectl, tmp_path)
    wanted = manifest("install.yaml")
    key = "Deployment", "kyverno-admission-controller"
    assert {name for name in found if found[name] != wanted[name]} == {key}
    (container,) = found[key]["spec"]["template"]["spec"]["containers"]
    assert {"name": "KYVERNO_MP_DASHBOARD", "value": "true"} in container["env"]

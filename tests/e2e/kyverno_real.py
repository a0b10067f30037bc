"""Kyverno itself, as its chart installs it, for tests that take it over.

Takes: KYVERNO_MP_TEST_KYVERNO, a folder with the program ``kyverno`` (the admission
controller), if possible ``background-controller``, and ``source``, a checkout of their
version. Gives: the release ``kyverno``, installed by Helm, and what stands for its
images. Its other controllers sleep. May touch: the cluster, a folder.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.e2e.control_plane import ControlPlane
from tests.e2e.installation import NAMESPACE, our_image
from tests.packages.tools import Missing, find_helm

VARIABLE: Final = "KYVERNO_MP_TEST_KYVERNO"
_REGISTRY: Final = "reg.kyverno.io/kyverno"
_OWN_ADDRESS: Final = (
    'exec "$0" "$@" --kubeconfig="$KUBECONFIG" --controllerRuntimeMetricsAddress=0 '
    '--metricsHost="$KYVERNO_MP_WEBHOOK_HOST"'
)
"""A pod has an address here, but no network of its own; a second flag wins."""
_AS_SERVER: Final = f'{_OWN_ADDRESS} --webhookServerHost="$KYVERNO_MP_WEBHOOK_HOST"'
_VALUES: Final = (
    "admissionController.replicas=2",
    "features.policyExceptions.enabled=true",
    "features.policyExceptions.namespace=*",
)


class Kyverno:
    """One version of Kyverno."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def runs_background(self) -> bool:
        """Whether generate rules are carried out."""
        return (self._folder / "background-controller").exists()

    def image(self, container: Mapping[str, Any]) -> Sequence[str]:
        """Return the program of a container, of Kyverno or of ours."""
        name = container["image"].partition(":")[0].removeprefix(f"{_REGISTRY}/")
        args = container.get("args", [])
        if name == "kyvernopre":
            return ["/bin/true"]
        if name == "kyverno":
            program = str(self._folder / "kyverno")
            return ["/bin/sh", "-c", _AS_SERVER, program, *args]
        if name == "background-controller" and self.runs_background:
            program = str(self._folder / "background-controller")
            return ["/bin/sh", "-c", _OWN_ADDRESS, program, *args]
        if container["image"].startswith(_REGISTRY):
            return ["/bin/sleep", "infinity"]
        return our_image(container)

    def install(self, plane: ControlPlane, folder: Path) -> None:
        """Install the release, without its hooks: they clean up older versions."""
        chart = self._chart(folder / "kyverno")
        sets = [word for value in _VALUES for word in ("--set", value)]
        subprocess.run(
            [
                *(find_helm(), "install", "kyverno", str(chart), "--no-hooks"),
                *("--namespace", NAMESPACE, "--create-namespace", *sets),
                f"--kubeconfig={plane.kubeconfig}",
            ],
            check=True,
        )

    def definitions(self) -> str:
        """Return the definitions that the chart has in a chart it depends on."""
        folder = self._folder / "source" / "config" / "crds" / "policies.kyverno.io"
        items = []
        for path in sorted(folder.glob("*.yaml")):
            raw = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
            raw["metadata"]["annotations"] |= {
                "meta.helm.sh/release-name": "kyverno",
                "meta.helm.sh/release-namespace": NAMESPACE,
            }
            items.append(raw)
        assert items, folder
        return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})

    def _chart(self, folder: Path) -> Path:
        """Copy the chart without what it depends on in other repositories."""
        shutil.copytree(self._folder / "source" / "charts" / "kyverno", folder)
        (folder / "Chart.lock").unlink(missing_ok=True)
        file = folder / "Chart.yaml"
        chart = yaml.safe_load(file.read_text())
        local = [one for one in chart["dependencies"] if "repository" not in one]
        file.write_text(yaml.safe_dump({**chart, "dependencies": local}))
        return folder


def find_kyverno() -> Kyverno:
    """Return the version that the environment names, or skip the test."""
    named = os.environ.get(VARIABLE)
    if not named:
        pytest.skip(f"{VARIABLE} names no folder with Kyverno's program and source")
    try:
        find_helm()
    except Missing as missing:
        pytest.skip(str(missing))
    return Kyverno(Path(named))

"""Install the manifests of deploy/ on a control plane, as users do, and run their pods.

Takes: a control plane, kubectl. Gives: an Installation: kubectl's output, pods, their
logs. Pods are processes of this machine (kubelet.py). In addition to the manifest's
environment, they get only what a node provides: their address, and a kubeconfig for the
mounted token. May touch: the cluster, processes, the control plane's folder.
Source: docs/architecture.md 7.
"""

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from tests.e2e.control_plane import ControlPlane
from tests.e2e.kubelet import Kubelet
from tests.e2e.pod import Image, Pod
from tests.waiting import HANG_S, process_ids, unique, wait_for

ROOT: Final = Path(__file__).resolve().parents[2]
DEPLOY: Final = ROOT / "deploy"
NAMESPACE: Final = "kyverno"
DEPLOYMENT: Final = "kyverno-admission-controller"
ACCOUNT: Final = f"system:serviceaccount:{NAMESPACE}:{DEPLOYMENT}"
METRICS_PORT: Final = 8000
ROLLOUT_S: Final = 240


class Installation:
    """Our manifests on one control plane; ``start`` and ``stop`` its node."""

    def __init__(self, plane: ControlPlane, kubectl: Path, image: Image) -> None:
        self._plane = plane
        self._kubectl = kubectl
        self._is_installed = False
        self.kubelet = Kubelet(plane, [NAMESPACE], image, _given)

    def start(self) -> None:
        """Add the node to the cluster; nothing is installed yet."""
        # The kubelet lists the namespace's pods, even before there are any.
        self.kubelet.start()

    def stop(self) -> None:
        """Stop all processes."""
        self.kubelet.stop()

    def run(self, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run kubectl as administrator and return the result."""
        return subprocess.run(
            [str(self._kubectl), f"--kubeconfig={self._plane.kubeconfig}", *arguments],
            input=text or None,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "HOME": str(self._plane.folder)},
        )

    def kubectl(self, *arguments: str, text: str = "") -> str:
        """Run kubectl; raises AssertionError with its output if it fails."""
        done = self.run(*arguments, text=text)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def install(self, manifest: str = "install.yaml") -> None:
        """Apply a manifest if necessary, and wait until all replicas are ready."""
        if not self._is_installed:
            self.kubectl("apply", "-f", str(DEPLOY / manifest))
            self._is_installed = True
        self.await_rollout()

    def await_rollout(self) -> None:
        """Wait until every Deployment is up to date and no old pod is left."""
        timeout = f"--timeout={ROLLOUT_S}s"
        for name in self.deployments():
            done = self.run("-n", NAMESPACE, "rollout", "status", name, timeout)
            said = f"{done.stdout}{done.stderr}"
            assert done.returncode == 0, f"{said}{self.logs()[-6000:]}"

    def deployments(self) -> list[str]:
        """Return our Deployments, as ``deployment.apps/<name>``."""
        return self.kubectl("-n", NAMESPACE, "get", "deployments", "-o", "name").split()

    def pods_of(self, component: str) -> list[Pod]:
        """Return the pods of one Deployment, e.g. ``cleanup-controller``."""
        label = "app.kubernetes.io/component"
        return [
            pod
            for pod in self.pods
            if pod.raw["metadata"]["labels"][label] == component
        ]

    def uninstall(self, manifest: str = "install.yaml") -> None:
        """Delete a manifest of deploy/ and wait until all of it is gone."""
        self._is_installed = False
        file = ("--ignore-not-found", "-f", str(DEPLOY / manifest))
        self.kubectl("delete", *file, "--wait=false")

        def is_gone() -> bool:
            left = self.kubectl("get", *file, "-o", "name").split()
            for name in left:
                # K8S: if a CRD is deleted while its storage is recreated, the deletion
                # is retried minutes later, or as soon as the CRD changes.
                if name.startswith("customresourcedefinition"):
                    self.run("annotate", "--overwrite", name, f"at={unique()}")
            return not left

        until(is_gone, "what was installed is gone")

    def processes(self, pod: Pod) -> dict[str, int]:
        """Return the ids of a pod's processes by the names of their roles."""
        board = (
            pod.folder / "volumes" / "runtime" / "private" / "supervisor_status.json"
        )
        return process_ids(lambda: json.loads(board.read_bytes()))

    def holder(self, lease: str = "kyverno") -> str:
        """Return the name of the pod that holds a lease."""
        path = "jsonpath={.spec.holderIdentity}"
        return self.run("-n", NAMESPACE, "get", "lease", lease, "-o", path).stdout

    def enforce(self, name: str, label: str, *kinds: str) -> None:
        """Create an Enforce policy and wait until its status reports it in force.

        It is then in force in every replica: no test waits for the others.
        """
        text = json.dumps(policy(name, label, *kinds))
        self.kubectl("apply", "-f", "-", text=text)
        self.kubectl("wait", "--for=condition=Ready", f"cpol/{name}", "--timeout=60s")

    @property
    def pods(self) -> list[Pod]:
        """Return the pods that have processes, by name."""
        return sorted(self.kubelet.pods.values(), key=lambda pod: pod.name)

    def logs(self) -> str:
        """Return the logs of all pods, including ended ones."""
        files = sorted((self._plane.folder / "pods").glob("*/*.log"))
        return "\n".join(file.read_text(errors="replace") for file in files)

    def names(self, resource: str) -> set[str]:
        """Return the names of all objects of a cluster-scoped resource."""
        return set(self.kubectl("get", resource, "-o", "name").split())


def get(pod: Pod, path: str) -> tuple[int, str]:
    """Query the health port of a pod."""
    link = http.client.HTTPConnection(pod.address, METRICS_PORT, timeout=HANG_S)
    with closing(link):
        link.request("GET", path)
        answer = link.getresponse()
        return answer.status, answer.read().decode()


def until(look: Callable[[], Any], what: str, within_s: float = HANG_S) -> Any:
    """Wait until ``look`` returns a true value, and return it."""
    try:
        return wait_for(look, within_s)
    except AssertionError as error:
        raise AssertionError(f"waited in vain: {what}") from error


def our_image(container: Mapping[str, Any]) -> Sequence[str]:
    """Replace our image: its entry point with the container's arguments."""
    assert "command" not in container, "the image has an entry point"
    return [sys.executable, "-m", "kyverno_mp", *container.get("args", [])]


@contextmanager
def installation(
    plane: ControlPlane, kubectl: Path, image: Image = our_image
) -> Iterator[Installation]:
    """Yield a cluster with a node and without any installation."""
    made = Installation(plane, kubectl, image)
    made.start()
    try:
        yield made
    finally:
        made.stop()
        print(made.logs()[-8000:])


def policy(name: str, label: str, *kinds: str) -> dict[str, Any]:
    """Return an Enforce policy that requires a label."""
    rule = {
        "name": "labelled",
        "match": {"any": [{"resources": {"kinds": list(kinds)}}]},
        "validate": {
            "failureAction": "Enforce",
            "message": f"label {label} is needed",
            "pattern": {"metadata": {"labels": {label: "?*"}}},
        },
    }
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": name},
        "spec": {"background": False, "rules": [rule]},
    }


def _given(address: str, folder: Path) -> dict[str, str]:
    return {
        "PYTHONPATH": str(ROOT),
        # The pod's mounts, and its own address.
        "KYVERNO_MP_KUBECONFIG": str(next(folder.glob("*.kubeconfig"))),
        "KYVERNO_MP_WEBHOOK_HOST": address,
        "KYVERNO_MP_HEALTH_HOST": address,
    }

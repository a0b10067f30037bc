"""Play the kubelet: run the pods of some namespaces as processes of this machine.

Takes: a control plane, namespaces, what stands for an image. Gives: running pods with
status, so that Deployments roll out and Services get their endpoints. A process acts as
the pod's ServiceAccount through a kubeconfig file; paths of volumes are folders of the
pod. May touch: processes, the folder it is given, pods and one node of the cluster.
Source: docs/architecture.md 7.
"""

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.e2e.api import Api, Refused
from tests.e2e.control_plane import ControlPlane
from tests.e2e.pod import VOLUMES, Image, Pod
from tests.e2e.pod_network import PodNetwork

NODE: Final = "e2e"
ROUND_S: Final = 0.25
_NAMESPACE_PATH: Final = "/api/v1/namespaces"


class Kubelet:
    """One node of the cluster; ``start`` and ``stop`` it."""

    def __init__(
        self,
        plane: ControlPlane,
        namespaces: Sequence[str],
        image: Image,
        extra: Callable[[str, Path], Mapping[str, str]],
    ) -> None:
        """Take ``extra``: address and folder of a pod -> additional environment."""
        self._plane = plane
        self._namespaces = namespaces
        self._image = image
        self._extra = extra
        self._network = PodNetwork()
        self._pods: dict[str, Pod] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubelet")
        self._folder = plane.folder / "pods"
        self.is_abrupt = False
        """Whether pods end as on a node failure: killed without a signal."""
        self.failed: BaseException | None = None

    @property
    def pods(self) -> Mapping[str, Pod]:
        """Return the running pods by their uid."""
        return dict(self._pods)

    def start(self) -> None:
        """Register the node and start to run pods."""
        self._network.start()
        with Api(self._plane.access) as api:
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
            with contextlib.suppress(Refused):
                api.create("/api/v1/nodes", node)
        self._thread.start()

    @contextlib.contextmanager
    def probing_in_periods(self) -> Iterator[None]:
        """Ask the readiness probes of the running pods as seldom as a kubelet does."""
        pods = [*self.pods.values()]
        for pod in pods:
            pod.asks_in_periods = True
        try:
            yield
        finally:
            for pod in pods:
                pod.asks_in_periods = False

    def stop(self) -> None:
        """Stop every process; the pods remain in the API."""
        self._stopping.set()
        self._thread.join()
        for pod in self._pods.values():
            pod.kill()
        self._network.stop()
        if self.failed is not None:
            raise self.failed

    def _run(self) -> None:
        try:
            with Api(self._plane.access) as api:
                while not self._stopping.wait(ROUND_S):
                    # The API server may be unavailable: this is one of the tests.
                    with contextlib.suppress(OSError, Refused):
                        self._round(api)
        except BaseException as error:  # noqa: BLE001 - stop raises it in the test
            self.failed = error

    def _round(self, api: Api) -> None:
        there: set[str] = set()
        for namespace in self._namespaces:
            for raw in api.get(f"{_NAMESPACE_PATH}/{namespace}/pods")["items"]:
                there.add(raw["metadata"]["uid"])
                self._take(raw, api)
        for uid in set(self._pods) - there:
            self._pods.pop(uid).kill()

    def _take(self, raw: Mapping[str, Any], api: Api) -> None:
        meta = raw["metadata"]
        path = f"{_NAMESPACE_PATH}/{meta['namespace']}/pods/{meta['name']}"
        pod = self._pods.get(meta["uid"])
        if "deletionTimestamp" in meta:
            grace = meta.get("deletionGracePeriodSeconds", 0)
            if pod is not None and self.is_abrupt:
                pod.kill()
            if pod is None or pod.end(time.monotonic(), grace):
                self._pods.pop(meta["uid"], None)
                at_once = {"gracePeriodSeconds": 0}
                api.ask("DELETE", path, at_once)
            return
        if pod is None:
            if not raw["spec"].get("nodeName"):
                target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
                api.create(f"{path}/binding", _binding(meta["name"], target))
            pod = self._pods[meta["uid"]] = self._make(raw, api)
        pod.look_after(api)
        pod.write_status(api, path)

    def _make(self, raw: Mapping[str, Any], api: Api) -> Pod:
        folder = self._folder / raw["metadata"]["name"]
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        address = self._network.next_address()
        account = self._plane.write_service_account(
            api,
            raw["metadata"]["namespace"],
            raw["spec"].get("serviceAccountName", "default"),
            folder,
        )
        _mount_tokens(raw, folder / VOLUMES, api)
        extra = {
            "KUBECONFIG": str(account),
            "KUBERNETES_SERVICE_HOST": self._plane.host,
            "KUBERNETES_SERVICE_PORT": str(self._plane.port),
            **self._extra(address, folder),
        }
        return Pod(raw, address, folder, self._image, extra)


def _mount_tokens(raw: Mapping[str, Any], volumes: Path, api: Api) -> None:
    """Put projected tokens of the pod's account where its containers expect them."""
    account = raw["spec"].get("serviceAccountName", "default")
    base = f"{_NAMESPACE_PATH}/{raw['metadata']['namespace']}/serviceaccounts"
    for volume in raw["spec"].get("volumes") or []:
        for source in (volume.get("projected") or {}).get("sources") or []:
            asked = source.get("serviceAccountToken")
            # K8S: the API server itself adds a token volume, which kubeconfig replaces
            # here.
            if asked is None or "audience" not in asked:
                continue
            spec = {
                "audiences": [asked["audience"]],
                "expirationSeconds": asked["expirationSeconds"],
            }
            made = api.create(f"{base}/{account}/token", {"spec": spec})
            file = volumes / volume["name"] / asked["path"]
            file.parent.mkdir(parents=True)
            file.write_text(made["status"]["token"])


def _binding(name: str, target: Mapping[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name},
        "target": target,
    }

"""Start a real control plane and kyverno-mp beside it, for measurements.

Shared by perf/{apiserver,duel,memory,soak}.py and, with perf/pool.py, by the pools'
scripts. The control plane is the same as in the end-to-end tests (tests/e2e): etcd,
kube-apiserver and kube-controller-manager of this machine.
"""

import base64
import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import psutil
import yaml

from kyverno_mp.telemetry.collect import merge
from kyverno_mp.telemetry.families import ADMISSION
from kyverno_mp.telemetry.page import View
from perf.servers import Server, Unready, bare
from tests.e2e.api import Api, Refused
from tests.e2e.control_plane import THRIFT, ControlPlane
from tests.e2e.prepared import running_plane
from tests.e2e.product import Product

POLICIES: Final = "/apis/kyverno.io/v1/clusterpolicies"
_COLLECTIONS: Final = {
    "ClusterPolicy": POLICIES,
    "ValidatingPolicy": "/apis/policies.kyverno.io/v1/validatingpolicies",
    "MutatingPolicy": "/apis/policies.kyverno.io/v1/mutatingpolicies",
}
_CONFIGURATIONS: Final = "/apis/admissionregistration.k8s.io/v1/{}configurations"
_READY_S_MAX: Final = 120.0


@contextlib.contextmanager
def control_plane(folder: Path) -> Iterator[ControlPlane]:
    """Run a control plane with our CustomResourceDefinitions below ``folder``."""
    # As fast as it can be: tests save its CPU time instead.
    environment = {"GOGC": THRIFT["GOGC"]}
    with running_plane(folder, environment, has_definitions=True) as plane:
        yield plane


@contextlib.contextmanager
def in_cluster(
    plane: ControlPlane,
    folder: Path,
    workers: int,
    extra: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Run kyverno-mp against the control plane; its webhooks are deleted at the end."""
    product = Product(plane, folder, workers, extra)
    product.start()
    try:
        process = psutil.Process(product.program.pid)
        yield Server("kyverno-mp", 0, process, folder)
    finally:
        product.stop()
        with Api(plane.access) as api:
            remove_webhooks(api)


@contextlib.contextmanager
def bare_webhook(api: Api, folder: Path, workers: int) -> Iterator[Server]:
    """Run the bare app as a webhook for Pods that have the label ``perf: bare``."""
    answer = {"response": {"uid": "", "allowed": True}}
    kind = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
    (folder / "answer.json").write_text(json.dumps({**kind, **answer}))
    with bare(folder, workers=workers) as server:
        authority = base64.b64encode((folder / "ca.crt").read_bytes()).decode()
        url = f"https://127.0.0.1:{server.port}/validate/fail"
        rule = {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE"],
            "resources": ["pods"],
        }
        webhook = {
            "name": "bare.perf.example.com",
            "clientConfig": {"url": url, "caBundle": authority},
            "rules": [rule],
            "objectSelector": {"matchLabels": {"perf": "bare"}},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        path = _CONFIGURATIONS.format("validatingwebhook")
        api.create(path, {"metadata": {"name": "bare"}, "webhooks": [webhook]})
        yield server


def remove_webhooks(api: Api) -> None:
    """Delete every webhook configuration of kyverno-mp."""
    for kind in ("validatingwebhook", "mutatingwebhook"):
        path = _CONFIGURATIONS.format(kind)
        for found in api.get(path)["items"]:
            with contextlib.suppress(Refused):
                api.delete(f"{path}/{found['metadata']['name']}")


def documents(folder: Path) -> list[dict[str, Any]]:
    """Return the ClusterPolicies of a folder."""
    return [
        one
        for path in sorted(folder.rglob("*.yaml"))
        for one in yaml.load_all(path.read_text(), Loader=yaml.CSafeLoader)
        if one and one.get("kind") == "ClusterPolicy"
    ]


def many_policies(some: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Return ``count`` policies by repeating the given ones under other names."""
    return [
        {**one, "metadata": {**one["metadata"], "name": name}}
        for number in range(count)
        for one in (some[number % len(some)],)
        for name in (f"{one['metadata']['name']}-{number // len(some)}",)
    ]


def many_namespaces(api: Api, count: int) -> None:
    """Create namespaces with the labels that platforms usually add."""
    for number in range(count):
        labels = {"team": f"team-{number % 50}", "example.com/tier": "gold"}
        metadata = {"name": f"perf-{number}", "labels": labels}
        api.create("/api/v1/namespaces", {"metadata": metadata})


def create(api: Api, policies: list[dict[str, Any]]) -> None:
    """Create policies and wait until all of them are ready."""
    for policy in policies:
        api.create(_COLLECTIONS[policy["kind"]], policy)
    kinds = {policy["kind"] for policy in policies}
    wait_for(lambda: unready(api, kinds) == 0, "policies are not ready")


def unready(api: Api, kinds: Iterable[str] = ("ClusterPolicy",)) -> int:
    """Return how many policies of the kinds are not Ready."""
    return sum(
        not _is_ready(policy.get("status", {}))
        for kind in kinds
        for policy in api.get(_COLLECTIONS[kind])["items"]
    )


def _is_ready(status: Mapping[str, Any]) -> bool:
    if "conditionStatus" in status:
        return bool(status["conditionStatus"].get("ready"))
    return any(one["status"] == "True" for one in status.get("conditions", ()))


def wait_for(
    is_so: Callable[[], bool], what: str, seconds: float = _READY_S_MAX
) -> None:
    """Wait for a condition. Raises: Unready."""
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            raise Unready(what)
        time.sleep(0.1)


def reviews_of(page: View) -> float:
    """Return the number of admission reviews that a worker answered."""
    cells = merge([page])[ADMISSION].values()
    # The last cell is the sum of times, the others are a histogram's buckets.
    return sum(sum(series[:-1]) for series in cells)

"""Run our service beside a control plane under faults: requests, watchers, a thief.

Used by the fault tests. Takes: a control plane. Gives: Fleet, Guarded, Thief. May
touch: processes, threads, the cluster, loopback ports.
"""

import contextlib
import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

import psutil

from kyverno_mp.controllers.webhook_config.reconcile import remove_all
from kyverno_mp.errors import DependencyError
from kyverno_mp.kube.access import from_kubeconfig
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.lease import LEASES
from kyverno_mp.kube.policy_resources import RULE_POLICIES
from kyverno_mp.kube.pool import Pool
from kyverno_mp.kube.resource import core
from kyverno_mp.kube.rest import Client
from tests.e2e.api import Api
from tests.e2e.control_plane import ControlPlane
from tests.e2e.product import NAMESPACE, Product
from tests.faults.service import review_of
from tests.waiting import HANG_S

PODS: Final = core("pods")
LEASE: Final = (NAMESPACE, "kyverno")


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> float:
    """Wait until the condition holds; return the elapsed seconds."""
    started = time.monotonic()
    while True:
        with contextlib.suppress(DependencyError, OSError, http.client.HTTPException):
            if condition():
                return time.monotonic() - started
        assert time.monotonic() - started < seconds, "waited in vain"
        time.sleep(0.05)


def policy(name: str, label: str, **labels: str) -> dict[str, Any]:
    """Return a policy that requires a label of Pods."""
    rule = {
        "name": "labelled",
        "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
        "validate": {
            "failureAction": "Enforce",
            "message": f"label {label} is needed",
            "pattern": {"metadata": {"labels": {label: "?*"}}},
        },
    }
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": name, "labels": labels},
        "spec": {"background": False, "rules": [rule]},
    }


def pod(**labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default", "labels": labels},
        "spec": {"containers": [{"name": "c", "image": "example.org/c:1"}]},
    }


class Fleet:
    """Our service beside a control plane, with administrators' tools."""

    def __init__(
        self, plane: ControlPlane, folder: Path, workers: int = 2, **extra: str
    ) -> None:
        self.plane = plane
        self.product = Product(plane, folder, workers, extra)
        self.client = Client(Pool(from_kubeconfig(plane.kubeconfig)), "e2e-faults")
        self.objects = Objects(self.client)

    def start(self) -> None:
        self.product.start()

    def stop(self) -> None:
        self.product.stop()
        for one in self.objects_of_policies():
            self.objects.delete(RULE_POLICIES.cluster, ("", one))
        remove_all(self.client, self.objects)
        self.client.close()

    def objects_of_policies(self) -> list[str]:
        items = self.client.get(RULE_POLICIES.cluster.collection(""))["items"]
        return [one["metadata"]["name"] for one in items]

    def make(self, document: dict[str, Any]) -> None:
        """Create a policy; a newly started API server may need a moment."""
        wait_for(lambda: self.objects.create(RULE_POLICIES.cluster, document))

    def put(self, document: dict[str, Any]) -> None:
        """Create a policy and wait until it is Ready."""
        self.make(document)
        name = document["metadata"]["name"]
        wait_for(lambda: self.ready(name) == "True")

    def condition(self, name: str) -> dict[str, Any]:
        found = self.objects.find(RULE_POLICIES.cluster, ("", name)) or {}
        conditions = (found.get("status") or {}).get("conditions") or [{}]
        return dict(conditions[0])

    def ready(self, name: str) -> str:
        return str(self.condition(name).get("status"))

    def ask(self, **labels: str) -> str:
        """Create a Pod by dry run: "allowed", "denied" or "failed"."""
        path = PODS.collection("default") + "?dryRun=All"
        with Api(self.plane.access, 15.0) as api:
            status, body = api.ask("POST", path, pod(**labels))
        if status == 201:
            return "allowed"
        text = str(body)
        return "denied" if "is needed" in text else "failed"

    def review(self, **labels: str) -> bool:
        """Send a review to the webhook directly, as the API server would."""
        with contextlib.closing(connect(self.product.port)) as link:
            return bool(review_on(link, pod(**labels))["allowed"])

    def processes(self) -> dict[str, int]:
        return self.product.processes()

    def workers(self) -> list[int]:
        arbiter = psutil.Process(self.processes()["webhook"])
        return [child.pid for child in arbiter.children()]

    def is_ready(self) -> bool:
        link = http.client.HTTPConnection("127.0.0.1", self.product.health_port)
        with contextlib.closing(link):
            link.request("GET", "/health/readiness")
            return link.getresponse().status == 200


def connect(port: int) -> http.client.HTTPSConnection:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(
        "127.0.0.1", port, context=context, timeout=HANG_S
    )


def review_on(
    link: http.client.HTTPSConnection, document: dict[str, Any]
) -> dict[str, Any]:
    link.request(
        "POST",
        "/validate/fail",
        json.dumps(review_of(document)),
        {"Content-Type": "application/json"},
    )
    answer = link.getresponse()
    body = answer.read()
    assert answer.status == 200, body
    return dict(json.loads(body)["response"])


class Guarded(threading.Thread):
    """A client that repeatedly requests a forbidden Pod and counts the answers."""

    def __init__(self, ask: Callable[[], str]) -> None:
        super().__init__(daemon=True)
        self._ask = ask
        self._ended = threading.Event()
        self.answers = {"allowed": 0, "denied": 0, "failed": 0, "away": 0}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join(HANG_S)
        assert self.answers["allowed"] == 0, self.answers

    def run(self) -> None:
        while not self._ended.wait(0.02):
            try:
                answer = self._ask()
            except (OSError, http.client.HTTPException):
                answer = "away"
            self.answers[answer] += 1


class Thief(threading.Thread):
    """A different identity that takes the lease and keeps it."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(daemon=True)
        self._fleet = fleet
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self._write("thief")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join(HANG_S)

    def run(self) -> None:
        while not self._ended.wait(1.0):
            self._write("thief")

    def _write(self, holder: str) -> None:
        def edit(raw: dict[str, Any]) -> dict[str, Any]:
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            spec = {**raw["spec"], "holderIdentity": holder, "renewTime": now}
            return {**raw, "spec": {**spec, "leaseDurationSeconds": 12}}

        self._fleet.objects.change(LEASES, LEASE, edit)


def holder_of(fleet: Fleet) -> str:
    found = fleet.objects.find(LEASES, LEASE) or {}
    return str((found.get("spec") or {}).get("holderIdentity"))

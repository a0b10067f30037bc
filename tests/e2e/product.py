"""Run kyverno-mp itself against a control plane, as one process tree of this machine.

It acts as the account of one of its roles, and has the lease of each role it runs.

Takes: a control plane. Gives: a running product that the API server calls at a loopback
address. For what deploy/ says there is kubelet.py; this is for what policies do, with
the accounts and the permissions that deploy/ gives.
May touch: processes, its folder, loopback ports, the namespace kyverno.
"""

import contextlib
import http.client
import json
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from kyverno_mp.leader.status import StatusReader
from tests.e2e.api import Api, Refused
from tests.e2e.control_plane import ControlPlane, Program
from tests.ports import free_ports
from tests.waiting import HANG_S, process_ids

NAMESPACE: Final = "kyverno"
_CONFIGURATIONS: Final = tuple(
    f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations"
    for kind in ("validating", "mutating")
)
_PROJECT: Final = Path(__file__).resolve().parents[2]
ADMISSION: Final = "kyverno-admission-controller"
CLEANUP: Final = "kyverno-cleanup-controller"
_LEASES: Final = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
_ACCOUNTS: Final = f"system:serviceaccount:{NAMESPACE}"
_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
_GRANTED: Final = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
    "ClusterRole": f"{_RBAC}/clusterroles",
    "ClusterRoleBinding": f"{_RBAC}/clusterrolebindings",
    "Role": f"{_RBAC}/namespaces/{NAMESPACE}/roles",
    "RoleBinding": f"{_RBAC}/namespaces/{NAMESPACE}/rolebindings",
}
"""The permission kinds in deploy/, and their collections."""
_EXISTS: Final = 409
_OK: Final = 200
_LOG_CHARACTERS: Final = 6000
RUNNING: Final[list["Product"]] = []
"""The products whose logs the report of a failed test shows."""


class Product:
    """One kyverno-mp with one webhook worker; ``start`` and ``stop`` it."""

    def __init__(
        self,
        plane: ControlPlane,
        folder: Path,
        workers: int = 1,
        extra: Mapping[str, str] | None = None,
        account: str = ADMISSION,
    ) -> None:
        """Take ``extra``: names of settings -> additional values.

        ``workers`` 0: it runs no webhook. ``account``: the account of its pod's token.
        """
        self._account = account
        self._has_webhook = workers != 0
        self._plane, self._folder = plane, folder
        self._access = plane.access
        self.port, self.health_port = free_ports(2)
        port = self.port
        settings = {
            "KUBECONFIG": str(folder / f"{account}.kubeconfig"),
            "WEBHOOK_HOST": "127.0.0.1",
            "WEBHOOK_PORT": str(port),
            "HEALTH_HOST": "127.0.0.1",
            "HEALTH_PORT": str(self.health_port),
            "SERVER_IP": f"127.0.0.1:{port}",
            "WEBHOOK_WORKERS": str(workers),
            "RUNTIME_DIR": str(folder / "run"),
            "NAMESPACE": NAMESPACE,
            "SERVICE_ACCOUNT_NAME": account,
            "EXCEPTION_NAMESPACE": "*",
            "BACKGROUND_SERVICE_ACCOUNT": f"{_ACCOUNTS}:kyverno-background-controller",
            "REPORTS_SERVICE_ACCOUNT": f"{_ACCOUNTS}:kyverno-reports-controller",
            "CLEANUP_SERVICE_ACCOUNT": f"{_ACCOUNTS}:{CLEANUP}",
            # Some tests send reviews themselves, which are judged without a proof of
            # their caller for this time.
            "CALLER_PATH_OVERLAP_S": "3600",
            **(extra or {}),
        }
        given = [f"KYVERNO_MP_{name}={value}" for name, value in settings.items()]
        path = [f"PYTHONPATH={_PROJECT}"]
        serve = [sys.executable, "-m", "kyverno_mp", "serve"]
        command = ["/usr/bin/env", *path, *given, *serve]
        self.program = Program("kyverno-mp", command, folder)

    def start(self) -> None:
        """Start, and wait until it is ready and called by the API server."""
        with Api(self._access) as api:
            _grant(api)
            plane, folder = self._plane, self._folder
            plane.write_service_account(api, NAMESPACE, self._account, folder)
            self.program.start()
            try:
                self.program.wait_until("not ready", self.is_ready)
                if self._has_webhook:
                    self.program.wait_until("no webhooks", lambda: self._is_called(api))
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        """Stop as Kubernetes would."""
        self.program.stop(signal.SIGTERM)

    def health(self) -> Any:
        """Return the answer of /healthz, healthy or not."""
        link = http.client.HTTPConnection("127.0.0.1", self.health_port, timeout=HANG_S)
        with contextlib.closing(link):
            link.request("GET", "/healthz")
            return json.loads(link.getresponse().read())

    def policies(self) -> list[str]:
        """Return the names of the known policies."""
        link = http.client.HTTPConnection("127.0.0.1", self.health_port, timeout=HANG_S)
        with contextlib.closing(link):
            link.request("GET", "/policies")
            body = json.loads(link.getresponse().read())
            return [one["name"] for one in body["policies"]]

    def serves(self, kind: str, namespace: str, name: str, generation: int) -> bool:
        """Return whether all workers serve this generation of a policy, or a newer."""
        status = StatusReader(self._folder / "run").read()
        published = {
            (one.kind, one.namespace, one.name): one.generation
            for one in status.policies
        }
        link = http.client.HTTPConnection("127.0.0.1", self.health_port, timeout=HANG_S)
        with contextlib.closing(link):
            link.request("GET", "/policies")
            served = json.loads(link.getresponse().read())["generation"]
        is_served: bool = served >= status.generation
        return is_served and published.get((kind, namespace, name), 0) >= generation

    def processes(self) -> dict[str, int]:
        """Return the ids of its processes by the names of their roles."""
        return process_ids(self.health)

    def unready(self) -> str:
        """Return the reason why it is not ready, "" if it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.health_port)
        with contextlib.closing(connection):
            connection.request("GET", "/health/readiness")
            answer = connection.getresponse()
            why = answer.read().decode()
            return "" if answer.status == 200 else why or f"HTTP {answer.status}"

    def _is_called(self, api: Api) -> bool:
        """Return whether all webhooks are ours, and not an earlier product's."""
        urls = [hook["clientConfig"].get("url", "") for hook in _hooks(api)]
        return bool(urls) and all(f":{self.port}/" in url for url in urls)

    def is_ready(self) -> bool:
        """Return whether it is ready."""
        with contextlib.suppress(OSError):
            return not self.unready()
        return False


@contextlib.contextmanager
def started(
    plane: ControlPlane, folder: Path, extra: Mapping[str, str]
) -> Iterator[Product]:
    """Run a product while the block runs; failed tests show the end of its log."""
    product = Product(plane, folder, extra=extra)
    product.start()
    RUNNING.append(product)
    try:
        yield product
    finally:
        RUNNING.remove(product)
        product.stop()


def log_ends() -> Iterator[str]:
    """Yield the end of the log of each running product, for the report of a failure."""
    for product in RUNNING:
        yield product.program.log.read_text()[-_LOG_CHARACTERS:]


@contextlib.contextmanager
def configured(plane: ControlPlane, **data: str) -> Iterator[None]:
    """Set keys of Kyverno's own ConfigMap during the block."""
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    with Api(plane.access) as api:
        api.create(path, {"metadata": {"name": "kyverno"}, "data": data})
    yield
    # A new connection, because tests may have restarted the API server.
    with Api(plane.access) as api:
        api.delete(f"{path}/kyverno")


def holder_of(api: Api, lease: str) -> str:
    """Return the holder of one of our leases, "" if there is none."""
    status, found = api.ask("GET", f"{_LEASES}/{lease}")
    return str(found["spec"].get("holderIdentity") or "") if status == _OK else ""


def _hooks(api: Api) -> Iterator[Any]:
    for path in _CONFIGURATIONS:
        for configuration in api.get(path)["items"]:
            yield from configuration.get("webhooks") or ()


def _grant(api: Api) -> None:
    """Create the namespace, and all roles' accounts with their permissions."""
    parts = _PROJECT / "deploy" / "parts"
    files = (parts / "namespace.yaml", *sorted(parts.glob("*-rbac.yaml")))
    for path in (*files, parts / "pool-tokens.yaml"):
        for raw in yaml.safe_load_all(path.read_text()):
            if not raw or raw["kind"] not in _GRANTED:
                continue
            try:
                api.create(_GRANTED[raw["kind"]], raw)
            except Refused as refused:
                if refused.status != _EXISTS:
                    raise

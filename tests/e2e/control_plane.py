"""Start and stop a control plane: etcd, kube-apiserver, kube-controller-manager.

Takes: the programs, a folder. Gives: a running cluster without nodes, with RBAC and
service accounts, on free ports of 127.0.0.1. Every process dies with this one.
May touch: its folder, processes, loopback ports.
Source: docs/architecture.md 7.
"""

import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from tests.e2e.api import Api, Refused
from tests.e2e.audit import POLICY as AUDITED
from tests.e2e.audit import AuditLog
from tests.e2e.binaries import Binaries
from tests.e2e.certificates import Authority, write_service_account_key
from tests.e2e.etcd import is_serving, write
from tests.e2e.kubeconfig import (
    Access,
    with_certificate,
    with_token,
    write_kubeconfig,
)
from tests.ports import free_ports
from tests.waiting import HANG_S

POLL_S: Final = 0.1
TOKEN_S: Final = 12 * 3600
SERVICE_RANGE: Final = "10.96.0.0/16"
ALSO_SERVED: Final = (
    "admissionregistration.k8s.io/v1alpha1",
    "admissionregistration.k8s.io/v1beta1",
)
"""API versions that Kubernetes serves only on request: mutating admission policies."""
LEFT_OUT: Final = (
    "node-lifecycle-controller",
    "pod-garbage-collector-controller",
    "taint-eviction-controller",
)
"""Controllers that would evict the pods of such a node."""
THRIFT: Final = {"GOGC": "400", "GOMAXPROCS": "1", "TIMER_SLACK_NS": "10000000"}
"""Environment of the control plane's programs: an idle one takes half the CPU time.

GOGC: a control plane is small, and collecting its garbage costs a fifth of its time.
With 200 it takes a third more; with 800 no less, but two gigabytes of memory.
GOMAXPROCS: idle threads of Go look for the work of others, and several control planes
share the cores. The slack (guard.py) lets one wake-up serve the timers of 10 ms: the
API server alone has one each second for every version of every kind.
"""
GUARD: Final = Path(__file__).with_name("guard.py")


class NotReady(AssertionError):
    """A program ended or did not answer in time; the text has the end of its log."""


class Program:
    """One running program with its log."""

    def __init__(
        self,
        name: str,
        command: list[str],
        folder: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Take ``environment``: variables on top of the inherited ones."""
        self.name = name
        self.command = command
        self._environment = environment or {}
        self.log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Return the process id, for tests that send signals."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_started(self) -> bool:
        """Whether it was started and not stopped since."""
        return self._process is not None

    def start(self) -> None:
        """Start a program that ends with this process."""
        assert self._process is None
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(GUARD), str(os.getpid()), *self.command],
                env={**_inherited(), **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop and wait; raises TimeoutExpired, and kills it, if that hangs."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(how)
        try:
            process.wait(HANG_S)
        finally:
            process.kill()
            process.wait()

    def wait_until(self, what: str, is_so: Callable[[], bool]) -> None:
        """Wait for a condition; raises NotReady with the end of the log."""
        deadline = time.monotonic() + HANG_S
        while not is_so():
            ended = self._process is None or self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                tail = self.log.read_text(errors="replace")[-4000:]
                raise NotReady(f"{self.name}: {what}: {tail}")
            time.sleep(POLL_S)


def _inherited() -> dict[str, str]:
    """Return the environment without the settings of tests, which serve rejects."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("KYVERNO_MP_")
    }


class ControlPlane:
    """A cluster of three programs; use ``start`` and ``stop``."""

    def __init__(
        self,
        binaries: Binaries,
        folder: Path,
        environment: Mapping[str, str] = THRIFT,
    ) -> None:
        """Take ``environment``: variables of all three programs."""
        self.folder = folder
        self._environment = environment
        self._authority = Authority(folder)
        key = write_service_account_key(folder)
        etcd_port, peer_port, self.port, manager_port = free_ports(4)
        self.host = "127.0.0.1"
        self.server = f"https://{self.host}:{self.port}"
        self._token = os.urandom(16).hex()
        tokens = folder / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text(f'{self._token},admin,admin,"system:masters"\n')
        self.access = with_token(
            self.server, self._authority.files.certificate, self._token
        )
        self.kubeconfig = write_kubeconfig(
            folder / "admin.kubeconfig", self.access, "admin"
        )
        self.audit = AuditLog(folder / "audit.log")
        """The calls to the API server, without those of its own programs."""
        self.etcd_url = f"http://127.0.0.1:{etcd_port}"
        (folder / "audit-policy.json").write_text(json.dumps(AUDITED))
        self.etcd = self._etcd(binaries, etcd_port, peer_port)
        self.apiserver = self._apiserver(binaries, etcd_port, key, tokens)
        self.controller_manager = self._manager(binaries, manager_port, key)
        self._programs = (self.etcd, self.apiserver, self.controller_manager)

    def start(self, values: Mapping[str, str] | None = None) -> None:
        """Start all programs and wait until service accounts appear automatically.

        ``values``: what etcd has before the API server starts, see etcd.py.
        """
        try:
            self.etcd.start()
            self.etcd.wait_until("no answer", lambda: is_serving(self.etcd_url))
            write(self.etcd_url, values or {})
            self.apiserver.start()
            self.apiserver.wait_until("/readyz", self._is_ready)
            self.controller_manager.start()
            self.controller_manager.wait_until(
                "no default service account", self._has_service_account
            )
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Kill everything in reverse order: nothing that they store is needed."""
        for program in reversed(self._programs):
            program.stop(signal.SIGKILL)

    def user(self, name: str, groups: Iterable[str] = ()) -> Access:
        """Return access as a user with a client certificate."""
        pair = self._authority.issue_client(name, groups)
        return with_certificate(self.server, self._authority.files.certificate, pair)

    def write_user(self, name: str, groups: Iterable[str] = ()) -> Path:
        """Write the kubeconfig file of a user."""
        file_name = name.replace(":", "-").replace("/", "-")
        path = self.folder / f"{file_name}.kubeconfig"
        return write_kubeconfig(path, self.user(name, groups), name)

    def write_service_account(
        self, api: Api, namespace: str, name: str, folder: Path
    ) -> Path:
        """Write the kubeconfig file of a ServiceAccount, with a fresh token."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        asked = {"spec": {"expirationSeconds": TOKEN_S}}
        token = api.create(path, asked)["status"]["token"]
        access = with_token(self.server, self._authority.files.certificate, token)
        file = folder / f"{name}.kubeconfig"
        return write_kubeconfig(file, access, f"{namespace}-{name}")

    def _etcd(self, binaries: Binaries, port: int, peer_port: int) -> Program:
        client = f"http://127.0.0.1:{port}"
        peer = f"http://127.0.0.1:{peer_port}"
        return Program(
            "etcd",
            [
                str(binaries.etcd),
                f"--data-dir={self.folder / 'etcd'}",
                # Without it, watches of kinds without objects are silent: the first
                # notice lets the API server send a bookmark each minute. kubeadm's five
                # seconds cost a sixth of the CPU time of an idle control plane.
                "--watch-progress-notify-interval=30s",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
                "--unsafe-no-fsync=true",
                "--log-level=warn",
            ],
            self.folder,
            self._environment,
        )

    def _apiserver(
        self, binaries: Binaries, etcd_port: int, key: Path, tokens: Path
    ) -> Program:
        serving = self._authority.issue_server(
            "apiserver", ("127.0.0.1", "localhost", "kubernetes.default.svc")
        )
        return Program(
            "kube-apiserver",
            [
                str(binaries.kube_apiserver),
                f"--etcd-servers=http://127.0.0.1:{etcd_port}",
                "--bind-address=127.0.0.1",
                f"--secure-port={self.port}",
                f"--cert-dir={self.folder}",
                f"--tls-cert-file={serving.certificate}",
                f"--tls-private-key-file={serving.key}",
                f"--client-ca-file={self._authority.files.certificate}",
                f"--token-auth-file={tokens}",
                f"--service-account-key-file={key}",
                f"--service-account-signing-key-file={key}",
                "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
                f"--service-cluster-ip-range={SERVICE_RANGE}",
                "--authorization-mode=RBAC",
                "--allow-privileged=true",
                # This server has no address that pods could reach.
                "--endpoint-reconciler-type=none",
                # Webhooks of a Service are called at its endpoints, because there is no
                # kube-proxy.
                "--enable-aggregator-routing=true",
                "--feature-gates=MutatingAdmissionPolicy=true",
                f"--runtime-config={','.join(f'{one}=true' for one in ALSO_SERVED)}",
                "--profiling=false",
                f"--audit-policy-file={self.folder / 'audit-policy.json'}",
                f"--audit-log-path={self.folder / 'audit.log'}",
            ],
            self.folder,
            self._environment,
        )

    def _manager(self, binaries: Binaries, port: int, key: Path) -> Program:
        user = "system:kube-controller-manager"
        ca = self._authority.files
        return Program(
            "kube-controller-manager",
            [
                str(binaries.kube_controller_manager),
                f"--kubeconfig={self.write_user(user)}",
                "--bind-address=127.0.0.1",
                f"--secure-port={port}",
                f"--cert-dir={self.folder}",
                "--leader-elect=false",
                # A node of the tests is a thread without heartbeats.
                f"--controllers=*,{','.join(f'-{one}' for one in LEFT_OUT)}",
                "--use-service-account-credentials=true",
                f"--service-account-private-key-file={key}",
                f"--root-ca-file={ca.certificate}",
                f"--cluster-signing-cert-file={ca.certificate}",
                f"--cluster-signing-key-file={ca.key}",
                "--profiling=false",
            ],
            self.folder,
            self._environment,
        )

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError, ssl.SSLError), Api(self.access, 2.0) as api:
            return api.ask("GET", "/readyz")[0] == 200
        return False

    def _has_service_account(self) -> bool:
        path = "/api/v1/namespaces/default/serviceaccounts/default"
        with contextlib.suppress(OSError, Refused), Api(self.access) as api:
            api.get(path)
            return True
        return False

"""Run the whole service as a user would and talk to it over TLS.

Used only by the fault tests; all its processes belong to one process group.
"""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from tests.faults.started import start, without_settings
from tests.waiting import HANG_S, process_ids, wait_for


class Service:
    """One running ``kyverno-mp serve --standalone``."""

    def __init__(
        self,
        folder: Path,
        *flags: str,
        workers: int = 2,
        variables: Mapping[str, str] | None = None,
        tree: Path | None = None,
    ) -> None:
        """Start it; ``tree``: the folder whose version a new interpreter runs."""
        self.policies = folder / "policies"
        self.policies.mkdir(exist_ok=True)
        self.runtime_dir = folder / "run"
        self._folder = folder
        settings = {"KYVERNO_MP_DASHBOARD": "false", **(variables or {})}
        self.process = start(
            (
                *("serve", "--standalone"),
                *("--policies", str(self.policies), "--port", "0"),
                *("--health-port", "0", "--host", "127.0.0.1"),
                *("--workers", str(workers), "--runtime-dir", str(self.runtime_dir)),
                "--allow-empty",
                *flags,
            ),
            {**without_settings(), **settings},
            folder,
            tree,
        )
        try:
            self.port, self.health_port, self.trust = self._read_banner()
        except AssertionError:
            self.close()
            raise

    def _read_banner(self) -> tuple[int, int, str]:
        def read() -> str:
            assert self.process.poll() is None, self.errors()
            text = self._output()
            return text if "policies  http" in text else ""

        text = wait_for(read)
        port = re.search(r":(\d+)/validate", text)
        health = re.search(r":(\d+)/metrics", text)
        trust = re.search(r"trust (\S+)", text)
        assert port
        assert health
        assert trust
        return int(port[1]), int(health[1]), trust[1]

    def dashboard_port(self) -> int:
        """Return the port of the dashboard, which the banner names."""
        found = re.search(r"dashboard http://[\d.]+:(\d+)/", self._output())
        assert found
        return int(found[1])

    def errors(self) -> str:
        """Return the log so far."""
        return (self._folder / "stderr").read_text()

    def _output(self) -> str:
        return (self._folder / "stdout").read_text()

    def pid_now(self, name: str) -> int:
        """Return the process id of a role, 0 while it waits for its next start."""
        told = json.loads(self.get("/healthz")[1])["processes"]
        return next(int(one["pid"]) for one in told if one["name"] == name)

    def pids(self, name: str) -> list[int]:
        """Return process ids: of ``leader``, ``webhook``, ``health`` or ``worker``."""
        found = process_ids(lambda: json.loads(self.get("/healthz")[1]))
        if name != "worker":
            return [found[name]]
        return [c.pid for c in psutil.Process(found["webhook"]).children()]

    def get(self, path: str) -> tuple[int, str]:
        """GET from the health server."""
        link = http.client.HTTPConnection("localhost", self.health_port, timeout=HANG_S)
        with contextlib.closing(link):
            link.request("GET", path)
            answer = link.getresponse()
            return answer.status, answer.read().decode()

    def connect(self) -> http.client.HTTPSConnection:
        """Open a connection that keeps alive."""
        context = ssl.create_default_context(cafile=self.trust)
        return http.client.HTTPSConnection(
            "localhost", self.port, context=context, timeout=HANG_S
        )

    def review(self, pod: dict[str, Any]) -> dict[str, Any]:
        """Request a review of a Pod's creation on a separate connection."""
        with contextlib.closing(self.connect()) as link:
            return self.review_on(link, pod)

    def review_on(
        self, link: http.client.HTTPSConnection, pod: dict[str, Any]
    ) -> dict[str, Any]:
        """Request a review of a Pod's creation and return the response."""
        answer = self.answer_on(link, pod)
        body = answer.read()
        assert answer.status == 200, body
        response: dict[str, Any] = json.loads(body)["response"]
        return response

    def answer_on(
        self, link: http.client.HTTPSConnection, pod: dict[str, Any]
    ) -> http.client.HTTPResponse:
        """Request a review of a Pod's creation and return the unread answer."""
        link.request(
            "POST",
            "/validate/fail",
            json.dumps(review_of(pod)),
            {"Content-Type": "application/json"},
        )
        return link.getresponse()

    def wait(self, holds: Callable[[], bool]) -> None:
        """Wait until ``holds``, and a failed request does not count."""

        def answers() -> bool:
            with contextlib.suppress(OSError, http.client.HTTPException):
                return holds()
            return False

        try:
            wait_for(answers)
        except AssertionError as error:
            raise AssertionError(self.errors()[-4000:]) from error

    def ready(self) -> bool:
        """Return whether the readiness probe holds."""
        return self.get("/health/readiness")[0] == 200

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(HANG_S)
        self.close()
        return code

    def close(self) -> None:
        """End the remaining processes of the group."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(HANG_S)


def review_of(pod: dict[str, Any]) -> dict[str, Any]:
    """Return an AdmissionReview of the creation of a Pod in ``default``."""
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "6a5d1c1e-0000-4000-8000-000000000001",
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "name": pod["metadata"]["name"],
            "namespace": "default",
            "operation": "CREATE",
            "userInfo": {"username": "alice", "groups": ["system:authenticated"]},
            "object": pod,
            "oldObject": None,
            "dryRun": False,
            "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
        },
    }


def pod(**labels: str) -> dict[str, Any]:
    """Return a small Pod."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default", "labels": labels},
        "spec": {"containers": [{"name": "c", "image": "example.org/c:1"}]},
    }


def require_label(name: str, label: str) -> str:
    """Return a policy, as YAML, that denies Pods without a label."""
    return f"""\
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata:
  name: {name}
spec:
  validationFailureAction: Enforce
  background: false
  rules:
  - name: has-label
    match:
      any:
      - resources:
          kinds: [Pod]
    validate:
      message: label {label} is required
      pattern:
        metadata:
          labels:
            {label}: "?*"
"""


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically: write a temporary file, then rename it."""
    aside = path.with_suffix(".tmp")
    aside.write_text(text)
    aside.rename(path)


def free_port(port: int) -> bool:
    """Return whether no process listens on a port any more."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0

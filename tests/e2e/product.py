"""Run kyverno-mp itself against a control plane, as one process tree of this machine.

Takes: a control plane. Gives: a running product that the API server calls at a loopback
address. For what deploy/ says there is kubelet.py; this is for what policies do.
May touch: processes, its folder, loopback ports, the namespace kyverno.
"""

import contextlib
import http.client
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.e2e.api import Api, Refused
from tests.e2e.control_plane import ControlPlane, Program, free_ports

NAMESPACE: Final = "kyverno"
_CONFIGURATIONS: Final = (
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
)
_PROJECT: Final = Path(__file__).resolve().parents[2]


class Product:
    """One kyverno-mp with one webhook worker; ``start`` and ``stop`` it."""

    def __init__(
        self,
        plane: ControlPlane,
        folder: Path,
        workers: int = 1,
        extra: Mapping[str, str] | None = None,
    ) -> None:
        """Take ``extra``: names of settings -> values on top."""
        self._access = plane.access
        self.port, self.health_port = free_ports(2)
        port = self.port
        settings = {
            "KUBECONFIG": str(plane.kubeconfig),
            "WEBHOOK_HOST": "127.0.0.1",
            "WEBHOOK_PORT": str(port),
            "HEALTH_HOST": "127.0.0.1",
            "HEALTH_PORT": str(self.health_port),
            "SERVER_IP": f"127.0.0.1:{port}",
            "WEBHOOK_WORKERS": str(workers),
            "RUNTIME_DIR": str(folder / "run"),
            "NAMESPACE": NAMESPACE,
            **(extra or {}),
        }
        given = [f"KYVERNO_MP_{name}={value}" for name, value in settings.items()]
        path = [f"PYTHONPATH={_PROJECT}"]
        serve = [sys.executable, "-m", "kyverno_mp", "serve"]
        command = ["/usr/bin/env", *path, *given, *serve]
        self.program = Program("kyverno-mp", command, folder)

    def start(self) -> None:
        """Start and wait until it is ready and called by the API server."""
        with Api(self._access) as api:
            with contextlib.suppress(Refused):
                made = {"metadata": {"name": NAMESPACE}}
                api.create("/api/v1/namespaces", made)
            self.program.start()
            try:
                self.program.wait_until("not ready", self._is_ready)
                self.program.wait_until(
                    "no webhooks", lambda: bool(api.get(_CONFIGURATIONS)["items"])
                )
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        """Stop as Kubernetes would."""
        self.program.stop(signal.SIGTERM)

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.health_port)
        with contextlib.suppress(OSError), contextlib.closing(connection):
            connection.request("GET", "/health/readiness")
            return connection.getresponse().status == 200
        return False

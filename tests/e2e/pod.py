"""Run one pod: its init containers, its containers, their probes.

Takes: the pod as the API server has it, its address and folder. Gives: processes, and
the status that a kubelet would write. Next: kubelet.py.
May touch: processes, the pod's folder, the pod's status.
Source: k8s.io/api core/v1 Pod; probes by httpGet and tcpSocket only, at the pod's
address. A readiness probe is asked each round, faster than its period, so that tests
need not wait; as in a kubelet, only failureThreshold failures in a row count.
"""

import contextlib
import datetime as dt
import http.client
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.e2e.api import Api
from tests.e2e.control_plane import GUARD
from tests.e2e.pod_environment import CannotStart, expand, resolve_environment

Image = Callable[[Mapping[str, Any]], Sequence[str]]
"""Container -> the command that replaces its image with its command and args."""
VOLUMES: Final = "volumes"
"""Name of the folder of volumes below a pod's folder."""
PROBE_S: Final = 1.0
RESTART_S: Final = 1.0
_KEPT: Final = ("PATH", "HOME", "LANG", "TMPDIR")


class Container:
    """One container: a process that is restarted when it ends."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.spec = spec
        self.name: str = spec["name"]
        self.process: subprocess.Popen[bytes] | None = None
        self.restarts = 0
        self.reason = "ContainerCreating"
        self.is_ready = False
        self.ended_at: float | None = None
        self.started_at = 0.0
        self.unhealthy = 0
        self.unready = 0
        self.probed_at = 0.0
        self.ready_asked_at = 0.0

    @property
    def is_running(self) -> bool:
        """Return whether the process is alive."""
        return self.process is not None and self.process.poll() is None


class Pod:
    """One pod with its processes."""

    def __init__(
        self,
        raw: Mapping[str, Any],
        address: str,
        folder: Path,
        image: Image,
        extra: Mapping[str, str],
    ) -> None:
        self.name: str = raw["metadata"]["name"]
        self.raw = raw
        self.address = address
        self.folder = folder
        self._image = image
        self._extra = extra
        spec = raw["spec"]
        self._waiting = [Container(one) for one in spec.get("initContainers") or []]
        self.containers = [Container(one) for one in spec["containers"]]
        self.asks_in_periods = False
        """Whether readiness probes have the period of the manifest."""
        self._written: Any = None
        self._asked_to_end: float | None = None

    def look_after(self, api: Api) -> None:
        """Start containers that are not running, and run the probes."""
        if self._waiting:
            self._initialise(self._waiting[0], api)
            return
        now = time.monotonic()
        for container in self.containers:
            if container.is_running:
                self._probe(container, now)
            elif container.process is not None and container.ended_at is None:
                container.ended_at = now
                container.is_ready = False
                container.reason = "CrashLoopBackOff"
            elif container.ended_at is None or now - container.ended_at > RESTART_S:
                container.restarts += container.ended_at is not None
                self._start(container, api)

    def end(self, now: float, grace_s: float) -> bool:
        """Terminate the processes; return True when all have ended.

        Processes that do not end in time are killed.
        """
        processes = [one.process for one in self.containers if one.process]
        if self._asked_to_end is None:
            self._asked_to_end = now
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
        if now - self._asked_to_end > grace_s:
            self.kill()
        return all(process.poll() is not None for process in processes)

    def kill(self) -> None:
        """Kill all running processes with their children."""
        for container in (*self._waiting, *self.containers):
            if container.process is not None and container.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(container.process.pid, signal.SIGKILL)
                container.process.wait()

    def log(self, container: str) -> str:
        """Return a container's log, of all its runs."""
        return (self.folder / f"{container}.log").read_text(errors="replace")

    def write_status(self, api: Api, path: str) -> None:
        """Write the status if it changed."""
        status = self._status()
        if status != self._written:
            api.patch(f"{path}/status", {"status": _with_times(status)}, "strategic")
            self._written = status

    def _initialise(self, container: Container, api: Api) -> None:
        if container.process is None:
            self._start(container, api)
        elif container.process.poll() == 0:
            self._waiting.pop(0)
        elif container.process.poll() is not None:
            container.restarts += 1
            container.process = None

    def _start(self, container: Container, api: Api) -> None:
        container.ended_at = None
        container.unhealthy = container.unready = 0
        try:
            given = resolve_environment(self.raw, container.spec, self.address, api)
        except CannotStart as error:
            container.reason = "CreateContainerConfigError"
            (self.folder / f"{container.name}.log").write_text(f"{error}\n")
            return
        # The program is the machine's, even if a volume is mounted over its path.
        program, *words = self._image(container.spec)
        words = [self._in_folder(expand(word, given)) for word in words]
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        paths = {name: self._in_folder(value) for name, value in given.items()}
        with (self.folder / f"{container.name}.log").open("ab") as log:
            container.process = subprocess.Popen(
                [sys.executable, str(GUARD), str(os.getpid()), program, *words],
                env={**kept, **paths, **self._extra},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        container.started_at = container.probed_at = time.monotonic()
        container.reason = ""

    def _in_folder(self, text: str) -> str:
        """Put the pod's folder in front of a path on one of its volumes."""
        for container in self.raw["spec"]["containers"]:
            for mount in container.get("volumeMounts") or []:
                place = mount["mountPath"].rstrip("/")
                if text == place or text.startswith(f"{place}/"):
                    folder = self.folder / VOLUMES / mount["name"]
                    folder.mkdir(parents=True, exist_ok=True)
                    return f"{folder}{text.removeprefix(place)}"
        return text

    def _probe(self, container: Container, now: float) -> None:
        spec = container.spec
        ready, alive = spec.get("readinessProbe"), spec.get("livenessProbe")
        period_s = (ready or {}).get("periodSeconds", 10) if self.asks_in_periods else 0
        if now - container.ready_asked_at < period_s:
            return
        container.ready_asked_at = now
        if ready is None or self._is_well(container, ready):
            container.is_ready, container.unready = True, 0
        else:
            container.unready += 1
            if container.unready >= ready.get("failureThreshold", 3):
                container.is_ready = False
        if alive is None or (not container.is_ready and spec.get("startupProbe")):
            return
        first = container.started_at + alive.get("initialDelaySeconds", 0)
        if now < first or now - container.probed_at < alive.get("periodSeconds", 10):
            return
        container.probed_at = now
        well = self._is_well(container, alive)
        container.unhealthy = 0 if well else container.unhealthy + 1
        if container.unhealthy >= alive.get("failureThreshold", 3):
            assert container.process is not None
            container.process.terminate()

    def _is_well(self, container: Container, probe: Mapping[str, Any]) -> bool:
        how = probe.get("httpGet") or probe.get("tcpSocket")
        if how is None:
            raise CannotStart(f"{container.name}: a probe of an unknown kind")
        port = _port(container.spec, how["port"])
        with contextlib.suppress(OSError, http.client.HTTPException):
            if "httpGet" not in probe:
                socket.create_connection((self.address, port), PROBE_S).close()
                return True
            return self._status_of(how, port) < 400  # as in a kubelet: 200 to 399
        return False

    def _status_of(self, how: Mapping[str, Any], port: int) -> int:
        connection = http.client.HTTPConnection(self.address, port, timeout=PROBE_S)
        if how.get("scheme") == "HTTPS":
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE  # as in a kubelet
            connection = http.client.HTTPSConnection(
                self.address, port, timeout=PROBE_S, context=context
            )
        with contextlib.closing(connection):
            connection.request("GET", how.get("path", "/"))
            return connection.getresponse().status

    def _status(self) -> dict[str, Any]:
        is_ready = not self._waiting and all(one.is_ready for one in self.containers)
        ready = "True" if is_ready else "False"
        return {
            "phase": "Pending" if self._waiting else "Running",
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Initialized", "status": str(not self._waiting)},
                {"type": "ContainersReady", "status": ready},
                {"type": "Ready", "status": ready},
            ],
            "containerStatuses": [
                {
                    "name": one.name,
                    "image": one.spec["image"],
                    "imageID": "",
                    "ready": one.is_ready,
                    "restartCount": one.restarts,
                    "state": {"running": {}}
                    if one.is_running
                    else {"waiting": {"reason": one.reason}},
                }
                for one in self.containers
            ],
        }


def _with_times(status: dict[str, Any]) -> dict[str, Any]:
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = [{**one, "lastTransitionTime": now} for one in status["conditions"]]
    return {**status, "startTime": now, "conditions": conditions}


def _port(container: Mapping[str, Any], port: int | str) -> int:
    if isinstance(port, int):
        return port
    return next(
        int(one["containerPort"])
        for one in container.get("ports") or []
        if one.get("name") == port
    )

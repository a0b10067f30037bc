"""Create Pods by dry run through an API server, with any number of clients.

Shared by perf/{apiserver,duel,memory,soak}.py; wrk with perf/wrk_create.lua does
the work.
"""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from perf.reviews import REVIEWS
from perf.servers import ROOT, Unready
from tests.e2e.control_plane import ControlPlane

_JUDGED, _LEFT_OUT = "default", "kube-system"
_WAIT_S: Final = 60
"""Time-out of a request in seconds; a webhook has 10 s."""
_CLIENTS_A_SECOND: Final = 40
"""With many clients a run is longer, so that each client gets several answers."""


@dataclass(frozen=True)
class Run:
    """One run of wrk. ``what``: its webhook, i.e. absent, left out, bare or judged."""

    what: str
    clients: int
    pods_per_s: float
    p50_ms: float
    p99_ms: float
    refused: int
    broken: int
    timeouts: int


class Load:
    """Creates Pods by dry run."""

    def __init__(
        self,
        plane: ControlPlane,
        folder: Path,
        seconds: int,
        *,
        named: bool = True,
        dry_run: bool = True,
    ) -> None:
        """``named``: all Pods have one name; otherwise the API server makes names."""
        self._server = plane.server
        self._seconds = seconds
        self._query = "?dryRun=All" if dry_run else ""
        self._body, self._bare = folder / "pod.json", folder / "bare-pod.json"
        pod = conforming_pod()
        if not named:
            pod["metadata"]["generateName"] = f"{pod['metadata'].pop('name')}-"
        self._body.write_text(json.dumps(pod))
        pod["metadata"]["labels"] = {**pod["metadata"]["labels"], "perf": "bare"}
        self._bare.write_text(json.dumps(pod))
        self._token = folder / "token"
        self._token.touch(mode=0o600)
        self._token.write_text(plane.access.token)

    def seconds_of(self, clients: int) -> int:
        """Return how long a run lasts."""
        return max(self._seconds, clients // _CLIENTS_A_SECOND)

    def run(self, what: str, clients: int) -> Run:
        """Load the API server with a number of clients. Raises: Unready."""
        namespace = _LEFT_OUT if what in ("left out", "bare") else _JUDGED
        body = self._bare if what == "bare" else self._body
        seconds = self.seconds_of(clients)
        done = subprocess.run(
            [
                *("wrk", "-t1", f"-c{clients}", f"-d{seconds}s"),
                *("--timeout", f"{_WAIT_S}s"),
                *("-s", str(ROOT / "perf" / "wrk_create.lua")),
                f"{self._server}/api/v1/namespaces/{namespace}/pods{self._query}",
            ],
            env={
                **os.environ,
                "PERF_BODY": str(body),
                "PERF_TOKEN": str(self._token),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        _, found, line = done.stdout.rpartition("@")
        if not found:
            raise Unready(f"wrk failed: {done.stderr or done.stdout}")
        printed = json.loads(line)
        if not printed["requests"]:
            raise Unready(f"nothing was answered: {printed}")
        return Run(
            what=what,
            clients=clients,
            pods_per_s=printed["requests"] / printed["seconds"],
            p50_ms=printed["p50_ms"],
            p99_ms=printed["p99_ms"],
            refused=printed["refused"],
            broken=printed["broken"],
            timeouts=printed["timeouts"],
        )


def conforming_pod() -> dict[str, Any]:
    """Return a Pod that the Pod Security policies allow."""
    pod = dict(REVIEWS["allowed"][0]["request"]["object"])
    pod["metadata"] = {
        name: value
        for name, value in pod["metadata"].items()
        if name in ("name", "labels", "annotations")
    }
    return pod

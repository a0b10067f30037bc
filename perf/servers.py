"""Start kyverno-mp and the bare app for measurements, load them, write the results.

Shared by perf/{admission,language,scale,memory}.py.
"""

import json
import os
import platform
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
# Python searches the imports of a script only in the script's own folder.
sys.path.insert(0, str(ROOT))

from kyverno_mp.process.startup.certificate import make as make_certificate  # noqa: E402
from kyverno_mp.telemetry.page import View  # noqa: E402
from tests.ports import free_port  # noqa: E402

VALIDATE, MUTATE = "/validate/fail?timeout=10s", "/mutate/fail?timeout=10s"
_START_S_MAX = 180.0


@dataclass(frozen=True)
class Round:
    """One run of wrk against one server."""

    server: str
    scenario: str
    reviews_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    """CPU time of all processes of the server per review."""


class Unready(Exception):
    """A server did not start, or its answer was unexpected."""


def missing_tools() -> str:
    """Return the reason why this machine cannot measure, "" if it can."""
    if shutil.which("wrk") is None:
        return "wrk is not installed (Debian: apt-get install wrk)"
    if (os.cpu_count() or 1) < 2:
        return "two cores are needed: one for the server, one for wrk"
    return ""


def default_policies() -> Path:
    """Return the project's own Pod Security policies, 17 of them."""
    return ROOT / "config" / "samples" / "policies"


@dataclass(frozen=True)
class Server:
    """A running server."""

    name: str
    port: int
    process: psutil.Process
    folder: Path
    """The folder of its log and its runtime folder ``run``."""

    def cpu_s(self) -> float:
        """Return the CPU time of its processes up to now."""
        total = 0.0
        for process in [self.process, *self.process.children(recursive=True)]:
            times = process.cpu_times()
            total += times.user + times.system
        return total


@contextmanager
def kyverno_mp(
    policies: Path, folder: Path, *, core: int | None, workers: int = 1
) -> Iterator[Server]:
    """Run kyverno-mp on one core; its runtime folder is ``run`` below ``folder``.

    ``core`` None = any core.
    """
    files = make_certificate(folder, "kyverno")
    port = free_port()
    command = [
        *(sys.executable, "-m", "kyverno_mp", "serve", "--standalone"),
        *("--policies", str(policies.resolve()), "--workers", str(workers)),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--health-host", "127.0.0.1", "--health-port", str(free_port())),
        *("--runtime-dir", str(folder / "run"), "--log-level", "error"),
        "--allow-empty",
        *("--tls-cert", str(files.cert), "--tls-key", str(files.key)),
    ]
    # As in a cluster, which is what the figures are for.
    settings = {"KYVERNO_MP_DASHBOARD": "false"}
    with running(core, "kyverno-mp", command, port, settings, folder) as server:
        yield server


@contextmanager
def bare(
    folder: Path, *, core: int | None = None, workers: int = 1
) -> Iterator[Server]:
    """Run the bare app, with one worker on one core; it returns ``answer.json``."""
    files = make_certificate(folder, "kyverno")
    port = free_port()
    command = [
        *(sys.executable, "-m", "gunicorn", "-k", "asgi", "-w", str(workers)),
        *("--bind", f"127.0.0.1:{port}", "--keep-alive", "300"),
        *("--certfile", str(files.cert), "--keyfile", str(files.key)),
        *("--log-level", "error", "perf.bare_app:app"),
    ]
    environment = {"PERF_ANSWER": str(folder / "answer.json")}
    with running(core, "bare", command, port, environment, folder) as server:
        yield server


@contextmanager
def running(
    core: int | None,
    name: str,
    command: list[str],
    port: int,
    environment: dict[str, str],
    folder: Path,
) -> Iterator[Server]:
    """Start a server, wait until it accepts connections, stop it at the end.

    ``core`` None = any core.
    """
    pinned = [] if core is None else ["taskset", "-c", str(core)]
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*pinned, *command],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=output,
            stderr=output,
        )
    try:
        end = time.monotonic() + _START_S_MAX
        while not accepts(port):
            if process.poll() is not None or time.monotonic() > end:
                tail = log.read_text(errors="replace")[-2000:]
                raise Unready(f"{name} did not start:\n{tail}")
            time.sleep(0.1)
        yield Server(name, port, psutil.Process(process.pid), folder)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def accepts(port: int) -> bool:
    """Return whether a server listens."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def ask(port: int, body: Path, path: str = VALIDATE) -> dict[str, Any]:
    """Post the review once; retry until the server has its policies."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    request = urllib.request.Request(
        f"https://127.0.0.1:{port}{path}",
        data=body.read_bytes(),
        headers={"Content-Type": "application/json"},
    )
    end = time.monotonic() + _START_S_MAX
    while True:
        try:
            with urllib.request.urlopen(request, context=context, timeout=10) as reply:
                answer: dict[str, Any] = json.loads(reply.read())
                return answer
        except (urllib.error.URLError, OSError) as error:
            if time.monotonic() > end:
                raise Unready(f"no answer from port {port}: {error}") from error
            time.sleep(0.2)


def load(  # noqa: PLR0913 - what one run of wrk takes, mostly by keyword
    server: Server,
    scenario: str,
    body: Path,
    *,
    core: int,
    connections: int,
    seconds: float,
    path: str = VALIDATE,
) -> Round:
    """Run wrk once."""
    before_s = server.cpu_s()
    done = subprocess.run(
        [
            *("taskset", "-c", str(core), "wrk", "-t1"),
            *(f"-c{connections}", f"-d{seconds:g}s"),
            *("-s", str(ROOT / "perf" / "wrk_review.lua")),
            f"https://127.0.0.1:{server.port}{path}",
        ],
        env={**os.environ, "PERF_BODY": str(body)},
        capture_output=True,
        text=True,
        check=False,
    )
    cpu_s = server.cpu_s() - before_s
    _, found, line = done.stdout.rpartition("@")
    if not found:
        raise Unready(f"wrk failed: {done.stderr or done.stdout}")
    printed = json.loads(line)
    if printed["failed"] or not printed["requests"]:
        raise Unready(
            f"{server.name}: {printed['failed']} of {printed['requests']} failed"
        )
    return Round(
        server=server.name,
        scenario=scenario,
        reviews_per_s=printed["requests"] / printed["seconds"],
        p50_ms=printed["p50_ms"],
        p99_ms=printed["p99_ms"],
        cpu_us=cpu_s / printed["requests"] * 1e6,
    )


def machine() -> dict[str, Any]:
    """Return the machine and the commit of the measurement."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "commit": commit,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "python": platform.python_version(),
        "kernel": platform.release(),
    }


@dataclass(frozen=True)
class Memory:
    """The memory of one process; ``uss``: its own, ``pss``: with shares of the rest."""

    name: str
    pid: int
    uss_mb: float
    pss_mb: float
    rss_mb: float


def roles_of(server: Server) -> dict[int, str]:
    """Return the role of each process of a server by its id, the parent first."""
    workers = {worker.pid for worker in workers_of(server)}
    leaders = {view.pid for view in pages_of(server) if view.role == "leader"}
    found = {}
    for process in [server.process, *server.process.children(recursive=True)]:
        if process.pid in workers:
            name = "worker"
        elif process.pid == server.process.pid:
            name = "supervisor"
        elif process.pid in leaders:
            name = "leader"
        else:
            name = "arbiter" if process.children() else "health"
        found[process.pid] = name
    return found


def memory_of(server: Server) -> list[Memory]:
    """Return the memory of each process of a server, the parent first."""
    found = []
    for pid, name in roles_of(server).items():
        held = psutil.Process(pid).memory_full_info()
        found.append(
            Memory(
                name=name,
                pid=pid,
                uss_mb=held.uss / 2**20,
                pss_mb=held.pss / 2**20,
                rss_mb=held.rss / 2**20,
            )
        )
    return found


def pages_of(server: Server) -> list[View]:
    """Return the metric pages of the server's processes."""
    return [View(path) for path in sorted((server.folder / "run/pages").glob("*.page"))]


def workers_of(server: Server) -> list[psutil.Process]:
    """Return the webhook's workers: the grandchildren, below the arbiter."""
    return [
        worker
        for child in server.process.children()
        for worker in child.children(recursive=True)
    ]


def write_result(name: str, content: dict[str, Any], path: Path | None = None) -> None:
    """Write JSON, below perf/results unless a path is given."""
    target = path or ROOT / "perf" / "results" / f"{name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"machine": machine(), **content}, indent=2)
    target.write_text(text + "\n", encoding="utf-8")


def cpu_model() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.processor()

"""Measure reviews a second of kyverno-mp beside a bare Gunicorn + Falcon app.

Both serve TLS with one worker on one core; wrk loads them from another core over
keep-alive connections, in turns, so that a noisy machine is unfair to both alike. The
ratio travels between machines, the absolute figures do not. CPU time a review is told
as well: it hardly changes when other programs take part of the core.

    python perf/admission.py --policies DIR [--check] [--json FILE]
"""

import argparse
import json
import os
import platform
import shutil
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
# As a script, Python looks for imports beside this file only.
sys.path.insert(0, str(ROOT))

from kyverno_mp.process.certificate import make as make_certificate  # noqa: E402
from perf.reviews import REVIEWS  # noqa: E402

_PATH = "/validate/fail?timeout=10s"
_START_S_MAX = 60.0


@dataclass(frozen=True)
class Round:
    """One run of wrk against one server."""

    server: str
    scenario: str
    reviews_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    """CPU time of all processes of the server, for one review."""


class Unready(Exception):
    """A server did not come up, or answered otherwise than expected."""


def main(arguments: list[str] | None = None) -> int:
    """Run the measurement; 0 = fine, 1 = a threshold is missed, 2 = cannot measure."""
    args = parse(arguments)
    if shutil.which("wrk") is None:
        print("wrk is not installed (Debian: apt-get install wrk); nothing measured")
        return 2
    if (os.cpu_count() or 1) < 2:
        print("two cores are needed: one for the server, one for wrk")
        return 2
    try:
        rounds = [r for name in args.scenarios for r in measure(args, name)]
    except Unready as error:
        print(f"cannot measure: {error}")
        return 2
    rows = summarise(rounds)
    print_table(rows)
    if args.json:
        args.json.write_text(json.dumps(record(args, rounds, rows), indent=2) + "\n")
    return check(args, rows) if args.check else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--policies", type=Path, default=default_policies())
    parser.add_argument("--scenarios", nargs="+", default=list(REVIEWS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--server-core", type=int, default=0)
    parser.add_argument("--load-core", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    parser.add_argument("--check", action="store_true", help="fail below thresholds")
    parser.add_argument("--ratio-min", type=float, default=0.6)
    parser.add_argument("--p99-ms-max", type=float, default=10.0)
    args = parser.parse_args(arguments)
    if args.policies is None or not args.policies.is_dir():
        parser.error("--policies: give the folder with the policies")
    return args


def default_policies() -> Path | None:
    """Return the project's own Pod Security policies when they are there."""
    for found in sorted((ROOT / "config").glob("**/pod-security")):
        if found.is_dir():
            return found
    return None


def measure(args: argparse.Namespace, scenario: str) -> Iterator[Round]:
    """Load both servers in turns, after a second of warm-up each."""
    review, allowed = REVIEWS[scenario]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        body = folder / "review.json"
        body.write_bytes(json.dumps(review, separators=(",", ":")).encode())
        files = make_certificate(folder, "kyverno")
        tls = {"cert": str(files.cert), "key": str(files.key)}
        with kyverno_mp(args, folder, tls) as ours:
            answer = ask(ours.port, body)
            if answer["response"]["allowed"] is not allowed:
                raise Unready(f"{scenario}: unexpected answer {answer['response']}")
            (folder / "answer.json").write_text(json.dumps(answer))
            with bare(args, folder, tls) as yardstick:
                ask(yardstick.port, body)
                servers = [yardstick, ours]
                for server in servers:
                    load(args, server, scenario, body, seconds=1)
                for _ in range(args.rounds):
                    for server in servers:
                        yield load(args, server, scenario, body, seconds=args.seconds)


@dataclass(frozen=True)
class Server:
    """A running server."""

    name: str
    port: int
    process: psutil.Process

    def cpu_s(self) -> float:
        """Return the CPU time of its processes up to now."""
        total = 0.0
        for process in [self.process, *self.process.children(recursive=True)]:
            times = process.cpu_times()
            total += times.user + times.system
        return total


@contextmanager
def kyverno_mp(
    args: argparse.Namespace, folder: Path, tls: dict[str, str]
) -> Iterator[Server]:
    """Run kyverno-mp with one worker on the server's core."""
    port = free_port()
    command = [
        *(sys.executable, "-m", "kyverno_mp", "serve", "--standalone"),
        *("--policies", str(args.policies.resolve()), "--workers", "1"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--health-host", "127.0.0.1", "--health-port", str(free_port())),
        *("--runtime-dir", str(folder / "run"), "--log-level", "error"),
        *("--tls-cert", tls["cert"], "--tls-key", tls["key"]),
    ]
    with running(args, "kyverno-mp", command, port, {}, folder) as server:
        yield server


@contextmanager
def bare(
    args: argparse.Namespace, folder: Path, tls: dict[str, str]
) -> Iterator[Server]:
    """Run the bare app with one worker on the same core."""
    port = free_port()
    command = [
        *(sys.executable, "-m", "gunicorn", "-k", "asgi", "-w", "1"),
        *("--bind", f"127.0.0.1:{port}", "--keep-alive", "300"),
        *("--certfile", tls["cert"], "--keyfile", tls["key"]),
        *("--log-level", "error", "perf.bare_app:app"),
    ]
    environment = {"PERF_ANSWER": str(folder / "answer.json")}
    with running(args, "bare", command, port, environment, folder) as server:
        yield server


@contextmanager
def running(
    args: argparse.Namespace,
    name: str,
    command: list[str],
    port: int,
    environment: dict[str, str],
    folder: Path,
) -> Iterator[Server]:
    """Start a server, wait until it takes connections, stop it at the end."""
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["taskset", "-c", str(args.server_core), *command],
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
        yield Server(name, port, psutil.Process(process.pid))
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def accepts(port: int) -> bool:
    """Tell whether something listens."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def ask(port: int, body: Path) -> dict[str, Any]:
    """Post the review once; waits until the server has its policies."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    request = urllib.request.Request(
        f"https://127.0.0.1:{port}{_PATH}",
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


def load(
    args: argparse.Namespace,
    server: Server,
    scenario: str,
    body: Path,
    *,
    seconds: float,
) -> Round:
    """Run wrk once."""
    before_s = server.cpu_s()
    done = subprocess.run(
        [
            *("taskset", "-c", str(args.load_core), "wrk", "-t1"),
            *(f"-c{args.connections}", f"-d{seconds:g}s"),
            *("-s", str(ROOT / "perf" / "wrk_review.lua")),
            f"https://127.0.0.1:{server.port}{_PATH}",
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
    told = json.loads(line)
    if told["failed"] or not told["requests"]:
        raise Unready(f"{server.name}: {told['failed']} of {told['requests']} failed")
    return Round(
        server=server.name,
        scenario=scenario,
        reviews_per_s=told["requests"] / told["seconds"],
        p50_ms=told["p50_ms"],
        p99_ms=told["p99_ms"],
        cpu_us=cpu_s / told["requests"] * 1e6,
    )


def summarise(rounds: list[Round]) -> list[dict[str, Any]]:
    """Return one row a scenario and server: the medians of its rounds."""
    rows = []
    for scenario in dict.fromkeys(r.scenario for r in rounds):
        base: dict[str, Any] = {}
        for server in ("bare", "kyverno-mp"):
            chosen = [r for r in rounds if (r.scenario, r.server) == (scenario, server)]
            row: dict[str, Any] = {"scenario": scenario, "server": server}
            for key in ("reviews_per_s", "p50_ms", "p99_ms", "cpu_us"):
                row[key] = statistics.median(getattr(r, key) for r in chosen)
            base = base or row
            row["ratio"] = row["reviews_per_s"] / base["reviews_per_s"]
            row["cpu_ratio"] = base["cpu_us"] / row["cpu_us"]
            rows.append(row)
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print the rows."""
    print(
        f"{'scenario':<10}{'server':<12}{'reviews/s':>10}{'p50 ms':>9}{'p99 ms':>9}"
        f"{'CPU us':>9}{'ratio':>8}{'by CPU':>8}"
    )
    for row in rows:
        print(
            f"{row['scenario']:<10}{row['server']:<12}{row['reviews_per_s']:>10.0f}"
            f"{row['p50_ms']:>9.2f}{row['p99_ms']:>9.2f}{row['cpu_us']:>9.1f}"
            f"{row['ratio']:>8.2f}{row['cpu_ratio']:>8.2f}"
        )


def record(
    args: argparse.Namespace, rounds: list[Round], rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return all numbers with what they were measured on."""
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
        "machine": {
            "cpu": cpu_model(),
            "cores": os.cpu_count(),
            "load_average": os.getloadavg(),
            "python": platform.python_version(),
            "kernel": platform.release(),
        },
        "method": {
            "policies": len(list(args.policies.rglob("*.yaml"))),
            "connections": args.connections,
            "seconds": args.seconds,
            "rounds": args.rounds,
            "words": "TLS, HTTP/1.1 keep-alive, one worker on one core, wrk on another,"
            " rounds in turns, medians",
        },
        "rounds": [asdict(r) for r in rounds],
        "rows": rows,
    }


def cpu_model() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.processor()


def check(args: argparse.Namespace, rows: list[dict[str, Any]]) -> int:
    """Return 1 when a threshold is missed; it holds for the first scenario."""
    ours = next(row for row in rows if row["server"] == "kyverno-mp")
    missed = []
    if ours["ratio"] < args.ratio_min:
        missed.append(f"ratio {ours['ratio']:.2f} is below {args.ratio_min:g}")
    if ours["p99_ms"] > args.p99_ms_max:
        missed.append(f"p99 {ours['p99_ms']:.1f} ms is above {args.p99_ms_max:g} ms")
    for text in missed:
        print(f"missed: {ours['scenario']}: {text}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

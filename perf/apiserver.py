"""Measure what kyverno-mp adds to Pod creation, through a real kube-apiserver.

etcd, kube-apiserver, kube-controller-manager, kyverno-mp and wrk share this machine.
wrk creates Pods with ``dryRun=All``. Each measurement runs between two runs with the
same load on a namespace that the webhook excludes, and the added time is the
difference, so a noisy machine affects both alike. The bare Gunicorn + Falcon app,
registered as a webhook, shows the cost of any webhook. A baseline without any webhook
is taken before and after.

    python perf/apiserver.py [--set vpol-pss] [--clients 1 10 100 500] [--workers 2]
        [--check]
"""

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

# Python searches the imports of a script only in the script's own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil

from perf.cluster import (
    bare_webhook,
    control_plane,
    create,
    in_cluster,
    reviews_of,
)
from perf.create import Load, Run
from perf.policy_sets import SETS
from perf.servers import (
    Server,
    Unready,
    default_policies,
    memory_of,
    missing_tools,
    pages_of,
    roles_of,
    write_result,
)
from tests.e2e.api import Api
from tests.e2e.control_plane import ControlPlane

_SAMPLE_S: Final = 0.1


@dataclass(frozen=True)
class Inside:
    """The cost of a run with the webhook, and the distribution of its load."""

    clients: int
    reviews: float
    webhook_ms: float
    """Mean time of the webhook, measured by the API server."""
    cpu_us: dict[str, float]
    """CPU time of each role per review, and of ``kube-apiserver``."""
    connections: dict[int, float]
    """Mean number of open connections, by worker."""
    share_of_connections: float
    """The busiest worker's share of the connections, relative to its fair share."""
    share_of_reviews: float


def main(arguments: list[str] | None = None) -> int:
    """Run the measurement; 0 = fine, 1 = a target is missed, 2 = cannot measure."""
    args = parse(arguments)
    missing = missing_tools()
    if missing:
        print(f"{missing}; nothing measured")
        return 2
    try:
        with tempfile.TemporaryDirectory(prefix="kyverno-mp-perf-") as name:
            found = measure(args, Path(name))
    except Unready as error:
        print(f"cannot measure: {error}")
        return 2
    rows = summarise(found)
    print_tables(rows, found)
    write_result("apiserver", {**found, "rows": rows}, args.json)
    return check(args, rows) if args.check else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--policies", type=Path, default=default_policies())
    parser.add_argument("--set", choices=SETS, default="policies")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 10, 100, 500])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="instead of perf/results")
    parser.add_argument(
        "--check", action="store_true", help="fail when a target is missed"
    )
    parser.add_argument("--added-p50-ms-max", type=float, default=2.0)
    parser.add_argument(
        "--added-at", type=int, default=10, help="clients at the target"
    )
    parser.add_argument("--share-max", type=float, default=2.0)
    return parser.parse_args(arguments)


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return all runs and the figures from inside the processes."""
    runs: list[Run] = []
    inside: list[Inside] = []
    policies = SETS[args.set](args.policies)
    with control_plane(folder) as plane:
        load = Load(plane, folder, args.seconds)
        load.run("absent", 10)
        runs += [load.run("absent", count) for count in args.clients]
        with (
            Api(plane.access) as api,
            in_cluster(plane, folder, args.workers) as server,
            bare_webhook(api, folder, args.workers),
        ):
            create(api, policies)
            for count in args.clients:
                load.run("judged", count)
                for _ in range(args.rounds):
                    runs.append(load.run("left out", count))
                    with watched(server, plane, api, count) as seen:
                        runs.append(load.run("judged", count))
                    inside.append(seen[0])
                    runs.append(load.run("left out", count))
                    runs.append(load.run("bare", count))
                runs.append(load.run("left out", count))
            memory = [asdict(one) for one in memory_of(server)]
        runs += [load.run("absent", count) for count in args.clients]
    return {
        "method": {
            "set": args.set,
            "policies": len(policies),
            "workers": args.workers,
            "seconds": args.seconds,
            "rounds": args.rounds,
        },
        "runs": [asdict(one) for one in runs],
        "inside": [asdict(one) for one in inside],
        "memory": memory,
    }


@contextmanager
def watched(
    server: Server, plane: ControlPlane, api: Api, clients: int
) -> Iterator[list[Inside]]:
    """Watch our processes while the block runs; the list then has the result."""
    roles = {**roles_of(server), plane.apiserver.pid: "kube-apiserver"}
    cpu, reviews, calls = cpu_of(roles), reviews_by_worker(server), calls_of(api)
    sampler = Sampler(server)
    seen: list[Inside] = []
    with sampler:
        yield seen
    reviews = {
        pid: count - reviews.get(pid, 0.0)
        for pid, count in reviews_by_worker(server).items()
    }
    total = sum(reviews.values()) or 1.0
    spent: dict[str, float] = {}
    for pid, seconds in cpu_of(roles).items():
        name = roles[pid]
        spent[name] = spent.get(name, 0.0) + (seconds - cpu.get(pid, 0.0)) / total * 1e6
    number, took_s = (a - b for a, b in zip(calls_of(api), calls, strict=True))
    seen.append(
        Inside(
            clients=clients,
            reviews=total,
            webhook_ms=took_s / (number or 1.0) * 1e3,
            cpu_us=spent,
            connections=sampler.means(),
            share_of_connections=largest_share(sampler.means()),
            share_of_reviews=largest_share(reviews),
        )
    )


class Sampler(threading.Thread):
    """Counts the established connections of each worker repeatedly."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._sums: dict[int, float] = {}
        self._samples = 0
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        """Begin."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._ended.set()
        self.join()

    def run(self) -> None:
        """Count until the end."""
        while not self._ended.wait(_SAMPLE_S):
            self._samples += 1
            for page in pages_of(self._server):
                if page.role == "webhook" and page.alive():
                    open_now = page.gauge("connections")
                    self._sums[page.pid] = self._sums.get(page.pid, 0.0) + open_now

    def means(self) -> dict[int, float]:
        """Return the mean number of connections by worker."""
        return {pid: total / (self._samples or 1) for pid, total in self._sums.items()}


def reviews_by_worker(server: Server) -> dict[int, float]:
    """Return the number of reviews answered by each running worker."""
    return {
        page.pid: reviews_of(page)
        for page in pages_of(server)
        if page.role == "webhook" and page.alive()
    }


def largest_share(parts: dict[int, float]) -> float:
    """Return the largest share relative to the fair share; 1 = equal shares.

    With fewer connections than workers, one connection is a fair share.
    """
    fair = max(1.0, sum(parts.values()) / (len(parts) or 1))
    return max(parts.values(), default=1.0) / fair


def cpu_of(roles: dict[int, str]) -> dict[int, float]:
    """Return the CPU time of processes. Unit: seconds."""
    found = {}
    for pid in roles:
        times = psutil.Process(pid).cpu_times()
        found[pid] = times.user + times.system
    return found


def calls_of(api: Api) -> tuple[float, float]:
    """Return the number and total time of the API server's validating webhook calls."""
    name = "apiserver_admission_webhook_admission_duration_seconds"
    count = total = 0.0
    _, text = api.ask("GET", "/metrics")
    for line in str(text).splitlines():
        if line.startswith(f"{name}_count"):
            count += float(line.rpartition(" ")[2])
        elif line.startswith(f"{name}_sum"):
            total += float(line.rpartition(" ")[2])
    return count, total


def summarise(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one row for each number of clients."""
    rows = []
    for clients in dict.fromkeys(run["clients"] for run in found["runs"]):
        runs = [run for run in found["runs"] if run["clients"] == clients]
        added, bare = added_by("judged", runs), added_by("bare", runs)
        absent = [run for run in runs if run["what"] == "absent"]
        judged = [run for run in runs if run["what"] == "judged"]
        left_out = [run for run in runs if run["what"] == "left out"]
        inside = [one for one in found["inside"] if one["clients"] == clients]
        rows.append(
            {
                "clients": clients,
                "absent_before_p50_ms": absent[0]["p50_ms"],
                "absent_after_p50_ms": absent[-1]["p50_ms"],
                "left_out_p50_ms": median(left_out, "p50_ms"),
                "left_out_p99_ms": median(left_out, "p99_ms"),
                "judged_p50_ms": median(judged, "p50_ms"),
                "judged_p99_ms": median(judged, "p99_ms"),
                "added_p50_ms": median(added, "p50_ms"),
                "added_p99_ms": median(added, "p99_ms"),
                "bare_added_p50_ms": median(bare, "p50_ms"),
                "left_out_pods_per_s": median(left_out, "pods_per_s"),
                "judged_pods_per_s": median(judged, "pods_per_s"),
                "refused": sum(run["refused"] + run["broken"] for run in judged),
                "timeouts": sum(run["timeouts"] for run in judged),
                "webhook_ms": median(inside, "webhook_ms"),
                "share_of_connections": max(o["share_of_connections"] for o in inside),
                "share_of_reviews": max(o["share_of_reviews"] for o in inside),
            }
        )
    return rows


def added_by(what: str, runs: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Return the difference between each run and the mean of its neighbours."""
    return [
        {
            key: here[key] - (before[key] + after[key]) / 2
            for key in ("p50_ms", "p99_ms")
        }
        for before, here, after in zip(runs, runs[1:], runs[2:], strict=False)
        if here["what"] == what
    ]


def median(runs: list[dict[str, Any]], key: str) -> float:
    """Return the median of one figure."""
    return float(statistics.median(run[key] for run in runs))


def print_tables(rows: list[dict[str, Any]], found: dict[str, Any]) -> None:
    """Print latency and spread by clients, then CPU and memory by role."""
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(
        f"{'clients':>7} | p50 ms {'absent':>7}{'left out':>9}{'judged':>8}{'added':>8}"
        f"{'by bare':>8} | p99 ms {'left out':>8}{'judged':>8}{'added':>8}"
        f" | {'Pods/s':>7}{'without':>8} | {'failed':>6}{'timeouts':>9}"
        f" | share of {'conn.':>6}{'reviews':>8} | webhook ms"
    )
    for row in rows:
        absent = (row["absent_before_p50_ms"] + row["absent_after_p50_ms"]) / 2
        print(
            f"{row['clients']:>7} | {'':>6} {absent:>7.1f}"
            f"{row['left_out_p50_ms']:>9.1f}{row['judged_p50_ms']:>8.1f}"
            f"{row['added_p50_ms']:>+8.1f}{row['bare_added_p50_ms']:>+8.1f} | {'':>6}"
            f" {row['left_out_p99_ms']:>8.1f}{row['judged_p99_ms']:>8.1f}"
            f"{row['added_p99_ms']:>+8.1f} | {row['judged_pods_per_s']:>7.0f}"
            f"{row['left_out_pods_per_s']:>8.0f} | {row['refused']:>6}"
            f"{row['timeouts']:>9} | {'':>8} {row['share_of_connections']:>6.2f}"
            f"{row['share_of_reviews']:>8.2f} | {row['webhook_ms']:>10.2f}"
        )
    print("\nCPU a review, microseconds")
    for one in found["inside"]:
        shown = ", ".join(f"{name} {us:.0f}" for name, us in one["cpu_us"].items())
        spread = ", ".join(f"{mean:.1f}" for mean in one["connections"].values())
        print(f"{one['clients']:>7} clients: {shown}; connections {spread}")
    print("\nmemory, MiB (PSS)")
    for one in found["memory"]:
        print(f"{one['name']:>12} {one['pss_mb']:>7.1f}")
    print(f"{'sum':>12} {sum(one['pss_mb'] for one in found['memory']):>7.1f}")


def check(args: argparse.Namespace, rows: list[dict[str, Any]]) -> int:
    """Return 1 when a target is missed."""
    missed = []
    for row in rows:
        clients = row["clients"]
        if clients == args.added_at and row["added_p50_ms"] > args.added_p50_ms_max:
            missed.append(f"{clients} clients: p50 {row['added_p50_ms']:+.1f} ms")
        if row["timeouts"] or row["refused"]:
            missed.append(f"{clients} clients: requests failed")
        if row["share_of_connections"] > args.share_max:
            share = row["share_of_connections"]
            missed.append(f"{clients} clients: a worker took {share:.1f} of its share")
    for text in missed:
        print(f"missed: {text}")
    return 1 if missed else 0


if __name__ == "__main__":
    started = time.monotonic()
    code = main()
    print(f"took {time.monotonic() - started:.0f} s")
    sys.exit(code)

"""Measure the memory of each kyverno-mp process, and the cost of one more worker.

Proportional set size (PSS) divides a page among the processes that map it, so its sum
is the memory in use; unique set size (USS) is the memory of one process alone. Both are
read after reviews went through every worker. ``--cluster`` measures beside a real API
server with many policies and namespaces. ``--changes`` measures whether a worker and
the leader grow with changes of policies and with reviews that never recur.

    python perf/memory.py [--policies DIR] [--short] [--check] [--json FILE]
    python perf/memory.py --cluster [--policy-count 100] [--namespaces 2000] [--check]
    python perf/memory.py --changes [--short] [--check]
"""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

# Python searches the imports of a script only in the script's own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf.cluster import (
    control_plane,
    create,
    documents,
    in_cluster,
    many_namespaces,
    many_policies,
)
from perf.create import Load
from perf.growth import LONG, SHORT, grown, measure_growth
from perf.reviews import REVIEWS
from perf.servers import (
    Memory,
    Unready,
    ask,
    default_policies,
    kyverno_mp,
    load,
    memory_of,
    missing_tools,
    write_result,
)
from tests.e2e.api import Api


def main(arguments: list[str] | None = None) -> int:
    """Run the measurement; 0 = fine, 1 = a threshold is missed, 2 = cannot measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--policies", type=Path, default=default_policies())
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="instead of perf/results")
    parser.add_argument("--short", action="store_true", help="1 and 2 workers, 2 s")
    parser.add_argument("--check", action="store_true", help="fail above thresholds")
    parser.add_argument("--worker-uss-mb-max", type=float, default=40.0)
    parser.add_argument("--cluster", action="store_true", help="beside an API server")
    parser.add_argument("--policy-count", type=int, default=100)
    parser.add_argument("--namespaces", type=int, default=2000)
    parser.add_argument("--pod-pss-mb-max", type=float, default=220.0)
    parser.add_argument("--changes", action="store_true", help="of policies, for long")
    parser.add_argument("--growth-max", type=float, default=1.1)
    args = parser.parse_args(arguments)
    if args.short:
        args.workers, args.seconds = [1, 2], 2
    missing = missing_tools()
    if missing:
        print(f"{missing}; nothing measured")
        return 2
    try:
        if args.cluster:
            return report_cluster(args)
        if args.changes:
            return report_changes(args)
        held = {count: measure(args, count) for count in args.workers}
    except Unready as error:
        print(f"cannot measure: {error}")
        return 2
    print_table(held)
    more = cost_of_one(held)
    if more is not None:
        print(f"one more worker costs {more:.1f} MiB (PSS of all processes)")
    rows = {str(n): [asdict(m) for m in found] for n, found in held.items()}
    content: dict[str, Any] = {"by_workers": rows, "one_more_worker_mb": more}
    write_result("memory", content, args.json)
    largest = max(
        m.uss_mb for found in held.values() for m in found if m.name == "worker"
    )
    if args.check and largest > args.worker_uss_mb_max:
        print(f"missed: a worker holds {largest:.1f} > {args.worker_uss_mb_max:g} MiB")
        return 1
    return 0


def measure(args: argparse.Namespace, workers: int) -> list[Memory]:
    """Return the processes of a service that has answered reviews for a while."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        body = folder / "review.json"
        body.write_bytes(json.dumps(REVIEWS["allowed"][0]).encode())
        with kyverno_mp(args.policies, folder, core=0, workers=workers) as server:
            ask(server.port, body)
            load(
                server,
                "allowed",
                body,
                core=1,
                connections=8 * workers,
                seconds=args.seconds,
            )
            return memory_of(server)


def report_cluster(args: argparse.Namespace) -> int:
    """Measure a whole pod with two workers beside an API server, and print it."""
    with tempfile.TemporaryDirectory(prefix="kyverno-mp-perf-") as name:
        folder = Path(name)
        with control_plane(folder) as plane, Api(plane.access) as api:
            many_namespaces(api, args.namespaces)
            load = Load(plane, folder, args.seconds)
            with in_cluster(plane, folder, workers=2) as server:
                create(api, many_policies(documents(args.policies), args.policy_count))
                for _ in range(2):
                    load.run("judged", 16)
                held = memory_of(server)
    print_table({2: held})
    content = {
        "policies": args.policy_count,
        "namespaces": args.namespaces,
        "processes": [asdict(one) for one in held],
    }
    write_result("memory-cluster", content, args.json)
    total = sum(one.pss_mb for one in held)
    if args.check and total > args.pod_pss_mb_max:
        print(f"missed: the pod holds {total:.0f} > {args.pod_pss_mb_max:g} MiB")
        return 1
    return 0


def report_changes(args: argparse.Namespace) -> int:
    """Measure the growth with changes and reviews, and print it."""
    growth = SHORT if args.short else LONG
    sizes = measure_growth(growth)
    factors = {
        name: grown(sizes, growth.settled, name) for name in ("worker", "leader")
    }
    print(
        f"after {growth.settled} changes: "
        + ", ".join(f"the {name} x {by:.2f}" for name, by in factors.items())
    )
    content = {"factors": factors, "sizes": [asdict(one) for one in sizes]}
    write_result("memory-changes", content, args.json)
    if args.check and max(factors.values()) > args.growth_max:
        print(f"missed: a process grew by more than x {args.growth_max:g}")
        return 1
    return 0


def cost_of_one(held: dict[int, list[Memory]]) -> float | None:
    """Return the PSS that one more worker adds to the sum of all processes."""
    few, many = min(held), max(held)
    if few == many:
        return None
    sums = {count: sum(m.pss_mb for m in held[count]) for count in (few, many)}
    return (sums[many] - sums[few]) / (many - few)


def print_table(held: dict[int, list[Memory]]) -> None:
    """Print the processes of each count of workers, and their sum."""
    print(f"{'workers':<9}{'process':<12}{'USS MiB':>9}{'PSS MiB':>9}{'RSS MiB':>9}")
    for count, found in held.items():
        for m in found:
            print(
                f"{count:<9}{m.name:<12}{m.uss_mb:>9.1f}{m.pss_mb:>9.1f}{m.rss_mb:>9.1f}"
            )
        total = sum(m.pss_mb for m in found)
        print(f"{count:<9}{'sum':<12}{'':>9}{total:>9.1f}")


if __name__ == "__main__":
    sys.exit(main())

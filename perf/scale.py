"""Measure the cost of policies that do not match.

The same 17 policies evaluate the same Pod while other policies exist: for other kinds,
or for Pods of other namespaces, one namespace per policy. The figures are latency and
CPU time per review, the compile time of the policies, a worker's memory, the time
until a changed policy is in force in every worker under load, and what a service takes
until it is ready: seconds, CPU seconds of all processes, memory of all processes.

    python perf/scale.py [--others N ...] [--short] [--check] [--json FILE]
    python perf/scale.py --ready 10000
"""

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

# Python searches the imports of a script only in the script's own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kyverno_mp.leader.folder import Changes
from kyverno_mp.leader.policy_store import PolicyStore
from kyverno_mp.leader.status import StatusReader
from kyverno_mp.snapshot.control import ControlPage
from kyverno_mp.snapshot.policies import PoliciesWriter
from perf.reviews import REVIEWS
from perf.servers import (
    Round,
    Server,
    Unready,
    ask,
    default_policies,
    kyverno_mp,
    load,
    memory_of,
    missing_tools,
    roles_of,
    write_result,
)

_KINDS = ("ConfigMap", "Secret", "Service", "Ingress", "Deployment", "Job")
_VARIANTS = ("kinds", "namespaces")
_FORCE_WAIT_S = 30.0
_USS_FOR = 1000
"""The number of policies for the threshold of a worker's memory."""


@dataclass(frozen=True)
class Row:
    """One variant and number of other policies."""

    variant: str
    others: int
    p50_ms: float
    p99_ms: float
    cpu_us: float
    worker_uss_mb: float
    snapshot_mb: float


@dataclass(frozen=True)
class Start:
    """What a service with other policies takes until it is ready."""

    variant: str
    others: int
    ready_s: float
    cpu_s: float
    """Of all processes, those that have ended included."""
    pss_mb: float
    """Of all processes together, at the end."""
    most_pss_mb: float
    waiting: int
    """Policies that were not in force yet, although the service was ready."""


def main(arguments: list[str] | None = None) -> int:
    """Run the measurement; 0 = fine, 1 = a threshold is missed, 2 = cannot measure."""
    args = parse(arguments)
    if args.ready:
        return measure_starts(args)
    missing = missing_tools()
    if missing:
        print(f"{missing}; nothing measured")
        return 2
    try:
        rows = [row for variant in _VARIANTS for row in measure(args, variant)]
        print_rows(rows)
        compile_s = {n: time_compile(args, n) for n in args.compile}
        for count, seconds in compile_s.items():
            print(f"compiling {count} policies takes {seconds:.2f} s of CPU time")
        in_force_s = time_changes(args)
    except Unready as error:
        print(f"cannot measure: {error}")
        return 2
    print(
        f"a changed policy of {args.changed} is in force in both workers after"
        f" {statistics.median(in_force_s):.2f} s (median), {max(in_force_s):.2f} s"
        " (most); no request failed"
    )
    content = {
        "rows": [asdict(row) for row in rows],
        "compile_s": compile_s,
        "in_force_s": in_force_s,
    }
    write_result("scale", content, args.json)
    return check(args, rows, compile_s, in_force_s) if args.check else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--policies", type=Path, default=default_policies())
    numbers = [10, 100, 1000, 10_000]
    parser.add_argument("--others", type=int, nargs="+", default=numbers)
    parser.add_argument("--compile", type=int, nargs="+", default=[1000])
    parser.add_argument("--changed", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument(
        "--ready", type=int, nargs="+", help="only starts, with N others"
    )
    parser.add_argument("--ready-cpu-ms-max", type=float, default=5.0, help="a policy")
    parser.add_argument("--ready-pss-mb-max", type=float, default=400.0)
    parser.add_argument("--json", type=Path, help="instead of perf/results")
    parser.add_argument("--short", action="store_true", help="10 and 1,000, 2 rounds")
    parser.add_argument("--check", action="store_true", help="fail above thresholds")
    parser.add_argument("--growth-max", type=float, default=1.2)
    parser.add_argument("--compile-s-max", type=float, default=5.0)
    parser.add_argument("--worker-uss-mb-max", type=float, default=40.0)
    parser.add_argument("--in-force-s-max", type=float, default=1.0)
    args = parser.parse_args(arguments)
    if args.short:
        args.others, args.rounds, args.seconds = [10, 1000], 2, 2
    return args


def other(number: int, variant: str) -> dict[str, Any]:
    """Return a policy that does not match the Pod that is posted."""
    resources: dict[str, Any] = {"kinds": [_KINDS[number % len(_KINDS)]]}
    if variant == "namespaces":
        resources = {"kinds": ["Pod"], "namespaces": [f"team-{number}"]}
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": f"other-{number}"},
        "spec": {
            "validationFailureAction": "Enforce",
            "rules": [
                {
                    "name": "labels",
                    "match": {"any": [{"resources": resources}]},
                    "validate": {
                        "message": f"The label team-{number} is required.",
                        "pattern": {
                            "metadata": {"labels": {f"example.com/team-{number}": "?*"}}
                        },
                    },
                },
                {
                    "name": "names",
                    "match": {"any": [{"resources": resources}]},
                    "validate": {
                        "message": "Names must not be reserved.",
                        "deny": {
                            "conditions": {
                                "any": [
                                    {
                                        "key": "{{ request.object.metadata.name }}",
                                        "operator": "AnyIn",
                                        "value": [f"reserved-{number}", "admin-*"],
                                    }
                                ]
                            }
                        },
                    },
                },
            ],
        },
    }


def fill(folder: Path, policies: Path, others: int, variant: str) -> Path:
    """Write a folder of policies: the matching ones and the others."""
    target = folder / "policies"
    target.mkdir(parents=True)
    for path in sorted(policies.rglob("*.yaml")):
        (target / path.name).write_bytes(path.read_bytes())
    for number in range(others):
        text = json.dumps(other(number, variant))
        (target / f"other-{number}.yaml").write_text(text, encoding="utf-8")
    return target


def measure(args: argparse.Namespace, variant: str) -> Iterator[Row]:
    """Load one server for each number of others, all in turns."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        body = root / "review.json"
        body.write_bytes(json.dumps(REVIEWS["allowed"][0]).encode())
        servers: dict[int, Server] = {}
        for others in args.others:
            folder = root / str(others)
            policies = fill(folder, args.policies, others, variant)
            server = stack.enter_context(kyverno_mp(policies, folder, core=0))
            ask(server.port, body)
            run(server, body, seconds=1)
            servers[others] = server
        rounds: dict[int, list[Round]] = {others: [] for others in servers}
        for _ in range(args.rounds):
            for others, server in servers.items():
                rounds[others].append(run(server, body, seconds=args.seconds))
        for others, server in servers.items():
            yield summarise(variant, others, server, rounds[others])


_START_CPU_S = 10.0
"""The processes' own start; 1,000 policies took 7.4 to 7.9 s, 10,000 20 to 32 s."""


def measure_starts(args: argparse.Namespace) -> int:
    """Print what each start takes; 1 if ``check`` and a threshold is missed."""
    starts = [start(args, others, v) for others in args.ready for v in _VARIANTS]
    print(
        f"{'others':<12}{'number':>8}{'ready s':>9}{'CPU s':>8}{'PSS MiB':>9}"
        f"{'most':>7}{'waiting':>9}"
    )
    for each in starts:
        print(
            f"{each.variant:<12}{each.others:>8}{each.ready_s:>9.1f}{each.cpu_s:>8.1f}"
            f"{each.pss_mb:>9.0f}{each.most_pss_mb:>7.0f}{each.waiting:>9}"
        )
    write_result("ready", {"starts": [asdict(each) for each in starts]}, args.json)
    missed = [
        each
        for each in starts
        if each.cpu_s > _START_CPU_S + args.ready_cpu_ms_max * each.others / 1000
        or each.most_pss_mb > args.ready_pss_mb_max
        or each.waiting
    ]
    return 1 if args.check and missed else 0


def start(args: argparse.Namespace, others: int, variant: str) -> Start:
    """Start a service on all cores; return what it took until it was ready."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        policies = fill(root, args.policies, others, variant)
        body = root / "review.json"
        body.write_bytes(json.dumps(REVIEWS["allowed"][0]).encode())
        begun_s = time.monotonic()
        server = stack.enter_context(kyverno_mp(policies, root, core=None))
        memory = _Memory(server)
        memory.start()
        ask(server.port, body)
        ready_s = time.monotonic() - begun_s
        memory.stop()
        times = [psutil.Process(pid).cpu_times() for pid in roles_of(server)]
        status = StatusReader(root / "run").read()
        pss_mb = sum(each.pss_mb for each in memory_of(server))
        return Start(
            variant=variant,
            others=others,
            ready_s=ready_s,
            cpu_s=sum(sum(each[:4]) for each in times),
            pss_mb=pss_mb,
            most_pss_mb=max(pss_mb, memory.most_mb),
            waiting=len(list(policies.iterdir())) - len(status.policies),
        )


class _Memory(threading.Thread):
    """Follows the memory of all processes of a server while it starts."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._ended = threading.Event()
        self.most_mb = 0.0

    def run(self) -> None:
        """Look every second: a look costs CPU time, which the server then lacks."""
        while not self._ended.wait(1.0):
            with contextlib.suppress(psutil.Error):
                total_mb = sum(each.pss_mb for each in memory_of(self._server))
                self.most_mb = max(self.most_mb, total_mb)

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        self.join()


def run(server: Server, body: Path, *, seconds: float, connections: int = 1) -> Round:
    """Load a server from the other core; one connection shows its latency."""
    return load(server, "scale", body, core=1, connections=connections, seconds=seconds)


def summarise(variant: str, others: int, server: Server, rounds: list[Round]) -> Row:
    """Return the best of the rounds, because disturbances only add time."""
    worker = next(m for m in memory_of(server) if m.name == "worker")
    snapshot = server.folder / "run/snapshot/policies.segment"
    return Row(
        variant=variant,
        others=others,
        p50_ms=min(r.p50_ms for r in rounds),
        p99_ms=min(r.p99_ms for r in rounds),
        cpu_us=min(r.cpu_us for r in rounds),
        worker_uss_mb=worker.uss_mb,
        snapshot_mb=snapshot.stat().st_size / 2**20,
    )


def time_compile(args: argparse.Namespace, count: int) -> float:
    """Return the CPU seconds for compiling the files to a snapshot's bytes."""
    with tempfile.TemporaryDirectory() as name:
        others = max(count - len(list(args.policies.rglob("*.yaml"))), 0)
        folder = fill(Path(name), args.policies, others, "namespaces")
        files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    before_s = time.process_time()
    policy_set = PolicyStore(lambda _namespace: True).update(Changes(files, ()))
    PoliciesWriter().encode(policy_set.encoded, generation=1, salt=bytes(16))
    seconds = time.process_time() - before_s
    if policy_set.problems or len(policy_set.encoded) < count:
        raise Unready(f"policies were refused: {policy_set.problems[:3]}")
    return seconds


def time_changes(args: argparse.Namespace) -> list[float]:
    """Change policies under load; return the seconds until all workers serve each."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        body = folder / "review.json"
        body.write_bytes(json.dumps(REVIEWS["allowed"][0]).encode())
        policies = fill(folder, args.policies, args.changed, "namespaces")
        with kyverno_mp(policies, folder, core=0, workers=2) as server:
            ask(server.port, body)
            run(server, body, seconds=1, connections=4)
            under_load = _Load(server, body, seconds=args.rounds * 2 + 1)
            under_load.start()
            control = ControlPage.open(folder / "run/snapshot")
            found = []
            for number in range(args.rounds):
                time.sleep(0.5)
                found.append(time_change(control, policies, number))
            under_load.join()
            if under_load.problem is not None:
                raise under_load.problem
            return found


class _Load(threading.Thread):
    """Loads a server in the background."""

    def __init__(self, server: Server, body: Path, *, seconds: float) -> None:
        super().__init__()
        self._server = server
        self._body = body
        self._seconds = seconds
        self.problem: Unready | None = None

    def run(self) -> None:
        """Run wrk; a failed request is a problem."""
        try:
            run(self._server, self._body, seconds=self._seconds, connections=4)
        except Unready as error:
            self.problem = error


def time_change(control: ControlPage, policies: Path, number: int) -> float:
    """Change one policy; return the seconds until every worker serves it."""
    before = control.generation("policies")
    changed = other(number, "namespaces")
    changed["spec"]["rules"][0]["validate"]["message"] = f"Changed at {time.time()}"
    fresh = policies / ".fresh"
    fresh.write_text(json.dumps(changed), encoding="utf-8")
    start_s = time.monotonic()
    fresh.rename(policies / f"other-{number}.yaml")
    while time.monotonic() - start_s < _FORCE_WAIT_S:
        workers = [w for w in control.workers() if w.generations["policies"]]
        if workers and all(w.generations["policies"] > before for w in workers):
            return time.monotonic() - start_s
        time.sleep(0.005)
    raise Unready("a changed policy did not come into force")


def print_rows(rows: list[Row]) -> None:
    """Print the table; growth is against the fewest others of the same variant."""
    print(
        f"{'others':<12}{'number':>8}{'p50 ms':>9}{'p99 ms':>9}{'CPU us':>9}"
        f"{'growth':>8}{'by CPU':>8}{'USS MiB':>9}{'snapshot MiB':>14}"
    )
    for row in rows:
        base = next(r for r in rows if r.variant == row.variant)
        print(
            f"{row.variant:<12}{row.others:>8}{row.p50_ms:>9.3f}{row.p99_ms:>9.3f}"
            f"{row.cpu_us:>9.1f}{row.p50_ms / base.p50_ms:>8.2f}"
            f"{row.cpu_us / base.cpu_us:>8.2f}{row.worker_uss_mb:>9.1f}"
            f"{row.snapshot_mb:>14.2f}"
        )


def check(
    args: argparse.Namespace,
    rows: list[Row],
    compile_s: dict[int, float],
    in_force_s: list[float],
) -> int:
    """Return 1 when a threshold is missed."""
    missed = []
    for variant in _VARIANTS:
        found = [row for row in rows if row.variant == variant]
        growth = max(r.p50_ms for r in found) / min(r.p50_ms for r in found)
        if growth > args.growth_max:
            missed.append(f"{variant}: p50 grows {growth:.2f} > {args.growth_max:g}")
    for count, seconds in compile_s.items():
        if seconds > args.compile_s_max * count / 1000:
            missed.append(f"compiling {count} policies takes {seconds:.1f} s")
    missed += [
        f"{row.variant}, {row.others} others: USS {row.worker_uss_mb:.1f} MiB"
        for row in rows
        if row.others <= _USS_FOR and row.worker_uss_mb > args.worker_uss_mb_max
    ]
    if max(in_force_s) > args.in_force_s_max:
        missed.append(f"a change takes {max(in_force_s):.2f} s to be in force")
    for text in missed:
        print(f"missed: {text}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

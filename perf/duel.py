"""Compare ValidatingPolicies with the API server's ValidatingAdmissionPolicies.

etcd, kube-apiserver, kyverno-mp and wrk share this machine. wrk creates Pods with
generated names, by dry run unless ``--real`` is given; the same N expressions are in
force as ValidatingAdmissionPolicies with bindings, or as ValidatingPolicies. Two
tables: every policy matches the Pod, and one in 16 does. The baseline of each side is
its run without policies; on our side, kyverno-mp runs then, and no webhook is called.

    python perf/duel.py [--policies 0 1 2 4 16 64 256 1024] [--clients 1 16 128]
        [--real] [--check]
"""

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

# Python searches the imports of a script only in the script's own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil

from perf.cluster import control_plane, create, in_cluster, wait_for
from perf.create import Load, Run, conforming_pod
from perf.servers import Unready, missing_tools, roles_of, write_result
from tests.e2e.api import Api, Refused
from tests.e2e.control_plane import ControlPlane

ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
OURS: Final = "/apis/policies.kyverno.io/v1/validatingpolicies"
PODS: Final = "/api/v1/namespaces/default/pods?dryRun=All"
_STOP: Final = "duel-stop"
_SPARSE: Final = 16
_MIB: Final = 2**20
EXPRESSIONS: Final = (
    "object.spec.containers.all(c, !c.image.startsWith('registry-{n}.example.org/'))",
    "object.spec.containers.all(c, has(c.name) && c.name != 'forbidden-{n}')",
    (
        "!has(object.spec.hostNetwork) || object.spec.hostNetwork == false"
        " || object.spec.nodeName == 'host-{n}'"
    ),
    "!has(object.metadata.labels) || !('team-{n}' in object.metadata.labels)",
    (
        "object.spec.containers.all(c, !has(c.ports) ||"
        " c.ports.all(p, p.containerPort != {n} + 70000))"
    ),
    (
        "!has(object.spec.volumes) || object.spec.volumes.all(v,"
        " !has(v.hostPath) || v.hostPath.path != '/data-{n}')"
    ),
    "object.spec.?serviceAccountName.orValue('default') != 'robot-{n}'",
    (
        "object.spec.containers.all(c,"
        " c.?securityContext.?privileged.orValue(false) == false)"
    ),
)
"""What teams check: images, names, host access, labels, ports, volumes, accounts."""


@dataclass(frozen=True)
class Row:
    """One run: ``side`` is "vap" or "ours"; CPU in ms a request, memory in MiB."""

    table: str
    side: str
    policies: int
    run: Run
    apiserver_cpu_ms: float
    our_cpu_ms: float
    apiserver_mib: float
    our_mib: float


def main(arguments: list[str] | None = None) -> int:
    """Run the measurement; 0 = fine, 1 = a target is missed, 2 = cannot measure."""
    args = parse(arguments)
    missing = missing_tools()
    if missing:
        print(f"{missing}; nothing measured")
        return 2
    rows: list[Row] = []
    try:
        with tempfile.TemporaryDirectory(prefix="kyverno-mp-perf-") as name:
            for row in measure(args, Path(name)):
                rows.append(row)
                print_row(row)
    except Unready as error:
        print(f"cannot measure: {error}")
        return 2
    print_tables(rows)
    write_result("duel", {"rows": [asdict(row) for row in rows]}, args.json)
    return check(args, rows) if args.check else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    counts = [0, 1, 2, 4, 16, 64, 256, 1024]
    parser.add_argument("--policies", type=int, nargs="+", default=counts)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument("--tables", nargs="+", default=["every", "sparse"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--real", action="store_true", help="create the Pods")
    parser.add_argument("--json", type=Path, help="instead of perf/results")
    parser.add_argument("--check", action="store_true", help="fail below the targets")
    parser.add_argument("--kept-256-min", type=float, default=0.8)
    parser.add_argument("--kept-1024-min", type=float, default=0.6)
    return parser.parse_args(arguments)


def measure(args: argparse.Namespace, folder: Path) -> Iterator[Row]:
    """Yield the result of each run."""
    with control_plane(folder) as plane, Api(plane.access) as api:
        load = Load(plane, folder, args.seconds, named=False, dry_run=not args.real)
        load.run("absent", 16)
        for table in args.tables:
            for count in args.policies:
                with in_api_server(api, table, count):
                    yield from runs(args, plane, load, ("vap", table, count), {})
        with in_cluster(plane, folder, args.workers) as server:
            for table in args.tables:
                for count in args.policies:
                    with in_webhook(api, table, count):
                        roles = roles_of(server)
                        yield from runs(
                            args, plane, load, ("ours", table, count), roles
                        )


def runs(
    args: argparse.Namespace,
    plane: ControlPlane,
    load: Load,
    what: tuple[str, str, int],
    roles: dict[int, str],
) -> Iterator[Row]:
    """Yield a row for each number of clients."""
    side, table, count = what
    for clients in args.clients:
        tried(load, clients)
        before = cpu_s([plane.apiserver.pid]), cpu_s(roles)
        run = tried(load, clients)
        after = cpu_s([plane.apiserver.pid]), cpu_s(roles)
        requests = max(1.0, run.pods_per_s * load.seconds_of(clients))
        theirs, own = (
            (late - early) / requests * 1e3
            for early, late in zip(before, after, strict=True)
        )
        memory = psutil.Process(plane.apiserver.pid).memory_full_info().pss / _MIB
        our = sum(psutil.Process(pid).memory_full_info().pss / _MIB for pid in roles)
        yield Row(table, side, count, run, theirs, own, memory, our)


def tried(load: Load, clients: int) -> Run:
    """Return a run, with a rate of 0 if nothing was answered in its time."""
    try:
        return load.run("judged", clients)
    except Unready:
        nothing = float("nan")
        return Run("judged", clients, 0.0, nothing, nothing, 0, 0, 0)


def cpu_s(pids: Any) -> float:
    """Return the CPU time of processes in seconds."""
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(one.user + one.system for one in times)


def constraints(table: str, number: int) -> dict[str, Any]:
    """Return what a policy matches: Pods, or in the sparse table mostly not."""
    is_on_pods = table == "every" or number % _SPARSE == 0
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods" if is_on_pods else "endpoints"],
    }
    return {"resourceRules": [rule]}


def expression(number: int) -> str:
    """Return the expression of a policy, different from all others."""
    return EXPRESSIONS[number % len(EXPRESSIONS)].replace("{n}", str(number))


def validations(number: int, count: int) -> list[dict[str, str]]:
    """Return the checks of a policy; the first one also knows a forbidden label."""
    checks = [{"expression": expression(number), "message": f"policy {number}"}]
    if number == 0:
        stop = f"object.metadata.?labels[?'{_STOP}'].orValue('') != 'of-{count}'"
        checks.append({"expression": stop, "message": "stop"})
    return checks


@contextlib.contextmanager
def in_api_server(api: Api, table: str, count: int) -> Iterator[None]:
    """Have ``count`` ValidatingAdmissionPolicies with bindings in force."""
    policies = f"{ADMISSION}/validatingadmissionpolicies"
    bindings = f"{ADMISSION}/validatingadmissionpolicybindings"
    names = [f"duel-{number}" for number in reversed(range(count))]
    for number, name in zip(reversed(range(count)), names, strict=True):
        spec = {
            "matchConstraints": constraints(table, number),
            "validations": validations(number, count),
        }
        api.create(policies, {"metadata": {"name": name}, "spec": spec})
        bound = {"policyName": name, "validationActions": ["Deny"]}
        api.create(bindings, {"metadata": {"name": name}, "spec": bound})
    wait_for_stop(api, count)
    yield
    for name in names:
        api.delete(f"{bindings}/{name}")
        api.delete(f"{policies}/{name}")
    wait_for(lambda: not stops(api, count), "the policies do not go")


@contextlib.contextmanager
def in_webhook(api: Api, table: str, count: int) -> Iterator[None]:
    """Have ``count`` ValidatingPolicies in force."""
    policies: list[dict[str, Any]] = [
        {
            "apiVersion": "policies.kyverno.io/v1",
            "kind": "ValidatingPolicy",
            "metadata": {"name": f"duel-{number}"},
            "spec": {
                "autogen": {"podControllers": {"controllers": []}},
                "matchConstraints": constraints(table, number),
                "validationActions": ["Deny"],
                "validations": validations(number, count),
            },
        }
        for number in reversed(range(count))
    ]
    create(api, policies)
    wait_for_stop(api, count)
    yield
    for policy in policies:
        api.delete(f"{OURS}/{policy['metadata']['name']}")
    wait_for(lambda: not stops(api, count), "the policies do not go")


def wait_for_stop(api: Api, count: int) -> None:
    """Wait until the policies are in force; the last one created forbids a label."""
    if count:
        wait_for(lambda: stops(api, count), "the policies are not in force")


def stops(api: Api, count: int) -> bool:
    """Return whether a Pod with the forbidden label is denied."""
    metadata = {"name": _STOP, "labels": {_STOP: f"of-{count}"}}
    pod = {**conforming_pod(), "metadata": metadata}
    try:
        api.create(PODS, pod)
    except Refused:
        return True
    return False


def print_row(row: Row) -> None:
    """Print one run."""
    run = row.run
    print(
        f"{row.table:>7} {row.side:>5} {row.policies:>5} policies {run.clients:>4}"
        f" clients: {run.pods_per_s:>7.1f}/s p50 {run.p50_ms:>8.1f} ms p99"
        f" {run.p99_ms:>8.1f} ms; CPU a request: API server"
        f" {row.apiserver_cpu_ms:>7.2f} ms, ours {row.our_cpu_ms:>6.2f} ms; memory"
        f" {row.apiserver_mib:>5.0f} and {row.our_mib:>5.0f} MiB;"
        f" refused {run.refused + run.broken + run.timeouts}",
        flush=True,
    )


def print_tables(rows: list[Row]) -> None:
    """Print the rates by number of policies, and what each side keeps of its rate."""
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for table in dict.fromkeys(row.table for row in rows):
        for clients in dict.fromkeys(row.run.clients for row in rows):
            rates = {
                (row.side, row.policies): row.run.pods_per_s
                for row in rows
                if (row.table, row.run.clients) == (table, clients)
            }
            counts = list(dict.fromkeys(count for _, count in rates))
            print(f"\n{table} policy matches, {clients} clients, requests/s")
            print("policies " + "".join(f"{count:>9}" for count in counts))
            for side in ("vap", "ours"):
                found = "".join(f"{rates[side, count]:>9.1f}" for count in counts)
                print(f"{side:>8} {found}")
            ratios = (
                rates["ours", one] / (rates["vap", one] or float("nan"))
                for one in counts
            )
            print("   ratio " + "".join(f"{ratio:>9.2f}" for ratio in ratios))


def check(args: argparse.Namespace, rows: list[Row]) -> int:
    """Return 1 when a target is missed at 16 clients, every policy matching."""
    rates = {
        (row.side, row.policies): row.run.pods_per_s
        for row in rows
        if (row.table, row.run.clients) == ("every", 16)
    }
    missed = [
        f"{count} policies: {rate:.0f}/s, {rates['vap', count]:.0f} in the API server"
        for (side, count), rate in rates.items()
        if side == "ours" and count and rate < rates["vap", count]
    ]
    for count, least in ((256, args.kept_256_min), (1024, args.kept_1024_min)):
        kept = rates.get(("ours", count), 0.0) / rates.get(("ours", 0), 1.0)
        if ("ours", count) in rates and kept < least:
            missed.append(f"{count} policies keep {kept:.0%} of the rate")
    if any(row.run.refused + row.run.broken + row.run.timeouts for row in rows):
        missed.append("requests failed")
    for text in missed:
        print(f"missed: {text}")
    return 1 if missed else 0


if __name__ == "__main__":
    started = time.monotonic()
    code = main()
    print(f"took {time.monotonic() - started:.0f} s")
    sys.exit(code)

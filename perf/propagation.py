"""Measure how soon a policy is in force, and out of force, after it was accepted.

etcd, kube-apiserver, kube-controller-manager and kyverno-mp share this machine. Each
round creates a policy and sends dry-run requests for a ConfigMap that it forbids until
one is denied; then it deletes the policy and sends requests until one passes. Time runs
from the API server's answer to the write. One part measures a kind that already has a
webhook, another a kind whose webhook must first be registered and noticed by the API
server. A third part waits for Ready and sends a request at once: if it passes, Ready
was reported too early.

    python perf/propagation.py [--rounds 100] [--workers 2] [--others 17] [--check]
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

# Python searches the imports of a script only in the script's own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf.cluster import (
    POLICIES,
    control_plane,
    create,
    documents,
    in_cluster,
    many_policies,
)
from perf.servers import Unready, default_policies, write_result
from tests.e2e.api import Api

_NAMESPACE: Final = "propagation"
_ASKED: Final = f"/api/v1/namespaces/{_NAMESPACE}/configmaps?dryRun=All"
_VALIDATING: Final = (
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    "/kyverno-resource-validating-webhook-cfg"
)
_WAIT_S_MAX: Final = 30.0
_PAUSE_S: Final = 0.3
"""Pause between two rounds, so that work of the last round does not affect the next."""
_ASKED_AT_READY: Final = 3
_CREATED: Final = 201


@dataclass(frozen=True)
class Round:
    """One policy: the time until it is in force, is Ready, and is out of force."""

    case: str
    in_force_ms: float
    out_of_force_ms: float
    ready_ms: float = 0.0
    """0 = not waited for."""
    ready_early: bool = False
    """Whether a request passed although the policy was Ready."""


def main(arguments: list[str] | None = None) -> int:
    """Run the measurement; 0 = fine, 1 = a target is missed, 2 = cannot measure."""
    args = parse(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="kyverno-mp-perf-") as name:
            found = measure(args, Path(name))
    except Unready as error:
        print(f"cannot measure: {error}")
        return 2
    rows = summarise(found)
    print_table(rows)
    method = {"workers": args.workers, "others": args.others, "rounds": args.rounds}
    content = {
        "method": method,
        "rounds": [asdict(one) for one in found],
        "rows": rows,
    }
    write_result("propagation", content, args.json)
    return check(args, rows) if args.check else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--others", type=int, default=17, help="policies beside it")
    parser.add_argument("--json", type=Path, help="instead of perf/results")
    parser.add_argument("--log", type=Path, help="keep the program's log there")
    parser.add_argument(
        "--check", action="store_true", help="fail when a target is missed"
    )
    parser.add_argument("--median-ms-max", type=float, default=30.0)
    parser.add_argument("--worst-ms-max", type=float, default=150.0)
    return parser.parse_args(arguments)


def measure(args: argparse.Namespace, folder: Path) -> list[Round]:
    """Return all rounds of all cases."""
    found: list[Round] = []
    with control_plane(folder) as plane, Api(plane.access) as api:
        api.create("/api/v1/namespaces", {"metadata": {"name": _NAMESPACE}})
        with (
            in_memory() as name,
            in_cluster(plane, folder, args.workers, {"RUNTIME_DIR": str(name / "run")}),
        ):
            create(api, many_policies(documents(default_policies()), args.others))
            run_case(api, "warm-up", 3, found)
            found.clear()
            run_case(api, "kind is new", args.rounds, found)
            # A policy without violations keeps the kind registered.
            create(api, [policy("stays", "never-there")])
            run_case(api, "kind is registered", args.rounds, found)
            run_case(api, "until Ready", max(1, args.rounds // 4), found)
            api.delete(f"{POLICIES}/stays")
        if args.log:
            args.log.write_bytes((folder / "kyverno-mp.log").read_bytes())
    return found


@contextmanager
def in_memory() -> Iterator[Path]:
    """Yield a folder in memory, where deploy/ also has the runtime folder."""
    place = Path("/dev/shm")
    parent = place if place.is_dir() else None
    with tempfile.TemporaryDirectory(dir=parent) as name:
        yield Path(name)


def run_case(api: Api, case: str, rounds: int, found: list[Round]) -> None:
    """Run a number of rounds of one case."""
    for number in range(rounds):
        name = f"{case.lower().replace(' ', '-')}-{number}"
        found.append(run_round(api, case, policy(name, "forbidden")))
        if case == "kind is new":
            wait(lambda: not is_registered(api), "the kind stays registered")
        time.sleep(_PAUSE_S)


def run_round(api: Api, case: str, document: dict[str, Any]) -> Round:
    """Create and delete one policy."""
    path = f"{POLICIES}/{document['metadata']['name']}"
    api.create(POLICIES, document)
    created = time.perf_counter()
    ready_ms, early = 0.0, False
    if case == "until Ready":
        wait(lambda: is_ready(api, path), "not Ready")
        ready_ms = (time.perf_counter() - created) * 1e3
        early = any(passes(api) for _ in range(_ASKED_AT_READY))
    wait(lambda: not passes(api), "never in force")
    in_force_ms = (time.perf_counter() - created) * 1e3
    if case != "until Ready":
        # A pending status write must not affect the next round.
        wait(lambda: is_ready(api, path), "not Ready")
        time.sleep(_PAUSE_S)
    api.delete(path)
    deleted = time.perf_counter()
    wait(lambda: passes(api), "never out of force")
    out_ms = (time.perf_counter() - deleted) * 1e3
    return Round(case, in_force_ms, out_ms, ready_ms, early)


def policy(name: str, forbidden: str) -> dict[str, Any]:
    """Return a policy that forbids ConfigMaps with a label."""
    rule = {
        "name": "labelled",
        "match": {"any": [{"resources": {"kinds": ["ConfigMap"]}}]},
        "validate": {
            "failureAction": "Enforce",
            "message": f"label {forbidden} is forbidden",
            "pattern": {"metadata": {"=(labels)": {f"X({forbidden})": "null"}}},
        },
    }
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": name},
        "spec": {"background": False, "rules": [rule]},
    }


def passes(api: Api) -> bool:
    """Send a request for a ConfigMap that a policy of ``forbidden`` denies."""
    labels = {"forbidden": "yes"}
    body = {"metadata": {"name": "asked", "labels": labels}}
    status, answer = api.ask("POST", _ASKED, body)
    if status != _CREATED and "is forbidden" not in str(answer):
        raise Unready(f"unexpected answer {status}: {answer}")
    return status == _CREATED


def is_ready(api: Api, path: str) -> bool:
    """Return whether the policy is Ready."""
    conditions = (api.get(path).get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def is_registered(api: Api) -> bool:
    """Return whether a policy webhook is registered for ConfigMaps."""
    return any(
        "configmaps" in rule["resources"]
        for hook in api.get(_VALIDATING).get("webhooks") or ()
        for rule in hook.get("rules") or ()
    )


def wait(is_so: Any, what: str) -> None:
    """Poll a condition without a pause until it is true. Raises: Unready."""
    end = time.monotonic() + _WAIT_S_MAX
    while not is_so():
        if time.monotonic() > end:
            raise Unready(what)


def summarise(rounds: list[Round]) -> list[dict[str, Any]]:
    """Return one row for each case and direction."""
    rows = []
    for case in dict.fromkeys(one.case for one in rounds):
        of_case = [one for one in rounds if one.case == case]
        for what in ("in_force_ms", "ready_ms", "out_of_force_ms"):
            times = sorted(getattr(one, what) for one in of_case)
            if not times[-1]:
                continue
            rows.append(
                {
                    "case": case,
                    "what": what.removesuffix("_ms").replace("_", " "),
                    "rounds": len(times),
                    "median_ms": statistics.median(times),
                    "p90_ms": times[int(0.9 * (len(times) - 1))],
                    "worst_ms": times[-1],
                    "ready_early": sum(one.ready_early for one in of_case),
                }
            )
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print one line for each case and direction."""
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(
        f"{'case':<20}{'what':<14}{'rounds':>6}{'median ms':>11}{'p90':>8}{'worst':>8}"
        f"{'too early':>11}"
    )
    for row in rows:
        print(
            f"{row['case']:<20}{row['what']:<14}{row['rounds']:>6}"
            f"{row['median_ms']:>11.1f}{row['p90_ms']:>8.1f}{row['worst_ms']:>8.1f}"
            f"{row['ready_early']:>11}"
        )


def check(args: argparse.Namespace, rows: list[dict[str, Any]]) -> int:
    """Return 1 when a target is missed."""
    missed = []
    for row in rows:
        text = f"{row['case']}, {row['what']}"
        if row["ready_early"]:
            missed.append(
                f"{text}: Ready was reported too early {row['ready_early']} times"
            )
        if row["what"] == "ready" or row["case"] == "until Ready":
            continue
        if row["median_ms"] > args.median_ms_max:
            missed.append(f"{text}: median {row['median_ms']:.1f} ms")
        if row["worst_ms"] > args.worst_ms_max:
            missed.append(f"{text}: worst {row['worst_ms']:.1f} ms")
    for line in missed:
        print(f"missed: {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

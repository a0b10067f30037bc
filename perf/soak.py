"""Run kyverno-mp with a real API server for a long time, inject faults, count losses.

For ``--minutes`` Pods are created by dry run without a pause while policies are
created, changed and deleted, watches are cut or fall silent (through a proxy between
kyverno-mp and the API server), and webhook workers are killed. A marker policy shows
every round whether its newest version is in force within ``--lost-after`` seconds.
Memory is read in the idle time at the end of each round; it is flat if the last third
of the rounds uses at most 5 % more than the third after the warm-up.

    python perf/soak.py [--minutes 20] [--workers 2] [--json FILE]
"""

import argparse
import contextlib
import http.client
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

# Python searches the imports of a script only in the script's own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import yaml

from perf.cluster import POLICIES, control_plane, create, documents, in_cluster
from perf.create import conforming_pod
from perf.servers import (
    Server,
    Unready,
    default_policies,
    memory_of,
    workers_of,
    write_result,
)
from tests.e2e.api import Api, Refused
from tests.e2e.control_plane import ControlPlane
from tests.e2e.cutting_proxy import CuttingProxy

_MARKER: Final = "soak-marker"
_PODS: Final = "/api/v1/namespaces/default/pods?dryRun=All"
_CONFIRMED_MIN: Final = 5
"""Number of consecutive answers with the newest version, because of several workers."""
_SETTLE_S: Final = 3.0
_GROWTH_MAX: Final = 1.05


@dataclass
class Seen:
    """The results of the run, written as JSON at the end."""

    answers: Counter[str] = field(default_factory=Counter)
    """Counts of continuously created Pods; ``let through`` = forbidden but created."""
    harm: Counter[str] = field(default_factory=Counter)
    applied_s: dict[str, list[float]] = field(default_factory=dict)
    """Time from each version of the marker to its effect, by the round's fault."""
    lost: int = 0
    memory_mb: list[dict[str, float]] = field(default_factory=list)
    """Memory after each round, by role; for the workers, the largest."""


def main(arguments: list[str] | None = None) -> int:
    """Run; 0 = nothing was lost and memory is flat, 1 = otherwise, 2 = cannot run."""
    args = parse(arguments)
    seen = Seen()
    try:
        with tempfile.TemporaryDirectory(prefix="kyverno-mp-soak-") as name:
            soak(args, Path(name), seen)
    except Unready as error:
        print(f"cannot run: {error}")
        return 2
    growth = growth_of(seen.memory_mb)
    print_summary(seen, growth)
    # ``asdict`` would turn a Counter into a count of its items.
    content = {"minutes": args.minutes, "growth": growth, **vars(seen)}
    write_result("soak", content, args.json)
    is_flat = growth.get("sum", 1.0) <= _GROWTH_MAX
    return 0 if is_flat and not seen.lost and not seen.answers["let through"] else 1


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--policies", type=Path, default=default_policies())
    parser.add_argument("--round-s", type=float, default=20.0)
    parser.add_argument("--churn", type=int, default=20, help="policies that change")
    parser.add_argument(
        "--lost-after",
        type=float,
        default=120.0,
        help="a silent watch is given up after 90 s",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="instead of perf/results")
    return parser.parse_args(arguments)


def soak(args: argparse.Namespace, folder: Path, seen: Seen) -> None:
    """Run all rounds."""
    chance = random.Random(args.seed)
    with control_plane(folder) as plane, proxied(plane, folder) as (proxy, kubeconfig):
        extra = {"KUBECONFIG": str(kubeconfig)}
        product = in_cluster(plane, folder, args.workers, extra)
        with product as server, Api(plane.access) as api:
            create(api, [*documents(args.policies), marker(0)])
            number, end = 0, time.monotonic() + args.minutes * 60
            while time.monotonic() < end:
                number, started = number + 1, time.monotonic()
                with Load(plane, seen):
                    kind = harm(server, proxy, chance, number)
                    seen.harm[kind] += 1
                    churn(api, chance, args.churn)
                    prove(api, number, args.lost_after, seen, kind)
                    left_s = started + args.round_s - time.monotonic()
                    time.sleep(max(1.0, left_s))
                time.sleep(_SETTLE_S)
                seen.memory_mb.append(by_role(server))
                tell(number, seen, kind)


@contextlib.contextmanager
def proxied(plane: ControlPlane, folder: Path) -> Iterator[tuple[CuttingProxy, Path]]:
    """Yield a proxy to the API server, and a kubeconfig that uses it."""
    proxy = CuttingProxy(plane.port)
    proxy.start()
    content = yaml.safe_load(plane.kubeconfig.read_text())
    content["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{proxy.port}"
    path = folder / "proxied.kubeconfig"
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(content))
    try:
        yield proxy, path
    finally:
        proxy.stop()


def marker(number: int) -> dict[str, Any]:
    """Return the policy whose effect reveals which version is in force."""
    return label_policy(_MARKER, f"version-{number}", f"version {number} is in force")


def label_policy(name: str, label: str, message: str) -> dict[str, Any]:
    """Return a policy that requires a label on the Pods selected for the marker."""
    selector = {"matchLabels": {"soak": "marked"}}
    kinds = {"kinds": ["Pod"], "selector": selector}
    rule = {
        "name": "labelled",
        "match": {"any": [{"resources": kinds}]},
        "validate": {
            "failureAction": "Enforce",
            "message": message,
            "pattern": {"metadata": {"labels": {label: "?*"}}},
        },
    }
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": name},
        "spec": {"background": False, "rules": [rule]},
    }


class Load(threading.Thread):
    """Creates allowed and forbidden Pods alternately until the end."""

    def __init__(self, plane: ControlPlane, seen: Seen) -> None:
        super().__init__(daemon=True)
        self._plane = plane
        self._seen = seen
        self._ended = threading.Event()

    def __enter__(self) -> None:
        """Begin."""
        self.start()

    def __exit__(self, *_: object) -> None:
        """End."""
        self._ended.set()
        self.join(60)

    def run(self) -> None:
        """Create Pods until the end."""
        good, bad = conforming_pod(), conforming_pod()
        bad["spec"] = {**bad["spec"], "hostNetwork": True}
        with Api(self._plane.access) as api:
            while not self._ended.is_set():
                self._ask(api, good, expected=True)
                self._ask(api, bad, expected=False)

    def _ask(self, api: Api, pod: dict[str, Any], *, expected: bool) -> None:
        try:
            status, body = api.ask("POST", _PODS, pod)
        except (OSError, http.client.HTTPException):
            self._seen.answers["no answer"] += 1
            return
        if status == 201:
            self._seen.answers["allowed" if expected else "let through"] += 1
        elif "failed calling webhook" in str(body):
            # A killed worker loses its running reviews, and failurePolicy is Fail.
            self._seen.answers["webhook failed"] += 1
        else:
            self._seen.answers["wrongly denied" if expected else "denied"] += 1


def harm(
    server: Server,
    proxy: CuttingProxy,
    chance: random.Random,
    number: int,
) -> str:
    """Inject the next fault of the cycle."""
    kind = ("cut", "worker killed", "cut", "nothing", "muted", "worker killed")[
        number % 6
    ]
    if kind == "cut":
        proxy.cut()
    elif kind == "muted":
        proxy.mute()
    elif kind == "worker killed":
        os.kill(chance.choice(workers_of(server)).pid, signal.SIGKILL)
    return kind


def churn(api: Api, chance: random.Random, count: int) -> None:
    """Create, change or delete policies that match other Pods."""
    for _ in range(count // 2):
        name = f"soak-{chance.randrange(count)}"
        policy = label_policy(name, f"label-{chance.randrange(9)}", "is needed")
        policy["spec"]["rules"][0]["match"]["any"][0]["resources"] = {
            "kinds": ["Service"]
        }
        with contextlib.suppress(Refused):
            try:
                api.get(f"{POLICIES}/{name}")
            except Refused:
                api.create(POLICIES, policy)
                continue
            if chance.random() < 0.5:
                api.delete(f"{POLICIES}/{name}")
            else:
                api.patch(f"{POLICIES}/{name}", {"spec": policy["spec"]})


def prove(api: Api, number: int, within_s: float, seen: Seen, kind: str) -> None:
    """Change the marker and wait for its effect, in every worker's answers."""
    pod = conforming_pod()
    pod["metadata"]["labels"] = {"soak": "marked"}
    started = time.monotonic()
    while True:
        status, _ = api.ask(
            "PATCH",
            f"{POLICIES}/{_MARKER}",
            {"spec": marker(number)["spec"]},
            "application/merge-patch+json",
        )
        if status == 200:
            break
        # The policy's own review may have been lost with a killed worker.
        time.sleep(0.1)
    confirmed = 0
    while time.monotonic() - started < within_s:
        _, body = api.ask("POST", _PODS, pod)
        confirmed = confirmed + 1 if f"version {number} is in force" in str(body) else 0
        if confirmed == _CONFIRMED_MIN:
            taken_s = time.monotonic() - started
            seen.applied_s.setdefault(kind, []).append(taken_s)
            return
        time.sleep(0.05)
    seen.lost += 1
    print(f"round {number}: the marker is not in force after {within_s:g} s")


def by_role(server: Server) -> dict[str, float]:
    """Return the USS of each role, because PSS depends on the number of processes.

    For the workers it is the largest, because new workers start small.
    """
    found: dict[str, float] = {}
    for one in memory_of(server):
        found[one.name] = max(one.uss_mb, found.get(one.name, 0.0))
    return {**found, "sum": sum(found.values())}


def growth_of(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Return, by role, the ratio of the last third's to the middle third's median.

    The first third is the warm-up. The medians are of the larger half.
    """
    third = len(rounds) // 3
    if not third:
        return {}
    middle, last = rounds[third : 2 * third], rounds[-third:]
    return {
        name: upper(last, name) / upper(middle, name)
        for name in last[-1]
        if all(name in one for one in (*middle, *last))
    }


def upper(rounds: list[dict[str, float]], name: str) -> float:
    """Return the median of the larger half."""
    values = sorted(one[name] for one in rounds)
    return statistics.median(values[len(values) // 2 :])


def tell(number: int, seen: Seen, kind: str) -> None:
    """Print one line for a round."""
    held = ", ".join(f"{name} {mb:.1f}" for name, mb in seen.memory_mb[-1].items())
    applied = seen.applied_s.get(kind)
    last = f"{applied[-1]:.1f} s" if applied else "-"
    print(
        f"round {number}, {kind}: {dict(seen.answers)}, marker {last},"
        f" lost {seen.lost}; USS MiB {held}",
        flush=True,
    )


def print_summary(seen: Seen, growth: dict[str, float]) -> None:
    """Print a summary."""
    print(f"\nanswers {dict(seen.answers)}\nharm    {dict(seen.harm)}")
    for kind, applied in seen.applied_s.items():
        print(
            f"marker  after {kind}: median {statistics.median(applied):.1f} s,"
            f" longest {max(applied):.1f} s"
        )
    print(f"lost    {seen.lost}")
    grown = [f"{name} {(part - 1) * 100:+.1f} %" for name, part in growth.items()]
    print(f"memory  {', '.join(grown)}")


if __name__ == "__main__":
    sys.exit(main())

"""Measure clean-up: how late objects go, what a deletion and the waiting cost.

etcd, kube-apiserver, kube-controller-manager and the pod of the cleanup role share this
machine. Objects with a TTL label fall due evenly within one minute, then a thousand in
the same second; then a policy deletes objects. A watch of this process tells when each
is gone, the audit log what was asked of the API server. Lateness is the time from the
instant of the label to the event.

    python perf/cleanup.py [--objects 10000] [--at-once 1000] [--by-policy 2000]
                           [--check]
    python perf/cleanup.py --idle      the cost of waiting for --objects, and no more
"""

import argparse
import math
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

import psutil

# As a script, Python looks for imports beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kyverno_mp.kube.access import from_kubeconfig
from kyverno_mp.kube.cache import Informer, whole
from kyverno_mp.kube.pool import Pool
from kyverno_mp.kube.resource import Key, core
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope
from perf.cluster import control_plane
from perf.servers import Unready, write_result
from tests.e2e.api import Api
from tests.e2e.control_plane import ControlPlane
from tests.e2e.product import CLEANUP, Product, holder_of

_SPACE: Final = "cleanup"
_OBJECTS: Final = f"/api/v1/namespaces/{_SPACE}/configmaps"
_POLICIES: Final = "/apis/kyverno.io/v2/clustercleanuppolicies"
_ROLES: Final = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
_LABEL: Final = "cleanup.kyverno.io/ttl"
_USER: Final = f":{CLEANUP}"
_CREATORS: Final = 8
_WINDOW_S: Final = 60
_IDLE_S: Final = 30.0
_WAIT_S: Final = 240.0
_LATER_S: Final = 3600
_SETTLE_S: Final = 3.0
"""The watch has brought the last objects by then."""
Row = dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    """Run the measurement; 0 = fine, 1 = an aim is missed, 2 = cannot measure."""
    args = parse(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="kyverno-mp-perf-") as name:
            rows = measure(args, Path(name))
    except Unready as error:
        print(f"cannot measure: {error}")
        return 2
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    write_result("cleanup", {"rows": rows}, args.json)
    return check(rows) if args.check else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--objects", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=1000)
    parser.add_argument("--by-policy", type=int, default=2000)
    parser.add_argument("--lead-s", type=int, default=60, help="to create the objects")
    parser.add_argument("--idle", action="store_true", help="only the cost of waiting")
    parser.add_argument("--json", type=Path, help="instead of perf/results")
    parser.add_argument(
        "--check", action="store_true", help="fail when an aim is missed"
    )
    return parser.parse_args(arguments)


def measure(args: argparse.Namespace, folder: Path) -> list[Row]:
    """Return a row for each part."""
    with control_plane(folder) as plane, Api(plane.access) as api:
        api.create("/api/v1/namespaces", {"metadata": {"name": _SPACE}})
        grant(api)
        with cleaning(plane, folder) as process, Gone(plane) as gone:
            bench = Bench(plane, api, process, gone)
            bench.warm_up()
            rows = [bench.idle("idle, nothing is labelled")]
            if args.idle:
                return [*rows, bench.waiting(args.objects)]
            rows += bench.ttl(
                "TTL, within a minute", args.objects, args.lead_s, spread=True
            )
            rows += bench.ttl(
                "TTL, at once", args.at_once, args.lead_s // 3, spread=False
            )
            rows.append(bench.policy(args.by_policy))
            return rows


def grant(api: Api) -> None:
    """Let the account of the role delete ConfigMaps."""
    label = {"rbac.kyverno.io/aggregate-to-cleanup-controller": "true"}
    verbs = ["get", "list", "watch", "delete"]
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": verbs}
    metadata = {"name": "perf:cleanup", "labels": label}
    api.create(_ROLES, {"metadata": metadata, "rules": [rule]})


@contextmanager
def cleaning(plane: ControlPlane, folder: Path) -> Iterator[psutil.Process]:
    """Run a pod of the cleanup role and give the process that cleans up."""
    extra = {"CLEANUP_WORKERS": "1", "CLEANUP_DISCOVERY_S": "60", "POD_NAME": "one"}
    product = Product(plane, folder, 0, extra, account=CLEANUP)
    product.start()
    try:
        with Api(plane.access) as api:
            until(lambda: holder_of(api, CLEANUP) == "one", "nobody holds the lease")
        yield psutil.Process(product.processes()["cleanup"])
    finally:
        product.stop()


class Gone:
    """Watches ConfigMaps and notes when each is gone."""

    def __init__(self, plane: ControlPlane) -> None:
        client = Client(Pool(from_kubeconfig(plane.kubeconfig)), "perf")
        scope = WatchScope(
            resource=core("configmaps"), namespace=_SPACE, metadata_only=True
        )
        self._informer: Informer[bytes] = Informer(client, scope, whole)
        self._informer.on_change(self._note)
        self._lock = threading.Lock()
        self.at_s: dict[str, float] = {}

    def __enter__(self) -> Self:
        """Start to watch."""
        self._informer.start()
        if not self._informer.wait_synced(30):
            raise Unready("the watch does not start")
        return self

    def __exit__(self, *_: object) -> None:
        """End the watch."""
        self._informer.stop()

    def count(self, prefix: str) -> int:
        """Return how many objects of a part are gone."""
        with self._lock:
            return sum(name.startswith(prefix) for name in self.at_s)

    def _note(self, key: Key) -> None:
        if self._informer.get(key) is None:
            with self._lock:
                self.at_s[key[1]] = time.time()


class Bench:
    """The parts of the measurement."""

    def __init__(
        self, plane: ControlPlane, api: Api, process: psutil.Process, gone: Gone
    ) -> None:
        self._plane = plane
        self._api = api
        self._process = process
        self._gone = gone

    def warm_up(self) -> None:
        """Wait until a labelled object goes: the watch is there."""
        self._create([("warm", "0s")])
        until(lambda: self._gone.count("warm"), "labelled objects stay")

    def idle(self, part: str) -> Row:
        """Measure what waiting costs."""
        self._plane.audit.mark()
        cpu_s, received, began_s = self._cpu_s(), self._bytes(), time.monotonic()
        time.sleep(_IDLE_S)
        taken_s = time.monotonic() - began_s
        asked = self._plane.audit.asked(_USER)
        return {
            "part": part,
            "cpu_percent": round(100 * (self._cpu_s() - cpu_s) / taken_s, 3),
            "bytes_per_s": round((self._bytes() - received) / taken_s),
            "calls_per_minute": round(len(asked) * 60 / taken_s, 1),
            "pss_mib": round(self._pss_mib(), 1),
        }

    def waiting(self, count: int) -> Row:
        """Measure what objects cost that are due much later."""
        later = instant(time.time() + _LATER_S)
        self._create([(f"later-{number}", later) for number in range(count)])
        time.sleep(_SETTLE_S)
        return self.idle(f"idle, {count} objects are labelled")

    def ttl(self, part: str, count: int, lead_s: int, *, spread: bool) -> list[Row]:
        """Measure how late labelled objects go, and what it costs."""
        first_s = math.ceil(time.time()) + lead_s
        prefix = "spread" if spread else "once"
        due = {
            f"{prefix}-{number}": first_s
            + (number * _WINDOW_S // count if spread else 0)
            for number in range(count)
        }
        self._create([(name, instant(at)) for name, at in due.items()])
        if time.time() > first_s - 2:
            raise Unready(f"{count} objects are not created within {lead_s} s")
        rows = []
        if first_s - time.time() > _IDLE_S + 2:
            rows.append(self.idle(f"idle, {count} objects are labelled"))
        time.sleep(max(0.0, first_s - 1 - time.time()))
        self._plane.audit.mark()
        cpu_s = self._cpu_s()
        until(lambda: self._gone.count(prefix) == count, "objects stay")
        late = [self._gone.at_s[name] - at for name, at in due.items()]
        return [*rows, self._row(part, late, count, cpu_s)]

    def policy(self, count: int) -> Row:
        """Measure the run of a policy; late = the time from its claim."""
        self._create([(f"policy-{number}", "") for number in range(count)])
        resources = {"kinds": ["ConfigMap"], "names": ["policy-*"]}
        spec = {
            "schedule": "@every 1h",
            "match": {"any": [{"resources": resources}]},
            "conditions": {
                "any": [
                    {
                        "key": "{{ target.data.word }}",
                        "operator": "Equals",
                        "value": "word",
                    }
                ]
            },
        }
        raw = {"apiVersion": "kyverno.io/v2", "kind": "ClusterCleanupPolicy"}
        self._api.create(_POLICIES, {**raw, "metadata": {"name": "p"}, "spec": spec})
        self._plane.audit.mark()
        cpu_s, began_s = self._cpu_s(), time.time()
        past = {"status": {"lastExecutionTime": "2026-01-01T00:00:00Z"}}
        self._api.patch(f"{_POLICIES}/p/status", past)
        until(lambda: self._gone.count("policy-") == count, "objects stay")
        late = [
            at - began_s
            for name, at in self._gone.at_s.items()
            if name.startswith("policy-")
        ]
        return self._row("by a policy", late, count, cpu_s)

    def _row(self, part: str, late: Sequence[float], count: int, cpu_s: float) -> Row:
        cpu_s = self._cpu_s() - cpu_s
        asked = self._plane.audit.asked(_USER)
        verbs = Counter(one.verb for one in asked if one.resource == "configmaps")
        others = len(asked) - sum(verbs.values())
        cuts = statistics.quantiles(late, n=100)
        return {
            "part": part,
            "objects": count,
            "late_p50_s": round(cuts[49], 3),
            "late_p99_s": round(cuts[98], 3),
            "late_max_s": round(max(late), 3),
            "early": sum(one < 0 for one in late),
            "calls_per_deletion": round(sum(verbs.values()) / count, 3),
            "verbs": dict(verbs),
            "other_calls": others,
            "cpu_ms_per_deletion": round(1e3 * cpu_s / count, 3),
            "pss_mib": round(self._pss_mib(), 1),
        }

    def _create(self, objects: Sequence[tuple[str, str]]) -> None:
        """Create labelled objects by a few connections."""

        def some(start: int) -> None:
            with Api(self._plane.access) as own:
                for name, value in objects[start::_CREATORS]:
                    labels = {_LABEL: value} if value else {}
                    metadata = {"name": name, "labels": labels}
                    raw = {"metadata": metadata, "data": {"word": "word"}}
                    own.create(_OBJECTS, raw)

        with ThreadPoolExecutor(_CREATORS) as pool:
            list(pool.map(some, range(_CREATORS)))

    def _cpu_s(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def _pss_mib(self) -> float:
        return float(self._process.memory_full_info().pss) / 2**20

    def _bytes(self) -> int:
        """Return the bytes that the process's connections have received so far."""
        shown = subprocess.run(
            ["ss", "-tinpH"], capture_output=True, text=True, check=True
        ).stdout
        found, ours = 0, False
        for line in shown.splitlines():
            if not line[:1].isspace():
                ours = f"pid={self._process.pid}," in line
            elif ours:
                words = dict(word.split(":", 1) for word in line.split() if ":" in word)
                found += int(words.get("bytes_received", 0))
        return found


def instant(at_s: float) -> str:
    """Return a label value for an instant."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H%M%SZ")


def until(condition: Callable[[], Any], what: str, most_s: float = _WAIT_S) -> None:
    """Wait for a condition. Raises: Unready."""
    end_s = time.monotonic() + most_s
    while not condition():
        if time.monotonic() > end_s:
            raise Unready(what)
        time.sleep(0.1)


def check(rows: Sequence[Row]) -> int:
    """Compare with the aims of docs/pools.md 5."""
    missed = []
    for row in rows:
        if "objects" not in row:
            continue
        is_ttl = row["part"].startswith("TTL")
        if row["calls_per_deletion"] > (1.001 if is_ttl else 2.1):
            missed.append(f"{row['part']}: calls per deletion")
        if row["early"]:
            missed.append(f"{row['part']}: too early")
        if row["part"] == "TTL, within a minute" and row["late_p99_s"] > 2:
            missed.append(f"{row['part']}: late")
    for one in missed:
        print(f"missed: {one}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

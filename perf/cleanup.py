"""Measure clean-up: the lateness of deletions, and the cost of deletions and waiting.

etcd, kube-apiserver, kube-controller-manager and the pod of the cleanup role share this
machine. Objects with a TTL label fall due evenly within one minute, then a thousand in
the same second; then a policy deletes objects. A watch shows when each object is
deleted, and the audit log shows the requests to the API server. Lateness is the time
between the label's time and the event.

    python perf/cleanup.py [--objects 10000] [--at-once 1000] [--by-policy 2000]
                           [--check]
    python perf/cleanup.py --idle      the cost of waiting for --objects, and no more
"""

import argparse
import math
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psutil

# Python searches the imports of a script only in the script's own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kyverno_mp.kube.resource import Key, core
from kyverno_mp.kube.watch import WatchScope
from perf.cluster import control_plane, wait_for
from perf.pool import Row, Watch, cpu_s, create_all, grant, lateness, pss_mib
from perf.servers import Unready, write_result
from tests.e2e.api import Api
from tests.e2e.control_plane import ControlPlane
from tests.e2e.product import CLEANUP, Product, holder_of

_SPACE: Final = "cleanup"
_OBJECTS: Final = f"/api/v1/namespaces/{_SPACE}/configmaps"
_POLICIES: Final = "/apis/kyverno.io/v2/clustercleanuppolicies"
_LABEL: Final = "cleanup.kyverno.io/ttl"
_USER: Final = f":{CLEANUP}"
_WINDOW_S: Final = 60
_IDLE_S: Final = 30.0
_WAIT_S: Final = 240.0
_LATER_S: Final = 3600
_SETTLE_S: Final = 3.0
"""Time for the watch to deliver the last objects."""


def main(arguments: list[str] | None = None) -> int:
    """Run the measurement; 0 = fine, 1 = a target is missed, 2 = cannot measure."""
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
        "--check", action="store_true", help="fail when a target is missed"
    )
    return parser.parse_args(arguments)


def measure(args: argparse.Namespace, folder: Path) -> list[Row]:
    """Return a row for each part."""
    with control_plane(folder) as plane, Api(plane.access) as api:
        api.create("/api/v1/namespaces", {"metadata": {"name": _SPACE}})
        grant(api, "cleanup", ["get", "list", "watch", "delete"])
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


@contextmanager
def cleaning(plane: ControlPlane, folder: Path) -> Iterator[psutil.Process]:
    """Run a pod of the cleanup role and yield its cleaning process."""
    extra = {"CLEANUP_WORKERS": "1", "CLEANUP_DISCOVERY_S": "60", "POD_NAME": "one"}
    product = Product(plane, folder, 0, extra, account=CLEANUP)
    product.start()
    try:
        with Api(plane.access) as api:
            wait_for(
                lambda: holder_of(api, CLEANUP) == "one",
                "nobody holds the lease",
                _WAIT_S,
            )
        yield psutil.Process(product.processes()["cleanup"])
    finally:
        product.stop()


class Gone(Watch):
    """Watches ConfigMaps and records when each is deleted."""

    def __init__(self, plane: ControlPlane) -> None:
        scope = WatchScope(
            resource=core("configmaps"), namespace=_SPACE, metadata_only=True
        )
        super().__init__(plane, scope, self._note)
        self._lock = threading.Lock()
        self.at_s: dict[str, float] = {}

    def count(self, prefix: str) -> int:
        """Return how many objects of a part are deleted."""
        with self._lock:
            return sum(name.startswith(prefix) for name in self.at_s)

    def _note(self, key: Key) -> None:
        if key not in self:
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
        """Wait until a labelled object is deleted, which proves that the watch runs."""
        self._create([("warm", "0s")])
        wait_for(lambda: self._gone.count("warm") > 0, "labelled objects stay", _WAIT_S)

    def idle(self, part: str) -> Row:
        """Measure the cost of waiting."""
        self._plane.audit.mark()
        before_s, received, began_s = (
            cpu_s(self._process),
            self._bytes(),
            time.monotonic(),
        )
        time.sleep(_IDLE_S)
        taken_s = time.monotonic() - began_s
        asked = self._plane.audit.asked(_USER)
        return {
            "part": part,
            "cpu_percent": round(100 * (cpu_s(self._process) - before_s) / taken_s, 3),
            "bytes_per_s": round((self._bytes() - received) / taken_s),
            "calls_per_minute": round(len(asked) * 60 / taken_s, 1),
            "pss_mib": pss_mib(self._process),
        }

    def waiting(self, count: int) -> Row:
        """Measure the cost of objects that are due much later."""
        later = instant(time.time() + _LATER_S)
        self._create([(f"later-{number}", later) for number in range(count)])
        time.sleep(_SETTLE_S)
        return self.idle(f"idle, {count} objects are labelled")

    def ttl(self, part: str, count: int, lead_s: int, *, spread: bool) -> list[Row]:
        """Measure the lateness and the cost of TTL deletions."""
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
        before_s = cpu_s(self._process)
        wait_for(lambda: self._gone.count(prefix) == count, "objects stay", _WAIT_S)
        late = [self._gone.at_s[name] - at for name, at in due.items()]
        return [*rows, self._row(part, late, count, before_s)]

    def policy(self, count: int) -> Row:
        """Measure the run of a policy; lateness counts from the start of the run."""
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
        before_s, began_s = cpu_s(self._process), time.time()
        past = {"status": {"lastExecutionTime": "2026-01-01T00:00:00Z"}}
        self._api.patch(f"{_POLICIES}/p/status", past)
        wait_for(lambda: self._gone.count("policy-") == count, "objects stay", _WAIT_S)
        late = [
            at - began_s
            for name, at in self._gone.at_s.items()
            if name.startswith("policy-")
        ]
        return self._row("by a policy", late, count, before_s)

    def _row(
        self, part: str, late: Sequence[float], count: int, before_s: float
    ) -> Row:
        taken_s = cpu_s(self._process) - before_s
        asked = self._plane.audit.asked(_USER)
        verbs = Counter(one.verb for one in asked if one.resource == "configmaps")
        others = len(asked) - sum(verbs.values())
        return {
            "part": part,
            "objects": count,
            **lateness(late),
            "early": sum(one < 0 for one in late),
            "calls_per_deletion": round(sum(verbs.values()) / count, 3),
            "verbs": dict(verbs),
            "other_calls": others,
            "cpu_ms_per_deletion": round(1e3 * taken_s / count, 3),
            "pss_mib": pss_mib(self._process),
        }

    def _create(self, objects: Sequence[tuple[str, str]]) -> None:
        """Create labelled objects."""
        bodies = (
            {
                "metadata": {"name": name, "labels": {_LABEL: value} if value else {}},
                "data": {"word": "word"},
            }
            for name, value in objects
        )
        create_all(self._plane, _OBJECTS, bodies)

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
    """Return the label value for a time."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H%M%SZ")


def check(rows: Sequence[Row]) -> int:
    """Compare with the targets."""
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

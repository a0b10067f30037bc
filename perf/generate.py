"""Measure generation: the lateness and cost of objects, and the cost for admission.

etcd, kube-apiserver, kube-controller-manager and one pod with webhook and background
pool share this machine. Namespaces are created at a steady rate; a policy generates a
ConfigMap in each. A watch shows when each ConfigMap exists, and the audit log shows the
requests to the API server. Lateness is the time from the answer to the creation of the
Namespace to the event of the ConfigMap. First, Namespaces are created with a policy
that only validates them, to measure the cost of admission without generation.

    python perf/generate.py [--namespaces 1000] [--rate 50] [--short] [--check]
    python perf/generate.py --memory 10000     what the pool takes with so many objects
"""

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

# Python searches the imports of a script only in the script's own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kyverno_mp.kube.resource import Key, core
from kyverno_mp.kube.watch import WatchScope
from perf.cluster import POLICIES, control_plane, wait_for
from perf.pool import (
    CREATORS,
    Row,
    Watch,
    cpu_s,
    create_all,
    grant,
    lateness,
    missed,
    pss_mib,
)
from perf.servers import Unready, write_result
from tests.e2e.api import Api
from tests.e2e.audit import Asked
from tests.e2e.control_plane import ControlPlane
from tests.e2e.product import ADMISSION, Product, holder_of

BACKGROUND: Final = "kyverno-background-controller"
_NAMESPACES: Final = "/api/v1/namespaces"
_REQUESTS: Final = "/apis/kyverno.io/v2/namespaces/kyverno/updaterequests"
_VERBS: Final = ("get", "list", "watch", "create", "update", "patch", "delete")
_CONFIG_MAP: Final = "made"
_VALIDATES: Final = {
    "failureAction": "Enforce",
    "message": "a name is required",
    "pattern": {"metadata": {"name": "?*"}},
}
_GENERATES: Final = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "name": _CONFIG_MAP,
    "namespace": "{{request.object.metadata.name}}",
    "synchronize": True,
    "data": {"data": {"of": "{{request.object.metadata.name}}"}},
}
_MANY: Final = {
    **_GENERATES,
    "name": "{{request.object.metadata.name}}",
    "namespace": "many",
    "generateExisting": True,
}
_SETTLE_S: Final = 20.0
_OF_AN_OBJECT: Final = frozenset({"updaterequests", "configmaps", "namespaces"})
"""Resources whose calls belong to single objects; Events are counted separately."""
_INSTALLATION: Final = "kyverno"
"""Namespace whose ConfigMaps the replicas write periodically instead of per object."""
_WAIT_S: Final = 420.0
"""Time limit; ten thousand objects take some minutes."""


def main(arguments: list[str] | None = None) -> int:
    """Run the measurement; 0 = fine, 1 = a target is missed, 2 = cannot measure."""
    args = parse(arguments)
    if args.short:
        args.namespaces, args.rate = 200, 25
    try:
        with tempfile.TemporaryDirectory(prefix="kyverno-mp-perf-") as name:
            row = measure(args, Path(name))
    except Unready as error:
        print(f"cannot measure: {error}")
        return 2
    print("\n".join(f"{key:28} {value}" for key, value in row.items()))
    write_result("generate", {"row": row}, args.json)
    return check(row) if args.check else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--namespaces", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=50.0, help="per second")
    parser.add_argument("--short", action="store_true", help="200 at 25 per second")
    parser.add_argument(
        "--memory", type=int, default=0, help="only the memory with so many objects"
    )
    parser.add_argument("--json", type=Path, help="instead of perf/results")
    parser.add_argument(
        "--check", action="store_true", help="fail when a target is missed"
    )
    return parser.parse_args(arguments)


def measure(args: argparse.Namespace, folder: Path) -> Row:
    """Return the figures."""
    with control_plane(folder) as plane, Api(plane.access) as api:
        grant(api, "background", _VERBS)
        with generating(plane, folder) as processes, Made(plane) as made:
            bench = Bench(plane, api, processes, made)
            if args.memory:
                return bench.memory(args.memory)
            bench.store("validate", {"validate": _VALIDATES})
            bench.create("first", 20, args.rate)
            without = bench.create("without", args.namespaces // 2, args.rate)
            bench.store("generate", {"generate": _GENERATES})
            bench.create("warm", 20, args.rate)
            wait_for(
                lambda: made.count("warm") == 20,
                "the first objects do not come",
                _WAIT_S,
            )
            wait_for(bench.is_idle, "requests stay", _WAIT_S)
            return bench.generate(args.namespaces, args.rate, without)


@contextmanager
def generating(
    plane: ControlPlane, folder: Path
) -> Iterator[dict[str, psutil.Process]]:
    """Run a pod with webhook and pool, and yield its processes by name."""
    extra = {"BACKGROUND_WORKERS": "4", "POD_NAME": "one"}
    product = Product(plane, folder, 1, extra)
    product.start()
    try:
        with Api(plane.access) as api:
            wait_for(
                lambda: holder_of(api, BACKGROUND) == "one",
                "nobody holds the lease",
                _WAIT_S,
            )
        found = product.processes()
        try:
            yield {name: psutil.Process(pid) for name, pid in found.items()}
        except psutil.NoSuchProcess as error:
            log = product.program.log.read_text(errors="replace")[-4000:]
            raise Unready(f"a process of the pod ended:\n{log}") from error
    finally:
        product.stop()


class Made(Watch):
    """Watches ConfigMaps and records when each exists, by Namespace."""

    def __init__(self, plane: ControlPlane) -> None:
        scope = WatchScope(resource=core("configmaps"), metadata_only=True)
        super().__init__(plane, scope, self._note)
        self._lock = threading.Lock()
        self.at_s: dict[str, float] = {}
        self.writes: Counter[str] = Counter()

    def count(self, prefix: str) -> int:
        """Return how many objects of a part exist."""
        with self._lock:
            return sum(name.startswith(prefix) for name in self.at_s)

    def _note(self, key: Key) -> None:
        is_many = key[0] == _MANY["namespace"] and key[1].startswith("t")
        if key not in self or not (is_many or key[1] == _CONFIG_MAP):
            return
        name = "/".join(key) if is_many else key[0]
        with self._lock:
            self.at_s.setdefault(name, time.monotonic())
            self.writes[name] += 1


class Bench:
    """The parts of the measurement."""

    def __init__(
        self,
        plane: ControlPlane,
        api: Api,
        processes: dict[str, psutil.Process],
        made: Made,
    ) -> None:
        self._plane = plane
        self._api = api
        self._processes = processes
        self._made = made
        self._answered_s: dict[str, float] = {}

    def store(
        self, name: str, body: dict[str, Any], kind: str = "Namespace", **match: Any
    ) -> None:
        """Store a policy for a kind and wait until admission applies it."""
        match = {"any": [{"resources": {"kinds": [kind], **match}}]}
        spec = {"rules": [{"name": "r", "match": match, **body}]}
        raw = {"apiVersion": "kyverno.io/v1", "kind": "ClusterPolicy", "spec": spec}
        self._api.create(POLICIES, {**raw, "metadata": {"name": name}})
        wait_for(lambda: self._is_ready(name), f"policy {name} is not ready", _WAIT_S)

    def _is_ready(self, name: str) -> bool:
        status = self._api.get(f"{POLICIES}/{name}").get("status") or {}
        return any(
            (one["type"], one["status"]) == ("Ready", "True")
            for one in status.get("conditions") or ()
        )

    def is_idle(self) -> bool:
        """Return whether no UpdateRequest is left."""
        return not self._api.get(_REQUESTS)["items"]

    def create(self, prefix: str, count: int, rate: float) -> list[float]:
        """Create Namespaces at a rate; return how long each took, in seconds."""
        began_s = time.monotonic()
        local = threading.local()

        def one(number: int) -> float:
            time.sleep(max(0.0, began_s + number / rate - time.monotonic()))
            if not hasattr(local, "api"):
                local.api = Api(self._plane.access)
            name = f"{prefix}-{number}"
            start_s = time.monotonic()
            local.api.create(_NAMESPACES, {"metadata": {"name": name}})
            self._answered_s[name] = time.monotonic()
            return self._answered_s[name] - start_s

        with ThreadPoolExecutor(CREATORS) as pool:
            return list(pool.map(one, range(count)))

    def generate(self, count: int, rate: float, without: Sequence[float]) -> Row:
        """Measure the generated objects of a number of Namespaces."""
        self._plane.audit.mark()
        before_s = self._cpu_s()
        took = self.create("made", count, rate)
        wait_for(
            lambda: self._made.count("made-") == count, "objects are missing", _WAIT_S
        )
        wait_for(self.is_idle, "requests stay", _WAIT_S)
        taken_s = {name: one - before_s[name] for name, one in self._cpu_s().items()}
        late = [
            self._made.at_s[f"made-{n}"] - self._answered_s[f"made-{n}"]
            for n in range(count)
        ]
        return {
            "namespaces": count,
            "rate_per_s": rate,
            "lost": count - self._made.count("made-"),
            "written_twice": sum(n > 1 for n in self._made.writes.values()),
            **lateness(late),
            **self._calls(count),
            "cpu_ms_per_object": round(
                1e3 * (taken_s.get("background", 0) + taken_s.get("leader", 0)) / count,
                3,
            ),
            "cpu_s": {name: round(one, 2) for name, one in taken_s.items()},
            "pss_mib": {name: pss_mib(one) for name, one in self._processes.items()},
            "create_p50_ms_without": round(1e3 * statistics.median(without), 2),
            "create_p50_ms_with": round(1e3 * statistics.median(took), 2),
        }

    def memory(self, count: int) -> Row:
        """Measure the pool's memory before and after generateExisting."""
        self._api.create(_NAMESPACES, {"metadata": {"name": "many"}})
        bodies = ({"metadata": {"name": f"t{number}"}} for number in range(count))
        create_all(self._plane, "/api/v1/namespaces/many/serviceaccounts", bodies)
        before = pss_mib(self._processes["background"])
        self._plane.audit.mark()
        self.store(
            "many", {"generate": _MANY}, kind="ServiceAccount", namespaces=["many"]
        )
        wait_for(
            lambda: self._made.count("many/t") == count, "objects are missing", _WAIT_S
        )
        wait_for(self.is_idle, "requests stay", _WAIT_S)
        busy = pss_mib(self._processes["background"])
        time.sleep(_SETTLE_S)
        after = pss_mib(self._processes["background"])
        return {
            "objects": count,
            **self._calls(count),
            "pss_mib_before": before,
            "pss_mib_at_the_end": busy,
            "pss_mib_later": after,
            "pss_mib_more": round(after - before, 1),
        }

    def _calls(self, count: int) -> Row:
        """Count the calls of both accounts."""
        asked = [
            one
            for account in (ADMISSION, BACKGROUND)
            for one in self._plane.audit.asked(f":{account}")
        ]
        verbs = Counter(
            f"{one.verb} {one.resource}" for one in asked if _is_of_an_object(one)
        )
        others = Counter(
            f"{one.verb} {one.resource}"
            for one in asked
            if not _is_of_an_object(one) and one.resource != "events"
        )
        return {
            "calls_per_object": round(sum(verbs.values()) / count, 3),
            "verbs": dict(verbs),
            "calls_by_the_clock": dict(others),
            "events": sum(one.resource == "events" for one in asked),
            "status_writes": verbs.get("patch updaterequests/status", 0),
        }

    def _cpu_s(self) -> dict[str, float]:
        return {name: cpu_s(one) for name, one in self._processes.items()}


def _is_of_an_object(one: Asked) -> bool:
    """Return whether the number of such calls grows with the number of objects.

    Lists of all objects and the replicas' own status are periodic.
    """
    if one.verb in {"list", "watch"}:
        return False
    if one.resource == "configmaps" and one.namespace == _INSTALLATION:
        return False
    return one.resource.partition("/")[0] in _OF_AN_OBJECT


def check(row: Row) -> int:
    """Compare with the targets."""
    most = {
        "lost": 0,
        "written_twice": 0,
        "late_p50_s": 0.15,
        "late_p99_s": 1.0,
        "calls_per_object": 4.0,
        "cpu_ms_per_object": 5.0,
        "status_writes": 0,
    }
    return missed(row, most)


if __name__ == "__main__":
    sys.exit(main())

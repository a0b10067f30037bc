"""Measure scans: the time and cost of reports, and unnecessary writes.

etcd, kube-apiserver, kube-controller-manager and one pod with webhook and reports pool
share this machine. Pods and the project's 17 policies exist before the pod starts.
Then: the first scan; an annotation of a policy; a message of one rule; a new holder.
The audit log shows the requests to the API server, and a watch shows when each report
exists and in which version.

    python perf/scan.py [--pods 10000] [--short] [--check]
"""

import argparse
import copy
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
import psutil

# Python searches the imports of a script only in the script's own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.reports.objects import POLICY_REPORTS
from perf.cluster import POLICIES, control_plane, documents, wait_for
from perf.pool import Row, Watch, create_all, missed, pss_mib
from perf.reviews import REVIEWS
from perf.servers import Unready, default_policies, write_result
from tests.e2e.api import Api
from tests.e2e.control_plane import ControlPlane
from tests.e2e.product import Product, holder_of

REPORTS: Final = "kyverno-reports-controller"
_SCANNED: Final = "scanned pods"
_QUIET_S: Final = 10.0
_WRITES: Final = ("create", "update", "patch", "delete")


def main(arguments: list[str] | None = None) -> int:
    """Run the measurement; 0 = fine, 1 = a target is missed, 2 = cannot measure."""
    args = parse(arguments)
    if args.short:
        args.pods = 1000
    try:
        with tempfile.TemporaryDirectory(prefix="kyverno-mp-perf-") as name:
            row = measure(args.pods, Path(name))
    except Unready as error:
        print(f"cannot measure: {error}")
        return 2
    print("\n".join(f"{key:28} {value}" for key, value in row.items()))
    write_result("scan", {"row": row}, args.json)
    return check(row) if args.check else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--short", action="store_true", help="1,000 Pods")
    parser.add_argument("--json", type=Path, help="instead of perf/results")
    parser.add_argument(
        "--check", action="store_true", help="fail when a target is missed"
    )
    return parser.parse_args(arguments)


def measure(pods: int, folder: Path) -> Row:
    """Return the figures."""
    with control_plane(folder) as plane, Api(plane.access) as api:
        create_pods(plane, api, pods)
        for raw in documents(default_policies()):
            api.create(POLICIES, raw)
        with Stored(plane) as stored:
            return Bench(plane, api, stored, pods).run(folder)


def create_pods(plane: ControlPlane, api: Api, count: int) -> None:
    """Create Pods, every other one of which violates policies."""
    account(api)
    samples = [sample(number) for number in range(2)]
    bodies = (
        {**raw, "metadata": {**raw["metadata"], "name": f"pod-{number}"}}
        for number in range(count)
        for raw in (samples[number % 2],)
    )
    create_all(plane, "/api/v1/namespaces/default/pods", bodies)


def account(api: Api) -> None:
    """Create the ServiceAccount of the Pods, unless its controller was faster."""
    raw = {"metadata": {"name": "default"}}
    status, _ = api.ask("GET", "/api/v1/namespaces/default/serviceaccounts/default")
    if status != 200:
        api.create("/api/v1/namespaces/default/serviceaccounts", raw)


def sample(number: int) -> Row:
    """Return a Pod without a name; every other number violates policies."""
    body = list(REVIEWS.values())[number]
    raw: Row = copy.deepcopy(body[0]["request"]["object"])
    kept = ("labels", "annotations")
    raw["metadata"] = {name: raw["metadata"][name] for name in kept}
    raw.pop("status", None)
    # The ServiceAccount admission of the API server adds its own.
    raw["spec"].pop("volumes", None)
    for container in raw["spec"]["containers"]:
        container.pop("volumeMounts", None)
    return raw


class Stored(Watch):
    """Watches reports, and records when each was created and its version."""

    def __init__(self, plane: ControlPlane) -> None:
        scope = WatchScope(resource=POLICY_REPORTS.of_namespace, metadata_only=True)
        super().__init__(plane, scope, self._note)
        self.first_s = self.last_s = 0.0
        self.changes = 0

    def _note(self, _key: tuple[str, str]) -> None:
        self.last_s = time.monotonic()
        self.first_s = self.first_s or self.last_s
        self.changes += 1


class Bench:
    """The parts of the measurement."""

    def __init__(
        self, plane: ControlPlane, api: Api, stored: Stored, pods: int
    ) -> None:
        self._plane = plane
        self._api = api
        self._stored = stored
        self._pods = pods
        self._used: dict[int, tuple[str, float]] = {}

    def run(self, folder: Path) -> Row:
        """Return all figures."""
        extra = {"REPORTS_WORKERS": "1", "POD_NAME": "one"}
        product = Product(self._plane, folder, 1, extra)
        self._plane.audit.mark()
        self._used = self._cpu(product)
        began_s = time.monotonic()
        product.start()
        try:
            wait_for(lambda: holder_of(self._api, REPORTS) == "one", "no holder")
            return {"pods": self._pods, **self._steps(product, began_s)}
        finally:
            product.stop()

    def _steps(self, product: Product, began_s: float) -> Row:
        wait_for(lambda: len(self._stored) >= self._pods, "reports are missing", 400)
        stored = self._stored
        row: Row = {
            "first_report_s": round(stored.first_s - began_s, 1),
            "first_scan_s": round(stored.last_s - stored.first_s, 1),
        }
        self._settle(product, 1)
        row |= self._cost("first", product)
        row |= self._memory(product)
        row["bytes_per_report"] = self._bytes()
        path = f"{POLICIES}/{self._name('privileged')}"
        with self._step("annotation", row, product):
            self._api.patch(path, {"metadata": {"annotations": {"note": "n"}}})
            time.sleep(_QUIET_S)
        with self._step("rule", row, product):
            start_s = time.monotonic()
            self._change_rule(path)
            before = self._stored.changes
            wait_for(lambda: self._stored.changes > before, "nothing changes", 120)
            self._settle(product, 2)
            row["rule_s"] = round(self._stored.last_s - start_s, 1)
        with self._step("restart", row, product):
            os.kill(product.processes()["reports"], signal.SIGKILL)
            self._settle(product, 3)
        return row

    def _name(self, part: str) -> str:
        items = self._api.get(POLICIES)["items"]
        names = [one["metadata"]["name"] for one in items]
        return str(next((name for name in names if part in name), names[0]))

    def _change_rule(self, path: str) -> None:
        rules = self._api.get(path)["spec"]["rules"]
        for rule in rules:
            rule["validate"]["message"] = "another text"
        self._api.patch(path, {"spec": {"rules": rules}})

    def _settle(self, product: Product, times: int) -> None:
        """Wait until the Pods were scanned this often and all writes have ended."""
        log = product.program.log
        wait_for(
            lambda: log.read_text(errors="replace").count(_SCANNED) >= times,
            "the scan does not end",
            400,
        )
        time.sleep(2)

    @contextmanager
    def _step(self, name: str, row: Row, product: Product) -> Iterator[None]:
        self._plane.audit.mark()
        self._used = self._cpu(product)
        yield
        row |= self._cost(name, product)

    def _cpu(self, product: Product) -> dict[int, tuple[str, float]]:
        """Return the CPU time of the control plane and the pod so far, by process."""
        plane = self._plane
        programs = (plane.etcd, plane.apiserver, plane.controller_manager)
        pids = {one.name: one.pid for one in programs}
        if product.program.is_started:
            pids |= product.processes()
        found = {}
        for name, pid in pids.items():
            with suppress(psutil.NoSuchProcess):
                used_s = float(sum(psutil.Process(pid).cpu_times()[:2]))
                found[pid] = name, used_s
        return found

    def _cost(self, name: str, product: Product) -> Row:
        none = ("", 0.0)
        used_s = {
            program: round(now_s - self._used.get(pid, none)[1], 1)
            for pid, (program, now_s) in self._cpu(product).items()
        }
        told = self._plane.audit.asked(f":{REPORTS}", writes=True)
        asked = [
            one
            for one in self._plane.audit.asked(f":{REPORTS}")
            if "reports" in one.resource
        ]
        verbs = Counter(one.verb for one in asked)
        return {
            f"{name}_writes": sum(verbs[one] for one in _WRITES),
            f"{name}_calls": dict(verbs),
            f"{name}_events": sum(one.resource == "events" for one in told),
            f"{name}_cpu_s": used_s,
        }

    def _memory(self, product: Product) -> Row:
        processes = product.processes()
        found = {name: psutil.Process(pid) for name, pid in processes.items()}
        pss = {name: pss_mib(one) for name, one in found.items()}
        return {"pss_mib": pss, "pod_pss_mib": round(sum(pss.values()), 1)}

    def _bytes(self) -> int:
        path = POLICY_REPORTS.of_namespace.collection("default")
        items = self._api.get(f"{path}?limit=20")["items"]
        return sum(len(msgspec.json.encode(one)) for one in items) // len(items)


def check(row: Row) -> int:
    """Compare with the targets."""
    most = {
        "first_scan_s": 60.0,
        "bytes_per_report": 6656,
        "first_writes": 1.1 * row["pods"],
        "annotation_writes": 0,
        "rule_s": 15.0,
        "restart_writes": 0,
        "pod_pss_mib": 220.0,
    }
    return missed(row, most)


if __name__ == "__main__":
    sys.exit(main())

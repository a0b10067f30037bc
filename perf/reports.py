"""Measure reports under load: their lateness, and the cost for admission.

etcd, kube-apiserver, kube-controller-manager and one pod share this machine. Pods are
created at a steady rate, with the project's 17 policies and one policy whose results
only reviews can find, three times: without a reports pool; with a stopped pool, so that
results of reviews pile up; with the pool. Lateness is the time from the answer to the
creation of a Pod to the event of its report.

    python perf/reports.py [--rate 200] [--seconds 300] [--short] [--check]
"""

import argparse
import http.client
import re
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

# Python searches the imports of a script only in the script's own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kyverno_mp.kube.resource import Key
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.reports.objects import POLICY_REPORTS
from perf.cluster import control_plane, create, documents, wait_for
from perf.pool import CREATORS, Row, Watch, lateness, missed
from perf.scan import REPORTS, account, sample
from perf.servers import Unready, default_policies, write_result
from tests.e2e.api import Api
from tests.e2e.control_plane import ControlPlane
from tests.e2e.product import Product, holder_of

_PODS: Final = "/api/v1/namespaces/default/pods"
_EPHEMERAL: Final = "/apis/reports.kyverno.io/v1/ephemeralreports"
_WAIT_S: Final = 420.0
_REVIEWED: Final = "reviewed"
_STAGE: Final = re.compile(
    r'kyverno_mp_reports_stage_seconds_(sum|count){cause="object",stage="(\w+)"} (\S+)'
)
_TRAVELS: Final[Row] = {
    "apiVersion": "kyverno.io/v1",
    "kind": "ClusterPolicy",
    "metadata": {"name": _REVIEWED},
    "spec": {
        "background": False,
        "rules": [
            {
                "name": "r",
                "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
                "validate": {
                    "message": "a name is required",
                    "pattern": {"metadata": {"name": "?*"}},
                },
            }
        ],
    },
}


def main(arguments: list[str] | None = None) -> int:
    """Run the measurement; 0 = fine, 1 = a target is missed, 2 = cannot measure."""
    args = parse(arguments)
    if args.short:
        args.rate, args.seconds = 25, 20
    try:
        with tempfile.TemporaryDirectory(prefix="kyverno-mp-perf-") as name:
            row = measure(args.rate, int(args.rate * args.seconds), Path(name))
    except Unready as error:
        print(f"cannot measure: {error}")
        return 2
    print("\n".join(f"{key:28} {value}" for key, value in row.items()))
    write_result("reports", {"row": row}, args.json)
    return check(row) if args.check else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rate", type=float, default=200.0, help="Pods per second")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--short", action="store_true", help="25 per second for 20 s")
    parser.add_argument("--json", type=Path, help="instead of perf/results")
    parser.add_argument(
        "--check", action="store_true", help="fail when a target is missed"
    )
    return parser.parse_args(arguments)


def measure(rate: float, count: int, folder: Path) -> Row:
    """Return the figures."""
    with control_plane(folder) as plane, Api(plane.access) as api:
        account(api)
        bench = Bench(plane, api, rate, count)
        row: Row = {"pods": count, "rate_per_s": rate}
        with running(plane, folder / "without", {}):
            create(api, [*audited(), _TRAVELS])
            row |= bench.load("without")
        away = {"REPORTS_ELSEWHERE": "true"}
        with running(plane, folder / "away", away):
            row |= bench.load("away")
            wait_for(lambda: len(bench.intermediate()) > 0, "no results travel")
            time.sleep(2)
            row["intermediate_objects"] = len(bench.intermediate())
        with running(plane, folder / "with", {"REPORTS_WORKERS": "1"}) as product:
            wait_for(lambda: holder_of(api, REPORTS) == "one", "no holder")
            with Reported(plane) as reported:
                # Earlier objects get their reports before the load begins.
                wait_for(lambda: len(reported) >= 2 * count, "reports miss", _WAIT_S)
                wait_for(lambda: not bench.intermediate(), "results stay", _WAIT_S)
                before = stages(product)
                plane.audit.mark()
                row |= bench.load("with")
                wait_for(lambda: len(reported) >= 3 * count, "reports miss", _WAIT_S)
                row |= lateness(bench.late(reported.at_s))
                row |= means(stages(product) - before)
                wait_for(lambda: not bench.intermediate(), "results stay", _WAIT_S)
                row["calls_per_report"] = bench.calls()
            row |= bench.verdicts()
        return row


def stages(product: Product) -> Counter[tuple[str, str]]:
    """Return sum and count of the report times of changed objects so far.

    By stage, and ``sum`` or ``count``.
    """
    link = http.client.HTTPConnection("127.0.0.1", product.health_port, timeout=10)
    with closing(link):
        link.request("GET", "/metrics")
        text = link.getresponse().read().decode()
    found = _STAGE.findall(text)
    return Counter({(stage, part): float(value) for part, stage, value in found})


def means(parts: Counter[tuple[str, str]]) -> Row:
    """Return the mean time of each stage. Unit: seconds."""
    return {
        f"late_{stage}_mean_s": round(parts[stage, "sum"] / count, 3)
        for (stage, part), count in parts.items()
        if part == "count"
    }


def audited() -> list[Row]:
    """Return the project's policies; every other Pod violates some of them."""
    found = documents(default_policies())
    for policy in found:
        for rule in policy["spec"]["rules"]:
            rule["validate"]["failureAction"] = "Audit"
    return found


@contextmanager
def running(
    plane: ControlPlane, folder: Path, extra: dict[str, str]
) -> Iterator[Product]:
    """Run one pod."""
    folder.mkdir()
    product = Product(plane, folder, 1, {"POD_NAME": "one", **extra})
    product.start()
    try:
        yield product
    finally:
        product.stop()


class Reported(Watch):
    """Watches reports, and records when each was created, by name."""

    def __init__(self, plane: ControlPlane) -> None:
        self.at_s: dict[str, float] = {}
        scope = WatchScope(resource=POLICY_REPORTS.of_namespace, metadata_only=True)
        super().__init__(plane, scope, self._note)

    def _note(self, key: Key) -> None:
        self.at_s.setdefault(key[1], time.monotonic())


class Bench:
    """The parts of the measurement."""

    def __init__(self, plane: ControlPlane, api: Api, rate: float, count: int) -> None:
        self._plane = plane
        self._api = api
        self._rate = rate
        self._count = count
        self._answered_s: dict[str, float] = {}
        """Creation times of the last load, by uid."""

    def load(self, name: str) -> Row:
        """Create the Pods of one part; return the cost of their creation."""
        self._answered_s = {}
        samples = [sample(number) for number in range(2)]
        local = threading.local()
        began_s = time.monotonic()

        def one(number: int) -> float:
            time.sleep(max(0.0, began_s + number / self._rate - time.monotonic()))
            if not hasattr(local, "api"):
                local.api = Api(self._plane.access)
            raw = samples[number % 2]
            metadata = {**raw["metadata"], "name": f"{name}-{number}"}
            start_s = time.monotonic()
            made = local.api.create(_PODS, {**raw, "metadata": metadata})
            end_s = time.monotonic()
            self._answered_s[made["metadata"]["uid"]] = end_s
            return end_s - start_s

        with ThreadPoolExecutor(CREATORS) as pool:
            took = list(pool.map(one, range(self._count)))
        took_s = time.monotonic() - began_s
        return {
            f"{name}_rate_per_s": round(self._count / took_s, 1),
            f"{name}_create_p50_ms": _ms(took, 50),
            f"{name}_create_p99_ms": _ms(took, 99),
        }

    def late(self, at_s: dict[str, float]) -> list[float]:
        """Return the lateness of the last load's reports."""
        return [
            max(0.0, at_s[uid] - since_s) for uid, since_s in self._answered_s.items()
        ]

    def intermediate(self) -> list[Any]:
        """Return the EphemeralReports that exist."""
        found: list[Any] = self._api.get(_EPHEMERAL)["items"]
        return found

    def calls(self) -> Row:
        """Return the pool's calls for reports per Pod of the last load, by verb."""
        asked = self._plane.audit.asked(f":{REPORTS}")
        verbs = Counter(one.verb for one in asked if one.resource == "policyreports")
        return {verb: round(number / self._count, 3) for verb, number in verbs.items()}

    def verdicts(self) -> Row:
        """Count reports by summary, and reports without their results from reviews."""
        path = POLICY_REPORTS.of_namespace.collection("default")
        summaries: Counter[str] = Counter()
        without = 0
        token = ""
        while True:
            page = self._api.get(f"{path}?limit=500&continue={token}")
            for one in page["items"]:
                rows = one["results"]
                summaries[str(sorted(one["summary"].items()))] += 1
                without += not any(row["policy"] == _REVIEWED for row in rows)
            token = page["metadata"].get("continue") or ""
            if not token:
                return {
                    "kinds_of_reports": len(summaries),
                    "without_review": without,
                }


def _ms(took_s: Sequence[float], percent: int) -> float:
    return round(1e3 * statistics.quantiles(took_s, n=100)[percent - 1], 2)


def check(row: Row) -> int:
    """Compare with the targets."""
    most = {
        "late_p99_s": 5.0,
        "intermediate_objects": 2,
        # The first Pods were created before results of reviews were recorded.
        "without_review": row["pods"],
        "kinds_of_reports": 4,
        "with_create_p50_ms": 1.1 * row["away_create_p50_ms"],
    }
    return missed(row, most)


if __name__ == "__main__":
    sys.exit(main())

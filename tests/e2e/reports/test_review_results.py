"""Results of reviews alone, from a review to the report, on a real control plane.

A failure means: a report lacks a result that no scan can find again, for example after
a kill, or results flood the API server while no holder merges them.
"""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import psutil
import pytest

from kyverno_mp.limits import RESULTS_READ_AGES_S
from tests.e2e.api import Api
from tests.e2e.control_plane import ControlPlane
from tests.e2e.namespaces import end_namespace
from tests.e2e.product import Product, holder_of, started
from tests.waiting import HANG_S, unique, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

REPORTS: Final = "kyverno-reports-controller"
MANY: Final = 200
_POLICIES: Final = "/apis/kyverno.io/v1/clusterpolicies"
_REPORTS: Final = "/apis/wgpolicyk8s.io/v1alpha2"
_EPHEMERAL: Final = "/apis/reports.kyverno.io/v1/ephemeralreports"
_SETTINGS: Final = {"REPORTS_WORKERS": "1", "POD_NAME": "first"}
Json = Any


@pytest.fixture(scope="module")
def running(
    shared_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Product]:
    folder = tmp_path_factory.mktemp("review-results")
    with started(shared_plane, folder, _SETTINGS) as product:
        yield product


class Space:
    """A namespace whose ConfigMaps have results that a scan cannot find."""

    def __init__(self, api: Api, name: str) -> None:
        self.api = api
        self.name = name
        self.maps = f"/api/v1/namespaces/{name}/configmaps"
        self.reports = f"{_REPORTS}/namespaces/{name}/policyreports"

    def create_policies(self) -> None:
        """Create a policy that only reviews evaluate, and a mutating policy."""
        match = {
            "any": [{"resources": {"kinds": ["ConfigMap"], "namespaces": [self.name]}}]
        }
        needs = {"metadata": {"labels": {"team": "?*"}}}
        rules = [
            {
                "name": name,
                "match": match,
                "validate": {
                    "failureAction": action,
                    "message": "needed",
                    "pattern": pattern,
                },
            }
            for name, action, pattern in (
                ("audited", "Audit", needs),
                ("enforced", "Enforce", {"metadata": {"name": "?*"}}),
            )
        ]
        self._policy("validates", rules, background=False)
        patch = {"metadata": {"labels": {"seen": "yes"}}}
        rule = {"name": "labels", "match": match}
        self._policy("mutates", [{**rule, "mutate": {"patchStrategicMerge": patch}}])

    def _policy(self, name: str, rules: list[Json], **spec: Json) -> None:
        raw: Json = {
            "apiVersion": "kyverno.io/v1",
            "kind": "ClusterPolicy",
            "metadata": {"name": f"{self.name}-{name}"},
            "spec": {"rules": rules, **spec},
        }
        self.api.create(_POLICIES, raw)
        path = f"{_POLICIES}/{raw['metadata']['name']}"
        wait_for(lambda: _is_ready(self.api.get(path)))

    def put(self, name: str, **labels: str) -> None:
        """Create a ConfigMap."""
        raw = {"metadata": {"name": name, "labels": labels}}
        wait_for(lambda: self.api.ask("POST", self.maps, raw)[0] in (201, 409))

    def found(self) -> dict[str, dict[str, str]]:
        """Return the results by rule, by object."""
        return {
            one["scope"]["name"]: {row["rule"]: row["result"] for row in one["results"]}
            for one in self.api.get(self.reports)["items"]
        }

    def waits(self) -> set[str]:
        """Return the objects whose results are in no report yet."""
        return {
            subject["name"]
            for one in self.api.get(_EPHEMERAL)["items"]
            for row in one["spec"].get("results") or ()
            for subject in row.get("resources") or ()
            if subject.get("namespace") == self.name
        }


def _is_ready(policy: Json) -> bool:
    conditions = (policy.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


@pytest.fixture
def space(api: Api, shared_plane: ControlPlane) -> Iterator[Space]:
    name = f"results-{unique()}"
    api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    one = Space(api, name)
    yield one
    for policy in api.get(_POLICIES)["items"]:
        api.delete(f"{_POLICIES}/{policy['metadata']['name']}")
    end_namespace(api, shared_plane.etcd_url, name)


ALL: Final = {"audited": "fail", "enforced": "pass", "labels": "pass"}


def test_review_results_are_merged_into_reports(
    api: Api, running: Product, space: Space
) -> None:
    assert running.health()
    wait_for(lambda: holder_of(api, REPORTS) == "first")
    space.create_policies()
    space.put("x")
    space.put("y", team="blue")
    wait_for(lambda: space.found() == {"x": ALL, "y": {**ALL, "audited": "pass"}})
    (report,) = [
        one for one in api.get(space.reports)["items"] if one["scope"]["name"] == "x"
    ]
    (row,) = [one for one in report["results"] if one["rule"] == "labels"]
    assert row["message"] == f"mutated ConfigMap/x in namespace {space.name}"
    assert "resources" not in row
    wait_for(lambda: space.waits() == set())
    api.patch(f"{space.maps}/x", {"metadata": {"labels": {"team": "red"}}})
    wait_for(lambda: space.found()["x"]["audited"] == "pass")
    # A dry run and a deletion leave no results behind.
    raw = {"metadata": {"name": "dry"}}
    assert api.ask("POST", f"{space.maps}?dryRun=All", raw)[0] == 201
    api.delete(f"{space.maps}/y")
    time.sleep(3)
    assert space.waits() == set()
    assert "dry" not in space.found()


@pytest.mark.parametrize("victim", ["worker", "leader", "reports"])
def test_killed_process_loses_no_result(
    api: Api, running: Product, space: Space, victim: str
) -> None:
    wait_for(lambda: holder_of(api, REPORTS) == "first")
    space.create_policies()
    names = {f"m{at}" for at in range(MANY)}
    # One thread, because the connection cannot be shared.
    with ThreadPoolExecutor(1) as pool:
        creating = [pool.submit(space.put, name) for name in sorted(names)]
        for _ in range(4):
            time.sleep(0.4)
            _kill(running, victim)
        for one in creating:
            one.result()
    wait_for(lambda: space.found() == dict.fromkeys(names, ALL))
    # If the worker is killed between recording the results and answering, no object is
    # created: its results are dropped after a while.
    wait_for(lambda: space.waits() == set(), RESULTS_READ_AGES_S[-1] + HANG_S)


def _kill(product: Product, victim: str) -> None:
    """Kill a process of a role, or the worker that answers reviews."""
    role = "webhook" if victim == "worker" else victim
    pid = wait_for(lambda: product.processes().get(role))
    if victim == "worker":
        (pid,) = wait_for(lambda: [one.pid for one in psutil.Process(pid).children()])
    os.kill(pid, signal.SIGKILL)

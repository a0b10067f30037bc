"""Scans and reports by kyverno-mp itself on a real control plane, as its own account.

A failure means: an object has no report or a wrong one, a report is not deleted, or
reports are rewritten although nothing changed.
"""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from tests.e2e.api import Api
from tests.e2e.control_plane import ControlPlane
from tests.e2e.namespaces import end_namespace
from tests.e2e.product import Product, holder_of, started
from tests.waiting import unique, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

REPORTS: Final = "kyverno-reports-controller"
MANY: Final = 300
_POLICIES: Final = "/apis/kyverno.io/v1/clusterpolicies"
_GROUP: Final = "/apis/wgpolicyk8s.io/v1alpha2"
_SETTINGS: Final = {"REPORTS_WORKERS": "1", "POD_NAME": "first"}
Json = Any


@pytest.fixture(scope="module")
def running(
    shared_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Product]:
    with started(
        shared_plane, tmp_path_factory.mktemp("reports"), _SETTINGS
    ) as product:
        yield product


class Space:
    """One namespace, its ConfigMaps and their reports."""

    def __init__(self, api: Api, name: str) -> None:
        self.api = api
        self.name = name
        self.maps = f"/api/v1/namespaces/{name}/configmaps"
        self.reports = f"{_GROUP}/namespaces/{name}/policyreports"

    def policy(self, *rules: Json, kinds: tuple[str, ...] = ("ConfigMap",)) -> str:
        """Create a policy for the objects of this namespace; return its path."""
        raw = {
            "apiVersion": "kyverno.io/v1",
            "kind": "ClusterPolicy",
            "metadata": {"name": self.name},
            "spec": {"rules": list(rules) or [self.rule(kinds=kinds)]},
        }
        self.api.create(_POLICIES, raw)
        return f"{_POLICIES}/{self.name}"

    def rule(
        self,
        name: str = "r",
        label: str = "team",
        kinds: tuple[str, ...] = ("ConfigMap",),
    ) -> Json:
        """Return a rule that requires a label."""
        resources = {"kinds": list(kinds), "namespaces": [self.name]}
        return {
            "name": name,
            "match": {"any": [{"resources": resources}]},
            "validate": {
                "message": f"the label {label} is required",
                "pattern": {"metadata": {"labels": {label: "?*"}}},
            },
        }

    def put(self, name: str = "x", **labels: str) -> Json:
        """Create a ConfigMap."""
        return self.api.create(
            self.maps, {"metadata": {"name": name, "labels": labels}}
        )

    def report(self, raw: Json) -> Json | None:
        """Return the report of an object, or None."""
        status, found = self.api.ask("GET", f"{self.reports}/{raw['metadata']['uid']}")
        return found if status == 200 else None

    def rows(self, raw: Json) -> list[tuple[str, str]]:
        """Return (rule, result) of the rows of an object's report."""
        report = self.report(raw) or {}
        return [(one["rule"], one["result"]) for one in report.get("results") or ()]

    def all(self) -> dict[str, Json]:
        """Return all reports by the name of their object."""
        items = self.api.get(self.reports)["items"]
        return {one["scope"]["name"]: one for one in items}

    def versions(self) -> dict[str, str]:
        """Return the versions of all reports."""
        found = self.all().items()
        return {name: one["metadata"]["resourceVersion"] for name, one in found}


@pytest.fixture
def space(api: Api, shared_plane: ControlPlane, running: Product) -> Iterator[Space]:
    wait_for(lambda: holder_of(api, REPORTS) == "first")
    name = f"reports-{unique()}"
    api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    yield Space(api, name)
    for one in api.get(_POLICIES)["items"]:
        api.delete(f"{_POLICIES}/{one['metadata']['name']}")
    end_namespace(api, shared_plane.etcd_url, name)


def test_reports_follow_objects_and_policies(api: Api, space: Space) -> None:
    """Existing and new objects, their changes and their deletion."""
    old = space.put("old")
    path = space.policy()
    wait_for(lambda: space.rows(old) == [("r", "fail")])
    new = space.put("new", team="t")
    wait_for(lambda: space.rows(new) == [("r", "pass")])
    report = space.report(new)
    assert report is not None
    assert report["summary"] == {"pass": 1, "fail": 0, "warn": 0, "error": 0, "skip": 0}
    assert report["scope"]["uid"] == new["metadata"]["uid"]
    api.patch(f"{space.maps}/old", {"metadata": {"labels": {"team": "t"}}})
    wait_for(lambda: space.rows(old) == [("r", "pass")])
    api.delete(f"{space.maps}/new")
    wait_for(lambda: space.report(new) is None)
    rules = [space.rule("r"), space.rule("s", "app")]
    api.patch(path, {"spec": {"rules": rules}})
    wait_for(lambda: space.rows(old) == [("r", "pass"), ("s", "fail")])
    api.delete(path)
    wait_for(lambda: space.report(old) is None)


def test_unchanged_reports_are_not_written(
    api: Api, space: Space, running: Product
) -> None:
    """A new lease holder or an annotation of a policy causes no write."""
    path = space.policy()
    _create(space, 50)
    wait_for(lambda: len(space.all()) >= 50)
    before = space.versions()
    os.kill(running.processes()["reports"], signal.SIGKILL)
    wait_for(lambda: _reports_process(running))
    api.patch(path, {"metadata": {"annotations": {"note": "n"}}})
    marker = space.put("marker")
    wait_for(lambda: space.rows(marker))
    after = space.versions()
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize("victim", ["reports", "reports-evaluator"])
def test_killed_process_misses_no_object(
    space: Space, running: Product, victim: str
) -> None:
    """Objects are created while the pool's processes die repeatedly."""
    space.policy()
    with ThreadPoolExecutor(1) as pool:
        creating = pool.submit(_create, space, MANY)
        for _ in range(3):
            time.sleep(0.7)
            pid = wait_for(lambda: running.processes().get(victim))
            os.kill(pid, signal.SIGKILL)
            _await_other(running, victim, pid)
        creating.result()
    names = {f"m{at}" for at in range(MANY)}
    wait_for(lambda: names <= set(space.all()))
    assert all(one["summary"]["fail"] == 1 for one in space.all().values())


def test_unreadable_kind_is_named(space: Space, running: Product) -> None:
    """The account cannot read Secrets; the other kinds are still scanned."""
    raw = space.put()
    space.policy(kinds=("ConfigMap", "Secret"))
    wait_for(lambda: space.rows(raw) == [("r", "fail")])
    wait_for(lambda: "watch of secrets" in str(running.health()["reasons"]))


def _create(space: Space, count: int) -> None:
    for at in range(count):
        space.put(f"m{at}")


def _await_other(product: Product, name: str, pid: int) -> None:
    """Wait until a process other than ``pid`` runs."""
    wait_for(lambda: product.processes().get(name) not in (0, None, pid))


def _reports_process(product: Product) -> int:
    return product.processes().get("reports", 0)

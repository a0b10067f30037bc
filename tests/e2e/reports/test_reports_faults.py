"""After faults, reports equal a fresh scan's; Events and policy status are written.

A failure means: an object has no report, or differs from a new holder's report, or
users of Events or reports miss information that upstream's controllers give.
"""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from tests.e2e import etcd
from tests.e2e.api import Api
from tests.e2e.control_plane import ControlPlane
from tests.e2e.namespaces import end_namespace
from tests.e2e.product import Product, holder_of, started
from tests.e2e.reports.test_reports import REPORTS, Space
from tests.waiting import unique, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

MANY: Final = 80
_SETTINGS: Final = {
    "REPORTS_WORKERS": "1",
    "BACKGROUND_WORKERS": "1",
    "POD_NAME": "first",
}
_POLICIES: Final = "/apis/kyverno.io/v1/clusterpolicies"
_SERVER_S: Final = ("uid", "resourceVersion", "creationTimestamp", "generation")
Json = Any


@pytest.fixture(scope="module")
def running(
    shared_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Product]:
    with started(shared_plane, tmp_path_factory.mktemp("faults"), _SETTINGS) as product:
        yield product


@pytest.fixture
def space(shared_plane: ControlPlane, running: Product) -> Iterator[Space]:
    # A separate connection, because the API server is killed.
    with Api(shared_plane.access) as api:
        wait_for(lambda: holder_of(api, REPORTS) == "first")
        name = f"faults-{unique()}"
        api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        yield Space(api, name)
        for one in api.get(_POLICIES)["items"]:
            api.delete(f"{_POLICIES}/{one['metadata']['name']}")
        end_namespace(api, shared_plane.etcd_url, name)


def _create(space: Space, names: range) -> None:
    for at in names:
        space.put(f"m{at}", **({"team": "t"} if at % 2 else {}))


def _ours(space: Space) -> dict[str, Json]:
    """Return our objects' reports without fields that the server or the clock sets."""
    found = {name: one for name, one in space.all().items() if name[:1] == "m"}
    for one in found.values():
        for field in (*_SERVER_S, "managedFields"):
            one["metadata"].pop(field, None)
        for row in one["results"]:
            row.pop("timestamp")
    return found


def _is_right(space: Space) -> bool:
    found = _ours(space)
    return set(found) == {f"m{at}" for at in range(MANY)} and all(
        [row["result"] for row in one["results"]]
        == ["pass" if int(name[1:]) % 2 else "fail"]
        for name, one in found.items()
    )


def _kill(running: Product, name: str) -> None:
    pid = wait_for(lambda: running.processes().get(name))
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: running.processes().get(name) not in (0, None, pid))


def _answers(api: Api) -> bool:
    try:
        return api.ask("GET", "/readyz")[0] == 200
    except OSError:
        return False


def test_reports_converge(
    space: Space, running: Product, shared_plane: ControlPlane
) -> None:
    """Processes die during creations; the API server stops; etcd is compacted."""
    space.policy()
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(_create, space, range(MANY // 2))
        _kill(running, "reports-evaluator")
        _kill(running, "reports")
        coming.result()
    shared_plane.apiserver.stop(signal.SIGKILL)
    shared_plane.apiserver.start()
    with Api(shared_plane.access) as own:
        wait_for(lambda: _answers(own))
        again = Space(own, space.name)
        _create(again, range(MANY // 2, MANY))
        # Watches that resume get 410 Gone.
        etcd.compact(shared_plane.etcd_url)
        wait_for(lambda: _is_right(again), 180)
        found = _ours(again)
        own.ask("DELETE", again.reports)
        _kill(running, "reports")
        wait_for(lambda: _is_right(again), 180)
        assert _ours(again) == found


def test_scan_results_create_events(space: Space) -> None:
    """The Event is about the object, in its namespace."""
    space.put("old")
    space.policy()

    def notes() -> list[str]:
        path = f"/apis/events.k8s.io/v1/namespaces/{space.name}/events"
        return [
            one["note"]
            for one in space.api.get(path)["items"]
            if one["reportingController"] == "kyverno-scan"
            and (one["reason"], one["regarding"]["name"]) == ("PolicyViolation", "old")
        ]

    wait_for(notes)
    [note] = notes()
    assert note.startswith(f"policy {space.name}/r fail: ")


def test_report_of_a_trigger_lists_generated_objects(space: Space) -> None:
    """The result is listed next to the results of the scan."""
    made = {"apiVersion": "v1", "kind": "ConfigMap", "name": "made"}
    match = {"kinds": ["ConfigMap"], "names": ["m0"], "namespaces": [space.name]}
    rule = {
        "name": "g",
        "match": {"any": [{"resources": match}]},
        "generate": {
            **made,
            "namespace": space.name,
            "synchronize": False,
            "data": {"data": {"a": "b"}},
        },
    }
    path = space.policy(space.rule(), rule)
    wait_for(lambda: _is_ready(space.api, path))
    raw = space.put("m0")
    wait_for(lambda: space.rows(raw) == [("g", "pass"), ("r", "fail")])
    report = space.report(raw)
    assert report is not None
    named = f"/v1, Kind=ConfigMap Name=made Namespace={space.name}"
    assert report["results"][0]["properties"]["generated-resources"] == named


def _is_ready(api: Api, path: str) -> bool:
    status = api.get(path).get("status") or {}
    return any(
        one["type"] == "Ready" and one["status"] == "True"
        for one in status.get("conditions") or ()
    )

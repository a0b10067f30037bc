"""Chainsaw tests run here as they do in chainsaw: our cases with known outcomes.

A failure means: the results of Kyverno's own suites for kyverno-mp are not reliable.
"""

import shutil
import time
from pathlib import Path

import pytest

from tests.e2e.api import Api
from tests.e2e.chainsaw.commands import command_environment
from tests.e2e.chainsaw.documents import Failed
from tests.e2e.chainsaw.read import read_test
from tests.e2e.chainsaw.run import run_test
from tests.e2e.conftest import Cluster
from tests.e2e.control_plane import ControlPlane
from tests.e2e.etcd import keys
from tests.e2e.namespaces import end_namespace
from tests.waiting import wait_for

REPORTS = "wgpolicyk8s.io/v1alpha2"
CASES = Path(__file__).with_name("cases")


def _run(
    name: str, cluster: Cluster, api: Api, folder: Path, *, is_brief: bool = False
) -> None:
    staged = folder / name
    shutil.copytree(CASES / name, staged)
    environment = command_environment(
        cluster.kubeconfig, cluster.kubectl, folder / "bin"
    )
    test = read_test(staged / "chainsaw-test.yaml")
    run_test(test, api, environment, is_brief=is_brief)


def _namespaces(api: Api) -> set[str]:
    """Return the namespaces that are not terminating."""
    return {
        one["metadata"]["name"]
        for one in api.get("/api/v1/namespaces")["items"]
        if "deletionTimestamp" not in one["metadata"]
    }


def test_every_operation_works(cluster: Cluster, api: Api, tmp_path: Path) -> None:
    before = _namespaces(api)
    _run("operations", cluster, api, tmp_path)
    assert _namespaces(api) == before


def test_failed_step_ends_the_test_and_is_cleaned_up(
    cluster: Cluster, api: Api, tmp_path: Path
) -> None:
    began = time.monotonic()
    with pytest.raises(Failed, match=r"fails/2:assert: data: Required value"):
        _run("rescue", cluster, api, tmp_path)
    assert time.monotonic() - began < 20
    done = {path.name for path in (tmp_path / "rescue").iterdir()}
    assert done == {"chainsaw-test.yaml", "caught", "ended", "cleaned"}
    status, _ = api.ask("GET", "/api/v1/namespaces/rescue/configmaps/made")
    assert status == 404


def test_first_run_waits_less_before_a_write(
    cluster: Cluster, api: Api, tmp_path: Path
) -> None:
    began = time.monotonic()
    _run("brief", cluster, api, tmp_path, is_brief=True)
    assert 3 <= time.monotonic() - began < 50


def test_existing_objects_stay(cluster: Cluster, api: Api, tmp_path: Path) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    api.create(path, {"metadata": {"name": "found"}})
    _run("found", cluster, api, tmp_path)
    assert api.get(f"{path}/found")["data"] == {"a": "b"}
    assert api.ask("GET", f"{path}/made")[0] == 404
    api.delete(f"{path}/found")


def test_namespace_ends_with_its_content(shared_plane: ControlPlane, api: Api) -> None:
    """Otherwise a case finds what an earlier one left in a namespace of that name."""
    path = "/api/v1/namespaces/ended"
    api.create("/api/v1/namespaces", {"metadata": {"name": "ended"}})
    wait_for(lambda: api.ask("GET", f"{path}/serviceaccounts/default")[0] == 200)
    wait_for(lambda: api.ask("GET", f"{path}/configmaps/kube-root-ca.crt")[0] == 200)
    meta = {"metadata": {"name": "a"}}
    api.create(f"{path}/services", {**meta, "spec": {"ports": [{"port": 1}]}})
    container = {"name": "c", "image": "i"}
    api.create(f"{path}/pods", {**meta, "spec": {"containers": [container]}})
    report = {"apiVersion": REPORTS, "kind": "PolicyReport", **meta}
    api.create(f"/apis/{REPORTS}/namespaces/ended/policyreports", report)
    end_namespace(api, shared_plane.etcd_url, "ended")
    assert api.ask("GET", path)[0] == 404
    assert not [key for key in keys(shared_plane.etcd_url) if "/ended/" in key]


def test_namespace_with_a_finalizer_stays(shared_plane: ControlPlane, api: Api) -> None:
    """Otherwise the object would be left in a namespace that does not exist."""
    path = "/api/v1/namespaces/kept"
    api.create("/api/v1/namespaces", {"metadata": {"name": "kept"}})
    meta = {"name": "a", "finalizers": ["example.com/wait"]}
    api.create(f"{path}/configmaps", {"metadata": meta})
    end_namespace(api, shared_plane.etcd_url, "kept")
    assert "deletionTimestamp" in api.get(path)["metadata"]
    api.patch(f"{path}/configmaps/a", {"metadata": {"finalizers": None}})
    end_namespace(api, shared_plane.etcd_url, "kept")
    assert api.ask("GET", path)[0] == 404

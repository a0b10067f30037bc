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

"""The control plane of the tests itself: identities, RBAC, CRDs, no leaks.

A failure means: no other end-to-end test is reliable.
"""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.e2e.api import Api
from tests.e2e.binaries import SOURCES
from tests.e2e.conftest import Cluster
from tests.e2e.control_plane import ControlPlane
from tests.e2e.crds import install_crds
from tests.waiting import HANG_S, wait_for


def test_users_have_the_permissions_granted_by_rbac(cluster: Cluster) -> None:
    if cluster.plane is None:
        pytest.skip("needs the authority of a control plane of our own")
    with Api(cluster.plane.user("alice", ["developers"])) as alice:
        status, answer = alice.ask("GET", "/api/v1/namespaces")
        assert status == 403
        assert 'User "alice" cannot list' in answer["message"]
    with Api(cluster.plane.user("bob", ["system:masters"])) as bob:
        assert bob.get("/api/v1/namespaces")["items"]


def test_kubectl_works_with_the_kubeconfig(cluster: Cluster) -> None:
    done = subprocess.run(
        [cluster.kubectl, "get", "namespaces", "-o", "name"],
        env=os.environ | {"KUBECONFIG": str(cluster.kubeconfig)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "namespace/default" in done.stdout


def test_crds_are_accepted_and_established(cluster: Cluster, api: Api) -> None:
    """The API server reports no structural problem in any of our definitions."""
    names = install_crds(api)
    assert len(names) == 24
    for name in names:
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
        conditions = {
            one["type"]: one["status"] for one in api.get(path)["status"]["conditions"]
        }
        assert conditions == {"NamesAccepted": "True", "Established": "True"}


def test_definitions_are_applied_again_once_they_differ(
    shared_plane: ControlPlane, api: Api
) -> None:
    """Each module installs them, at the cost of seconds if all were applied."""
    names = install_crds(api)
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{names[0]}"
    before = api.get(path)["spec"]
    api.patch(path, {"spec": {"names": {"shortNames": ["changed"]}}})
    shared_plane.audit.mark()
    assert install_crds(api) == install_crds(api) == names
    assert api.get(path)["spec"] == before
    asked = shared_plane.audit.asked("admin", writes=True)
    assert [one.name for one in asked if one.verb == "patch"] == [names[0]]


def test_crds_can_be_applied_by_kubectl(cluster: Cluster) -> None:
    """A client-side apply keeps the object in an annotation of bounded size."""
    folder = SOURCES.parents[2] / "config" / "crds"
    for _ in range(2):
        done = subprocess.run(
            [cluster.kubectl, "apply", "-f", str(folder)],
            env=os.environ | {"KUBECONFIG": str(cluster.kubeconfig)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout.count("unchanged") == 24, done.stdout


def test_guarded_program_exits_with_its_parent(tmp_path: Path) -> None:
    """A killed test run leaves no process behind."""
    guard = SOURCES.parent / "guard.py"
    starter = (
        "import os, subprocess, sys, time; p = subprocess.Popen([sys.executable, "
        f"{str(guard)!r}, str(os.getpid()), '/bin/sleep', '600'], "
        "start_new_session=True); print(p.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        wait_for(lambda: child.name() == "sleep")
        parent.kill()
    assert not psutil.wait_procs([child], timeout=HANG_S)[1]

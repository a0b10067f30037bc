"""The control plane of the tests itself: identities, RBAC, CRDs, no leaks.

A failure means: no other end-to-end test is reliable.
"""

import ipaddress
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import psutil
import pytest

from tests.e2e.api import Api
from tests.e2e.binaries import SOURCES
from tests.e2e.conftest import Cluster
from tests.e2e.control_plane import SERVICE_RANGE, ControlPlane
from tests.e2e.crds import install_crds
from tests.e2e.kubeconfig import read_kubeconfig
from tests.e2e.prepared import kept
from tests.waiting import HANG_S, pause, wait_for

CLIENT_CA: Final = "extension-apiserver-authentication"
"""K8S: the ConfigMap with the authority whose certificates name users."""


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


def test_nothing_of_another_control_plane_is_in_it(
    shared_plane: ControlPlane, api: Api, tmp_path: Path
) -> None:
    """Its etcd began with the values of another: certificates and keys differ."""
    authority = shared_plane.access.ca.decode()
    config_maps = "/api/v1/namespaces/{}/configmaps/{}"
    trusted = api.get(config_maps.format("kube-system", CLIENT_CA))["data"]
    assert trusted["client-ca-file"] == authority
    path = config_maps.format("default", "kube-root-ca.crt")
    wait_for(lambda: api.ask("GET", path)[0] == 200)
    assert api.get(path)["data"]["ca.crt"] == authority

    service = api.get("/api/v1/namespaces/default/services/kubernetes")["spec"]
    assert ipaddress.ip_address(service["clusterIP"]) in ipaddress.ip_network(
        SERVICE_RANGE
    )
    assert [one["targetPort"] for one in service["ports"]] == [shared_plane.port]

    file = shared_plane.write_service_account(api, "default", "default", tmp_path)
    with Api(read_kubeconfig(file)) as account:
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        user = account.create(path, review)["status"]["userInfo"]["username"]
    assert user == "system:serviceaccount:default:default"


@pytest.mark.parametrize(
    ("content", "made"),
    [(None, 1), (b"", 1), (b'{"/registry/roles/a": "c3', 1), (b'{"a": "Yg=="}', 0)],
    ids=["missing", "empty", "cut", "whole"],
)
def test_values_are_made_unless_they_are_kept(
    content: bytes | None, made: int, tmp_path: Path
) -> None:
    """A killed run may leave a part of the file, and a later one finds it."""
    file = tmp_path / "prepared" / "values.json"
    if content is not None:
        file.parent.mkdir()
        file.write_bytes(content)
    calls: list[None] = []

    def make() -> dict[str, str]:
        calls.append(None)
        return {"a": "Yg=="}

    assert kept(file, make) == kept(file, make) == {"a": "Yg=="}
    assert len(calls) == made


def test_values_are_made_by_one_of_several_processes(tmp_path: Path) -> None:
    """Each worker of pytest starts a control plane; one of them prepares it."""
    calls: list[None] = []

    def make() -> dict[str, str]:
        calls.append(None)
        pause()
        return {"a": "Yg=="}

    with ThreadPoolExecutor(4) as pool:
        every = [pool.submit(kept, tmp_path / "values.json", make) for _ in range(4)]
    assert [one.result() for one in every] == [{"a": "Yg=="}] * 4
    assert len(calls) == 1


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

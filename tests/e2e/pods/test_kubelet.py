"""Deployments run as processes, with their environment, account, probes and addresses.

A failure means: the end-to-end tests do not test the manifests in deploy/.
"""

import http.client
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.api import Api
from tests.e2e.conftest import Cluster
from tests.e2e.kubeconfig import read_kubeconfig
from tests.e2e.kubelet import Kubelet
from tests.waiting import HANG_S, wait_for

NAMESPACE = "kubelet-test"
PROGRAM = """
import http.server, os, pathlib, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        told = [os.environ["POD"], os.environ["FROM_MAP"], sys.argv[2]]
        self.wfile.write(" ".join(told).encode())
pathlib.Path(os.environ["CACHE"], "here").touch()
http.server.HTTPServer((sys.argv[1], 8080), Handler).serve_forever()
"""
DEPLOYMENT: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web"},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {
                "serviceAccountName": "web",
                "terminationGracePeriodSeconds": 5,
                "volumes": [{"name": "cache", "emptyDir": {}}],
                "initContainers": [
                    {"name": "first", "image": "none", "command": ["true"]}
                ],
                "containers": [
                    {
                        "name": "main",
                        "image": "none",
                        "command": ["python", "-c", PROGRAM],
                        "args": ["$(ADDRESS)", "$$x"],
                        "ports": [{"name": "http", "containerPort": 8080}],
                        "readinessProbe": {"httpGet": {"path": "/", "port": "http"}},
                        "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
                        "env": [
                            {"name": "CACHE", "value": "/cache"},
                            {
                                "name": "POD",
                                "valueFrom": {
                                    "fieldRef": {"fieldPath": "metadata.name"}
                                },
                            },
                            {
                                "name": "ADDRESS",
                                "valueFrom": {
                                    "fieldRef": {"fieldPath": "status.podIP"}
                                },
                            },
                            {
                                "name": "FROM_MAP",
                                "valueFrom": {
                                    "configMapKeyRef": {"name": "web", "key": "k"}
                                },
                            },
                        ],
                    }
                ],
            },
        },
    },
}


def _image(container: Mapping[str, Any]) -> Sequence[str]:
    command = [*container["command"], *container.get("args", [])]
    return (
        ["/usr/bin/env", *command]
        if command[0] != "python"
        else [
            sys.executable,
            *command[1:],
        ]
    )


@pytest.fixture
def kubelet(cluster: Cluster, api: Api) -> Iterator[Kubelet]:
    if cluster.plane is None:
        pytest.skip("an existing cluster has nodes of its own")
    base = f"/api/v1/namespaces/{NAMESPACE}"
    api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    api.create(f"{base}/serviceaccounts", {"metadata": {"name": "web"}})
    api.create(f"{base}/configmaps", {"metadata": {"name": "web"}, "data": {"k": "v"}})
    port = {"name": "http", "port": 80, "targetPort": "http"}
    service = {
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [port]},
    }
    api.create(f"{base}/services", service)
    node = Kubelet(cluster.plane, [NAMESPACE], _image, lambda _address, _folder: {})
    node.start()
    try:
        yield node
    finally:
        node.stop()
        api.delete(base)


def _endpoints(api: Api) -> dict[str, int]:
    """Return the ready addresses behind the Service, each with its port."""
    path = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
    return {
        address: one["ports"][0]["port"]
        for one in api.get(path)["items"]
        for endpoint in one.get("endpoints") or []
        if endpoint["conditions"].get("ready")
        for address in endpoint["addresses"]
    }


def _ask(address: str, port: int) -> str:
    connection = http.client.HTTPConnection(address, port, timeout=HANG_S)
    connection.request("GET", "/")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def test_deployment_runs_and_is_deleted(kubelet: Kubelet, api: Api) -> None:
    base = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
    api.create(base, DEPLOYMENT)
    endpoints = wait_for(lambda: found if len(found := _endpoints(api)) == 2 else None)
    told = {_ask(address, port) for address, port in endpoints.items()}
    names = {pod.name for pod in kubelet.pods.values()}
    assert told == {f"{name} v $x" for name in names}

    pod = next(iter(kubelet.pods.values()))
    assert (pod.folder / "volumes" / "cache" / "here").exists()
    assert _who(pod.folder) == f"system:serviceaccount:{NAMESPACE}:web"

    process = pod.containers[0].process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod.name}"
    wait_for(lambda: api.get(path)["status"]["containerStatuses"][0]["restartCount"])
    wait_for(lambda: len(_endpoints(api)) == 2)

    api.delete(f"{base}/web")
    wait_for(lambda: not kubelet.pods)
    assert process.poll() is not None


def _who(folder: Path) -> str:
    """Return the user name of the pod's processes at the API server."""
    with Api(read_kubeconfig(folder / "web.kubeconfig")) as own:
        review = own.create(
            "/apis/authentication.k8s.io/v1/selfsubjectreviews",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"},
        )
    name: str = review["status"]["userInfo"]["username"]
    return name

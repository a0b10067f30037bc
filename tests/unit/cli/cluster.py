"""A small, strict API server for commands with ``--cluster``."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.kube.fake_api import FakeApi, running
from tests.unit.kube.test_discovery import group, resource


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeApi]:
    """Serve a few kinds, and name the server in KUBECONFIG."""
    with running() as server:
        access = server.access
        file = tmp_path / "kubeconfig"
        address = {"server": f"http://{access.host}:{access.port}"}
        named = {
            "clusters": [{"name": "c", "cluster": address}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        }
        file.write_text(json.dumps({**named, "current-context": "x"}))
        monkeypatch.setenv("KUBECONFIG", str(file))
        serve_kinds(server)
        for name, team in (("apps", "a"), ("other", "b")):
            server.put(
                f"/api/v1/namespaces/{name}", metadata={"labels": {"team": team}}
            )
        yield server


def serve_kinds(api: FakeApi) -> None:
    kind = "APIGroupDiscoveryList"
    core = [
        resource("pods", "Pod", "status"),
        resource("namespaces", "Namespace", scope="Cluster"),
        resource("secrets", "Secret"),
        resource("configmaps", "ConfigMap"),
        resource("events", "Event"),
        {**resource("bindings", "Binding"), "verbs": ["create"]},
    ]
    scalers = [resource("horizontalpodautoscalers", "HorizontalPodAutoscaler")]
    versions = [{"version": v, "resources": scalers} for v in ("v2", "v1")]
    for one in versions:
        one["freshness"] = "Current"
    api.answers["/api"] = {"kind": kind, "items": [group("", "v1", *core)]}
    api.answers["/apis"] = {
        "kind": kind,
        "items": [
            {"metadata": {"name": "autoscaling"}, "versions": versions},
            group("events.k8s.io", "v1", resource("events", "Event")),
        ],
    }


def put_pods(api: FakeApi, count: int, namespace: str = "apps", **labels: str) -> None:
    for number in range(count):
        api.put(
            f"/api/v1/namespaces/{namespace}/pods/p{number}",
            metadata={"labels": labels},
            spec={"priority": number},
        )

"""Kind selectors resolve to the served resources, even during outages."""

from typing import Any

import pytest

from kyverno_mp.kube.discovery import Discovery
from kyverno_mp.values.kubernetes.kinds import parse_kind
from tests.unit.kube.fake_api import FakeApi


def resource(plural: str, kind: str, *parts: str, scope: str = "Namespaced") -> Any:
    return {
        "resource": plural,
        "responseKind": {"kind": kind},
        "scope": scope,
        "verbs": ["get", "list"],
        "subresources": [
            {"subresource": part, "responseKind": {"kind": kind}} for part in parts
        ],
    }


def group(name: str, version: str, *resources: Any, freshness: str = "Current") -> Any:
    return {
        "metadata": {"name": name},
        "versions": [
            {"version": version, "resources": resources, "freshness": freshness}
        ],
    }


def serve_aggregated(api: FakeApi, *groups: Any) -> None:
    pods = resource("pods", "Pod", "exec", "status")
    namespaces = resource("namespaces", "Namespace", scope="Cluster")
    kind = "APIGroupDiscoveryList"
    core_group = group("", "v1", pods, namespaces)
    api.answers["/api"] = {"kind": kind, "items": [core_group]}
    api.answers["/apis"] = {"kind": kind, "items": list(groups)}


APPS = group("apps", "v1", resource("deployments", "Deployment", "scale"))


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("Pod", ["v1 pods True"]),
        ("v1/Pod", ["v1 pods True"]),
        ("Namespace", ["v1 namespaces False"]),
        ("Deployment", ["apps/v1 deployments True"]),
        ("Deploy*", ["apps/v1 deployments True"]),
        ("apps/v1/Deployment", ["apps/v1 deployments True"]),
        ("apps/v2/Deployment", []),
        ("Pod/exec", ["v1 pods/exec True"]),
        ("Pod.exec", ["v1 pods/exec True"]),
        ("Pod/*", ["v1 pods/exec True", "v1 pods/status True"]),
        ("Deployment/scale", ["apps/v1 deployments/scale True"]),
        ("Scale", []),
        ("Unknown", []),
    ],
)
def test_selectors(api: FakeApi, selector: str, expected: list[str]) -> None:
    serve_aggregated(api, APPS)
    discovery = Discovery(api.client())
    discovery.refresh()
    found = discovery.directory.find(parse_kind(selector))
    shown = [f"{one.api_version} {one.name} {one.namespaced}" for one in found]
    assert shown == expected


def test_group_of_an_unavailable_server_stays(api: FakeApi) -> None:
    """An unresponsive aggregated API must not remove rules from the webhooks."""
    serve_aggregated(api, APPS)
    discovery = Discovery(api.client())
    assert discovery.refresh()
    serve_aggregated(api, group("apps", "v1", freshness="Stale"))
    assert not discovery.refresh()
    assert discovery.stale == ("apps/v1",)
    assert discovery.directory.of_kind("apps/v1", "Deployment") is not None


def test_new_kind_is_a_change(api: FakeApi) -> None:
    serve_aggregated(api)
    discovery = Discovery(api.client())
    discovery.refresh()
    serve_aggregated(api, APPS)
    assert discovery.refresh()
    assert discovery.directory.of_kind("apps/v1", "Deployment") is not None


def test_servers_without_aggregated_discovery(api: FakeApi) -> None:
    api.answers |= {
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/api/v1": {
            "resources": [
                {"name": "pods", "namespaced": True, "kind": "Pod"},
                {"name": "pods/exec", "namespaced": True, "kind": "PodExecOptions"},
            ]
        },
        "/apis": {
            "kind": "APIGroupList",
            "groups": [
                {"versions": [{"groupVersion": "apps/v1"}]},
                {"versions": [{"groupVersion": "broken/v1"}]},
            ],
        },
        "/apis/apps/v1": {
            "resources": [
                {"name": "deployments", "namespaced": True, "kind": "Deployment"}
            ]
        },
    }
    discovery = Discovery(api.client())
    discovery.refresh()
    assert discovery.stale == ("broken/v1",)
    names = [one.name for one in discovery.directory.resources]
    assert names == ["pods", "pods/exec", "deployments"]

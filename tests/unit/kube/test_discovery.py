"""Kind selectors resolve to the served resources, even during outages."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeAlias

import pytest

from kyverno_mp.background.objects import kinds as background
from kyverno_mp.egress.kinds import LiveKinds
from kyverno_mp.kube.discovery import Discovery
from kyverno_mp.kube.rest import Client
from kyverno_mp.values.kubernetes.kinds import parse_kind
from tests.unit.kube.fake_api import FakeApi
from tests.waiting import HANG_S


def resource(plural: str, kind: str, *parts: str, scope: str = "Namespaced") -> Any:
    return {
        "resource": plural,
        "responseKind": {"kind": kind},
        "scope": scope,
        "verbs": ["get", "list", "delete"],
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
Finder: TypeAlias = Callable[[Client], Callable[[], bool]]


def _background(look_up: Callable[[background.Kinds], object]) -> Finder:
    def find(client: Client) -> Callable[[], bool]:
        kinds = background.Kinds(client, time.monotonic)
        return lambda: bool(look_up(kinds))

    return find


def _live(look_up: Callable[[LiveKinds], object]) -> Finder:
    def find(client: Client) -> Callable[[], bool]:
        kinds = LiveKinds(lambda: None, client)
        return lambda: bool(look_up(kinds))

    return find


FINDERS = [
    _background(lambda kinds: kinds.of_kind("apps/v1", "Deployment")),
    _background(lambda kinds: kinds.find(parse_kind("Deployment"))),
    _background(lambda kinds: kinds.of_plural("apps", "v1", "deployments")),
    _background(lambda kinds: kinds.serves("apps/v1", "Deployment")),
    _background(lambda kinds: kinds.deletable()),
    _live(lambda kinds: kinds.plural_of("apps/v1", "Deployment")),
    _live(lambda kinds: kinds.resources(parse_kind("Deployment"))),
    _live(lambda kinds: kinds.find(parse_kind("Deployment"))),
]


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


def test_older_published_kinds_hide_no_kind(api: FakeApi) -> None:
    """The leader may publish a list from before a CRD that this process has seen."""
    serve_aggregated(api, APPS)
    published: list[Any] = []
    kinds = LiveKinds(lambda: published[-1] if published else None, api.client())
    assert kinds.plural_of("apps/v1", "Deployment") == "deployments"
    published.append([["", "v1", "pods", "Pod", True, "", ["get"]]])
    assert kinds.plural_of("v1", "Pod") == "pods"
    assert kinds.plural_of("apps/v1", "Deployment") == "deployments"


@pytest.mark.parametrize("find", FINDERS)
def test_kind_is_found_during_the_refresh_of_another_thread(
    api: FakeApi, find: Finder
) -> None:
    """Otherwise, a kind that exists is taken for unknown, possibly until a restart."""
    serve_aggregated(api, APPS)
    look_up = find(api.client())
    with ThreadPoolExecutor(2) as pool:
        others: list[Future[bool]] = []

        def on_request(_method: str, _target: str) -> None:
            if not others:
                others.append(pool.submit(look_up))
                # Time to start; a slow machine only makes the test weaker.
                wait([others[0]], timeout=0.2)

        api.on_request = on_request
        assert pool.submit(look_up).result(HANG_S)
        assert others[0].result(HANG_S)

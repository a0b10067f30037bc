"""An object that was applied is recognized, so that a new holder does not apply it.

A failure means: each take-over of the lease sends a PATCH for every generated object of
rules with useServerSideApply; or a change of such a rule is not applied.
"""

from copy import deepcopy
from typing import Any, Final

import pytest

from kyverno_mp.background.objects.content import is_applied
from kyverno_mp.kube.access import from_kubeconfig
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.pool import Pool
from kyverno_mp.kube.resource import Key, Resource, core
from kyverno_mp.kube.rest import Client
from tests.e2e.conftest import Cluster
from tests.waiting import unique

Json = Any
MANAGER: Final = "kyverno-generate"
_LABELS: Final = {"labels": {"a": "1", "b": "2"}}


def _of(group: str, plural: str, kind: str, version: str = "v1") -> Resource:
    return Resource(
        group=group, version=version, plural=plural, kind=kind, namespaced=True
    )


RULE: Final = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}
KINDS: Final[dict[str, tuple[Resource, Json]]] = {
    "ConfigMap": (
        core("configmaps"),
        {"data": {"x": "1", "y": "2"}, "metadata": _LABELS},
    ),
    "NetworkPolicy": (
        _of("networking.k8s.io", "networkpolicies", "NetworkPolicy"),
        {"spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}},
    ),
    "Role": (
        _of("rbac.authorization.k8s.io", "roles", "Role"),
        {"rules": [RULE], "metadata": _LABELS},
    ),
    "ResourceQuota": (
        core("resourcequotas"),
        {"spec": {"hard": {"pods": "10", "cpu": "4"}}},
    ),
    "Service": (
        core("services"),
        {
            "spec": {
                "selector": {"a": "b"},
                "ports": [
                    {"name": "x", "port": 80, "protocol": "TCP"},
                    {"name": "y", "port": 81, "protocol": "TCP"},
                ],
            }
        },
    ),
    "ServiceAccount": (
        core("serviceaccounts"),
        {"imagePullSecrets": [{"name": "a"}, {"name": "b"}]},
    ),
}


def _leaves(value: Json, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all parts except the object itself."""
    items = list(value.items()) if type(value) is dict else []
    items = list(enumerate(value)) if type(value) is list else items
    found = [path] if path else []
    for key, item in items:
        found += _leaves(item, (*path, key))
    return found


def _without(raw: Json, path: tuple[Any, ...]) -> Json:
    changed = deepcopy(raw)
    parent = changed
    for key in path[:-1]:
        parent = parent[key]
    del parent[path[-1]]
    return changed


def _labelled(objects: Objects, resource: Resource, key: Key, **labels: str) -> Json:
    return objects.merge(resource, key, {"metadata": {"labels": labels}})


@pytest.mark.parametrize("kind", KINDS)
def test_an_applied_object_is_recognized(kind: str, cluster: Cluster) -> None:
    resource, content = KINDS[kind]
    client = Client(Pool(from_kubeconfig(cluster.kubeconfig)), "e2e")
    objects = Objects(client, lambda: None, MANAGER)
    key = "default", f"applied-{unique()}"
    raw = {"apiVersion": resource.api_version, "kind": kind, **deepcopy(content)}
    raw["metadata"] = {**raw.get("metadata", {}), "namespace": key[0], "name": key[1]}
    try:
        live = objects.apply(resource, raw)
        assert is_applied(live, raw, MANAGER)
        assert not is_applied(live, raw, "another")
        for path in _leaves(content):
            if path == ("metadata",):
                continue
            assert not is_applied(live, _without(raw, path), MANAGER), path
        more = {**raw, "metadata": {**raw["metadata"], "annotations": {"c": "3"}}}
        assert not is_applied(live, more, MANAGER)
        # Another manager adds a field, and then takes one.
        live = _labelled(objects, resource, key, theirs="1")
        assert is_applied(live, raw, MANAGER)
        if "labels" in raw["metadata"]:
            live = _labelled(objects, resource, key, a="theirs")
            assert not is_applied(live, raw, MANAGER)
    finally:
        objects.delete(resource, key)
        client.close()

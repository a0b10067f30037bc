"""Create the objects that Kyverno's suites expect beside Kyverno itself.

Takes: a connection. Gives: nothing. Next: the cases, some of which edit these objects;
so they are restored before each case. May touch: the ConfigMap kyverno, one Node, the
ClusterRoles for users. Source: Kyverno's chart (config.resourceFilters and others);
kind's only node.
"""

import json
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from kyverno_mp.snapshot.callers import split_path
from tests.e2e.api import PATCH_TYPES, Api

_FILTERED: Final = (
    "Event,*,*",
    "*/*,kube-system,*",
    "*/*,kube-public,*",
    "*/*,kube-node-lease,*",
    "Node,*,*",
    "Node/?*,*,*",
    "APIService,*,*",
    "APIService/?*,*,*",
    "TokenReview,*,*",
    "SubjectAccessReview,*,*",
    "SelfSubjectAccessReview,*,*",
    "Binding,*,*",
    "Pod/binding,*,*",
    "ReplicaSet,*,*",
    "ReplicaSet/?*,*,*",
    "EphemeralReport,*,*",
    "ClusterEphemeralReport,*,*",
    "*/*,kyverno,*",
)
_NAMESPACES: Final = [
    {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [one]}
    for one in ("kube-system", "kyverno")
]
_CONFIG_MAP: Final = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "kyverno", "namespace": "kyverno"},
    "data": {
        "resourceFilters": "".join(f"[{one}]" for one in _FILTERED),
        "excludeGroups": "system:nodes",
        "generateSuccessEvents": "false",
        "webhooks": json.dumps(
            {"namespaceSelector": {"matchExpressions": _NAMESPACES}}
        ),
        "webhookAnnotations": json.dumps({"admissions.enforcer/disabled": "true"}),
    },
}
_NODE: Final = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "kind-control-plane"},
    # Nothing must ever run there.
    "spec": {"unschedulable": True},
}
_CAPACITY: Final = {
    **{key: _NODE[key] for key in ("apiVersion", "kind", "metadata")},
    "status": {"capacity": {"cpu": "2", "memory": "4Gi", "pods": "110"}},
}
_SERVICE: Final = {"name": "kyverno-svc", "namespace": "kyverno", "port": 443}
_NODE_PATH: Final = "/api/v1/nodes/kind-control-plane"
_USER_ROLES: Final = (
    Path(__file__).resolve().parents[3] / "deploy" / "parts" / "user-roles.yaml"
)
_WRITES: Final = ("create", "update", "patch", "delete", "get", "list")
_GRANTED: Final[Mapping[str, Sequence[str]]] = {
    "admission": ("secrets",),
    "background": (
        "configmaps",
        "networkpolicies",
        "resourcequotas",
        "secrets",
        "roles",
        "rolebindings",
        "limitranges",
        "namespaces",
        "nodes",
        "nodes/status",
        "pods",
    ),
}
"""Additional permissions that Kyverno's suites grant to an account."""
_ROLES: Final = "/apis/rbac.authorization.k8s.io/v1/clusterroles"


def put_up(api: Api) -> None:
    """Create objects that no case changes: user roles from deploy/, and grants.

    The suites' own installation grants the same to the two accounts.
    """
    for raw in yaml.safe_load_all(_USER_ROLES.read_text()):
        if raw:
            _apply(api, f"{_ROLES}/{raw['metadata']['name']}", raw)
    for role, resources in _GRANTED.items():
        _grant(api, f"{role}-controller", ["*"], resources, _WRITES)


def grant_cleanup(api: Api, verbs: Sequence[str]) -> None:
    """Let the cleanup account do this with Pods, as a profile of the suites does."""
    _grant(api, "cleanup-controller", [""], ["pods"], verbs)


def _grant(
    api: Api,
    account: str,
    groups: Sequence[str],
    resources: Sequence[str],
    verbs: Sequence[str],
) -> None:
    name = f"kyverno:{account}:additional"
    rule = {"apiGroups": groups, "resources": resources, "verbs": list(verbs)}
    raw = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {
            "name": name,
            "labels": {f"rbac.kyverno.io/aggregate-to-{account}": "true"},
        },
        "rules": [rule],
    }
    _apply(api, f"{_ROLES}/{name}", raw)


def put_back(api: Api) -> None:
    """Restore the objects that cases change."""
    _apply(api, "/api/v1/namespaces/kyverno/configmaps/kyverno", _CONFIG_MAP)
    _apply(api, _NODE_PATH, _NODE)
    _apply(api, f"{_NODE_PATH}/status", _CAPACITY)


def as_called_by_service(found: dict[str, Any]) -> dict[str, Any]:
    """Show webhooks as if the API server called them by the Service of a pod.

    Here it calls a process of this machine by its address; the path is the same.
    """
    if not str(found.get("kind")).endswith("WebhookConfiguration"):
        return found
    webhooks = []
    for webhook in found.get("webhooks") or ():
        client = dict(webhook.get("clientConfig") or {})
        url = client.pop("url", None)
        if url is not None:
            # Cases know the paths without the secret segment of our caller.
            path = split_path(urllib.parse.urlsplit(url).path)[1]
            client["service"] = {**_SERVICE, "path": path}
        webhooks.append({**webhook, "clientConfig": client})
    return {**found, "webhooks": webhooks}


def _apply(api: Api, path: str, wanted: Mapping[str, object]) -> None:
    query = "?fieldManager=e2e&force=true"
    status, answer = api.ask("PATCH", path + query, wanted, PATCH_TYPES["apply"])
    assert status in (200, 201), answer

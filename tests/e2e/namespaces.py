"""End a namespace that no test looks at any more, at a tenth of the usual cost.

For each deleted namespace, Kubernetes' namespace controller asks the API server twice
for each kind, with two hundred kinds here: more than half of all requests. etcd knows
the few kinds that the namespace has.

Takes: a connection, the address of etcd. Gives: nothing. May touch: the namespace.
Source: pkg/controller/namespace: it begins five seconds after the deletion, and the
namespace is gone once ``spec.finalizers`` is empty.
"""

from collections.abc import Iterator
from typing import Final

from tests.e2e.api import Api, Refused
from tests.e2e.etcd import keys

_LOOKS: Final = 3
"""Pods and objects with owners can need a second look."""
_AT_ONCE: Final = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
_OK: Final = 200
_GONE: Final = 404
_LEAVING: Final = 409
_GROUPS: Final = {
    "/api/v1": (
        *("configmaps", "limitranges", "persistentvolumeclaims", "pods"),
        *("podtemplates", "resourcequotas", "secrets", "serviceaccounts"),
    ),
    "/apis/apps/v1": (
        *("controllerrevisions", "daemonsets", "deployments", "replicasets"),
        "statefulsets",
    ),
    "/apis/batch/v1": ("cronjobs", "jobs"),
    "/apis/coordination.k8s.io/v1": ("leases",),
    "/apis/discovery.k8s.io/v1": ("endpointslices",),
    "/apis/networking.k8s.io/v1": ("networkpolicies",),
    "/apis/policy/v1": ("poddisruptionbudgets",),
    "/apis/rbac.authorization.k8s.io/v1": ("roles", "rolebindings"),
}
_COLLECTIONS: Final = {
    **{plural: (base, plural) for base, all_ in _GROUPS.items() for plural in all_},
    "services/specs": ("/api/v1", "services"),
    "services/endpoints": ("/api/v1", "endpoints"),
    "ingress": ("/apis/networking.k8s.io/v1", "ingresses"),
}
"""Kubernetes' own kinds, whose keys have no group: key -> version, plural."""


def end_namespace(api: Api, etcd_url: str | None, name: str) -> None:
    """Delete a namespace; its content first, if ``etcd_url`` tells what that is.

    What has finalizers, or may not be deleted, is left to the namespace controller.
    Raises: Refused if the namespace itself may not be deleted.
    """
    path = f"/api/v1/namespaces/{name}"
    status, namespace = api.ask("DELETE", path, {"propagationPolicy": "Background"})
    if status == _LEAVING:
        status, namespace = api.ask("GET", path)
    if status not in (_OK, _GONE):
        raise Refused(status, namespace)
    if status == _GONE or etcd_url is None:
        return
    api.ask("DELETE", f"{path}/events")
    for _ in range(_LOOKS):
        stored = {_kind(key) for key in keys(etcd_url) if key.split("/")[-2] == name}
        if not stored:
            namespace["spec"]["finalizers"] = []
            api.ask("PUT", f"{path}/finalize", namespace)
            return
        for kind in stored:
            for base, plural in _collections(api, kind):
                api.ask("DELETE", f"{base}/namespaces/{name}/{plural}", _AT_ONCE)


def _kind(key: str) -> str:
    """Return what is between the root and the namespace of a key."""
    return key.removeprefix("/registry/").rsplit("/", 2)[0]


def _collections(api: Api, kind: str) -> Iterator[tuple[str, str]]:
    """Yield version and plural of a kind; some versions may not have a custom kind."""
    if kind in _COLLECTIONS:
        yield _COLLECTIONS[kind]
        return
    group, _, plural = kind.partition("/")
    _, served = api.ask("GET", f"/apis/{group}")
    for one in served.get("versions", ()) if plural else ():
        yield f"/apis/{one['groupVersion']}", plural

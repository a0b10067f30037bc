"""Derive a metric's labels from a call to the API server.

Room: kube. Takes: method, path and query of a call. Gives: label values of
telemetry.families.QUERIES. Next: kube/rest.py passes them to the counter.
Source: docs/behaviour/controllers 9.2 (kyverno_client_queries_total); Kubernetes API
concepts (paths of resources); Kyverno pkg/metrics/common_types.go.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from kyverno_mp.values.kubernetes.built_in_kinds import BUILT_IN

Labels = tuple[str, str, str, str]
"""operation, client_type, resource_kind, resource_namespace"""
_OPERATIONS: Final = {
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}
_KINDS: Final = {
    (built_in.group, built_in.plural): built_in.kind for built_in in BUILT_IN
}
_REPORTS: Final = frozenset({"wgpolicyk8s.io", "reports.kyverno.io", "openreports.io"})
_WATCHES: Final = ("watch", "1")
_METADATA: Final = "as=PartialObjectMetadata"


def labels_of(
    method: str, path: str, query: Sequence[tuple[str, str]], accept: str
) -> Labels:
    """Return the labels of one call."""
    group, plural, namespace, name, part = _parts(path.partition("?")[0])
    operation = _OPERATIONS.get(method, "get")
    if method == "GET" and plural and not name:
        operation = "watch" if _WATCHES in query else "list"
    elif method == "DELETE" and not name:
        operation = "delete_collection"
    elif operation == "update" and part == "status":
        operation = "update_status"
    kind = _KINDS.get((group, plural), plural)
    if _METADATA in accept:
        return operation, "metadata", kind, namespace
    return operation, _client_of(group, plural), kind, namespace


def right_of(
    method: str, path: str, query: Sequence[tuple[str, str]]
) -> tuple[tuple[str, ...], str, str]:
    """Return the verbs of RBAC that a call needs, its resource and its namespace.

    A patch may create the object, too. The resource is "" for other paths.
    """
    group, plural, namespace, name, part = _parts(path.partition("?")[0])
    verbs: tuple[str, ...] = (_OPERATIONS.get(method, "get"),)
    if method == "GET" and not name:
        verbs = ("watch",) if _WATCHES in query else ("list",)
    elif method == "DELETE" and not name:
        verbs = ("deletecollection",)
    elif method == "PATCH":
        verbs = ("patch", "create")
    resource = f"{plural}.{group}" if plural and group else plural
    return verbs, f"{resource}/{part}" if part else resource, namespace


def _client_of(group: str, plural: str) -> str:
    if not plural:
        return "apiserver"
    if group in _REPORTS:
        return "policyreport"
    return "kyverno" if group.endswith("kyverno.io") else "kubeclient"


@lru_cache(maxsize=256)
def _parts(path: str) -> tuple[str, str, str, str, str]:
    """Return group, plural, namespace, name, subresource; "" for absent parts.

    A path without a resource (``/version``, discovery) has no plural.
    """
    words = path.strip("/").split("/")
    if words[0] == "api":
        group, rest = "", words[2:]
    elif words[0] == "apis" and len(words) > 1:
        group, rest = words[1], words[3:]
    else:
        return "", "", "", "", ""
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2:  # noqa: PLR2004 - namespaces/<name>/<plural>
        # K8S: namespaces/<name>/status and /finalize belong to the Namespace itself.
        if rest[2] in ("status", "finalize"):
            return group, "namespaces", "", rest[1], rest[2]
        namespace, rest = rest[1], rest[2:]
    plural, name, part = (*rest, "", "", "")[:3]
    return group, plural, namespace, name, part

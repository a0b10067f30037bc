"""The metric labels of calls to the API server."""

import pytest

from kyverno_mp.kube.queries import labels_of

JSON = "application/json"
METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


@pytest.mark.parametrize(
    ("method", "path", "query", "accept", "expected"),
    [
        ("GET", "/api/v1/namespaces", (), JSON, "list kubeclient Namespace"),
        ("GET", "/api/v1/namespaces/a", (), JSON, "get kubeclient Namespace"),
        ("GET", "/api/v1/namespaces", (), METADATA, "list metadata Namespace"),
        ("GET", "/api/v1/namespaces/a/pods", (), JSON, "list kubeclient Pod a"),
        ("GET", "/api/v1/namespaces/a/pods/p?x=y", (), JSON, "get kubeclient Pod a"),
        (
            "GET",
            "/api/v1/pods",
            (("watch", "1"),),
            JSON,
            "watch kubeclient Pod",
        ),
        (
            "PUT",
            "/api/v1/namespaces/a/status",
            (),
            JSON,
            "update_status kubeclient Namespace",
        ),
        (
            "PUT",
            "/apis/kyverno.io/v1/clusterpolicies/p/status",
            (),
            JSON,
            "update_status kyverno ClusterPolicy",
        ),
        (
            "PUT",
            "/apis/coordination.k8s.io/v1/namespaces/kyverno/leases/l",
            (),
            JSON,
            "update kubeclient Lease kyverno",
        ),
        (
            "POST",
            "/apis/events.k8s.io/v1/namespaces/a/events",
            (),
            JSON,
            "create kubeclient Event a",
        ),
        ("PATCH", "/api/v1/nodes/n", (), JSON, "patch kubeclient Node"),
        ("DELETE", "/api/v1/nodes/n", (), JSON, "delete kubeclient Node"),
        ("DELETE", "/api/v1/nodes", (), JSON, "delete_collection kubeclient Node"),
        (
            "GET",
            "/apis/wgpolicyk8s.io/v1alpha2/policyreports",
            (),
            JSON,
            "list policyreport PolicyReport",
        ),
        ("GET", "/apis/a.example/v1/things", (), JSON, "list kubeclient things"),
        ("GET", "/version", (), JSON, "get apiserver"),
        ("GET", "/apis", (), JSON, "get apiserver"),
    ],
)
def test_call_is_counted_by_its_labels(
    method: str,
    path: str,
    query: tuple[tuple[str, str], ...],
    accept: str,
    expected: str,
) -> None:
    found = labels_of(method, path, query, accept)
    assert " ".join(found).strip() == expected

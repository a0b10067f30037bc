"""A namespaced policy reaches only its own namespace, with any spelling of a path."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kyverno_mp.egress.paths import namespaced_path, normal_path
from kyverno_mp.errors import ExpressionFailed

OWN = "/api/v1/namespaces/own"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (f"{OWN}/pods", f"{OWN}/pods"),
        (f"{OWN}/pods?labelSelector=a%3Db", f"{OWN}/pods?labelSelector=a%3Db"),
        (OWN, OWN),
        (f"/{OWN}//pods/", f"{OWN}/pods"),
        ("/api/v1/namespaces/other/../own/pods", f"{OWN}/pods"),
        (
            "/apis/apps/v1/namespaces/own/deployments/a%2Eb",
            "/apis/apps/v1/namespaces/own/deployments/a.b",
        ),
    ],
)
def test_own_namespace(path: str, expected: str) -> None:
    assert namespaced_path(path, "own") == expected


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/namespaces/other/secrets",
        f"{OWN}/../other/secrets",
        f"{OWN}/%2e%2e/other/secrets",
        f"{OWN}/%252e%252e/other/secrets",
        f"{OWN}/.%2e/other/secrets",
        f"{OWN}%2f..%2fother/secrets",
        f"{OWN}/..%5cother/secrets",
        f"{OWN}/\\..\\other",
        "/api/v1/namespaces/own%00/secrets",
        "/api/v1/secrets",
        "/api/v1/nodes/n/proxy/namespaces/own",
        "/api/v1/namespaces",
        "/api/v1/namespaces/",
        "/api/v1/namespaces/OWN/secrets",
        "/apis/apps/v1/deployments?x=/namespaces/own/",
        "/version/namespaces/own",
        "/api/namespaces/own/x",
        "/apis/g/namespaces/own/x",
        "http://other/api/v1/namespaces/own",
        "api/v1/namespaces/own",
        "",
        f"{OWN}/pods#/../other",
        f"{OWN}/pods/p/proxy/metrics",
        f"{OWN}/services/http:s:80/proxy/",
        f"{OWN}/serviceaccounts/default/token",
        f"{OWN}/pods\n",
        f"{OWN}/%ff%fe",
    ],
)
def test_cve_2026_22039_namespaced_api_call_paths(path: str) -> None:
    """Row 17: a Policy's apiCall must not read other namespaces through us."""
    with pytest.raises(ExpressionFailed):
        namespaced_path(path, "own")


def test_ghsa_79gf_7frw_68m9_namespaced_writes() -> None:
    """Row 27, for writes: POST is allowed only for access reviews."""
    review = "/apis/authorization.k8s.io/v1/namespaces/own/localsubjectaccessreviews"
    assert namespaced_path(review, "own", "POST") == review
    with pytest.raises(ExpressionFailed):
        namespaced_path(f"{OWN}/configmaps", "own", "POST")


def test_upstreams_texts() -> None:
    with pytest.raises(ExpressionFailed) as raised:
        namespaced_path("/api/v1/namespaces/b/pods", "own")
    assert raised.value.message == (
        "path /api/v1/namespaces/b/pods refers to namespace b, which is different from"
        " the policy namespace own"
    )
    with pytest.raises(ExpressionFailed) as raised:
        namespaced_path("/api/v1/pods", "own")
    assert raised.value.message == (
        "path /api/v1/pods does not contain a namespace segment, which is required for"
        " namespaced policies"
    )


def test_cluster_policies_can_use_any_normalized_path() -> None:
    assert normal_path("//api/v1/./pods?limit=1") == "/api/v1/pods?limit=1"
    with pytest.raises(ExpressionFailed):
        normal_path("/api/v1/x%2fy")


@given(st.text(alphabet="/.%2eEfF5cC\\?aownsamepi1v", max_size=60))
def test_no_encoding_escapes_the_namespace(tail: str) -> None:
    """The path stays below the namespace however often it is decoded."""
    try:
        path = namespaced_path(f"{OWN}/{tail}", "own")
    except ExpressionFailed:
        return
    before = path.partition("?")[0]
    assert before == OWN or before.startswith(f"{OWN}/")
    assert ".." not in before.split("/")
    assert "%2e" not in before.lower()
    assert "%2f" not in before.lower()

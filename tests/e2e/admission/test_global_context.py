"""Cluster data in policies: global context, calls, kinds, exceptions.

A failure means: a policy evaluates missing, outdated or wrong data, or its author gets
wrong information about kinds and permissions.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest

from tests.e2e.api import Api, Refused
from tests.e2e.product import Product
from tests.waiting import wait_for

POLICIES = "/apis/kyverno.io/v1/clusterpolicies"
ENTRIES = "/apis/kyverno.io/v2beta1/globalcontextentries"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
MAPS = "/api/v1/namespaces/default/configmaps"
SECRETS = "/api/v1/namespaces/default/secrets"
Make = Callable[[str, Any], Any]
GREETING = {"kind": "Greeting", "plural": "greetings", "singular": "greeting"}
CRD: dict[str, Any] = {
    "metadata": {"name": "greetings.gctx.example.com"},
    "spec": {
        "group": "gctx.example.com",
        "scope": "Namespaced",
        "names": GREETING,
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object"}},
            }
        ],
    },
}


@pytest.fixture
def make(api: Api, product: Product) -> Iterator[Make]:
    """Create objects that are deleted after the test."""
    assert product.health_port
    paths: list[str] = []

    def create(path: str, raw: Mapping[str, Any]) -> Any:
        found = api.create(path, raw)
        paths.append(f"{path}/{raw['metadata']['name']}")
        if path == POLICIES:
            wait_for(lambda: ready(api, paths[-1])[0] == "True")
        return found

    yield create
    for path in reversed(paths):
        api.ask("DELETE", path)


def ready(api: Api, path: str) -> tuple[str, str]:
    """Return status and message of the condition Ready."""
    for one in (api.get(path).get("status") or {}).get("conditions") or ():
        if one["type"] == "Ready":
            return one["status"], one["message"]
    return "", ""


def entry(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "kyverno.io/v2beta1",
        "kind": "GlobalContextEntry",
        "metadata": {"name": name},
        "spec": spec,
    }


def policy(name: str, *context: Any, key: str) -> dict[str, Any]:
    """Create a policy that denies ConfigMaps ``<name>-*`` unless ``key`` is "yes"."""
    names = [f"{name}-*"]
    rule = {
        "name": "r",
        "match": {"any": [{"resources": {"kinds": ["ConfigMap"], "names": names}}]},
        "context": list(context),
        "validate": {
            "failureAction": "Enforce",
            "message": "not yes",
            "deny": {
                "conditions": {
                    "all": [{"key": key, "operator": "NotEquals", "value": "yes"}]
                }
            },
        },
    }
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": name},
        "spec": {"background": False, "rules": [rule]},
    }


def role(
    component: str,
    *verbs: str,
    group: str = "gctx.example.com",
    plural: str = "greetings",
) -> dict[str, Any]:
    """Grant a permission to one of our accounts, as users do."""
    label = f"rbac.kyverno.io/aggregate-to-{component}-controller"
    rule = {"apiGroups": [group], "resources": [plural], "verbs": list(verbs)}
    return {
        "metadata": {"name": f"gctx-{component}-{plural}", "labels": {label: "true"}},
        "rules": [rule],
    }


def refusal(api: Api, name: str) -> str:
    """Return the denial of a ConfigMap, "" if it is admitted."""
    path = f"{MAPS}?dryRun=All"
    try:
        api.create(path, {"metadata": {"name": name}})
    except Refused as refused:
        return str(refused)
    return ""


def reference(name: str) -> dict[str, Any]:
    return {"name": "found", "globalReference": {"name": name}}


def test_resource_entries_follow_created_and_deleted_objects(
    api: Api, make: Make
) -> None:
    projection = {
        "name": "answer",
        "jmesPath": "[?metadata.name=='gctx-answer'].data.said | [0] || 'nothing'",
    }
    resource = {"version": "v1", "resource": "configmaps", "namespace": "default"}
    made = entry("maps", kubernetesResource=resource, projections=[projection])
    make(ENTRIES, made)
    make(POLICIES, policy("reads", reference("maps.answer"), key="{{ found }}"))
    wait_for(lambda: "not yes" in refusal(api, "reads-1"))
    make(MAPS, {"metadata": {"name": "gctx-answer"}, "data": {"said": "yes"}})
    wait_for(lambda: not refusal(api, "reads-1"))
    api.patch(f"{MAPS}/gctx-answer", {"data": {"said": "no"}})
    wait_for(lambda: "not yes" in refusal(api, "reads-1"))
    assert ready(api, f"{ENTRIES}/maps") == ("True", "Ready")
    api.delete(f"{ENTRIES}/maps")
    text = "failed to fetch entry key=maps"
    wait_for(lambda: text in " ".join(refusal(api, "reads-1").split()))


def test_slow_entry_delays_no_other(api: Api, make: Make) -> None:
    """Unreadable data is reported; a kind that is added later is found in seconds."""
    greetings = {"group": "gctx.example.com", "version": "v1", "resource": "greetings"}
    make(ENTRIES, entry("a-greetings", kubernetesResource=greetings))
    secrets = {"version": "v1", "resource": "secrets"}
    make(ENTRIES, entry("b-secrets", kubernetesResource=secrets))
    service = {"url": "http://169.254.169.254/latest"}
    make(ENTRIES, entry("c-outside", apiCall={"service": service}))
    call = {"urlPath": "/version", "refreshInterval": "1s"}
    make(ENTRIES, entry("d-version", apiCall=call))
    wait_for(lambda: ready(api, f"{ENTRIES}/d-version")[0] == "True")
    words = {
        "a-greetings": "404",
        "b-secrets": "forbidden",
        "c-outside": "calls to 169.254.169.254 are not allowed",
    }
    for name, text in words.items():
        path = f"{ENTRIES}/{name}"
        wait_for(lambda told=path: ready(api, told)[0])  # type: ignore[misc]
        status, message = ready(api, path)
        assert status == "False"
        assert text in message
    first = api.get(f"{ENTRIES}/d-version")["status"]["lastRefreshTime"]
    wait_for(
        lambda: api.get(f"{ENTRIES}/d-version")["status"]["lastRefreshTime"] > first
    )
    make(ROLES, role("admission", "list", "watch"))
    make(CRDS, CRD)
    wait_for(lambda: ready(api, f"{ENTRIES}/a-greetings")[0] == "True")


def test_api_calls_send_their_data(api: Api, make: Make) -> None:
    attributes = {"resource": "configmaps", "verb": "get", "namespace": "default"}
    user = "system:serviceaccount:kyverno:kyverno-admission-controller"
    spec = {"user": user, "resourceAttributes": attributes}
    review = {
        "name": "review",
        "apiCall": {
            "method": "POST",
            "urlPath": "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            "data": [
                {"key": "kind", "value": "SubjectAccessReview"},
                {"key": "apiVersion", "value": "authorization.k8s.io/v1"},
                {"key": "spec", "value": spec},
            ],
        },
    }
    key = "{{ review.status.allowed && 'yes' || 'no' }}"
    make(POLICIES, policy("posts", review, key=key))
    assert refusal(api, "posts-1") == ""
    listed = {
        "name": "listed",
        "apiCall": {
            "urlPath": "/api/v1/namespaces?labelSelector=team%3D"
            "{{ request.object.metadata.name }}&limit=1",
            "jmesPath": "length(items)",
        },
    }
    make(POLICIES, policy("lists", listed, key="{{ listed == `1` && 'yes' || 'no' }}"))
    assert "not yes" in refusal(api, "lists-1")
    namespace = {"metadata": {"name": "gctx-team", "labels": {"team": "lists-1"}}}
    make("/api/v1/namespaces", namespace)
    assert refusal(api, "lists-1") == ""
    lost = {"urlPath": "/apis/nowhere.example.com/v1/things"}
    make(POLICIES, policy("fails", {"name": "lost", "apiCall": lost}, key="{{ lost }}"))
    said = " ".join(refusal(api, "fails-1").split())
    # K8S: without the permission, the answer does not say whether it exists.
    assert "permission denied: unknown" in said
    given = {"name": "lost", "apiCall": {**lost, "default": "yes"}}
    make(POLICIES, policy("defaults", given, key="{{ lost }}"))
    assert refusal(api, "defaults-1") == ""


@pytest.mark.parametrize("version", ["v2", "v2beta1"])
def test_exceptions_take_effect_within_seconds(
    version: str, api: Api, make: Make
) -> None:
    name = f"excepted-{version}"
    make(POLICIES, policy(name, key="no"))
    assert "not yes" in refusal(api, f"{name}-1")
    path = f"/apis/kyverno.io/{version}/namespaces/default/policyexceptions"
    match = {"any": [{"resources": {"kinds": ["ConfigMap"], "names": [f"{name}-1"]}}]}
    api.create(
        path,
        {
            "apiVersion": f"kyverno.io/{version}",
            "kind": "PolicyException",
            "metadata": {"name": name},
            "spec": {
                "match": match,
                "exceptions": [{"policyName": name, "ruleNames": ["r"]}],
            },
        },
    )
    wait_for(lambda: not refusal(api, f"{name}-1"))
    assert "not yes" in refusal(api, f"{name}-2")
    api.delete(f"{path}/{name}")
    wait_for(lambda: "not yes" in refusal(api, f"{name}-1"))


def test_policies_of_the_older_api_version_are_evaluated(api: Api, make: Make) -> None:
    raw = {**policy("older", key="no"), "apiVersion": "kyverno.io/v2beta1"}
    api.create("/apis/kyverno.io/v2beta1/clusterpolicies", raw)
    try:
        wait_for(lambda: "not yes" in refusal(api, "older-1"))
    finally:
        api.delete(f"{POLICIES}/older")


def test_permission_checks_use_current_permissions(api: Api, make: Make) -> None:
    """A policy that needs missing permissions of the background account is rejected."""
    match = {"any": [{"resources": {"kinds": ["ConfigMap"], "names": ["trigger"]}}]}
    target = {"apiVersion": "v1", "kind": "Secret", "name": "s", "namespace": "default"}
    patch = {"metadata": {"labels": {"touched": "yes"}}}
    mutate = {"targets": [target], "patchStrategicMerge": patch}
    raw = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "targets"},
        "spec": {"rules": [{"name": "r", "match": match, "mutate": mutate}]},
    }
    with pytest.raises(Refused, match="auth check fails, additional privileges"):
        api.create(POLICIES, raw)
    make(ROLES, role("background", "get", "update", group="", plural="secrets"))

    def is_taken() -> bool:
        with suppress(Refused):
            api.create(POLICIES, raw)
            return True
        return False

    wait_for(is_taken)
    api.delete(f"{POLICIES}/targets")


def test_new_kind_is_found_once_served(api: Api, make: Make) -> None:
    """Upstream queries discovery again for unknown kinds; so does kyverno-mp."""
    raw = policy("greets", key="no")
    rule = raw["spec"]["rules"][0]
    generated = {"apiVersion": "gctx.example.com/v1", "kind": "Greeting", "name": "g"}
    data = {"namespace": "default", "data": {"spec": {}}}
    rule["generate"] = {**generated, **data}
    del rule["validate"], rule["context"]
    with pytest.raises(Refused, match=r"gctx\.example\.com/v1"):
        api.create(POLICIES, raw)
    make(CRDS, CRD)
    make(ROLES, role("background", "get", "create"))

    def is_taken() -> bool:
        with suppress(Refused):
            api.create(POLICIES, raw)
            return True
        return False

    wait_for(is_taken)
    api.delete(f"{POLICIES}/greets")

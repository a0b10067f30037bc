"""The authorizer as the manifests run it: live policies, with its own permissions.

A failure means: requests pass that a policy of the cluster forbids, or the account of
deploy/authorizer.yaml lacks a permission, or has one that nothing uses. Expected:
docs/authorizer.md; ``kubectl auth`` conventions of get, list and watch.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.api import Api
from tests.e2e.control_plane import ControlPlane
from tests.faults.authorizer import Authorizer, get
from tests.waiting import wait_for

MANIFEST = Path(__file__).resolve().parents[3] / "deploy" / "authorizer.yaml"
ACCOUNT = "kyverno-authz-server"
NAMESPACE = "kyverno"
GROUP = "policies.kyverno.io"
POLICIES = f"/apis/{GROUP}/v1/validatingpolicies"
EXCEPTIONS = f"/apis/{GROUP}/v1/namespaces/{NAMESPACE}/policyexceptions"
BASES = {
    "ServiceAccount": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
}
DOCUMENTS = [
    document
    for document in yaml.safe_load_all(MANIFEST.read_text())
    if document["kind"] in BASES
]


@pytest.fixture
def account(api: Api, shared_plane: ControlPlane, tmp_path: Path) -> Iterator[Path]:
    """Make what the manifest has for the account; return its kubeconfig."""
    api.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    assert [document["kind"] for document in DOCUMENTS] == [*BASES]
    for document in DOCUMENTS:
        api.create(BASES[document["kind"]], document)
    try:
        yield shared_plane.write_service_account(api, NAMESPACE, ACCOUNT, tmp_path)
    finally:
        for document in reversed(DOCUMENTS):
            api.delete(f"{BASES[document['kind']]}/{document['metadata']['name']}")


def policy(name: str, path: str) -> Any:
    """Return a policy that refuses requests whose header names the path."""
    is_it = f"object.attributes.Header('x-path') == ['{path}']"
    expression = f"{is_it} ? http.Denied('no').Response() : null"
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ValidatingPolicy",
        "metadata": {"name": name},
        "spec": {
            "evaluation": {"mode": "HTTP"},
            "validations": [{"expression": expression}],
        },
    }


def test_policies_of_the_cluster_are_in_force(
    api: Api, shared_plane: ControlPlane, account: Path, tmp_path: Path
) -> None:
    """Created, changed, excepted and deleted; the folder beside it is empty."""
    api.create(POLICIES, policy("authz", "/private"))
    (tmp_path / "policies").mkdir()
    running = Authorizer(
        tmp_path,
        "http",
        workers=1,
        kubeconfig=account,
        KYVERNO_MP_EXCEPTION_NAMESPACE=NAMESPACE,
    )
    try:

        def status(path: str) -> int:
            return get(running.port, "/", {"x-path": path}, "POST")[0]

        wait_for(lambda: status("/private") == 403)
        assert status("/other") == 200
        change = {"spec": policy("authz", "/other")["spec"]}
        api.patch(f"{POLICIES}/authz", change)
        wait_for(lambda: status("/other") == 403)
        assert status("/private") == 200
        exception = {
            "apiVersion": f"{GROUP}/v1",
            "kind": "PolicyException",
            "metadata": {"name": "authz", "namespace": NAMESPACE},
            "spec": {
                "evaluationMode": "HTTP",
                "policyRefs": [{"name": "authz", "kind": "ValidatingPolicy"}],
                "matchConditions": [
                    {"name": "post", "expression": "object.attributes.method == 'POST'"}
                ],
            },
        }
        api.create(EXCEPTIONS, exception)
        wait_for(lambda: status("/other") == 200)
        api.delete(f"{EXCEPTIONS}/authz")
        wait_for(lambda: status("/other") == 403)
        api.delete(f"{POLICIES}/authz")
        wait_for(lambda: status("/other") == 200)
    finally:
        running.stop()
    asked = shared_plane.audit.asked(f":{ACCOUNT}")
    assert [call for call in asked if call.code == 403] == []
    used = {(call.resource, call.verb) for call in asked if call.group == GROUP}
    granted = next(one for one in DOCUMENTS if one["kind"] == "ClusterRole")["rules"]
    assert used == {
        (resource, verb)
        for rule in granted
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }

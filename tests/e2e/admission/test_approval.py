"""The approval of exceptions, with users of a real API server and their roles.

A failure means: who may only create exceptions can exempt objects, or who may approve
them cannot. Expected: docs/exceptions.md (approval).
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.api import Api
from tests.e2e.control_plane import ControlPlane
from tests.e2e.crds import install_crds
from tests.e2e.namespaces import end_namespace
from tests.e2e.product import started

NAMESPACE = "approved-exceptions"
RBAC = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
WRITES = ["create", "get", "patch", "delete"]
GROUPS = {
    "kyverno.io": (
        "v2",
        {
            "exceptions": [{"policyName": "p", "ruleNames": ["r"]}],
            "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
        },
        {"background": False},
    ),
    "policies.kyverno.io": (
        "v1",
        {"policyRefs": [{"name": "p", "kind": "ValidatingPolicy"}]},
        {"matchConditions": [{"name": "a", "expression": "true"}]},
    ),
}
"""Group -> version, a spec, a change of it."""


def grant(api: Api, user: str, verbs: list[str]) -> None:
    rule = {"apiGroups": [*GROUPS], "resources": ["policyexceptions"], "verbs": verbs}
    api.create(f"{RBAC}/roles", {"metadata": {"name": user}, "rules": [rule]})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user}
    binding = {
        "metadata": {"name": user},
        "roleRef": role,
        "subjects": [{**role, "kind": "User"}],
    }
    api.create(f"{RBAC}/rolebindings", binding)


@pytest.fixture(scope="module")
def users(
    api: Api, shared_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Api, Api]]:
    """Yield a developer and an approver, beside a webhook that wants approvals."""
    install_crds(api)
    api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    grant(api, "developer", WRITES)
    grant(api, "approver", [*WRITES, "approve"])
    folder = tmp_path_factory.mktemp("approval")
    with (
        started(shared_plane, folder, {"EXCEPTIONS_NEED_APPROVAL": "true"}),
        Api(shared_plane.user("developer")) as developer,
        Api(shared_plane.user("approver")) as approver,
    ):
        yield developer, approver
    end_namespace(api, shared_plane.etcd_url, NAMESPACE)


@pytest.mark.parametrize("group", GROUPS)
def test_to_create_and_to_approve_are_two_rights(
    users: tuple[Api, Api], group: str
) -> None:
    developer, approver = users
    version, spec, change = GROUPS[group]
    path = f"/apis/{group}/{version}/namespaces/{NAMESPACE}/policyexceptions"
    document: dict[str, Any] = {
        "apiVersion": f"{group}/{version}",
        "kind": "PolicyException",
        "metadata": {"name": "e"},
        "spec": spec,
    }

    def reason(who: Api, method: str, target: str, body: Any = None) -> str:
        status, answer = who.ask(method, target, body)
        return "" if 200 <= status < 300 else str(answer["message"])

    assert "[exception.unapproved]" in reason(developer, "POST", path, document)
    approver.create(path, document)
    one = f"{path}/e"
    developer.patch(one, {"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(AssertionError, match=r"exception\.unapproved"):
        developer.patch(one, {"spec": change})
    approver.patch(one, {"spec": change})
    developer.delete(one)

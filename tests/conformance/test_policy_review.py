"""Policies sent to the policy webhook get the real webhook's verdict.

A failure means: a policy that could be installed before is rejected now, or the
reverse, or a denial has another text.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from falcon import testing

from kyverno_mp.policy.ports import BuiltInKinds, ClusterView, PermissionTarget
from kyverno_mp.webhook.policy_review import ReviewOptions
from kyverno_mp.webhook.rest import make_app
from tests.conformance.cases import Case, all_cases
from tests.conformance.place import ABSENT, PRESENT

pytestmark = pytest.mark.skipif(not PRESENT, reason=ABSENT)

_RBAC: Final = frozenset({"roles", "rolebindings", "clusterroles"})
_MAY: Final = {
    "background": _RBAC
    | {
        "configmaps",
        "ingressclasses",
        "ingresses",
        "limitranges",
        "networkpolicies",
        "resourcequotas",
    },
    "admission": _RBAC | {"configmaps", "namespaces"},
}
"""The chart's permissions (behaviour/controllers 10.4) that the policies need."""


class _Granted:
    """The permissions of Kyverno's service accounts in the recorded cluster."""

    def allows(self, account: str, verb: str, target: PermissionTarget) -> bool:
        if verb == "watch" or "-reports-" in account:
            return True
        component = account.rpartition(":")[2].split("-")[1]
        return target.resource.plural in _MAY[component]


@pytest.fixture(scope="module")
def client() -> testing.TestClient:
    view = ClusterView(kinds=BuiltInKinds(is_complete=True), permissions=_Granted())
    return testing.TestClient(make_app(lambda: True, ReviewOptions(view=view)))


def _cases() -> Iterator[Any]:
    for case in all_cases():
        recorded = case.data("webhook.json")
        if recorded:
            yield pytest.param(case, recorded, id=case.id)


def _ask(client: testing.TestClient, path: str, document: Any) -> dict[str, Any]:
    group, _, version = document["apiVersion"].rpartition("/")
    kind = {"group": group, "version": version, "kind": document["kind"]}
    request = {
        "uid": "u",
        "operation": "CREATE",
        "kind": kind,
        "name": document["metadata"]["name"],
        "namespace": document["metadata"].get("namespace", ""),
        "object": document,
    }
    answer = client.simulate_post(path, json={"request": request})
    assert answer.status_code == 200
    response: dict[str, Any] = answer.json["response"]
    return response


def _refusal(text: str) -> str:
    """Return the webhook's own message from the API server's error."""
    status = json.loads(text.removeprefix("refused: "))
    message: str = status["message"]
    return message.partition("denied the request: ")[2]


@pytest.mark.parametrize(("case", "recorded"), list(_cases()))
def test_verdict(
    client: testing.TestClient, case: Case, recorded: dict[str, Any]
) -> None:
    del case
    policies = recorded["policies"]
    answers = [_ask(client, "/policyvalidate", policy) for policy in policies]
    refused = [one["status"]["message"] for one in answers if not one["allowed"]]
    expected = [_refusal(recorded["refused"])] if recorded["refused"] else []
    assert refused[:1] == expected
    for exception in recorded["exceptions"]:
        assert _ask(client, "/exceptionvalidate", exception)["allowed"]

"""Each permission that an account lacks is known, whatever room needed it.

A failure means: something that a user has asked for is not done, and nothing says why.
"""

import msgspec
import pytest

from kyverno_mp.errors import KubeRefused
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Call, Client
from kyverno_mp.kube.rights import MissingRights, Right
from kyverno_mp.kube.watch import WatchScope, watch
from kyverno_mp.limits import RIGHTS_MISSING_MAX, RIGHTS_REFUSED_S, RIGHTS_SHOWN_MAX
from tests.unit.kube.fake_api import FakeApi
from tests.waiting import HANG_S

ACCOUNT = "kyverno-background-controller"
USER = f"system:serviceaccount:kyverno:{ACCOUNT}"
PATH = "/apis/networking.k8s.io/v1/namespaces/a/networkpolicies"
POLICIES = Resource(
    group="networking.k8s.io", version="v1", plural="networkpolicies", namespaced=True
)


def denied(verb: str, what: str = "networkpolicies") -> dict[str, object]:
    """Return the answer of an authorizer."""
    return {
        "code": 403,
        "reason": "Forbidden",
        "message": f'{what} "x" is forbidden: User "{USER}" cannot {verb} resource'
        f' "networkpolicies" in API group "networking.k8s.io" in the namespace "a"',
    }


class Calls:
    def __init__(self, api: FakeApi) -> None:
        self.now_s = 0.0
        self.rights = MissingRights(ACCOUNT, lambda: self.now_s)
        whole: Client = api.client()
        whole.rights = self.rights
        self.client = whole.within(HANG_S)

    def call(self, method: str, path: str = f"{PATH}/x") -> None:
        body = msgspec.json.encode({"metadata": {"name": "x"}})
        self.client.call(
            Call(method=method, path=path, body=None if method == "GET" else body)
        )

    def refused(self, method: str, path: str = f"{PATH}/x") -> None:
        with pytest.raises(KubeRefused):
            self.call(method, path)


def test_rejected_call_is_a_missing_permission_until_it_succeeds(api: FakeApi) -> None:
    calls = Calls(api)
    api.fault("^POST", denied("create"))
    calls.refused("POST", PATH)
    name = "networkpolicies.networking.k8s.io"
    assert calls.rights.missing() == {Right("create", name, "a"): ""}
    assert dict(calls.rights.gauges()) == {("create", name): 1.0}
    assert calls.rights.problems() == [
        (
            f"{ACCOUNT} may not create {name} in a; to grant it:"
            f" kubectl create clusterrole kyverno:background-{name} --verb=create"
            f" --resource={name}"
            f" && kubectl label clusterrole kyverno:background-{name}"
            " rbac.kyverno.io/aggregate-to-background-controller=true"
        )
    ]
    calls.call("POST", PATH)
    assert calls.rights.problems() == []
    assert dict(calls.rights.gauges()) == {("create", name): 0.0}
    assert dict(calls.rights.gauges()) == {}


@pytest.mark.parametrize(
    ("method", "verb"),
    [("GET", "get"), ("PUT", "update"), ("PATCH", "patch"), ("DELETE", "delete")],
)
def test_verbs(api: FakeApi, method: str, verb: str) -> None:
    calls = Calls(api)
    api.fault(f"^{method}", denied(verb))
    calls.refused(method)
    assert [right.verb for right in calls.rights.missing()] == [verb]


def test_list_and_watch(api: FakeApi) -> None:
    calls = Calls(api)
    api.fault("watch=", denied("watch"))
    scope = WatchScope(resource=POLICIES, namespace="a")
    with pytest.raises(KubeRefused), watch(calls.client, scope, "1"):
        pass
    api.fault("^GET", denied("list"))
    calls.refused("GET", PATH)
    assert {right.verb for right in calls.rights.missing()} == {"list", "watch"}


@pytest.mark.parametrize(
    "message",
    [
        "networkpolicies is forbidden: exceeded quota: q, requested: 1",
        (
            'networkpolicies "x" is forbidden: unable to create new content in'
            " namespace a because it is being terminated"
        ),
        'admission webhook "w" denied the request: User "u" cannot list resource "p"',
        "",
    ],
)
def test_other_rejections_are_no_missing_permission(api: FakeApi, message: str) -> None:
    calls = Calls(api)
    api.fault("^PUT", {"code": 403, "message": message})
    calls.refused("PUT")
    assert calls.rights.missing() == {}


def test_what_is_no_longer_tried_is_forgotten(api: FakeApi) -> None:
    calls = Calls(api)
    api.fault("^PUT", denied("update"))
    calls.refused("PUT")
    calls.now_s = RIGHTS_REFUSED_S
    assert calls.rights.problems() == []


def test_many_missing_permissions_are_bounded(api: FakeApi) -> None:
    """Users choose the namespaces and kinds."""
    rights = Calls(api).rights
    message = f'x is forbidden: User "{USER}" cannot get resource "x" in API group ""'
    for number in range(RIGHTS_MISSING_MAX + 20):
        path = f"/api/v1/namespaces/n{number}/kind{number % 20}/x"
        rights.heard("GET", path, (), 403, message)
    assert len(rights.missing()) == RIGHTS_MISSING_MAX
    problems = rights.problems()
    assert len(problems) == RIGHTS_SHOWN_MAX + 1
    assert problems[-1] == "10 more permissions are missing"
    assert " more namespaces; to grant it: " in problems[0]


def test_checks_are_shown_with_their_effect() -> None:
    rights = MissingRights("kyverno-cleanup-controller")
    rights.hold("ttl", {Right("delete", "pods"): "2 Pods are kept"})
    (problem,) = rights.problems()
    assert (
        "kyverno-cleanup-controller may not delete pods (2 Pods are kept);" in problem
    )
    rights.hold("ttl", {})
    assert rights.problems() == []

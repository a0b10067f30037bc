"""The webhooks are deleted only by a planned shutdown of the last replica."""

from typing import Any

import pytest

from kyverno_mp.controllers.deregister import deregister
from kyverno_mp.controllers.webhook_config.owner import find_owner
from tests.unit.kube.fake_api import FakeApi, running

NAME = "kyverno-admission-controller"
DEPLOYMENT = f"/apis/apps/v1/namespaces/kyverno/deployments/{NAME}"
CONFIGURATION = (
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/ours"
)
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kyverno/leases"
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
OURS = {"labels": {"webhook.kyverno.io/managed-by": "kyverno"}}


def fill(api: FakeApi) -> None:
    api.put(CONFIGURATION, metadata=OURS)
    for name in ("kyvernopre-lock", "kyverno-health", "kyverno"):
        api.put(f"{LEASES}/{name}")


def left(api: FakeApi) -> set[str]:
    return {key[3] for key in api.objects if key[2] != "deployments"}


@pytest.mark.parametrize(
    "deployment",
    [
        None,
        {"spec": {"replicas": 0}},
        {
            "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"replicas": 3},
        },
    ],
    ids=["gone", "scaled to 0", "being deleted"],
)
def test_last_replica_deletes_all_configurations(deployment: Any) -> None:
    with running() as api:
        fill(api)
        if deployment:
            api.put(DEPLOYMENT, **deployment)
        assert deregister(api.client(), "kyverno", NAME)
        assert left(api) == {"kyverno"}


@pytest.mark.parametrize("replicas", [1, 3])
def test_replica_with_successors_deletes_nothing(replicas: int) -> None:
    with running() as api:
        fill(api)
        api.put(DEPLOYMENT, spec={"replicas": replicas})
        assert not deregister(api.client(), "kyverno", NAME)
        assert left(api) == {"ours", "kyverno", "kyvernopre-lock", "kyverno-health"}


@pytest.mark.parametrize("status", [403, 500])
def test_replica_without_permission_to_ask_deletes_nothing(status: int) -> None:
    with running() as api:
        fill(api)
        api.faults.extend([("GET .*deployments", status)] * 10)
        assert not deregister(api.client(), "kyverno", NAME)
        assert "ours" in left(api)


def test_owner_is_the_first_clusterrole_of_the_name() -> None:
    with running() as api:
        ours = {"app.kubernetes.io/component": "kyverno"}
        assert find_owner(api.client()) is None
        api.put(f"{ROLES}/a:other", metadata={"labels": ours, "uid": "1"})
        assert find_owner(api.client()) is None
        api.put(f"{ROLES}/kyverno:webhook", metadata={"labels": ours, "uid": "3"})
        assert find_owner(api.client()) == {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "name": "kyverno:webhook",
            "uid": "3",
        }

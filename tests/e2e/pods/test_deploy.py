"""deploy/install.yaml on a real API server: its permissions suffice; it uninstalls.

A failure means: users of docs/install.md get a cluster that is not protected, or one
that is blocked.
"""

import json
import os
import signal
from collections.abc import Iterator

import pytest

from tests.e2e.api import Api
from tests.e2e.conftest import Cluster
from tests.e2e.control_plane import ControlPlane
from tests.e2e.installation import (
    ACCOUNT,
    DEPLOY,
    DEPLOYMENT,
    NAMESPACE,
    Installation,
    get,
    installation,
    until,
)
from tests.e2e.pod import VOLUMES
from tests.waiting import HANG_S, unique

CONFIGURATIONS = (
    "validatingwebhookconfigurations,mutatingwebhookconfigurations",
    "-l",
    "webhook.kyverno.io/managed-by=kyverno",
)
pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def empty(cluster: Cluster, plane: ControlPlane) -> Iterator[Installation]:
    with installation(plane, cluster.kubectl) as made:
        yield made


@pytest.fixture
def installed(empty: Installation) -> Installation:
    """Return an installation with all replicas; reinstall what a test removed."""
    empty.install()
    return empty


def is_denied(found: Installation, *arguments: str) -> bool:
    """Return whether a ConfigMap without labels is rejected; it is not stored."""
    name = f"probe-{unique()}"
    made = found.run("create", "configmap", name, *arguments)
    if made.returncode == 0:
        found.kubectl("delete", "configmap", name)
        return False
    assert "is needed" in made.stderr, made.stderr
    return True


def can(found: Installation, *question: str) -> bool:
    """Return whether the ServiceAccount of our pods has a permission."""
    done = found.run("auth", "can-i", f"--as={ACCOUNT}", *question)
    return done.stdout.strip() == "yes"


def configurations(found: Installation) -> list[str]:
    return found.kubectl("get", *CONFIGURATIONS, "-o", "name").split()


def test_policies_are_enforced(installed: Installation) -> None:
    """Three replicas answer, through the Service, with the cluster's certificate."""
    assert len(installed.pods) == 3
    installed.enforce("labelled", "team", "ConfigMap")
    assert is_denied(installed)
    installed.kubectl("delete", "cpol", "labelled")
    until(lambda: not is_denied(installed), "the policy is out of force")


def test_namespace_admits_only_restricted_pods(installed: Installation) -> None:
    """The API server's Pod Security admission accepts our pods and no others."""
    made = installed.run("-n", NAMESPACE, "run", "root", "--image=none")
    assert "violates PodSecurity" in made.stderr


def test_granted_permissions_suffice(installed: Installation) -> None:
    """No call so far was rejected."""
    installed.enforce("permitted", "team", "ConfigMap")
    installed.kubectl("delete", "cpol", "permitted")
    told = [line for line in installed.logs().splitlines() if "forbidden" in line]
    assert told == []


@pytest.mark.parametrize(
    "question",
    [
        ("list", "secrets", "-n", NAMESPACE),
        ("get", "secrets", "-n", NAMESPACE),
        ("get", "secrets", "-n", "default"),
        ("list", "secrets", "-A"),
        ("create", "pods", "-n", NAMESPACE),
        ("create", "pods/exec", "-n", "default"),
        ("patch", "deployments", "-n", NAMESPACE),
        ("delete", "clusterpolicies.kyverno.io"),
        ("update", "clusterpolicies.kyverno.io"),
        ("create", "clusterrolebindings"),
        ("bind", "clusterroles"),
        ("escalate", "clusterroles"),
        ("impersonate", "users"),
        ("create", "serviceaccounts/token", "-n", NAMESPACE),
        ("deletecollection", "validatingwebhookconfigurations"),
        ("update", "leases/other", "-n", NAMESPACE),
        ("update", "leases", "-n", "kube-system"),
        ("update", "configmaps", "-n", NAMESPACE),
        ("*", "*"),
    ],
    ids=lambda words: "-".join(words).replace("*", "any"),
)
def test_no_unneeded_permissions_are_granted(
    installed: Installation, question: tuple[str, ...]
) -> None:
    assert not can(installed, *question)


def test_users_extend_permissions_by_aggregation(installed: Installation) -> None:
    """A ClusterRole with upstream's label extends our account's permissions."""
    question = ("list", "secrets", "-n", "default")
    assert not can(installed, *question)
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {
            "name": "more",
            "labels": {"rbac.kyverno.io/aggregate-to-admission-controller": "true"},
        },
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["list"]}],
    }
    installed.kubectl("apply", "-f", "-", text=json.dumps(role))
    until(lambda: can(installed, *question), "the grant reaches us")
    installed.kubectl("delete", "clusterrole", "more")
    until(lambda: not can(installed, *question), "and is taken back")


def test_every_pod_serves_its_metrics(installed: Installation) -> None:
    for pod in installed.pods:
        assert get(pod, "/health/liveness")[0] == 200
        status, text = get(pod, "/metrics")
        assert status == 200
        assert "kyverno_info" in text


def test_services_receive_a_token_with_their_own_audience(
    installed: Installation, plane: ControlPlane
) -> None:
    """The environment names a token that the API server itself rejects."""
    pod = installed.pods[0]
    token = (pod.folder / VOLUMES / "apicall-token" / "token").read_text()
    path = "/apis/authentication.k8s.io/v1/tokenreviews"
    with Api(plane.access) as api:
        asked = {"token": token, "audiences": ["kyverno-svc.kyverno.io"]}
        status = api.create(path, {"spec": asked})["status"]
        assert status["user"]["username"] == ACCOUNT
        status = api.create(path, {"spec": {"token": token}})["status"]
        assert not status.get("authenticated")


def test_api_server_stamps_the_health_lease(installed: Installation) -> None:
    """This proves that it reaches our webhook by the Service's name."""

    def stamp() -> str:
        path = "{.metadata.annotations.kyverno\\.io/last-request-time}"
        arguments = ("lease", "kyverno-health", "-o", f"jsonpath={path}")
        return installed.run("-n", NAMESPACE, "get", *arguments).stdout

    first = until(stamp, "the lease is there")
    until(lambda: stamp() != first, "it is stamped again")


def test_split_manifest_has_a_deployment_for_each_role(
    installed: Installation,
) -> None:
    """No pod is idle; the API server accepts every object."""
    installed.kubectl("apply", "-f", str(DEPLOY / "install-split.yaml"))
    installed.await_rollout()
    found = installed.kubectl("-n", NAMESPACE, "get", "deployments", "-o", "name")
    roles = ("admission", "background", "cleanup", "reports")
    assert found.split() == [
        f"deployment.apps/kyverno-{one}-controller" for one in roles
    ]
    installed.uninstall("install-split.yaml")
    until(lambda: not configurations(installed), "all configurations are gone")
    assert not is_denied(installed)


def test_unreachable_webhooks_are_removed_until_reachable(
    installed: Installation,
) -> None:
    """The pods run, but the API server cannot reach them: it must not be locked out."""
    installed.enforce("reached", "team", "ConfigMap")
    assert is_denied(installed)
    service = ("-n", NAMESPACE, "patch", "service", "kyverno-svc", "--type=merge", "-p")
    nobody = {"spec": {"selector": {"app.kubernetes.io/instance": "nobody"}}}
    installed.kubectl(*service, json.dumps(nobody))

    def is_open() -> bool:
        name = f"probe-{unique()}"
        return installed.run("create", "configmap", name).returncode == 0

    until(lambda: not is_open(), "with failurePolicy Fail it is closed at first")
    until(is_open, "it is open after 100 s", 240)
    ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
    assert installed.kubectl("get", "cpol", "reached", "-o", ready) == "False"
    ours = {"spec": {"selector": {"app.kubernetes.io/instance": "kyverno"}}}
    installed.kubectl(*service, json.dumps(ours))
    until(lambda: not is_open(), "the policy is in force again")
    condition = "--for=condition=Ready"
    installed.kubectl("wait", condition, "cpol/reached", "--timeout=60s")
    installed.kubectl("delete", "cpol", "reached")


def test_scaling_to_zero_removes_the_webhooks(
    installed: Installation,
) -> None:
    """Scaled to 0, nothing blocks; scaled up again, the policies are in force."""
    installed.enforce("scaled", "team", "ConfigMap")
    scale = ("-n", NAMESPACE, "scale", f"deployment/{DEPLOYMENT}")
    installed.kubectl(*scale, "--replicas=0")
    until(lambda: not installed.pods, "the pods have ended")
    assert configurations(installed) == []
    assert not is_denied(installed)
    installed.kubectl(*scale, "--replicas=3")
    installed.await_rollout()
    until(lambda: is_denied(installed), "the policy is in force again")
    installed.kubectl("delete", "cpol", "scaled")


def test_uninstalling_after_a_crash_blocks_no_requests(installed: Installation) -> None:
    """All pods are killed, so that none of them can remove its webhooks."""
    installed.enforce("crashed", "team", "ConfigMap")
    assert configurations(installed)
    installed.kubelet.is_abrupt = True
    installed.uninstall()
    installed.kubelet.is_abrupt = False
    until(lambda: not configurations(installed), "all configurations are gone")
    assert not is_denied(installed)
    left = installed.names("clusterroles,clusterrolebindings,crd,namespaces")
    assert not [
        one for one in left if "kyverno" in one or one.endswith("openreports.io")
    ]


def test_replaced_pod_keeps_the_webhooks(
    installed: Installation,
) -> None:
    installed.enforce("stays", "team", "ConfigMap")
    before = configurations(installed)
    process = installed.pods[0].containers[0].process
    assert process is not None
    os.kill(process.pid, signal.SIGTERM)
    process.wait(HANG_S)
    assert configurations(installed) == before
    assert is_denied(installed)
    installed.kubectl("delete", "cpol", "stays")


def test_webhook_configurations_are_deleted_with_their_owner(
    installed: Installation,
) -> None:
    """Each of them names the ClusterRole that uninstalling deletes."""
    listing = json.loads(installed.kubectl("get", *CONFIGURATIONS, "-o", "json"))
    assert listing["items"]
    owner = installed.kubectl(
        "get", "clusterrole", "kyverno:webhook", "-o", "jsonpath={.metadata.uid}"
    )
    for one in listing["items"]:
        owners = one["metadata"]["ownerReferences"]
        assert [each["uid"] for each in owners] == [owner]

"""install-split.yaml: each role in a Deployment of its own, as the account of its pods.

A failure means: a Deployment does not come up with what the manifest grants it, or does
the work of the other one.
"""

import json
from collections.abc import Iterator
from functools import partial

import pytest

from tests.e2e.background import BACKGROUND
from tests.e2e.binaries import find_kubectl
from tests.e2e.control_plane import ControlPlane
from tests.e2e.installation import (
    Installation,
    get,
    installation,
    policy,
    until,
)
from tests.e2e.pod import Pod
from tests.e2e.product import ADMISSION, CLEANUP, NAMESPACE

REPORTS = "kyverno-reports-controller"
USER = f"system:serviceaccount:{NAMESPACE}"
GRANT = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: cleanup-config-maps
  labels:
    rbac.kyverno.io/aggregate-to-cleanup-controller: "true"
rules:
  - apiGroups: [""]
    resources: [configmaps]
    verbs: [get, list, watch, delete]
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: due
  namespace: default
  labels:
    cleanup.kyverno.io/ttl: 1s
"""
GENERATE = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata:
  name: generated
spec:
  rules:
    - name: r
      match:
        any:
          - resources:
              kinds: [ServiceAccount]
              names: [trigger]
      generate:
        apiVersion: v1
        kind: ConfigMap
        name: generated
        namespace: default
        synchronize: true
        data:
          data:
            from: policy
"""


@pytest.fixture(scope="module")
def installed(plane: ControlPlane) -> Iterator[Installation]:
    with installation(plane, find_kubectl()) as found:
        found.install("install-split.yaml")
        yield found


def pods_of(installed: Installation, name: str) -> dict[str, Pod]:
    """Return the pods of a Deployment by their names."""
    component = name.removeprefix("kyverno-")
    return {pod.name: pod for pod in installed.pods_of(component)}


def is_held(installed: Installation, name: str) -> bool:
    """Return whether one of the Deployment's pods has its lease."""
    return installed.holder(name) in pods_of(installed, name)


def test_each_role_runs_in_its_own_pods(installed: Installation) -> None:
    roles = {
        CLEANUP: {"leader", "cleanup", "health"},
        BACKGROUND: {"leader", "background", "health"},
        REPORTS: {"leader", "reports", "reports-evaluator", "health"},
    }
    admission = installed.pods_of("admission-controller")
    assert len(admission) == 3
    for pod in admission:
        assert set(installed.processes(pod)) == {"leader", "webhook", "health"}
    for name, wanted in roles.items():
        pods = pods_of(installed, name)
        assert len(pods) == 2
        for pod in pods.values():
            assert set(installed.processes(pod)) == wanted
        until(partial(is_held, installed, name), f"{name} has its lease")
    assert installed.holder() in {pod.name for pod in admission}
    cleanup = pods_of(installed, CLEANUP)[installed.holder(CLEANUP)]
    # K8S: for a moment, new kinds are answered with 429 (storage is initializing).
    until(lambda: get(cleanup, "/healthz")[0] == 200, "cleanup is healthy")
    body = get(cleanup, "/healthz")[1]
    assert json.loads(body)["pools"] == [{"name": "cleanup", "holdsLease": True}]
    assert json.loads(get(admission[0], "/healthz")[1])["pools"] == []


def test_webhook_and_background_work_with_their_permissions(
    installed: Installation, plane: ControlPlane
) -> None:
    installed.enforce("labelled", "team", "Secret")
    plane.audit.mark()
    installed.kubectl("apply", "-f", "-", text=GRANT)

    def is_gone() -> bool:
        found = installed.run("get", "configmap", "due", "-o", "name")
        return "NotFound" in found.stderr

    until(is_gone, "the labelled ConfigMap is deleted")
    asked = plane.audit.asked(writes=True)
    deleted = [one for one in asked if one.verb == "delete" and one.name == "due"]
    assert {one.user for one in deleted} == {f"{USER}:{CLEANUP}"}
    assert "serviceaccounts/token" not in {
        one.resource for one in asked if one.user == f"{USER}:{ADMISSION}"
    }
    forbidden = [line for line in installed.logs().splitlines() if "forbidden" in line]
    assert forbidden == []


def test_reports_pods_scan_with_their_permissions(
    installed: Installation,
) -> None:
    """Their own leader publishes the policies."""
    scanned = policy("reported", "team", "Service")
    scanned["spec"]["background"] = True
    scanned["spec"]["rules"][0]["validate"]["failureAction"] = "Audit"
    installed.kubectl("apply", "-f", "-", text=json.dumps(scanned))

    def is_reported() -> bool:
        found = installed.run("get", "policyreports", "-A", "-o", "json")
        return '"policy": "reported"' in found.stdout

    until(is_reported, "Services have reports")
    forbidden = [line for line in installed.logs().splitlines() if "forbidden" in line]
    assert forbidden == []


def test_webhook_pods_record_work_for_background_pods(
    installed: Installation, plane: ControlPlane
) -> None:
    installed.kubectl("apply", "-f", "-", text=GENERATE)
    installed.kubectl("wait", "--for=condition=Ready", "cpol/generated")
    plane.audit.mark()
    installed.kubectl("create", "serviceaccount", "trigger")

    def is_there(name: str = "generated") -> bool:
        return not installed.run("get", "configmap", name, "-o", "name").returncode

    until(is_there, "the rule generates")

    def is_reported() -> bool:
        found = installed.run("get", "policyreports", "-A", "-o", "json")
        return '"generated-resources"' in found.stdout

    # Published by the leaders of the background pods and of the reports pods.
    until(is_reported, "the report of the trigger says so")
    installed.kubectl("delete", "cpol", "generated")
    until(lambda: not is_there(), "what it generated goes with the policy")
    asked = plane.audit.asked(writes=True)
    writers = {
        (one.verb, one.resource): one.user
        for one in asked
        if one.name == "generated" and one.resource == "configmaps"
    }
    ours = f"{USER}:{BACKGROUND}"
    assert writers == {("create", "configmaps"): ours, ("delete", "configmaps"): ours}
    requests = {one.user for one in asked if one.resource == "updaterequests"}
    assert requests == {ours, f"{USER}:{ADMISSION}"}
    forbidden = [line for line in installed.logs().splitlines() if "forbidden" in line]
    assert forbidden == []

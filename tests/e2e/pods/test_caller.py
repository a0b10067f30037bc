"""A review that the API server did not send starts nothing, on our manifests.

A failure means: whoever reaches a pod's port lets our accounts create objects.
"""

import http.client
import json
import ssl
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pytest

from tests.e2e.conftest import Cluster
from tests.e2e.control_plane import ControlPlane
from tests.e2e.installation import (
    DEPLOYMENT,
    NAMESPACE,
    Installation,
    installation,
    until,
)
from tests.e2e.load import load
from tests.e2e.pod import Pod

pytestmark = pytest.mark.timeout(900)
PORT: Final = 9443
SECRET: Final = "kyverno-svc.kyverno.svc.kyverno-mp-caller"
CERTIFICATES: Final = (
    "kyverno-svc.kyverno.svc.kyverno-tls-ca",
    "kyverno-svc.kyverno.svc.kyverno-tls-pair",
)
CONFIGURATIONS: Final = "validatingwebhookconfigurations,mutatingwebhookconfigurations"
POLICY: Final = {
    "apiVersion": "kyverno.io/v1",
    "kind": "ClusterPolicy",
    "metadata": {"name": "grants"},
    "spec": {
        # The rule reads the user.
        "background": False,
        "rules": [
            {
                "name": "grant",
                "match": {"any": [{"resources": {"kinds": ["Namespace"]}}]},
                "generate": {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "name": "granted",
                    "namespace": "{{ request.object.metadata.name }}",
                    "data": {
                        "metadata": {"labels": {"team": "a"}},
                        "data": {"to": "{{ request.userInfo.username }}"},
                    },
                },
            }
        ],
    },
}


@pytest.fixture(scope="module")
def installed(cluster: Cluster, plane: ControlPlane) -> Iterator[Installation]:
    with installation(plane, cluster.kubectl) as made:
        made.install()
        made.enforce("labelled", "team", "ConfigMap")
        made.kubectl("apply", "-f", "-", text=json.dumps(POLICY))
        made.kubectl("wait", "--for=condition=Ready", "cpol/grants", "--timeout=60s")
        yield made


def review(namespace: str) -> bytes:
    """Return the review of a Namespace, as anyone could write it."""
    request = {
        "uid": f"forged-{namespace}",
        "kind": {"group": "", "version": "v1", "kind": "Namespace"},
        "resource": {"group": "", "version": "v1", "resource": "namespaces"},
        "name": namespace,
        "namespace": namespace,
        "operation": "CREATE",
        "userInfo": {"username": "system:serviceaccount:tenant:default"},
        "object": {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": namespace, "uid": "1"},
        },
    }
    raw = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": request,
    }
    return json.dumps(raw).encode()


def forge(pod: Pod, path: str, namespace: str) -> tuple[int, Any]:
    """Post a review to a pod; return the status and the answer."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    link = http.client.HTTPSConnection(pod.address, PORT, timeout=60, context=context)
    link.request("POST", path, review(namespace), {"Content-Type": "application/json"})
    answer = link.getresponse()
    text = answer.read()
    link.close()
    return answer.status, json.loads(text) if answer.status == 200 else text


def is_refused(pod: Pod) -> bool:
    return forge(pod, "/validate/fail", "kube-system")[0] == 404


def granted(installed: Installation, namespace: str) -> str:
    path = ("-o", "jsonpath={.data.to}")
    return installed.run("-n", namespace, "get", "cm", "granted", *path).stdout


def await_real_trigger(installed: Installation, name: str) -> None:
    """Create a Namespace, and wait for its object: earlier triggers are done, too."""
    installed.kubectl("create", "namespace", name)
    until(lambda: granted(installed, name), "a real trigger starts its rule")


def segments(installed: Installation) -> set[str]:
    """Return the first part of every path that the API server calls."""
    raw = json.loads(installed.kubectl("get", CONFIGURATIONS, "-o", "json"))
    return {
        hook["clientConfig"]["service"]["path"].split("/")[1]
        for one in raw["items"]
        for hook in one.get("webhooks") or ()
    }


def pods(installed: Installation) -> list[Pod]:
    return installed.pods_of("admission-controller")


def test_forged_review_is_judged_but_starts_nothing(installed: Installation) -> None:
    """No replica requires the segment before the overlap has passed."""
    kinds = ("--ignore-not-found", "-o", "name")
    for pod in pods(installed):
        for path in ("/validate/fail", "/validate/ignore", "/mutate/fail"):
            status, answer = forge(pod, path, "kube-system")
            assert status in (200, 404)
            assert status == 404 or answer["response"]["allowed"]
    await_real_trigger(installed, "real")
    assert granted(installed, "kube-system") == ""
    assert "kube-system" not in installed.kubectl("-n", NAMESPACE, "get", "ur", *kinds)


def test_segment_is_registered_in_every_path(installed: Installation) -> None:
    def is_registered() -> bool:
        found = segments(installed)
        return len(found) == 1 and next(iter(found)).startswith("caller-")

    until(is_registered, "every path has the segment")


def test_forged_review_gets_404_once_every_caller_knows_it(
    installed: Installation,
) -> None:
    for pod in pods(installed):
        until(partial(is_refused, pod), "the segment is required", 300)
        for path in ("/validate", "/mutate/fail", "/policyvalidate", "/verifyttl"):
            assert forge(pod, path, "kube-system")[0] == 404
    await_real_trigger(installed, "real-later")
    assert granted(installed, "kube-system") == ""


def served(installed: Installation) -> set[str]:
    """Return the certificates that the pods serve."""
    found = [ssl.get_server_certificate((one.address, PORT)) for one in pods(installed)]
    return set(found)


@pytest.mark.parametrize(
    "secrets", [(SECRET,), CERTIFICATES, (SECRET, *CERTIFICATES)], ids=len
)
def test_rotation_under_load_loses_no_review(
    installed: Installation, plane: ControlPlane, secrets: tuple[str, ...]
) -> None:
    """Secrets are deleted, as an operator may do; new ones come into force.

    With the segment and the authority replaced at once, an API server may call with
    the old path or the new one, and trust the old authority or the new one.
    """
    paths, certificates = segments(installed), served(installed)
    with load(plane):
        installed.kubectl("-n", NAMESPACE, "delete", "secret", *secrets)
        if SECRET in secrets:
            until(
                lambda: len(found := segments(installed)) == 1 and found != paths,
                "another segment is registered",
                300,
            )
        if len(secrets) > 1:
            until(
                lambda: certificates.isdisjoint(served(installed)),
                "every pod serves another certificate",
                300,
            )
    assert all(one.startswith("caller-") for one in segments(installed))


def test_replica_without_knowledge_under_load_loses_no_review(
    installed: Installation, plane: ControlPlane
) -> None:
    """Paths have no segment as soon as pods may come that do not understand it."""
    name, label = f"deployment/{DEPLOYMENT}", "kyverno-mp.io/caller-path"
    patch = {"spec": {"template": {"metadata": {"labels": {label: None}}}}}
    with load(plane):
        installed.kubectl(
            "-n", NAMESPACE, "patch", name, "--type=merge", "-p", json.dumps(patch)
        )
        until(
            lambda: not any(one.startswith("caller-") for one in segments(installed)),
            "no path has a segment",
        )
        installed.await_rollout()


def test_generating_goes_on_without_proof(installed: Installation) -> None:
    """Without permission for the Secret no path has a segment, as during a take-over.

    The pool reads the new object itself; a rule that needs the user says so.
    """
    find_role = ("-n", NAMESPACE, "get", "role", "kyverno:admission-controller")
    role = json.loads(installed.kubectl(*find_role, "-o", "json"))
    role["rules"] = [
        one for one in role["rules"] if SECRET not in one.get("resourceNames", ())
    ]
    installed.kubectl("replace", "-f", "-", text=json.dumps(role))
    until(
        lambda: not any(one.startswith("caller-") for one in segments(installed)),
        "no path has a segment",
        300,
    )
    plain = json.loads(json.dumps(POLICY))
    plain["metadata"]["name"] = "plain"
    (rule,) = plain["spec"]["rules"]
    rule["generate"]["name"] = "plain"
    rule["generate"]["data"]["data"] = {"to": "all"}
    installed.kubectl("apply", "-f", "-", text=json.dumps(plain))
    installed.kubectl("wait", "--for=condition=Ready", "cpol/plain", "--timeout=60s")
    installed.kubectl("create", "namespace", "unproved")
    find = ("-n", "unproved", "get", "cm", "plain", "-o", "name")
    until(lambda: installed.run(*find).stdout, "the object is generated", 300)
    field = ("--field-selector", "regarding.name=grants,reason=PolicyError")
    events = ("get", "events.events.k8s.io", "-A", *field, "-o", "jsonpath={..note}")
    until(
        lambda: "not run for new objects" in installed.run(*events).stdout,
        "the policy that needs the user has an Event",
    )
    assert granted(installed, "unproved") == ""

"""The API server's generated policies are created and deleted with their sources.

At every moment, either the webhook or the API server enforces a policy, so the tests
check the order of the writes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.kube.cache import Informer
from kyverno_mp.leader.status import PolicyStatus
from kyverno_mp.settings.settings import Settings
from tests.unit.kube.fake_api import FakeApi, running
from tests.unit.kube.test_discovery import group, resource
from tests.unit.leader.test_wire import POLICY, Leader, in_force
from tests.waiting import wait_for

Json = Any
BASE = "/apis/admissionregistration.k8s.io/v1"
GENERATED = f"{BASE}/validatingadmissionpolicies/cpol-p"
BINDING = f"{BASE}/validatingadmissionpolicybindings/cpol-p-binding"
VALIDATING = "/apis/policies.kyverno.io/v1beta1/validatingpolicies/v"
OF_VALIDATING = f"{BASE}/validatingadmissionpolicies/vpol-v"
EXCEPTION = "/apis/policies.kyverno.io/v1beta1/namespaces/kyverno/policyexceptions/e"
SKIP = "skip generating ValidatingAdmissionPolicy"


def policy(*, generate: bool = True, expression: str = "true") -> Json:
    rule = {
        "name": "r",
        "match": {"any": [{"resources": {"kinds": ["Secret"]}}]},
        "validate": {
            "cel": {"generate": generate, "expressions": [{"expression": expression}]}
        },
    }
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "spec": {"rules": [rule]},
    }


def validating_policy(*, enabled: bool = True) -> Json:
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["secrets"],
    }
    return {
        "apiVersion": "policies.kyverno.io/v1beta1",
        "kind": "ValidatingPolicy",
        "spec": {
            "autogen": {"validatingAdmissionPolicy": {"enabled": enabled}},
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "true"}],
        },
    }


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with running() as server:
        kind = "APIGroupDiscoveryList"
        kinds = (resource("pods", "Pod"), resource("secrets", "Secret"))
        server.answers["/api"] = {"kind": kind, "items": [group("", "v1", *kinds)]}
        made = [
            resource(f"validatingadmissionpolic{end}", name, scope="Cluster")
            for end, name in (
                ("ies", "ValidatingAdmissionPolicy"),
                ("ybindings", "ValidatingAdmissionPolicyBinding"),
            )
        ]
        own = group("admissionregistration.k8s.io", "v1", *made)
        server.answers["/apis"] = {"kind": kind, "items": [own]}
        yield server


@pytest.fixture
def leader(api: FakeApi, tmp_path: Path) -> Iterator[Leader]:
    found = Leader(api, tmp_path)
    try:
        found.start()
        yield found
    finally:
        found.stop()


class Generation:
    """A policy; the workers have each of its versions at once."""

    def __init__(self, leader: Leader, path: str, informer: Informer[Any]) -> None:
        self.leader = leader
        self.path = path
        self.informer = informer
        self.number = 2

    def put(self, raw: Json) -> None:
        """Store the policy and let all parts follow."""
        known = self.leader.at(self.path) or {}
        kept = {"status": known["status"]} if "status" in known else {}
        self.leader.api.put(self.path, **raw, **kept)
        self.follow()

    def follow(self) -> None:
        """Let the informer, the leader's loop and the workers follow."""
        name = self.path.rpartition("/")[2]

        def is_heard() -> bool:
            stored = self.leader.at(self.path)["metadata"]["resourceVersion"]
            return bool(self.informer.version_of(("", name)) == stored)

        wait_for(is_heard)
        is_cluster_policy = self.path == POLICY
        status = (
            in_force()
            if is_cluster_policy
            else PolicyStatus(
                "ValidatingPolicy", "", "v", ready=True, message="Ready", rule_count=1
            )
        )
        self.number += 1
        self.leader.publish(self.number, status)
        self.leader.attach(self.number)
        self.leader.work()

    def status(self) -> Json:
        return self.leader.at(self.path).get("status") or {}


@pytest.fixture
def old(leader: Leader) -> Generation:
    return Generation(leader, POLICY, leader.policies.informers[0])


@pytest.fixture
def cel(leader: Leader) -> Generation:
    return Generation(leader, VALIDATING, leader.policies.cel_informers[0])


def told(of: Generation) -> Json:
    return of.status().get("validatingadmissionpolicy")


def webhooks(leader: Leader) -> str:
    return " ".join(leader.resources())


def test_policy_moves_to_the_api_server(leader: Leader, old: Generation) -> None:
    old.put(policy())
    leader.until(lambda: leader.at(GENERATED) and leader.at(BINDING))
    leader.until(lambda: "secrets" in webhooks(leader))
    assert told(old) == {"generated": False, "message": ""}, "it is not loaded yet"
    leader.pass_s(5)
    assert told(old) == {"generated": True, "message": ""}
    old.follow()
    leader.until(lambda: "secrets" not in webhooks(leader))


def moved(of: Generation, raw: Json, made: str) -> None:
    """Move a policy from the webhook to the API server."""
    leader = of.leader
    of.put(raw)
    leader.until(lambda: leader.at(made))
    leader.pass_s(5)
    of.follow()
    leader.until(lambda: "secrets" not in webhooks(leader))


def test_generated_policy_is_deleted_after_workers_have_the_policy(
    leader: Leader, old: Generation
) -> None:
    moved(old, policy(), GENERATED)
    old.put(policy(generate=False))
    leader.until(lambda: told(old) is not None and not told(old)["generated"])
    assert told(old)["message"] == f"{SKIP}: validate.cel.generate is not set to true."
    leader.pass_s(2)
    assert leader.at(GENERATED), "no worker evaluates it"
    old.follow()
    leader.until(lambda: "secrets" in webhooks(leader))
    # The API servers load the webhook configuration in the meantime.
    leader.pass_s(5)
    leader.until(lambda: leader.at(GENERATED) is None)
    assert leader.at(BINDING) is None


def test_changed_object_is_repaired(leader: Leader, old: Generation) -> None:
    moved(old, policy(), GENERATED)
    stored = leader.at(GENERATED)
    metadata = {**stored["metadata"], "generation": 7}
    leader.api.put(GENERATED, **{**stored, "metadata": metadata, "spec": {}})
    leader.api.remove(BINDING)
    leader.pass_s(11)
    assert leader.at(GENERATED)["spec"] == stored["spec"]
    assert leader.at(BINDING)


def test_nothing_is_written_twice(leader: Leader, old: Generation) -> None:
    moved(old, policy(), GENERATED)
    before = leader.api.count("(POST|PUT|DELETE) .*admissionpolic")
    leader.pass_s(25)
    assert leader.api.count("(POST|PUT|DELETE) .*admissionpolic") == before


def test_changed_policy_changes_the_enforced_object(
    leader: Leader, old: Generation
) -> None:
    moved(old, policy(), GENERATED)
    spec = leader.at(GENERATED)["spec"]
    old.put(policy(expression="false"))
    leader.until(lambda: leader.at(GENERATED)["spec"] != spec)
    (validation,) = leader.at(GENERATED)["spec"]["validations"]
    assert validation["expression"] == "false"
    assert told(old)["generated"] is True


def test_foreign_objects_stay(leader: Leader, old: Generation) -> None:
    leader.api.put(GENERATED, spec={"theirs": True})
    old.put(policy())
    leader.until(lambda: (told(old) or {}).get("message"))
    text = "cpol-p or its binding exists, and Kyverno did not generate it."
    assert told(old) == {"generated": False, "message": f"{SKIP}: {text}"}
    assert leader.at(GENERATED)["spec"] == {"theirs": True}


@pytest.mark.parametrize(
    ("pattern", "kinds"),
    [
        ("POST .*admissionpolicies", "ValidatingAdmissionPolicies"),
        ("POST .*bindings", "ValidatingAdmissionPolicyBindings"),
    ],
)
def test_webhook_enforces_the_policy_without_permission(
    leader: Leader, old: Generation, pattern: str, kinds: str
) -> None:
    leader.api.fault(pattern, *[403] * 20)
    old.put(policy())
    leader.until(lambda: (told(old) or {}).get("message"))
    message = f"insufficient permissions to generate {kinds}"
    assert told(old) == {"generated": False, "message": message}
    assert "secrets" in webhooks(leader)


def test_policy_rejected_by_the_api_server_stays_in_the_webhook(
    leader: Leader, old: Generation
) -> None:
    leader.api.fault("POST .*admissionpolicies", 422)
    old.put(policy())
    leader.until(lambda: (told(old) or {}).get("message"))
    assert told(old)["message"].startswith(f"{SKIP}: POST ")
    assert "secrets" in webhooks(leader)
    leader.pass_s(70)
    assert leader.at(GENERATED), "it is offered again"


def test_cel_policy_moves_and_returns(leader: Leader, cel: Generation) -> None:
    moved(cel, validating_policy(), OF_VALIDATING)
    assert cel.status()["generated"] is True
    cel.put(validating_policy(enabled=False))
    leader.until(lambda: cel.status()["generated"] is False)
    text = cel.status()["conditionStatus"]["message"]
    assert text == f"{SKIP}: not enabled."
    cel.follow()
    leader.until(lambda: "secrets" in webhooks(leader))
    # The API servers load the webhook configuration in the meantime.
    leader.pass_s(5)
    leader.until(lambda: leader.at(OF_VALIDATING) is None)


def test_exceptions_apply_only_where_allowed(leader: Leader, cel: Generation) -> None:
    """By default, exceptions have no effect in a cluster."""
    moved(cel, validating_policy(), OF_VALIDATING)
    spec = leader.at(OF_VALIDATING)["spec"]
    leader.api.put(
        EXCEPTION,
        apiVersion="policies.kyverno.io/v1beta1",
        kind="PolicyException",
        spec={"policyRefs": [{"name": "v", "kind": "ValidatingPolicy"}]},
    )
    wait_for(lambda: len(leader.policies.cel_informers[-1]) == 1)
    leader.pass_s(11)
    assert leader.at(OF_VALIDATING)["spec"] == spec


def test_exception_takes_effect_without_a_resync(api: FakeApi, tmp_path: Path) -> None:
    """Otherwise, the API server would deny exempt requests for ten seconds."""
    settings = Settings(policy_exceptions=True, exception_namespace="kyverno")
    leader = Leader(api, tmp_path, settings)
    try:
        leader.start()
        made = Generation(leader, VALIDATING, leader.policies.cel_informers[0])
        moved(made, validating_policy(), OF_VALIDATING)
        spec = leader.at(OF_VALIDATING)["spec"]
        leader.api.put(
            EXCEPTION,
            apiVersion="policies.kyverno.io/v1beta1",
            kind="PolicyException",
            spec={"policyRefs": [{"name": "v", "kind": "ValidatingPolicy"}]},
        )
        wait_for(lambda: len(leader.policies.cel_informers[-1]) == 1)
        leader.until(lambda: (leader.at(OF_VALIDATING) or {}).get("spec") != spec)
    finally:
        leader.stop()


def test_standby_writes_nothing(leader: Leader, old: Generation) -> None:
    leader.election.release()
    leader.api.put(POLICY, **policy())
    leader.pass_s(12)
    assert leader.at(GENERATED) is None

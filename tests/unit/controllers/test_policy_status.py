"""A policy's status describes this replica and is rarely written."""

from datetime import UTC, datetime
from typing import Any

import pytest

from kyverno_mp.controllers.cel_status import cel_status_of
from kyverno_mp.controllers.policy_status import (
    InForce,
    Pass,
    PolicyName,
    PolicyStatuses,
    Served,
    status_of,
)
from kyverno_mp.controllers.unproved_status import with_unproved
from kyverno_mp.kube.apply import Objects
from kyverno_mp.policy.cel_kinds.served import decode_served
from kyverno_mp.policy.cel_kinds.validating_policy import CelPolicyException
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy, Policy
from kyverno_mp.policy.reading.decode import decode
from tests.argo_health import health
from tests.unit.kube.fake_api import FakeApi, running

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = datetime(2026, 1, 2, tzinfo=UTC)
RAW: Any = {
    "apiVersion": "kyverno.io/v1",
    "kind": "ClusterPolicy",
    "metadata": {"name": "p"},
    "spec": {
        "rules": [
            {
                "name": "r",
                "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
                "validate": {"message": "m", "pattern": {"spec": {"x": "?*"}}},
            }
        ]
    },
}

PODS = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "operations": ["CREATE"],
    "resources": ["pods"],
}
CEL_BODIES: dict[str, Any] = {
    "ValidatingPolicy": {"validations": [{"expression": "true"}]},
    "MutatingPolicy": {
        "mutations": [
            {
                "patchType": "ApplyConfiguration",
                "applyConfiguration": {"expression": "Object{}"},
            }
        ]
    },
    "GeneratingPolicy": {"generate": [{"expression": "true"}]},
    "ImageValidatingPolicy": {
        "matchImageReferences": [{"glob": "*"}],
        "validations": [{"expression": "true"}],
    },
}


def policy() -> ClusterPolicy:
    document = decode(RAW)
    assert isinstance(document, ClusterPolicy)
    return document


def test_status_has_upstreams_fields() -> None:
    status = status_of(policy(), {"ready": True}, NOW, ready=True, message="")
    assert status["conditions"] == [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Succeeded",
            "message": "Ready",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ]
    assert status["rulecount"] == {
        "validate": 1,
        "generate": 0,
        "mutate": 0,
        "verifyimages": 0,
    }
    names = [rule["name"] for rule in status["autogen"]["rules"]]
    assert names == ["autogen-r", "autogen-cronjob-r"]
    assert status["validatingadmissionpolicy"] == {"generated": False, "message": ""}
    assert "ready" not in status


@pytest.mark.parametrize("namespace", ["", "shop"])
def test_policy_in_force_is_healthy_in_argo_cd(namespace: str) -> None:
    """Otherwise, each Application with a policy would be Progressing for ever."""
    kind = "Policy" if namespace else "ClusterPolicy"
    metadata = {"name": "p", **({"namespace": namespace} if namespace else {})}
    raw = {**RAW, "kind": kind, "metadata": metadata}
    document = decode(raw)
    assert isinstance(document, ClusterPolicy | Policy)
    status = status_of(document, {}, NOW, ready=True, message="")
    assert health({**raw, "status": status}) == "Healthy"
    status = status_of(document, status, NOW, ready=False, message="why")
    worse = "Progressing" if namespace else "Degraded"
    assert health({**raw, "status": status}) == worse


@pytest.mark.parametrize("body", CEL_BODIES, ids=str)
@pytest.mark.parametrize("admission", [True, False])
def test_cel_policy_in_force_is_healthy_in_argo_cd(
    body: str, *, admission: bool
) -> None:
    """Also after a condition about an earlier version, and for scans alone."""
    raw: Any = {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": body,
        "metadata": {"name": "p", "generation": 2},
        "spec": {
            **CEL_BODIES[body],
            "matchConstraints": {"resourceRules": [PODS]},
            "evaluation": {"admission": {"enabled": admission}},
        },
    }
    document = decode_served(raw)
    assert not isinstance(document, CelPolicyException)
    earlier = {**raw, "metadata": {"name": "p", "generation": 1}}
    before = with_unproved(earlier, NOW)
    assert before is not None
    given = before["status"]
    status = cel_status_of(document, given, NOW, ready=True, message="")
    assert health({**raw, "status": status}) == "Healthy"
    status = cel_status_of(document, status, NOW, ready=False, message="why")
    assert health({**raw, "status": status}) == "Degraded"


def test_time_changes_only_with_the_condition() -> None:
    before = status_of(policy(), {}, NOW, ready=True, message="")
    assert status_of(policy(), before, LATER, ready=True, message="") == before
    after = status_of(policy(), before, LATER, ready=False, message="why")
    (condition,) = after["conditions"]
    assert condition["lastTransitionTime"] == "2026-01-02T00:00:00Z"
    assert (condition["reason"], condition["message"]) == ("Failed", "why")


def test_each_policy_status_is_written_once_per_change() -> None:
    with running() as api:
        api.put("/apis/kyverno.io/v1/clusterpolicies/p", **RAW)
        statuses = PolicyStatuses(Objects(api.client()))
        name = ("ClusterPolicy", "", "p")
        assert statuses.write([policy()], {}, NOW) == Pass(known=False)
        assert api.requests == []
        assert statuses.write([policy()], {name: InForce(ready=True)}, NOW).known
        assert api.count("PUT .*/status") == 1
        assert statuses.write([policy()], {name: InForce(ready=True)}, LATER).known
        assert len(api.requests) == 2
        statuses.write(
            [policy()], {name: InForce(ready=False, message="broken")}, LATER
        )
        (raw,) = api.objects.values()
        assert raw["status"]["conditions"][0]["message"] == "broken"


def test_version_that_is_not_enforced_yet_gets_no_status() -> None:
    """Users who wait for Ready after an edit must wait for the new version."""
    edited = decode({**RAW, "metadata": {"name": "p", "generation": 2}})
    assert isinstance(edited, ClusterPolicy)
    with running() as api:
        api.put("/apis/kyverno.io/v1/clusterpolicies/p", **RAW)
        statuses = PolicyStatuses(Objects(api.client()))
        name = ("ClusterPolicy", "", "p")
        before = {name: InForce(ready=True, generation=1)}
        assert statuses.write([edited], before, NOW) == Pass(known=False)
        assert api.requests == []
        now = {name: InForce(ready=True, generation=2)}
        assert statuses.write([edited], now, NOW).known
        assert api.count("PUT .*/status") == 1


def test_policy_is_ready_when_all_replicas_enforce_it() -> None:
    with running() as api:
        api.put("/apis/kyverno.io/v1/clusterpolicies/p", **RAW)
        statuses = PolicyStatuses(Objects(api.client()))
        served = {("ClusterPolicy", "", "p"): InForce(ready=True)}
        behind = ["other"]
        assert not statuses.write([policy()], served, NOW, lambda _: behind).known
        assert api.requests == []
        behind.clear()
        assert statuses.write([policy()], served, NOW, lambda _: behind).known
        assert api.count("PUT .*/status") == 1
        # Our status write creates a version that other replicas have not read yet.
        behind.append("other")
        assert statuses.write([policy()], served, NOW, lambda _: behind).known
        # A policy that is not ready is reported at once.
        refused = {("ClusterPolicy", "", "p"): InForce(ready=False, message="broken")}
        assert statuses.write([policy()], refused, NOW, lambda _: behind).known
        assert api.count("PUT .*/status") == 2


def many(api: FakeApi, count: int) -> tuple[list[ClusterPolicy], Served]:
    """Create policies p0, p1, ...; return them with all of them in force."""
    made: list[ClusterPolicy] = []
    served: dict[PolicyName, InForce] = {}
    for number in range(count):
        name = f"p{number}"
        api.put(f"/apis/kyverno.io/v1/clusterpolicies/{name}", **RAW)
        one = decode({**RAW, "metadata": {"name": name}})
        assert isinstance(one, ClusterPolicy)
        made.append(one)
        served["ClusterPolicy", "", name] = InForce(ready=True)
    return made, served


def test_rejected_status_delays_no_other_policy() -> None:
    with running() as api:
        policies, served = many(api, 2)
        statuses = PolicyStatuses(Objects(api.client()))
        api.faults.append((r"PUT .*/p0/status", 422))
        assert statuses.write(policies, served, NOW) == Pass(known=False)
        assert api.count("PUT .*/p1/status") == 1
        assert statuses.write(policies, served, NOW) == Pass(known=True)
        assert api.count("PUT .*/p1/status") == 1
        assert api.count("PUT .*/p0/status") == 2


def test_many_changed_policies_are_written_in_several_passes() -> None:
    """Each pass continues where the last one stopped, despite rejected policies."""
    with running() as api:
        policies, served = many(api, 120)
        statuses = PolicyStatuses(Objects(api.client()))
        api.faults.append((r"PUT .*/p7/status", 422))
        passes = [statuses.write(policies, served, NOW) for _ in range(3)]
        assert [one.ended for one in passes] == [False, False, True]
        assert api.count("PUT .*/status") == 120
        assert not passes[-1].known
        assert statuses.write(policies, served, NOW) == Pass(known=True)
        assert api.count("PUT .*/status") == 121

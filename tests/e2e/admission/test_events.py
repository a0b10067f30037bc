"""Events of admission on a real API server: what `kubectl describe` shows a user.

A failure means: users of a policy, an object or an exception do not see its results, or
a killed process loses an event.
"""

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psutil
import pytest

from tests.e2e.api import Api, Refused
from tests.e2e.product import NAMESPACE, Product
from tests.waiting import HANG_S, wait_for

POLICIES = "/apis/kyverno.io/v1/clusterpolicies"
OWN_POLICIES = "/apis/kyverno.io/v1/namespaces/default/policies"
EXCEPTIONS = "/apis/kyverno.io/v2/namespaces/default/policyexceptions"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
MAPS = "/api/v1/namespaces/default/configmaps"
SETTINGS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"


@pytest.fixture
def made(api: Api, product: Product) -> Iterator[Callable[[str, Any], Any]]:
    """Create objects that are deleted after the test."""
    assert product.health_port
    paths: list[str] = []

    def create(path: str, raw: Mapping[str, Any]) -> Any:
        found = api.create(path, raw)
        paths.append(f"{path}/{raw['metadata']['name']}")
        if path in {POLICIES, OWN_POLICIES}:
            wait_for(lambda: is_ready(api, f"{path}/{raw['metadata']['name']}"))
        return found

    yield create
    for path in reversed(paths):
        api.ask("DELETE", path)


def is_ready(api: Api, path: str) -> bool:
    status = api.get(path).get("status") or {}
    conditions = status.get("conditions") or []
    return any(one["status"] == "True" for one in conditions)


def policy(name: str, action: str, **rule: Any) -> dict[str, Any]:
    match = {"any": [{"resources": {"kinds": ["ConfigMap"], "names": [f"{name}-*"]}}]}
    body = rule or {
        "validate": {
            "failureAction": action,
            "message": "team is needed",
            "pattern": {"metadata": {"labels": {"team": "?*"}}},
        }
    }
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": name},
        "spec": {
            "background": False,
            "rules": [{"name": "labelled", "match": match, **body}],
        },
    }


def config_map(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default", "labels": labels}}


def is_refused(api: Api, name: str) -> bool:
    try:
        api.create(MAPS, config_map(name))
    except Refused:
        return True
    api.ask("DELETE", f"{MAPS}/{name}")
    return False


def events(api: Api, name: str, reason: str = "") -> list[dict[str, Any]]:
    """Return the events about one object."""
    return [
        one
        for one in api.get(EVENTS)["items"]
        if one["regarding"]["name"] == name and reason in ("", one["reason"])
    ]


def processes(product: Product) -> dict[str, psutil.Process]:
    """Return the processes by name, as the health server reports them."""
    return {n: psutil.Process(pid) for n, pid in product.processes().items()}


def test_denial_creates_an_event_on_the_policy(api: Api, made: Any) -> None:
    raw = made(POLICIES, policy("ev-deny", "Enforce"))
    assert is_refused(api, "ev-deny-m")
    (event,) = wait_for(lambda: events(api, "ev-deny"))
    assert event["note"] == (
        "ConfigMap default/ev-deny-m: [labelled] fail (blocked); validation error: team"
        " is needed. rule labelled failed at path /metadata/labels/"
    )
    assert event["reason"] == "PolicyViolation"
    assert event["action"] == "Resource Blocked"
    assert event["type"] == "Warning"
    assert event["reportingController"] == "kyverno-admission"
    assert event["regarding"]["uid"] == raw["metadata"]["uid"]
    assert event["regarding"]["apiVersion"] == "kyverno.io/v1"
    assert event["related"]["name"] == "ev-deny-m"
    assert events(api, "ev-deny-m") == [], "there is no such object"


def test_audited_violation_creates_events_on_policy_and_object(
    api: Api, made: Any
) -> None:
    made(POLICIES, policy("ev-audit", "Audit"))
    uid = made(MAPS, config_map("ev-audit-m"))["metadata"]["uid"]
    (on_policy,) = wait_for(lambda: events(api, "ev-audit"))
    assert on_policy["action"] == "Resource Passed"
    assert on_policy["note"].startswith("ConfigMap default/ev-audit-m: [labelled] fail")
    (on_object,) = wait_for(lambda: events(api, "ev-audit-m"))
    assert on_object["note"].startswith("policy ev-audit/labelled fail: validation")
    assert on_object["regarding"]["uid"] == uid
    assert "related" not in on_object


def test_repeated_events_are_counted_in_one(api: Api, made: Any) -> None:
    made(POLICIES, policy("ev-count", "Enforce"))
    for _ in range(30):
        assert is_refused(api, "ev-count-m")
    (event,) = wait_for(lambda: events(api, "ev-count"))
    found = wait_for(
        lambda: api.get(f"{EVENTS}/{event['metadata']['name']}").get("series"), HANG_S
    )
    assert found["count"] == 30
    assert len(events(api, "ev-count")) == 1


def test_many_objects_all_get_events(api: Api, made: Any) -> None:
    """There are more objects than one policy's budget of repeats."""
    made(POLICIES, policy("ev-many", "Enforce"))
    names = {f"ev-many-{number}" for number in range(60)}
    for name in names:
        assert is_refused(api, name)

    def told() -> bool:
        return {one["related"]["name"] for one in events(api, "ev-many")} == names

    wait_for(told)


def test_dry_run_creates_no_events(api: Api, made: Any) -> None:
    made(POLICIES, policy("ev-dry", "Enforce"))
    with pytest.raises(Refused):
        api.create(f"{MAPS}?dryRun=All", config_map("ev-dry-a"))
    assert is_refused(api, "ev-dry-b")
    (event,) = wait_for(lambda: events(api, "ev-dry"))
    assert event["related"]["name"] == "ev-dry-b"


def test_exception_creates_events_on_itself_and_the_policy(api: Api, made: Any) -> None:
    made(POLICIES, policy("ev-skip", "Enforce"))
    exceptions = [{"policyName": "ev-skip", "ruleNames": ["labelled"]}]
    match = {"any": [{"resources": {"kinds": ["ConfigMap"], "names": ["ev-skip-m"]}}]}
    uid = made(
        EXCEPTIONS,
        {
            "apiVersion": "kyverno.io/v2",
            "kind": "PolicyException",
            "metadata": {"name": "ev-let", "namespace": "default"},
            "spec": {"exceptions": exceptions, "match": match},
        },
    )["metadata"]["uid"]
    wait_for(lambda: not is_refused(api, "ev-skip-m"))
    (on_exception,) = wait_for(lambda: events(api, "ev-let"))
    assert on_exception["note"] == (
        "resource ConfigMap/default/ev-skip-m was skipped from policy rule"
        " ev-skip/labelled"
    )
    assert on_exception["regarding"]["uid"] == uid
    assert on_exception["type"] == "Normal"
    (on_policy,) = wait_for(lambda: events(api, "ev-skip", "PolicySkipped"))
    assert on_policy["note"] == (
        "resource ConfigMap/default/ev-skip-m was skipped from rule labelled due to"
        " policy exceptions default/ev-let"
    )


def test_success_events_are_configurable(api: Api, made: Any) -> None:
    made(POLICIES, policy("ev-pass", "Enforce"))
    patch = {"patchStrategicMerge": {"metadata": {"labels": {"seen": "yes"}}}}
    made(POLICIES, policy("ev-mutate", "", mutate=patch))
    api.create(MAPS, config_map("ev-pass-before", team="x"))
    made(
        SETTINGS,
        {
            "metadata": {"name": "kyverno", "namespace": NAMESPACE},
            "data": {"generateSuccessEvents": "true"},
        },
    )
    numbers = iter(range(1000))

    def asked() -> list[dict[str, Any]]:
        name = f"ev-pass-{next(numbers)}"
        api.create(MAPS, config_map(name, team="x"))
        api.ask("DELETE", f"{MAPS}/{name}")
        time.sleep(0.5)
        return events(api, "ev-pass")

    event = wait_for(asked)[0]
    assert event["reason"] == "PolicyApplied"
    assert event["type"] == "Normal"
    assert event["action"] == "Resource Passed"
    assert event["note"].endswith(": pass")
    assert event["related"]["name"] != "ev-pass-before"
    made(MAPS, config_map("ev-mutate-m"))
    (mutated,) = wait_for(lambda: events(api, "ev-mutate"))
    assert mutated["action"] == "Resource Mutated"
    assert mutated["note"] == "ConfigMap default/ev-mutate-m is successfully mutated"
    api.ask("DELETE", f"{MAPS}/ev-pass-before")


@pytest.mark.parametrize("action", ["Audit", "Enforce"])
def test_success_event_is_in_the_policys_namespace(
    api: Api, made: Any, action: str
) -> None:
    """The setting is in force before the policy that was created after it is Ready."""
    made(
        SETTINGS,
        {
            "metadata": {"name": "kyverno", "namespace": NAMESPACE},
            "data": {"generateSuccessEvents": "true"},
        },
    )
    name = f"ev-own-{action.lower()}"
    raw = policy(name, action)
    raw["kind"] = "Policy"
    raw["metadata"]["namespace"] = "default"
    made(OWN_POLICIES, raw)
    made(MAPS, config_map(f"{name}-m", team="x"))
    (event,) = wait_for(lambda: events(api, name))
    assert event["reason"] == "PolicyApplied"
    assert event["metadata"]["namespace"] == "default"
    assert event["regarding"]["kind"] == "Policy"
    assert event["note"] == f"ConfigMap default/{name}-m: pass"


def test_denial_event_survives_a_killed_process(
    api: Api, made: Any, product: Product
) -> None:
    """Kill -9 of the worker after its answer, and of the leader before its write."""
    made(POLICIES, policy("ev-kill", "Enforce"))
    found = processes(product)
    leader = found["leader"]
    (worker,) = found["webhook"].children()
    leader.suspend()
    try:
        assert is_refused(api, "ev-kill-m")
        worker.send_signal(signal.SIGKILL)
        assert events(api, "ev-kill") == []
    finally:
        leader.send_signal(signal.SIGKILL)
    (event,) = wait_for(lambda: events(api, "ev-kill"))
    assert event["related"]["name"] == "ev-kill-m"

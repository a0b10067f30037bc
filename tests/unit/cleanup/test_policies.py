"""Runs of clean-up policies against an API server: deletions, times, and reports."""

import re
from typing import Any

import pytest

from kyverno_mp.egress.kinds import LiveKinds
from kyverno_mp.egress.objects import LiveObjects
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.limits import KUBE_PAGE_OBJECTS
from kyverno_mp.program.ports import ApiRequest, ClusterData
from kyverno_mp.settings.settings import Settings
from tests.unit.cleanup.cluster import (
    CLUSTER,
    Recorded,
    at,
    condition_of,
    config_map,
    controller,
    dependencies_of,
    names,
    once,
    policy,
    serve_kinds,
    status_of,
)
from tests.unit.kube.fake_api import FakeApi
from tests.unit.queues.turned_clock import TurnedClock
from tests.waiting import HANG_S

Json = Any
DRY_RUN = "kyverno-mp.io/dry-run"
BUDGET = "kyverno-mp.io/deletion-budget"


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


@pytest.fixture
def due(api: FakeApi, clock: TurnedClock, recorded: Recorded) -> Any:
    """Let the controller do the first minute's run, with changed dependencies."""

    def settle(**changes: Any) -> None:
        clock.turn(61)
        with controller(
            api, dependencies_of(api, recorded, clock.clock, **changes)
        ) as one:
            one.settle()

    serve_kinds(api)
    return settle


def condition(key: str, operator: str, value: Json) -> Json:
    return {"any": [{"key": key, "operator": operator, "value": value}]}


def test_scheduled_run_deletes_matching_objects(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """Otherwise, objects would remain or be deleted too early."""
    serve_kinds(api)
    policy(api)
    config_map(api, "one")
    config_map(api, "two", namespace="b")
    config_map(api, "kept", plural="secrets")
    with controller(api, dependencies_of(api, recorded, clock.clock)) as one:
        one.settle()
        assert names(api) == ["a/one", "b/two"]
        clock.turn(59)
        one.settle()
        assert names(api) == ["a/one", "b/two"]
        clock.turn(1)
        one.settle()
    assert names(api) == []
    assert names(api, "secrets") == ["a/kept"]
    assert status_of(api)["lastExecutionTime"] == "2026-01-01T00:01:00Z"
    assert condition_of(api)["status"] == "True"


MATCHES: list[tuple[str, Json, list[str]]] = [
    ("everything", {}, []),
    (
        "match by label",
        {
            "match": {
                "any": [
                    {
                        "resources": {
                            "kinds": ["ConfigMap"],
                            "selector": {"matchLabels": {"tier": "old"}},
                        }
                    }
                ]
            }
        },
        ["a/new", "b/new"],
    ),
    (
        "exclude by name",
        {"exclude": {"any": [{"resources": {"names": ["old"]}}]}},
        ["a/old", "b/old"],
    ),
    (
        "match by namespace",
        {
            "match": {
                "any": [{"resources": {"kinds": ["v1/ConfigMap"], "namespaces": ["b"]}}]
            }
        },
        ["a/new", "a/old"],
    ),
    (
        "conditions on the target",
        {"conditions": condition("{{ target.data.keep }}", "Equals", "no")},
        ["a/new", "b/new"],
    ),
    (
        "conditions on the namespace",
        {"conditions": condition("{{ request.namespace }}", "Equals", "a")},
        ["b/new", "b/old"],
    ),
    (
        "a condition that cannot be decided keeps the object",
        {"conditions": condition("{{ target.data.nowhere }}", "Equals", "no")},
        ["a/new", "a/old", "b/new", "b/old"],
    ),
    (
        "a variable of the context",
        {
            "context": [{"name": "word", "variable": {"value": "no"}}],
            "conditions": condition("{{ target.data.keep }}", "Equals", "{{ word }}"),
        },
        ["a/new", "b/new"],
    ),
    (
        "kinds that are not served do not stop the others",
        {
            "match": {
                "any": [
                    {"resources": {"kinds": ["Widget", "*"]}},
                    {"resources": {"kinds": ["ConfigMap"]}},
                ]
            }
        },
        [],
    ),
]


@pytest.mark.parametrize(
    ("case", "spec", "left"), MATCHES, ids=[one[0] for one in MATCHES]
)
def test_match_exclude_and_conditions(
    api: FakeApi, due: Any, case: str, spec: Json, left: list[str]
) -> None:
    """Otherwise, the wrong objects would be deleted."""
    del case
    policy(api, **spec)
    for namespace in ("a", "b"):
        config_map(
            api, "old", namespace=namespace, labels={"tier": "old"}, data={"keep": "no"}
        )
        config_map(
            api,
            "new",
            namespace=namespace,
            labels={"tier": "new"},
            data={"keep": "yes"},
        )
    due()
    assert names(api) == left


def test_namespaced_policy_deletes_nothing_outside_its_namespace(
    api: FakeApi, due: Any
) -> None:
    """Otherwise, a namespaced policy's author could delete other tenants' objects."""
    kinds = {"any": [{"resources": {"kinds": ["ConfigMap", "Namespace"]}}]}
    policy(api, namespace="a", match=kinds)
    config_map(api, "mine")
    config_map(api, "theirs", namespace="b")
    api.put("/api/v1/namespaces/a", metadata={"creationTimestamp": at(0)})
    due()
    assert names(api) == ["b/theirs"]
    assert names(api, "namespaces") == ["/a"]
    assert not api.count(
        r"GET /api/v1/(configmaps\?limit|namespaces/b/|namespaces\?limit)"
    )


def test_deletion_applies_to_the_evaluated_version(
    api: FakeApi, due: Any, recorded: Recorded
) -> None:
    """Without preconditions, a deletion would remove objects that changed meanwhile."""
    policy(api, deletionPropagationPolicy="Orphan")
    stored = config_map(api, "one")
    due()
    [(key, options)] = api.deletions
    assert key[3] == "one"
    assert options["propagationPolicy"] == "Orphan"
    assert options["preconditions"] == {
        "uid": stored["metadata"]["uid"],
        "resourceVersion": stored["metadata"]["resourceVersion"],
    }
    name = "kyverno_cleanup_controller_deletedobjects_total"
    labels = ("ClusterCleanupPolicy", "", "p", "ConfigMap", "a", "Orphan")
    assert recorded.counts[name, labels] == 1
    assert (
        "successfully cleaned up the target resource ConfigMap/a/one"
        in recorded.notes()
    )
    [event] = recorded.events
    assert (event.reason, event.action) == ("PolicyApplied", "Resource Cleaned Up")
    assert event.regarding.api_version == "kyverno.io/v2"


def test_run_is_recorded_before_the_first_deletion(api: FakeApi, due: Any) -> None:
    """Otherwise, the run would start again after a crash."""
    policy(api)
    config_map(api, "one")
    due()
    writes = [
        method
        for method, path, _ in api.requests
        if method == "DELETE" or "/status" in path
    ]
    assert writes == ["PUT", "DELETE", "PUT"]


def test_deletion_takes_two_calls(api: FakeApi, due: Any) -> None:
    """More calls would make large runs a load on the API server."""
    policy(api)
    for number in range(200):
        config_map(api, f"c{number}")
    before = len(api.requests)
    due()
    assert names(api) == []
    assert len(api.requests) - before <= 200 * 2.1 + 20


def test_missed_runs_collapse_into_one(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """Otherwise, sixty runs would follow an outage of one hour."""
    serve_kinds(api)
    policy(api)
    config_map(api, "one")
    clock.turn(3600)
    with controller(api, dependencies_of(api, recorded, clock.clock)) as one:
        one.settle()
        assert names(api) == []
        config_map(api, "later", created_s=3600)
        clock.turn(59)
        one.settle()
        assert names(api) == ["a/later"]
    assert status_of(api)["lastExecutionTime"] == at(3600)


CHANGES: list[tuple[str, Json, list[str]]] = [
    ("the condition no longer holds", {"data": {"keep": "yes"}}, ["a/one"]),
    ("another object of the name", {"uid": "other", "data": {"keep": "no"}}, ["a/one"]),
    ("a change that does not matter", {"data": {"keep": "no", "more": "1"}}, []),
]


@pytest.mark.parametrize(
    ("case", "change", "left"), CHANGES, ids=[one[0] for one in CHANGES]
)
def test_objects_are_evaluated_again_before_deletion(
    api: FakeApi, due: Any, case: str, change: Json, left: list[str]
) -> None:
    """Otherwise, an object that was updated after the list would still be deleted."""
    del case
    policy(api, conditions=condition("{{ target.data.keep }}", "Equals", "no"))
    config_map(api, "one", data={"keep": "no"})

    def edit() -> None:
        metadata = {"creationTimestamp": at(0)}
        if "uid" in change:
            api.remove("/api/v1/namespaces/a/configmaps/one")
            metadata["uid"] = change["uid"]
        api.put(
            "/api/v1/namespaces/a/configmaps/one",
            metadata=metadata,
            data=change["data"],
        )

    due(holds_lease=once(api, r"GET /api/v1/configmaps\?limit", edit))
    assert names(api) == left
    assert api.count("^DELETE") == (0 if left else 1)
    assert condition_of(api)["reason"] == "Succeeded"


def test_change_between_read_and_delete_is_detected(api: FakeApi, due: Any) -> None:
    """When the precondition fails, the object is read, judged and deleted again."""
    policy(api)
    config_map(api, "one")
    api.fault("^DELETE", 409)
    due()
    assert names(api) == []
    assert api.count("GET /api/v1/namespaces/a/configmaps/one") == 2


@pytest.mark.parametrize("verb", ["list", "delete"])
def test_missing_permission_is_named_and_blocks_nothing_else(
    api: FakeApi, due: Any, recorded: Recorded, verb: str
) -> None:
    """Otherwise, the operator would not know which permission to grant."""
    kinds = {"any": [{"resources": {"kinds": ["Secret", "ConfigMap"]}}]}
    policy(api, match=kinds)
    config_map(api, "one")
    config_map(api, "hidden", plural="secrets")
    api.may = lambda asked: (asked["verb"], asked["resource"]) != (verb, "secrets")
    due()
    assert names(api) == []
    assert names(api, "secrets") == ["a/hidden"]
    found = condition_of(api)
    assert (found["status"], found["reason"]) == ("False", "Forbidden")
    text = f"cleanup controller has no permission to {verb} kind Secret"
    assert text in found["message"]
    assert recorded.total("kyverno_cleanup_controller_errors_total") == 1


def test_unwritable_status_is_reported_once(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """Otherwise, nothing would be deleted any more, and only the log would say so."""
    serve_kinds(api)
    policy(api)
    config_map(api, "one")
    clock.turn(61)
    api.fault("PUT .*clustercleanuppolicies/p/status", *[403] * 50)
    with controller(api, dependencies_of(api, recorded, clock.clock)) as one:
        one.settle()
        for _ in range(5):
            clock.turn(20)
            one.settle()
        assert names(api) == ["a/one"]
        [note] = recorded.notes()
        assert note.startswith("clean-up policy p cannot run: PUT ")
        assert one.cleanup.problems() == [note]
        assert recorded.total("kyverno_cleanup_controller_errors_total") == 1
        api.faults.clear()
        clock.turn(600)
        one.settle()
        assert names(api) == []
        assert one.cleanup.problems() == []


@pytest.mark.parametrize(
    "edit",
    [
        {"conditions": {"none": []}},
        {"schedule": "0 0 30 2 *"},
        {"schedule": "0 0 1 2 *"},
    ],
    ids=["invalid", "never due", "due later"],
)
def test_failure_of_an_older_version_is_dropped(
    api: FakeApi, clock: TurnedClock, recorded: Recorded, edit: Json
) -> None:
    """Otherwise, /healthz would fail because of a run of an outdated policy version."""
    serve_kinds(api)
    policy(api)
    config_map(api, "one")
    clock.turn(61)
    api.fault("PUT .*clustercleanuppolicies/p/status", *[403] * 50)
    with controller(api, dependencies_of(api, recorded, clock.clock)) as one:
        one.settle()
        [problem] = one.cleanup.problems()
        assert "cannot run" in problem
        policy(api, generation=2, **edit)
        one.settle()
        clock.turn(20)
        one.settle()
        assert one.cleanup.problems() == []
        assert names(api) == ["a/one"]


@pytest.mark.parametrize("where", ["Role", "resourceNames", "named namespaces"])
def test_grants_for_named_objects_suffice(api: FakeApi, due: Any, where: str) -> None:
    """Otherwise, a policy would need more permissions than it uses."""
    resources: Json = {"kinds": ["ConfigMap"]}
    if where == "resourceNames":
        resources["names"] = ["one"]
    if where == "named namespaces":
        resources["namespaces"] = ["a"]
    policy(api, match={"any": [{"resources": resources}]})
    config_map(api, "one")
    config_map(api, "theirs", namespace="b")

    def may(asked: Json) -> bool:
        if where == "resourceNames":
            return (asked.get("name"), asked.get("namespace")) == ("one", "a")
        return bool(asked.get("namespace") == "a")

    api.may = may
    due(bound_namespaces=lambda: () if where == "named namespaces" else ("a", "b"))
    assert names(api) == ["b/theirs"]
    assert condition_of(api)["status"] == "True"


def test_an_account_without_get_reads_by_a_list(api: FakeApi, due: Any) -> None:
    """Upstream needs only list and delete, so existing grants may lack ``get``."""
    policy(api)
    config_map(api, "one")
    api.fault("GET /api/v1/namespaces/a/configmaps/one", 403)
    due()
    assert names(api) == []


@pytest.mark.parametrize("source", ["annotation", "setting"])
def test_dry_run_deletes_nothing_and_lists_candidates(
    api: FakeApi, due: Any, recorded: Recorded, source: str
) -> None:
    """Otherwise, a user who tries a policy would lose objects."""
    annotations = {DRY_RUN: "true"} if source == "annotation" else {DRY_RUN: "false"}
    policy(
        api,
        annotations=annotations,
        conditions=condition("{{ target.data.x }}", "Equals", "1"),
    )
    config_map(api, "one", data={"x": "1"})
    config_map(api, "kept", data={"x": "2"})
    due(settings=Settings(cleanup_dry_run=source == "setting"))
    assert names(api) == ["a/kept", "a/one"]
    assert not api.deletions
    text = "dry run: 1 of 2 matching objects would be deleted: ConfigMap/a/one"
    assert condition_of(api)["reason"] == "DryRun"
    assert condition_of(api)["message"] == text
    assert recorded.notes() == [text]


def test_long_dry_run_list_is_truncated(api: FakeApi, due: Any) -> None:
    """Otherwise, the API server would reject a status with ten thousand names."""
    policy(api, annotations={DRY_RUN: "true"})
    for number in range(60):
        config_map(api, f"{'x' * 100}{number}")
    due()
    message = condition_of(api)["message"]
    assert message.startswith("dry run: 60 of 60 matching objects would be deleted: ")
    assert len(message) <= 4096


BUDGETS: list[tuple[str, str, bool]] = [
    ("", "3", False),
    ("", "2", True),
    ("2", "", True),
    ("3", "", False),
    ("100", "2", False),
    ("50%", "", True),
    ("60%", "", False),
    ("100%", "1", False),
    ("0", "", True),
]


@pytest.mark.parametrize(("annotation", "setting", "is_halted"), BUDGETS)
def test_run_over_its_budget_deletes_nothing(
    api: FakeApi,
    due: Any,
    recorded: Recorded,
    annotation: str,
    setting: str,
    *,
    is_halted: bool,
) -> None:
    """Otherwise, a mistaken policy could empty a cluster.

    Here, the policy selects three of five objects.
    """
    policy(
        api,
        annotations={BUDGET: annotation} if annotation else {},
        conditions=condition("{{ target.data.old }}", "Equals", "yes"),
    )
    for number in range(5):
        config_map(api, f"c{number}", data={"old": "yes" if number < 3 else "no"})
    due(settings=Settings(cleanup_deletion_budget=setting))
    assert len(names(api)) == (5 if is_halted else 2)
    gauge = recorded.counts[
        "kyverno_mp_cleanup_halted", ("ClusterCleanupPolicy", "", "p")
    ]
    assert gauge == is_halted
    if is_halted:
        found = condition_of(api)
        assert (found["status"], found["reason"]) == ("False", "BudgetExceeded")
        assert "3 of 5 matching objects" in found["message"]
        assert BUDGET in found["message"]
        assert "ConfigMap/a/c0, ConfigMap/a/c1, ConfigMap/a/c2" in found["message"]
        assert any(one.reason == "PolicyError" for one in recorded.events)


@pytest.mark.parametrize(
    ("annotations", "spec", "reason"),
    [
        ({BUDGET: "many"}, {}, "Invalid"),
        ({BUDGET: "120%"}, {}, "Invalid"),
        ({DRY_RUN: "yes"}, {}, "Invalid"),
        ({}, {"schedule": "every day"}, "Invalid"),
        ({}, {"conditions": {"none": []}}, "Invalid"),
        ({}, {"schedule": "0 0 30 2 *"}, "NeverDue"),
    ],
)
def test_unreadable_policy_deletes_nothing(
    api: FakeApi,
    due: Any,
    recorded: Recorded,
    annotations: Json,
    spec: Json,
    reason: str,
) -> None:
    """Otherwise, a mistyped budget would mean no budget."""
    policy(api, annotations=annotations, **spec)
    config_map(api, "one")
    due()
    assert names(api) == ["a/one"]
    assert condition_of(api)["reason"] == reason
    assert len(recorded.events) == 1
    assert api.count("PUT") == 1


def test_resumed_run_skips_younger_objects(api: FakeApi, due: Any) -> None:
    """A dead holder's run, started at 0:00:30, is resumed with its old objects."""
    running = {
        "type": "CleanedUp",
        "reason": "Running",
        "observedGeneration": 1,
        "status": "False",
    }
    policy(
        api,
        schedule="@hourly",
        status={"lastExecutionTime": at(30), "conditions": [running]},
    )
    config_map(api, "older", created_s=29)
    config_map(api, "younger", created_s=31)
    due()
    assert names(api) == ["a/younger"]
    assert status_of(api)["lastExecutionTime"] == at(30)
    assert condition_of(api)["reason"] == "Succeeded"


def test_run_of_an_edited_policy_is_not_resumed(api: FakeApi, due: Any) -> None:
    """Otherwise, the edited policy would delete outside its schedule."""
    running = {
        "type": "CleanedUp",
        "reason": "Running",
        "observedGeneration": 7,
        "status": "False",
    }
    policy(
        api,
        schedule="@hourly",
        status={"lastExecutionTime": at(30), "conditions": [running]},
    )
    config_map(api, "older", created_s=29)
    due()
    assert names(api) == ["a/older"]


def test_run_stops_when_its_policy_changes_or_is_deleted(
    api: FakeApi, due: Any
) -> None:
    """Otherwise, objects would be deleted by a policy that no longer exists."""
    policy(api)
    for number in range(20):
        config_map(api, f"c{number:02}")
    due(holds_lease=once(api, "^DELETE", lambda: api.remove(f"{CLUSTER}/p")))
    assert len(names(api)) >= 1


def test_api_server_outage_during_a_run(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """Otherwise, the rest of the run would be lost."""
    serve_kinds(api)
    policy(api, schedule="@hourly")
    for number in range(10):
        config_map(api, f"c{number}")
    api.fault("GET /api/v1/namespaces/a/configmaps/c5", *["cut"] * 100)
    clock.turn(3600)
    client = api.client().within(HANG_S)
    with controller(
        api, dependencies_of(api, recorded, clock.clock, client=client)
    ) as one:
        one.settle()
        assert "a/c5" in names(api)
        api.faults.clear()
        clock.turn(60)
        one.settle()
    assert names(api) == []
    assert status_of(api)["lastExecutionTime"] == at(3600)
    assert len(api.deletions) == 10


def test_large_runs_cause_few_events(
    api: FakeApi, due: Any, recorded: Recorded
) -> None:
    """Otherwise, a thousand deletions would flood the API server with Events."""
    policy(api)
    for number in range(40):
        config_map(api, f"c{number}")
    due()
    assert len(recorded.events) == 26
    assert recorded.notes()[-1] == "successfully cleaned up 15 more resources"
    assert recorded.total("kyverno_cleanup_controller_deletedobjects_total") == 40


class _Labels:
    """Labels of namespaces; the namespace b is unknown."""

    def labels(self, namespace: str) -> dict[str, str] | None:
        return {"a": {"tier": "old"}, "c": {}}.get(namespace)


def test_labels_of_namespaces(api: FakeApi, due: Any) -> None:
    """Otherwise, objects would be deleted in a namespace with unknown labels."""
    selector = {"matchLabels": {"tier": "old"}}
    resources = {"kinds": ["ConfigMap"], "namespaceSelector": selector}
    policy(api, match={"any": [{"resources": resources}]})
    for namespace in ("a", "b", "c"):
        config_map(api, "one", namespace=namespace)
    due(cluster_data=ClusterData(namespaces=_Labels()))
    assert names(api) == ["b/one", "c/one"]
    assert "the labels of namespace b are unknown" in condition_of(api)["message"]


@pytest.mark.parametrize("tier", ["old", "new"])
def test_newer_labels_of_a_namespace(api: FakeApi, due: Any, tier: str) -> None:
    """Otherwise, objects would be deleted although a new label exempts them."""
    selector = {"matchLabels": {"tier": "old"}}
    resources = {"kinds": ["ConfigMap"], "namespaceSelector": selector}
    policy(api, match={"any": [{"resources": resources}]})
    config_map(api, "one")
    labels = {"labels": {"tier": tier}}
    api.put("/api/v1/namespaces/a", apiVersion="v1", kind="Namespace", metadata=labels)
    serve_kinds(api)
    client = api.client()
    objects = LiveObjects(client, LiveKinds(lambda: None, client))
    due(cluster_data=ClusterData(namespaces=_Labels(), objects=objects))
    assert names(api) == ([] if tier == "old" else ["a/one"])


def test_unreadable_labels_evict_nothing(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """The run continues when the API server is back."""
    serve_kinds(api)
    selector = {"matchLabels": {"tier": "old"}}
    resources = {"kinds": ["ConfigMap"], "namespaceSelector": selector}
    policy(api, schedule="@hourly", match={"any": [{"resources": resources}]})
    config_map(api, "one")
    labels = {"labels": {"tier": "old"}}
    api.put("/api/v1/namespaces/a", apiVersion="v1", kind="Namespace", metadata=labels)
    api.fault("GET /api/v1/namespaces/a$", *["cut"] * 100)
    clock.turn(3600)
    client = api.client().within(HANG_S)
    objects = LiveObjects(client, LiveKinds(lambda: None, client))
    data = ClusterData(namespaces=_Labels(), objects=objects)
    needs = dependencies_of(
        api, recorded, clock.clock, client=client, cluster_data=data
    )
    with controller(api, needs) as one:
        one.settle()
        assert names(api) == ["a/one"]
        api.faults.clear()
        clock.turn(60)
        one.settle()
    assert names(api) == []


def test_policy_changes_during_an_interrupted_watch(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """Otherwise, objects would be deleted by a policy that no longer exists."""
    serve_kinds(api)
    policy(api, schedule="@hourly")
    for number in range(20):
        config_map(api, f"c{number:02}")
    clock.turn(3600)
    needs = dependencies_of(api, recorded, clock.clock)
    with controller(api, needs) as one:
        for informer in one.cleanup.policies.informers:
            informer.stop()
            informer.failures = 1
        is_done: list[bool] = []

        def change(method: str, _target: str) -> None:
            if method == "DELETE" and not is_done:
                is_done.append(True)
                api.remove(f"{CLUSTER}/p")

        api.on_request = change
        one.cleanup.controllers.work_due()
    assert is_done
    assert len(names(api)) >= 10


class _Calls:
    """API calls of context entries: each returns the same value and is counted."""

    def __init__(self) -> None:
        self.requests: list[ApiRequest] = []

    def call(self, request: ApiRequest, deadline_ns: int) -> Json:
        del deadline_ns
        self.requests.append(request)
        return {"items": ["c1", "c2"]}


def test_context_entries_are_loaded_once_per_run(api: FakeApi, due: Any) -> None:
    """Otherwise, each object would cost two calls."""
    entry = {
        "name": "old",
        "apiCall": {"urlPath": "/api/v1/namespaces", "jmesPath": "items"},
    }
    policy(
        api,
        context=[entry],
        conditions=condition("{{ target.metadata.name }}", "AnyIn", "{{ old }}"),
    )
    for number in range(5):
        config_map(api, f"c{number}")
    calls = _Calls()
    due(cluster_data=ClusterData(api_calls=calls))
    assert names(api) == ["a/c0", "a/c3", "a/c4"]
    assert len(calls.requests) == 1


def test_resource_filters_and_managed_resources(api: FakeApi, due: Any) -> None:
    """Otherwise, exempt objects or objects that Kyverno needs would be deleted.

    Upstream passes the kind as the subresource, so a filter has to have a wildcard
    there (docs/behaviour/controllers 7, Matching).
    """
    policy(api)
    config_map(api, "exempt", namespace="kube-system")
    config_map(api, "own", labels={"app.kubernetes.io/managed-by": "kyverno"})
    config_map(api, "one")
    asked = []

    def is_excluded(request: Any) -> bool:
        asked.append((request.kind, request.subresource))
        return bool(request.namespace == "kube-system")

    due(is_excluded=is_excluded, settings=Settings(protect_managed_resources=True))
    assert names(api) == ["a/own", "kube-system/exempt"]
    assert set(asked) == {("ConfigMap", "ConfigMap")}


def test_terminating_objects_are_skipped(api: FakeApi, due: Any) -> None:
    """Otherwise, each run would delete an object with a finalizer again."""
    policy(api)
    api.put(
        "/api/v1/namespaces/a/configmaps/going",
        metadata={"creationTimestamp": at(0), "deletionTimestamp": at(10)},
    )
    due()
    assert not api.count("^DELETE")
    assert re.match("deleted 0 of 0", condition_of(api)["message"])


def test_very_large_run_is_processed_in_batches(
    api: FakeApi, due: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, the names of a million objects would not fit into memory."""
    monkeypatch.setattr("kyverno_mp.cleanup.scan.CLEANUP_RUN_OBJECTS_MAX", 3)
    policy(api)
    for number in range(8):
        config_map(api, f"c{number}")
    due()
    assert names(api) == []
    assert condition_of(api)["message"].startswith("deleted 8 objects")
    assert api.count(r"GET /api/v1/configmaps\?limit") == 3


def test_budget_counts_the_objects_of_all_batches(
    api: FakeApi, due: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, each part alone would be within the budget."""
    monkeypatch.setattr("kyverno_mp.cleanup.scan.CLEANUP_RUN_OBJECTS_MAX", 3)
    policy(api, annotations={BUDGET: "5"})
    for number in range(8):
        config_map(api, f"c{number}")
    due()
    assert len(names(api)) == 8
    assert "would delete 8 of 8 matching objects" in condition_of(api)["message"]


def test_object_listed_twice_counts_once(api: FakeApi, due: Any) -> None:
    """When pages expire, the list restarts; the restart must not inflate the total."""
    count = KUBE_PAGE_OBJECTS + 1
    policy(api, annotations={BUDGET: "60%"})
    for number in range(count):
        config_map(api, f"c{number}")
    api.fault("GET /api/v1/configmaps.*continue=", "expire")
    due()
    assert len(names(api)) == count
    text = f"would delete {count} of {count} matching objects"
    assert text in condition_of(api)["message"]
    assert api.count(r"GET /api/v1/configmaps\?limit") == 4


def test_slow_evaluation_ends_the_run(
    api: FakeApi, due: Any, clock: TurnedClock, recorded: Recorded
) -> None:
    """Otherwise, one costly policy would occupy a thread for hours."""
    policy(api, schedule="@hourly", created_s=-3600)
    config_map(api, "one")
    config_map(api, "two")
    turn = once(api, r"GET /api/v1/configmaps\?limit", lambda: clock.turn(601))
    due(holds_lease=turn)
    assert names(api) == ["a/one", "a/two"]
    found = condition_of(api)
    assert (found["reason"], found["status"]) == ("Failed", "False")
    assert "more than 600 s" in found["message"]
    assert len(recorded.events) == 1


def test_context_entry_answers_are_bounded(
    api: FakeApi, due: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, the responses for all objects would be kept for the whole run."""
    monkeypatch.setattr("kyverno_mp.cleanup.evaluator.CLEANUP_ANSWERS_MAX", 2)
    path = "/api/v1/namespaces/{{ target.metadata.name }}"
    entry = {"name": "old", "apiCall": {"urlPath": path, "jmesPath": "items"}}
    names_old = condition("{{ target.metadata.name }}", "AnyIn", "{{ old }}")
    policy(api, context=[entry], conditions=names_old, annotations={DRY_RUN: "true"})
    for number in range(5):
        config_map(api, f"c{number}")
    calls = _Calls()
    due(cluster_data=ClusterData(api_calls=calls))
    assert len(calls.requests) == 5
    assert "dry run: 2 of 5" in condition_of(api)["message"]


def test_policies_of_one_namespace_run_sequentially(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """Otherwise, one namespace would occupy every thread."""
    serve_kinds(api)
    policy(api, "first", namespace="a")
    policy(api, "second", namespace="a")
    policy(api, "cluster")
    config_map(api, "one")
    config_map(api, "two")
    results: list[Any] = []
    clock.turn(61)
    dependencies = dependencies_of(
        api,
        recorded,
        clock.clock,
        holds_lease=once(
            api,
            r"GET /api/v1/namespaces/a/configmaps\?",
            lambda: results.append(one.cleanup.controllers.work_due()),
        ),
    )
    with controller(api, dependencies) as one:
        one.cleanup.controllers.work_due()
        # During the first policy's run, the cluster's policy ran and the second one
        # waited.
        assert results
        assert status_of(api, "cluster")
        reasons = [
            condition_of(api, name, "a").get("reason") for name in ("first", "second")
        ]
        assert sorted(map(str, reasons)) == ["None", "Succeeded"]
        clock.turn(3)
        one.settle()
        assert condition_of(api, "first", "a")["reason"] == "Succeeded"
        assert condition_of(api, "second", "a")["reason"] == "Succeeded"


def test_policies_beyond_the_limit_are_reported_and_run_later(
    api: FakeApi,
    clock: TurnedClock,
    recorded: Recorded,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise, these policies would never run."""
    monkeypatch.setattr("kyverno_mp.cleanup.start.CLEANUP_POLICIES_MAX", 2)
    serve_kinds(api)
    for number in range(3):
        policy(api, f"p{number}")
    with controller(api, dependencies_of(api, recorded, clock.clock)) as one:
        one.settle()
        assert one.cleanup.problems() == [
            "1 clean-up policies above the limit of 2 do not run"
        ]
        waiting = [name for name in ("p0", "p1", "p2") if status_of(api, name)]
        assert not waiting
        clock.turn(61)
        one.settle()
        done = [name for name in ("p0", "p1", "p2") if status_of(api, name)]
        assert len(done) == 2
        api.remove(f"{CLUSTER}/{done[0]}")
        one.catch_up()
        one.settle()
        one.cleanup.report()
        one.settle()
        left = next(name for name in ("p0", "p1", "p2") if name not in done)
        assert status_of(api, left)
        assert one.cleanup.problems() == []


def test_update_not_yet_in_the_cache_counts(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """Otherwise, a policy that was just set to a dry run would delete once more."""
    serve_kinds(api)
    policy(api)
    config_map(api, "one")
    clock.turn(61)
    with controller(api, dependencies_of(api, recorded, clock.clock)) as one:
        api.silent = True
        policy(api, annotations={DRY_RUN: "true"})
        assert one.cleanup.controllers.work_due()
    assert names(api) == ["a/one"]
    assert not api.count("/status")


def test_run_of_another_replica_is_not_repeated(api: FakeApi, due: Any) -> None:
    """Otherwise, a holder that was suspended before its run would repeat the run."""
    policy(api)
    config_map(api, "one")
    done = {"type": "CleanedUp", "reason": "Succeeded", "status": "True"}
    states = [{"lastExecutionTime": at(61), "conditions": [done]}]

    def finish(_method: str, target: str) -> None:
        if "configmaps?limit" in target and states:
            policy(api, status=states.pop())

    api.on_request = finish
    due()
    assert names(api) == ["a/one"]
    assert not api.count("/status")


@pytest.mark.parametrize("tier", ["old", "new", ""])
def test_new_and_deleted_namespaces(api: FakeApi, due: Any, tier: str) -> None:
    """Otherwise, a run would fail because objects were deleted with their namespace."""
    selector = {"matchLabels": {"tier": "old"}}
    resources = {"kinds": ["ConfigMap"], "namespaceSelector": selector}
    policy(api, match={"any": [{"resources": resources}]})
    config_map(api, "one", namespace="b")
    config_map(api, "two", namespace="b")
    if tier:
        labels = {"labels": {"tier": tier}}
        api.put("/api/v1/namespaces/b", metadata=labels)
    serve_kinds(api)
    client = api.client()
    objects = LiveObjects(client, LiveKinds(lambda: None, client))
    due(cluster_data=ClusterData(namespaces=_Labels(), objects=objects))
    assert names(api) == ([] if tier == "old" else ["b/one", "b/two"])
    assert condition_of(api)["reason"] == "Succeeded"
    # The labels are read once in the run, and before each deletion.
    asked = api.count("GET /api/v1/namespaces/b$")
    assert asked == (3 if tier == "old" else 1)


def test_kind_removed_during_a_run(api: FakeApi, due: Any) -> None:
    """Otherwise, a run would fail because objects were deleted with their kind."""
    policy(api)
    config_map(api, "one")
    one, many = "/api/v1/namespaces/a/configmaps/one$", "/a/configmaps.fieldSelector="
    api.fault(f"GET {one}", *[403] * 10)
    api.fault(f"GET .*{many}", *[404] * 10)
    due()
    assert condition_of(api)["reason"] == "Succeeded"
    assert api.count(f"GET .*{many}")
    assert not api.deletions


def test_ended_holder_leaves_no_alert(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """Otherwise, its replica would always report a policy that another one runs."""
    serve_kinds(api)
    policy(api, annotations={BUDGET: "0"})
    config_map(api, "one")
    clock.turn(61)
    key = "kyverno_mp_cleanup_halted", ("ClusterCleanupPolicy", "", "p")
    with controller(api, dependencies_of(api, recorded, clock.clock)) as one:
        one.settle()
        assert recorded.counts[key] == 1
        one.cleanup.leave()
        assert recorded.counts[key] == 0


def test_policy_of_an_author_without_rights_deletes_nothing(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """Its status says why, and it runs again once the author has the right."""
    serve_kinds(api)
    policy(api, namespace="a")
    policy(api, "other", namespace="b")
    for namespace in ("a", "b"):
        config_map(api, "one", namespace=namespace)
    lacking = {"cleanuppolicies": ("a", "p")}

    def reason(resource: Resource, key: Key) -> str:
        is_lacking = lacking.get(resource.plural) == key
        return "eve may not delete configmaps" if is_lacking else ""

    dependencies = dependencies_of(api, recorded, clock.clock, author_reason=reason)
    with controller(api, dependencies) as one:
        clock.turn(61)
        one.settle()
        assert names(api) == ["a/one"]
        condition = condition_of(api, namespace="a")
        assert condition["reason"] == "AuthorLacksRights"
        assert "eve may not delete" in condition["message"]
        lacking.clear()
        clock.turn(121)
        one.settle()
        assert names(api) == []

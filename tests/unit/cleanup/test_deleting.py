"""Runs of DeletingPolicies against an API server: deletions, status, exceptions.

Expected texts and names are those of upstream 1.18 (pkg/controllers/deleting,
pkg/event, pkg/metrics); behaviour shared with clean-up policies is tested in
test_policies.py.
"""

from typing import Any

import pytest

from kyverno_mp.compiler import linked_size
from kyverno_mp.egress.kinds import LiveKinds
from kyverno_mp.egress.namespaces import LiveNamespaces
from kyverno_mp.egress.objects import LiveObjects
from kyverno_mp.egress.resources import LiveResources
from kyverno_mp.program.ports import CelPorts, ClusterData
from kyverno_mp.settings.settings import Settings
from tests.argo_health import health
from tests.unit.cleanup.cluster import (
    CEL,
    Recorded,
    condition_of,
    config_map,
    controller,
    deleting,
    deleting_status,
    dependencies_of,
    names,
    policy,
    serve_kinds,
    status_of,
)
from tests.unit.kube.fake_api import FakeApi
from tests.unit.queues.turned_clock import TurnedClock

Json = Any
BUDGET = "kyverno-mp.io/deletion-budget"
DRY_RUN = "kyverno-mp.io/dry-run"
EVERYWHERE = Settings(policy_exceptions=True, exception_namespace="*")


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
        given = {"cluster_data": data_of(api), **changes}
        needs = dependencies_of(api, recorded, clock.clock, **given)
        with controller(api, needs) as one:
            one.settle()

    serve_kinds(api)
    return settle


class _Labels:
    def __init__(self, api: FakeApi) -> None:
        self._api = api

    def labels(self, namespace: str) -> Json:
        with self._api.lock:
            found = self._api.objects.get(("/api/v1", "", "namespaces", namespace))
        return None if found is None else found["metadata"].get("labels") or {}


def data_of(api: FakeApi) -> ClusterData:
    """Return the ports of the pool, without the leader's published data."""
    client = api.client()
    kinds = LiveKinds(lambda: None, client)
    # This look-up loads the kinds that the leader would have published.
    assert kinds.plural_of("v1", "ConfigMap")
    return ClusterData(
        namespaces=_Labels(api),
        objects=LiveObjects(client, kinds),
        cel=CelPorts(
            resources=LiveResources(lambda: client, kinds.plural_of),
            own_resources=LiveResources(
                lambda: client, kinds.plural_of, is_namespaced=True
            ),
            namespaces=LiveNamespaces(lambda _name: None, client),
        ),
    )


def conditions(api: FakeApi, name: str = "d") -> Json:
    """Return the conditions of a policy by their type."""
    given = deleting_status(api, name)["conditionStatus"]["conditions"]
    found = {one["type"]: one for one in given}
    assert len(found) == len(given)
    return found


def cleaned(api: FakeApi, name: str = "d") -> Json:
    return conditions(api, name)["CleanedUp"]


def condition(text: str) -> Json:
    return [{"name": "c", "expression": text}]


def namespace(api: FakeApi, name: str, **labels: str) -> None:
    api.put(f"/api/v1/namespaces/{name}", metadata={"labels": labels})


def constraints(**given: Json) -> Json:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}
    return {"resourceRules": [rule], **given}


def test_scheduled_run_deletes_matching_objects(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """Otherwise, objects would remain, or be deleted too early or without a record."""
    serve_kinds(api)
    deleting(api, conditions=condition("object.metadata.name != 'kept'"))
    config_map(api, "one")
    config_map(api, "kept")
    config_map(api, "other", plural="secrets")
    with controller(api, dependencies_of(api, recorded, clock.clock)) as one:
        one.settle()
        clock.turn(59)
        one.settle()
        assert names(api) == ["a/kept", "a/one"]
        clock.turn(1)
        one.settle()
        assert names(api) == ["a/kept"]
        assert names(api, "secrets") == ["a/other"]
        config_map(api, "two")
        clock.turn(60)
        one.settle()
    assert names(api) == ["a/kept"]
    status = deleting_status(api)
    assert status["lastExecutionTime"] == "2026-01-01T00:02:00Z"
    assert status["conditionStatus"]["ready"] is True
    found = cleaned(api)
    assert found["reason"] == "Succeeded"
    event = recorded.events[0]
    assert event.note == "successfully deleted the target resource ConfigMap/a/one"
    assert (event.reason, event.action) == ("PolicyApplied", "Resource Cleaned Up")
    assert event.regarding.api_version == "policies.kyverno.io/v1beta1"
    assert event.regarding.kind == "DeletingPolicy"
    labels = ("DeletingPolicy", "", "d", "configmaps", "a", "")
    name = "kyverno_deleting_controller_deletedobjects_total"
    assert recorded.counts[name, labels] == 2
    assert recorded.counts[
        "kyverno_controller_reconcile_total", ("deleting-controller",)
    ]


def _old(operations: list[str] | None) -> Json:
    """Return a rule that excludes ConfigMaps by name."""
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "resources": ["configmaps"],
        "resourceNames": ["old"],
    }
    return rule if operations is None else {**rule, "operations": operations}


MATCHES: list[tuple[str, Json, list[str]]] = [
    ("everything", {}, []),
    ("an operation, which is ignored", {"operations": ["CREATE"]}, []),
    (
        "objects by label",
        {"matchConstraints": constraints(objectSelector={"matchLabels": {"t": "old"}})},
        ["a/new", "b/new"],
    ),
    (
        "namespaces by label",
        {
            "matchConstraints": constraints(
                namespaceSelector={"matchLabels": {"env": "test"}}
            )
        },
        ["b/new", "b/old"],
    ),
    *(
        (
            f"excluded names, of operations {listed}",
            {"matchConstraints": constraints(excludeResourceRules=[_old(listed)])},
            ["a/old", "b/old"],
        )
        for listed in (["*"], ["DELETE"], ["CREATE", "UPDATE"], [], None)
    ),
    (
        "variables in conditions",
        {
            "variables": [{"name": "n", "expression": "object.metadata.name"}],
            "conditions": condition("variables.n == 'old'"),
        },
        ["a/new", "b/new"],
    ),
    (
        "the Namespace",
        {
            "conditions": condition(
                "namespaceObject.metadata.labels['env'] == 'test'",
            )
        },
        # The other namespace lacks the label: an error keeps the object.
        ["b/new", "b/old"],
    ),
    (
        "another object",
        {
            "conditions": condition(
                "resource.get('v1', 'secrets', 'a', 'switch').data.on == 'yes'"
            )
        },
        [],
    ),
    (
        "an error",
        {"conditions": condition("object.data.x == 'y'")},
        ["a/new", "a/old", "b/new", "b/old"],
    ),
]


@pytest.mark.parametrize(
    ("_name", "spec", "left"), MATCHES, ids=[m[0] for m in MATCHES]
)
def test_constraints_and_conditions(
    api: FakeApi, due: Any, _name: str, spec: Json, left: list[str]
) -> None:
    """Otherwise, unselected objects would be deleted, or selected ones would remain."""
    spec = dict(spec)
    operations = spec.pop("operations", None)
    if operations:
        spec["matchConstraints"] = constraints()
        spec["matchConstraints"]["resourceRules"][0]["operations"] = operations
    deleting(api, **spec)
    namespace(api, "a", env="test")
    namespace(api, "b")
    for place in ("a", "b"):
        config_map(api, "old", namespace=place, labels={"t": "old"})
        config_map(api, "new", namespace=place)
    config_map(api, "switch", plural="secrets", data={"on": "yes"})
    due()
    assert names(api) == left


def test_namespaced_policy_deletes_nothing_outside_its_namespace(
    api: FakeApi, due: Any
) -> None:
    """Otherwise, a tenant could delete objects of another tenant or of the cluster."""
    deleting(api, namespace="a", resources=("configmaps", "namespaces"))
    for place in ("a", "b"):
        namespace(api, place)
        config_map(api, "one", namespace=place)
    due()
    assert names(api) == ["b/one"]
    assert names(api, "namespaces") == ["/a", "/b"]
    # All other lists across namespaces are for TTL labels.
    assert not api.count(r"GET /api/v1/configmaps\?(?!.*labelSelector)")
    assert deleting_status(api, namespace="a")["lastExecutionTime"]


def test_namespaced_policy_reads_only_its_namespace(api: FakeApi, due: Any) -> None:
    """Otherwise, a tenant could read another tenant's objects through the pool."""
    text = "resource.get('v1', 'secrets', 'key').data.on == 'yes'"
    deleting(api, namespace="a", conditions=condition(text))
    for place in ("a", "b"):
        config_map(api, "one", namespace=place)
    config_map(api, "key", namespace="b", plural="secrets", data={"on": "yes"})
    due()
    assert names(api) == ["a/one", "b/one"]
    assert api.count("GET /api/v1/namespaces/a/secrets/key")
    assert not api.count("GET /api/v1/namespaces/b/secrets")


@pytest.mark.parametrize(
    ("resources", "text"),
    [
        (("*",), "clean-up supports no wildcards in resources"),
        (("pods/status",), "a subresource cannot be deleted"),
        (("unknowns",), "is not served"),
    ],
)
def test_resources_that_cannot_be_deleted_are_reported(
    api: FakeApi, due: Any, resources: tuple[str, ...], text: str
) -> None:
    """Otherwise, users would not learn why a policy deletes nothing."""
    deleting(api, resources=resources)
    config_map(api, "one")
    due()
    found = cleaned(api)
    assert (found["status"], found["reason"]) == ("False", "Failed")
    assert text in found["message"]
    assert names(api) == ["a/one"]


def test_newly_labelled_namespace_protects_its_objects(api: FakeApi, due: Any) -> None:
    """The leader's copy of a Namespace may be older than a label that exempts it."""
    text = "!('keep' in namespaceObject.metadata.labels)"
    deleting(api, conditions=condition(text))
    namespace(api, "a", keep="yes")
    config_map(api, "one")
    data = data_of(api)
    older = {"metadata": {"name": "a", "labels": {}}}
    ports = data.cel._replace(
        namespaces=LiveNamespaces(lambda _name: older, api.client())
    )
    due(
        cluster_data=ClusterData(
            namespaces=data.namespaces, objects=data.objects, cel=ports
        )
    )
    assert names(api) == ["a/one"]


def test_deletions_use_the_policys_propagation_and_preconditions(
    api: FakeApi, due: Any
) -> None:
    """Otherwise, dependents or recently changed objects could be deleted."""
    deleting(api, deletionPropagationPolicy="Orphan")
    config_map(api, "one")
    due()
    ((_, options),) = api.deletions
    assert options["propagationPolicy"] == "Orphan"
    assert set(options["preconditions"]) == {"uid", "resourceVersion"}


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"schedule": "soon"}, "cron"),
        ({"conditions": condition("object.metadata.name")}, "bool"),
        ({"matchConstraints": {}}, "resource rule is required"),
    ],
)
def test_invalid_policy_deletes_nothing(
    api: FakeApi, due: Any, recorded: Recorded, spec: Json, text: str
) -> None:
    """Otherwise, objects would be deleted by a malformed policy."""
    deleting(api, **spec)
    config_map(api, "one")
    due()
    assert names(api) == ["a/one"]
    status = deleting_status(api)["conditionStatus"]
    assert status["ready"] is False
    assert status["conditions"][0]["reason"] == "Invalid"
    assert text in status["conditions"][0]["message"]
    assert [one.reason for one in recorded.events] == ["PolicyError"]


def test_dry_run_and_budget(api: FakeApi, due: Any) -> None:
    """Otherwise, the protective annotations would have no effect on these policies."""
    deleting(api, "dry", annotations={DRY_RUN: "true"})
    deleting(api, "halted", annotations={BUDGET: "1"})
    config_map(api, "one")
    config_map(api, "two")
    due()
    assert names(api) == ["a/one", "a/two"]
    reasons = {name: cleaned(api, name)["reason"] for name in ("dry", "halted")}
    assert reasons == {"dry": "DryRun", "halted": "BudgetExceeded"}


def test_policies_of_both_kinds_with_the_same_name(api: FakeApi, due: Any) -> None:
    """Otherwise, one policy would not run, or would run with the other's text."""
    policy(api, "same", match={"any": [{"resources": {"kinds": ["Secret"]}}]})
    deleting(api, "same")
    config_map(api, "one")
    config_map(api, "one", plural="secrets")
    due()
    assert names(api) == names(api, "secrets") == []
    assert condition_of(api, "same")["reason"] == "Succeeded"
    assert "conditionStatus" not in status_of(api, "same")
    assert "conditions" not in deleting_status(api, "same")


def test_interrupted_run_is_resumed(api: FakeApi, due: Any) -> None:
    """Otherwise, objects left by a dead holder would remain until the next run."""
    running = {
        "type": "CleanedUp",
        "status": "False",
        "reason": "Running",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:01:00Z",
        "observedGeneration": 1,
    }
    deleting(
        api,
        schedule="@yearly",
        status={
            "lastExecutionTime": "2026-01-01T00:01:00Z",
            "conditionStatus": {"conditions": [running]},
        },
    )
    config_map(api, "one", created_s=0)
    config_map(api, "younger", created_s=61)
    due()
    assert names(api) == ["a/younger"]


def exception(api: FakeApi, name: str = "x", place: str = "e", **spec: Json) -> None:
    given = {"policyRefs": [{"name": "d", "kind": "DeletingPolicy"}], **spec}
    api.put(f"{CEL}/namespaces/{place}/policyexceptions/{name}", spec=given)


EXEMPTIONS: list[tuple[str, Json, Settings, list[str]]] = [
    ("for all objects", {}, EVERYWHERE, ["a/old", "a/one"]),
    (
        "by a condition",
        {"matchConditions": condition("object.metadata.name == 'old'")},
        EVERYWHERE,
        ["a/old"],
    ),
    (
        "of another policy",
        {"policyRefs": [{"name": "d", "kind": "ValidatingPolicy"}]},
        EVERYWHERE,
        [],
    ),
    ("switched off", {}, Settings(), []),
    (
        "of a namespace that may have none",
        {},
        Settings(policy_exceptions=True, exception_namespace="other"),
        [],
    ),
    ("expired", {"expiresAt": "2025-01-01T00:00:00Z"}, EVERYWHERE, []),
]


@pytest.mark.parametrize(
    ("_name", "spec", "settings", "left"), EXEMPTIONS, ids=[e[0] for e in EXEMPTIONS]
)
def test_exceptions(
    api: FakeApi, due: Any, _name: str, spec: Json, settings: Settings, left: list[str]
) -> None:
    """Otherwise, exempt objects would be deleted, or a disallowed exception used."""
    deleting(api)
    exception(api, **spec)
    config_map(api, "old")
    config_map(api, "one")
    due(settings=settings)
    assert names(api) == left


def test_exception_with_external_calls_keeps_everything(api: FakeApi, due: Any) -> None:
    """Otherwise, the exception's author could read with the policy's permissions."""
    deleting(api)
    text = "resource.get('v1', 'secrets', 'a', 's').data.on == 'yes'"
    exception(api, matchConditions=condition(text))
    config_map(api, "one")
    due(settings=EVERYWHERE)
    assert names(api) == ["a/one"]
    assert not api.count("GET .*/namespaces/a/secrets")
    found = cleaned(api)
    assert found["reason"] == "Invalid"


def test_exceptions_over_their_memory_budget_keep_everything(
    api: FakeApi, due: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, objects that the exception's author wants to keep would be deleted."""
    monkeypatch.setattr(linked_size, "LINKED_EXCEPTIONS_OF_POLICY_BYTES_MAX", 1024)
    deleting(api)
    exception(api, matchConditions=condition("object.metadata.name == 'old'"))
    config_map(api, "one")
    due(settings=EVERYWHERE)
    assert names(api) == ["a/one"]
    found = cleaned(api)
    assert found["reason"] == "Invalid"
    assert "PolicyException e/x" in found["message"]


def test_namespaced_policy_and_foreign_exceptions(api: FakeApi, due: Any) -> None:
    """Otherwise, another tenant could exempt objects from a policy."""
    deleting(api, namespace="a")
    deleting(api, namespace="b")
    refs = [{"name": "d", "kind": "NamespacedDeletingPolicy"}]
    exception(api, place="b", policyRefs=refs)
    for place in ("a", "b"):
        config_map(api, "one", namespace=place)
    due(settings=EVERYWHERE)
    assert names(api) == ["b/one"]


def test_no_run_before_exceptions_are_listed(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """Otherwise, exempt objects would be deleted while the watch is interrupted."""
    serve_kinds(api)
    deleting(api)
    config_map(api, "one")
    needs = dependencies_of(api, recorded, clock.clock, settings=EVERYWHERE)
    clock.turn(61)
    with controller(api, needs) as one:
        (informer,) = one.cleanup.exceptions.informers
        informer.stop()
        informer.failures = 1
        one.cleanup.controllers.work_due()
        assert names(api) == ["a/one"]
        assert not deleting_status(api)
        informer.failures = 0
        clock.turn(60)
        one.cleanup.controllers.work_due()
    assert names(api) == []


@pytest.mark.parametrize("is_defined", [True, False])
def test_exception_kind_is_not_served(
    api: FakeApi, clock: TurnedClock, recorded: Recorded, *, is_defined: bool
) -> None:
    """A definition that is being replaced answers 404; exempt objects must remain."""
    serve_kinds(api)
    deleting(api)
    config_map(api, "one")
    if is_defined:
        api.put(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            "/policyexceptions.policies.kyverno.io",
            apiVersion="apiextensions.k8s.io/v1",
            kind="CustomResourceDefinition",
            metadata={},
        )
    settings = Settings(policy_exceptions=True, exception_namespace="kyverno")
    needs = dependencies_of(api, recorded, clock.clock, settings=settings)
    clock.turn(61)
    with controller(api, needs) as one:
        (informer,) = one.cleanup.exceptions.informers
        informer.stop()
        informer.failures = 1
        informer.last_code = "kube.not_found"
        one.cleanup.controllers.work_due()
    assert names(api) == (["a/one"] if is_defined else [])


def test_exception_created_during_a_run_ends_it(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """Otherwise, the remaining objects would be deleted despite the exception."""
    serve_kinds(api)
    deleting(api)
    for number in range(20):
        config_map(api, f"c{number:02}")
    needs = dependencies_of(api, recorded, clock.clock, settings=EVERYWHERE)
    clock.turn(61)
    with controller(api, needs) as one:
        done: list[bool] = []

        def change(method: str, _target: str) -> None:
            if method == "DELETE" and not done:
                done.append(True)
                exception(api)
                one.catch_up()

        api.on_request = change
        one.cleanup.controllers.work_due()
        api.on_request = lambda _method, _target: None
    assert done
    assert len(names(api)) >= 10
    found = cleaned(api)
    assert found["reason"] == "PolicyChanged"


def test_installation_without_these_kinds_is_healthy(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """Otherwise, an older installation of Kyverno's CRDs would never be healthy."""
    serve_kinds(api)
    needs = dependencies_of(api, recorded, clock.clock)
    with controller(api, needs) as one:
        for informer in one.cleanup.deleting.informers:
            informer.failures = 3
            informer.last_code = "kube.not_found"
        assert one.cleanup.problems() == []
        informer.last_code = "kube.forbidden"
        assert "namespaceddeletingpolicies" in one.cleanup.problems()[0]


def test_policy_is_ready_before_its_first_run(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """Otherwise, the policy would appear not ready until its first scheduled run."""
    serve_kinds(api)
    deleting(api, schedule="@yearly")
    with controller(api, dependencies_of(api, recorded, clock.clock)) as one:
        one.settle()
        status = deleting_status(api)
        assert status["conditionStatus"]["ready"] is True
        found = conditions(api)
        assert list(found) == ["RBACPermissionsGranted"]
        granted = found["RBACPermissionsGranted"]
        assert (granted["status"], granted["reason"]) == ("True", "Succeeded")
        assert granted["lastTransitionTime"] == "2026-01-01T00:00:00Z"
        assert granted["observedGeneration"] == 1
        # The policy does not run, and an unchanged status is not written again.
        assert "lastExecutionTime" not in status
        writes = api.count("PUT .*deletingpolicies/d/status")
        clock.turn(301)
        one.settle()
        assert api.count("PUT .*deletingpolicies/d/status") == writes == 1


@pytest.mark.parametrize(
    ("denied", "namespace"),
    [("list", ""), ("delete", ""), ("list", "a"), ("delete", "a")],
)
def test_policy_without_permissions_is_not_ready(
    api: FakeApi, clock: TurnedClock, recorded: Recorded, denied: str, namespace: str
) -> None:
    """Otherwise, its author would learn about missing permissions at the first run."""
    serve_kinds(api)
    api.may = lambda asked: asked["verb"] != denied or asked["resource"] != "configmaps"
    deleting(api, namespace=namespace, schedule="@yearly")
    with controller(api, dependencies_of(api, recorded, clock.clock)) as one:
        one.settle()
        told = deleting_status(api, namespace=namespace)["conditionStatus"]
        (found,) = told["conditions"]
        assert told["ready"] is False
        assert (found["type"], found["status"]) == ("RBACPermissionsGranted", "False")
        text = f"cleanup controller has no permission to {denied} kind v1/configmaps"
        assert (found["reason"], found["message"]) == ("Failed", text)
        # A grant takes effect without a change of the policy.
        api.may = lambda _asked: True
        clock.turn(301)
        one.settle()
        told = deleting_status(api, namespace=namespace)["conditionStatus"]
        assert told["ready"] is True
        assert told["conditions"][0]["status"] == "True"


def test_grant_for_named_objects_suffices(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """Otherwise, a policy with minimal permissions would appear broken."""
    serve_kinds(api)
    api.may = lambda asked: asked.get("name") == "old" or asked["verb"] == "create"
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "resources": ["configmaps"],
        "resourceNames": ["old"],
    }
    deleting(api, namespace="a", matchConstraints={"resourceRules": [rule]})
    with controller(api, dependencies_of(api, recorded, clock.clock)) as one:
        one.settle()
    assert deleting_status(api, namespace="a")["conditionStatus"]["ready"] is True


def test_corrected_policy_becomes_ready(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """Otherwise, the policy would remain not ready until its first run, or for ever."""
    serve_kinds(api)
    deleting(api, schedule="soon")
    with controller(api, dependencies_of(api, recorded, clock.clock)) as one:
        one.settle()
        before = deleting_status(api)
        assert before["conditionStatus"]["ready"] is False
        assert cleaned(api)["reason"] == "Invalid"
        raw = deleting(api, schedule="@yearly", status=before)
        metadata = {**raw["metadata"], "generation": 2}
        api.put(f"{CEL}/deletingpolicies/d", **{**raw, "metadata": metadata})
        one.settle()
        assert deleting_status(api)["conditionStatus"]["ready"] is True
        assert list(conditions(api)) == ["RBACPermissionsGranted"]


def deleting_health(api: FakeApi) -> str:
    with api.lock:
        return health(api.objects[CEL, "", "deletingpolicies", "d"])


@pytest.mark.parametrize(
    ("schedule", "expected"), [("@yearly", "Healthy"), ("soon", "Degraded")]
)
def test_changed_policy_is_assessed_before_its_next_run(
    api: FakeApi,
    clock: TurnedClock,
    recorded: Recorded,
    schedule: str,
    expected: str,
) -> None:
    """Otherwise, Argo CD would wait for the next run, which may be in a year."""
    serve_kinds(api)
    deleting(api)
    with controller(api, dependencies_of(api, recorded, clock.clock)) as one:
        clock.turn(60)
        one.settle()
        before = deleting_status(api)
        assert deleting_health(api) == "Healthy"
        assert cleaned(api)["observedGeneration"] == 1
        raw = deleting(api, schedule=schedule, status=before)
        metadata = {**raw["metadata"], "generation": 2}
        api.put(f"{CEL}/deletingpolicies/d", **{**raw, "metadata": metadata})
        assert deleting_health(api) == "Progressing"
        one.settle()
        assert deleting_health(api) == expected
        assert deleting_status(api)["lastExecutionTime"] == before["lastExecutionTime"]


def test_unwritable_status_is_reported_immediately(
    api: FakeApi, clock: TurnedClock, recorded: Recorded
) -> None:
    """Otherwise, users would not notice before the policy is due."""
    serve_kinds(api)
    deleting(api, schedule="@yearly")
    api.fault("PUT .*deletingpolicies/d/status", *[403] * 50)
    with controller(api, dependencies_of(api, recorded, clock.clock)) as one:
        one.settle()
        (problem,) = one.cleanup.problems()
        assert "clean-up policy d cannot run" in problem

"""GeneratingPolicies: the fate of generated objects after each kind of event.

Expected labels and texts are upstream's (pkg/cel/libs/context.go, pkg/event). Where
1.18 deletes and recreates an object, we update it in place, as 1.19 does.
"""

from typing import Any

import pytest

from kyverno_mp.compiler import linked_size
from kyverno_mp.errors import KubeUnavailable
from kyverno_mp.settings.settings import Settings
from kyverno_mp.telemetry.families import GENERATING_RESULTS
from tests.unit.background.generating_world import (
    CEL,
    CLONE,
    CLONES,
    DATA,
    OUT,
    SOURCE,
    UPPER,
    content,
    data_of,
    generated,
    held,
    policy,
    request,
    source,
    trigger,
)
from tests.unit.background.world import (
    CONFIG_MAPS,
    PREFIX,
    REQUESTS,
    Term,
    new_cluster,
    requests_left,
    stored,
)
from tests.unit.cleanup.cluster import held_for
from tests.unit.kube.fake_api import FakeApi
from tests.waiting import wait_for

Json = Any


@pytest.fixture(autouse=True)
def cluster(api: FakeApi) -> None:
    new_cluster(api)


def test_results_are_counted_with_the_labels_of_1_19(api: FakeApi) -> None:
    policy(api)
    with held(api) as one:
        generated(api, one)
    family = GENERATING_RESULTS
    (labels,) = [
        labels for name, labels, _ in one.recorded.observed if name == family.name
    ]
    seen = dict(zip(family.labels, labels, strict=True))
    assert seen["execution_cause"] == "background_scan"
    assert seen["result"] == "pass"
    assert family.counted_as == "kyverno_generating_policy_results_total"


def test_object_has_upstreams_labels(api: FakeApi) -> None:
    """Otherwise, neither this program nor Kyverno would find its objects again."""
    policy(api)
    with held(api) as one:
        raw = generated(api, one)
        assert requests_left(api) == []
    made = stored(api, OUT)
    assert made is not None
    assert made["data"] == {"from": "1"}
    assert made["metadata"]["labels"] == {
        "app.kubernetes.io/managed-by": "kyverno",
        f"{PREFIX}policy-name": "p",
        f"{PREFIX}trigger-name": "t",
        f"{PREFIX}trigger-namespace": "a",
        f"{PREFIX}trigger-uid": raw["metadata"]["uid"],
        f"{PREFIX}trigger-kind": "Pod",
        f"{PREFIX}trigger-group": "",
        f"{PREFIX}trigger-version": "v1",
    }
    notes = one.recorded.notes()
    assert "Created ConfigMap out as a result of applying policy p/p" in notes
    regarding = next(
        event.regarding
        for event in one.recorded.events
        if event.action == "Resource Generated"
    )
    assert regarding.kind == "GeneratingPolicy"
    assert regarding.api_version == "policies.kyverno.io/v1beta1"


def test_clone_names_its_source(api: FakeApi) -> None:
    """Otherwise, a clone would ignore changes of its source."""
    raw = source(api)
    policy(api, CLONES)
    with held(api) as one:
        generated(api, one)
    made = stored(api, CLONE)
    assert made is not None
    labels = made["metadata"]["labels"]
    assert labels[f"{PREFIX}source-uid"] == raw["metadata"]["uid"]
    assert made["metadata"]["uid"] != raw["metadata"]["uid"]
    assert made["data"] == {"from": "1"}


def test_tool_of_the_source_does_not_claim_its_clone(api: FakeApi) -> None:
    """Otherwise, it would delete the clone, which its manifests do not have."""
    raw = source(api)
    tracking = {"argocd.argoproj.io/tracking-id": "x", "helm.sh/chart": "y"}
    metadata = {**raw["metadata"], "annotations": {"own": "x", **tracking}}
    api.put(SOURCE, **{**raw, "metadata": metadata})
    policy(api, CLONES)
    with held(api) as one:
        generated(api, one)
    made = stored(api, CLONE)
    assert made is not None
    assert made["metadata"]["annotations"] == {"own": "x"}


EDITS: list[tuple[str, Json]] = [
    ("changed", {"data": {"from": "hand"}}),
    ("its labels removed", {"metadata": {"labels": {}}}),
]


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize(("_name", "edit"), EDITS, ids=[one[0] for one in EDITS])
def test_object_changed_by_a_user(
    api: FakeApi, _name: str, edit: Json, *, sync: bool
) -> None:
    """Only a synchronised object is reverted; any other object keeps the change."""
    policy(api, sync=sync)
    with held(api) as one:
        generated(api, one)
        before = stored(api, OUT)
        assert before is not None
        metadata = {**before["metadata"], **edit.get("metadata", {})}
        api.put(OUT, **{**before, **edit, "metadata": metadata})
        one.settle()
        after = stored(api, OUT)
    assert after is not None
    if not sync:
        assert after["data"] == edit.get("data", before["data"])
        assert after["metadata"]["labels"] == metadata["labels"]
        return
    assert after["data"] == before["data"]
    assert after["metadata"]["labels"] == before["metadata"]["labels"]


@pytest.mark.parametrize("sync", [True, False])
def test_object_deleted_by_a_user(api: FakeApi, *, sync: bool) -> None:
    """Only a synchronised object is created again."""
    policy(api, sync=sync)
    with held(api) as one:
        generated(api, one)
        api.remove(OUT)
        one.settle()
    assert content(api) == ("1" if sync else None)


@pytest.mark.parametrize("sync", [True, False])
def test_changed_trigger(api: FakeApi, *, sync: bool) -> None:
    """Otherwise, the object would become outdated or be missing for a moment."""
    policy(api, sync=sync)
    with held(api) as one:
        generated(api, one)
        before = stored(api, OUT)
        request(api, trigger(api, value="2"), operation="UPDATE")
        one.settle()
    after = stored(api, OUT)
    assert before is not None
    assert after is not None
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert content(api) == ("2" if sync else "1")


def test_update_that_the_policy_does_not_select(api: FakeApi) -> None:
    """Otherwise, the object would be deleted because its trigger got another label."""
    policy(api, operations=("CREATE",))
    with held(api) as one:
        generated(api, one)
        request(api, trigger(api, value="2"), operation="UPDATE")
        one.settle()
    assert content(api) == "2"


@pytest.mark.parametrize("sync", [True, False])
def test_trigger_that_no_longer_matches(api: FakeApi, *, sync: bool) -> None:
    """Only a synchronised object is deleted."""
    policy(api, sync=sync)
    with held(api) as one:
        generated(api, one)
        request(api, trigger(api, team="red"), operation="UPDATE")
        one.settle()
    assert content(api) == (None if sync else "1")


@pytest.mark.parametrize("sync", [True, False])
def test_deleted_trigger(api: FakeApi, *, sync: bool) -> None:
    """Only a synchronised object is deleted."""
    policy(api, sync=sync)
    with held(api) as one:
        raw = generated(api, one)
        api.remove("/api/v1/namespaces/a/pods/t")
        request(api, raw, operation="DELETE", deletes=True)
        one.settle()
    assert content(api) == (None if sync else "1")


def test_deletion_that_is_not_stored_yet(api: FakeApi) -> None:
    """Admission precedes the deletion, which another webhook may still reject."""
    policy(api)
    with held(api) as one:
        raw = generated(api, one)
        request(api, raw, operation="DELETE", deletes=True)
        one.settle()
        assert content(api) == "1"
        api.remove("/api/v1/namespaces/a/pods/t")
        one.pass_s(4)
        assert content(api) is None
        other = trigger(api, "other")
        request(api, other, operation="CREATE")
        one.settle()
        request(api, other, operation="DELETE", deletes=True)
        one.pass_s(40)
    assert content(api) == "1"
    assert requests_left(api) == []


def test_objects_generated_on_deletion_stay(api: FakeApi) -> None:
    """Otherwise, the next sync would delete the object because its trigger is gone."""
    expression = DATA.replace("object.", "oldObject.")
    policy(api, expression, operations=("DELETE",))
    with held(api) as one:
        raw = trigger(api)
        api.remove("/api/v1/namespaces/a/pods/t")
        request(api, raw, operation="DELETE", carried=True)
        one.settle()
        policy(api, expression, operations=("DELETE",), generation=2)
        one.settle()
    assert content(api) == "1"


def test_generate_rules_have_a_separate_record(api: FakeApi) -> None:
    """With a shared record, one kind of policy would erase the other's entries.

    Objects that should be deleted with their policy would then remain.
    """
    policy(api)
    with held(api) as one:
        generated(api, one)
        one.background.register.add("cluster", "r", [("v1", "Secret")])
    record = stored(api, f"{CONFIG_MAPS.format('kyverno')}/kyverno-mp-background")
    assert record is not None
    assert set(record["data"]) == {"rules.json", "generating-policies.json"}


@pytest.mark.parametrize("writes", range(10))
def test_new_holder_continues_after_a_lost_lease_at_any_point(
    api: FakeApi, writes: int
) -> None:
    """Otherwise, a trigger would be lost, or its object would remain."""
    policy(api, DATA, UPPER)
    raw = trigger(api)
    request(api, raw)
    with held(api, holds_lease=held_for(writes)) as one:
        one.settle()
    with held(api) as one:
        one.settle()
    other = f"{CONFIG_MAPS.format('a')}/other"
    assert content(api) == content(api, other) == "1"
    assert requests_left(api) == []
    api.remove("/api/v1/namespaces/a/pods/t")
    request(api, raw, operation="DELETE", deletes=True)
    with held(api, holds_lease=held_for(writes)) as one:
        one.settle()
    with held(api) as one:
        one.settle()
    assert content(api) is content(api, other) is None
    assert requests_left(api) == []


def test_policy_for_deletions(api: FakeApi) -> None:
    """Otherwise, a deletion would generate nothing, or it would generate too early."""
    expression = DATA.replace("object.", "oldObject.")
    policy(api, expression, operations=("DELETE",), sync=False)
    with held(api) as one:
        raw = trigger(api)
        request(api, raw, operation="DELETE", carried=True)
        one.settle()
        assert content(api) is None
        api.remove("/api/v1/namespaces/a/pods/t")
        one.pass_s(4)
    assert content(api) == "1"


@pytest.mark.parametrize("sync", [True, False])
def test_changed_or_deleted_source(api: FakeApi, *, sync: bool) -> None:
    """Otherwise, clones would keep outdated content, or change without permission."""
    source(api)
    policy(api, CLONES, sync=sync)
    with held(api) as one:
        generated(api, one)
        source(api, "2")
        one.settle()
        assert content(api, CLONE) == ("2" if sync else "1")
        api.remove(SOURCE)
        one.settle()
    assert content(api, CLONE) == (None if sync else "1")


def test_changed_policy(api: FakeApi) -> None:
    """Otherwise, an outdated object would remain, or the new one would be missing."""
    policy(api)
    with held(api) as one:
        generated(api, one)
        policy(api, UPPER, generation=2)
        one.settle()
    assert content(api) is None
    assert content(api, f"{CONFIG_MAPS.format('a')}/other") == "1"


ENDS: list[tuple[str, Json, str | None]] = [
    ("synchronised", {}, None),
    ("not synchronised", {"sync": False}, "1"),
    (
        "to be orphaned",
        {"evaluation": {"orphanDownstreamOnPolicyDelete": {"enabled": True}}},
        "1",
    ),
]


@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize(("_name", "spec", "left"), ENDS, ids=[e[0] for e in ENDS])
def test_deleted_policy(
    api: FakeApi, _name: str, spec: Json, left: str | None, *, is_held: bool
) -> None:
    """Otherwise, objects would remain for ever, or be deleted without reason."""
    policy(api, **spec)
    with held(api) as one:
        generated(api, one)
        if is_held:
            api.remove(f"{CEL}/generatingpolicies/p")
            one.settle()
    if not is_held:
        # The policy is deleted while no replica holds the lease.
        api.remove(f"{CEL}/generatingpolicies/p")
        with held(api) as one:
            one.settle()
            one.settle()
    assert content(api) == left


def test_clones_stay_when_their_policy_is_deleted(api: FakeApi) -> None:
    """KYVERNO: only objects generated from data are deleted with their policy."""
    source(api)
    policy(api, CLONES)
    with held(api) as one:
        generated(api, one)
        api.remove(f"{CEL}/generatingpolicies/p")
        one.settle()
    assert content(api, CLONE) == "1"


def test_synchronize_disabled(api: FakeApi) -> None:
    """Otherwise, objects would still be updated, or be deleted with their policy."""
    policy(api)
    with held(api) as one:
        generated(api, one)
        policy(api, sync=False, generation=2)
        one.settle()
        api.remove(f"{CEL}/generatingpolicies/p")
        one.settle()
    assert content(api) == "1"


@pytest.mark.parametrize("existing", [True, False])
def test_existing_triggers(api: FakeApi, *, existing: bool) -> None:
    """Triggers older than the policy generate only if the policy says so."""
    trigger(api)
    trigger(api, "other", team="red", value="3")
    policy(api, sync=False, evaluation={"generateExisting": {"enabled": existing}})
    with held(api) as one:
        one.settle()
    assert content(api) == ("1" if existing else None)


def test_kind_that_cannot_be_converted_does_not_stop_the_others(api: FakeApi) -> None:
    """Otherwise, whoever defines a kind could stop the policies that also match it."""
    trigger(api)
    message = (
        "conversion webhook for v1, Kind=Secret failed: Post"
        ' "https://w.a.svc:443/": no endpoints available'
    )
    failed = {"code": 500, "reason": "InternalError", "message": message}
    api.fault("GET /api/v1/secrets", *[failed] * 100)
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["secrets", "pods"],
    }
    policy(
        api,
        sync=False,
        evaluation={"generateExisting": {"enabled": True}},
        matchConstraints={"resourceRules": [rule]},
    )
    with held(api) as one:
        one.settle()
    assert api.count("GET /api/v1/secrets")
    assert content(api) == "1"


def test_unmanaged_object_stays_unchanged(api: FakeApi) -> None:
    """Otherwise, a policy would take over and later delete another writer's object."""
    api.put(OUT, apiVersion="v1", kind="ConfigMap", data={"from": "hand"})
    policy(api)
    with held(api) as one:
        generated(api, one)
        api.remove(f"{CEL}/generatingpolicies/p")
        one.settle()
    assert content(api) == "hand"


def test_standby_replica_writes_nothing(api: FakeApi) -> None:
    """Otherwise, each take-over would write every object again."""
    policy(api)
    with held(api) as one:
        generated(api, one)
    before = stored(api, OUT)
    with held(api) as one:
        one.settle()
    assert stored(api, OUT) == before


def test_replica_that_acquires_the_lease_watches(api: FakeApi) -> None:
    """Otherwise, only the replica that generated an object would notice its changes."""
    policy(api)
    with held(api) as one:
        generated(api, one)
    with held(api) as one:
        one.settle()
        api.remove(OUT)
        one.settle()
    assert content(api) == "1"


def test_a_namespaced_policy_stays_in_its_namespace(api: FakeApi) -> None:
    """Otherwise, a tenant could write into another namespace or into the cluster."""
    elsewhere = DATA.replace("object.metadata.namespace", '"b"', 1)
    policy(api, elsewhere, namespace="a")
    with held(api) as one:
        generated(api, one, policy_name="a/p")
        (left,) = requests_left(api)
    failed = stored(api, f"{REQUESTS}/{left}")
    assert failed is not None
    assert failed["status"]["state"] == "Failed"
    text = 'cross-namespace generation denied: policy in "a" cannot generate into "b"'
    assert text in failed["status"]["message"]
    assert not api.count("POST .*/configmaps")


def test_policies_with_the_same_name(api: FakeApi) -> None:
    """Otherwise, deleting one policy would delete the objects of the other."""
    policy(api, UPPER, namespace="a")
    policy(api)
    with held(api) as one:
        generated(api, one)
        request(api, trigger(api), name="other", policy_name="a/p")
        one.settle()
        api.remove(f"{CEL}/generatingpolicies/p")
        one.settle()
    assert content(api) is None
    assert content(api, f"{CONFIG_MAPS.format('a')}/other") == "1"


FAILURES: list[tuple[str, str, str]] = [
    (
        "an expression",
        'generator.apply(object.none, [{"a": "b"}])',
        "no such key: none",
    ),
    (
        "a kind",
        'generator.apply("a", [{"apiVersion": "no/v1", "kind": "Nothing"}])',
        'no matches for kind "Nothing" in version "no/v1"',
    ),
    (
        "the scope",
        'generator.apply("a", [{"apiVersion": "v1", "kind": "Namespace"}])',
        'a policy scoped to namespace "a" cannot generate cluster-scoped resource',
    ),
]


@pytest.mark.parametrize(
    ("_name", "text", "reason"), FAILURES, ids=[one[0] for one in FAILURES]
)
def test_failures_are_reported(
    api: FakeApi, _name: str, text: str, reason: str
) -> None:
    """Otherwise, users would not learn why nothing was generated."""
    policy(api, text)
    with held(api) as one:
        generated(api, one)
    failed = stored(api, f"{REQUESTS}/ur")
    assert failed is not None
    assert failed["status"]["state"] == "Failed"
    assert failed["status"]["message"].startswith("failed to evaluate policy: ")
    assert reason in failed["status"]["message"]
    (event,) = one.recorded.events
    assert event.reason == "PolicyError"
    assert reason in event.note


def test_partly_failed_policy_leaves_no_objects(api: FakeApi) -> None:
    """Otherwise, an error would leave some of the objects behind."""
    policy(api, DATA, "generator.apply(object.none, [])")
    with held(api) as one:
        generated(api, one)
    assert content(api) is None


@pytest.mark.parametrize("exempt", [True, False])
def test_exceptions(api: FakeApi, *, exempt: bool) -> None:
    """Otherwise, an exempt trigger would generate, or any exception would exempt it."""
    policy(api)
    name = "t" if exempt else "x"
    api.put(
        f"{CEL}/namespaces/e/policyexceptions/x",
        spec={
            "policyRefs": [{"name": "p", "kind": "GeneratingPolicy"}],
            "matchConditions": [
                {"name": "c", "expression": f"object.metadata.name == '{name}'"}
            ],
        },
    )
    settings = Settings(
        namespace="kyverno", policy_exceptions=True, exception_namespace="*"
    )
    with held(api, settings=settings) as one:
        generated(api, one)
    assert content(api) == (None if exempt else "1")
    assert requests_left(api) == []


def test_exceptions_over_their_memory_budget_exempt_nothing(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linked_size, "LINKED_EXCEPTIONS_OF_POLICY_BYTES_MAX", 1024)
    policy(api)
    refs = [{"name": "p", "kind": "GeneratingPolicy"}]
    api.put(f"{CEL}/namespaces/e/policyexceptions/x", spec={"policyRefs": refs})
    settings = Settings(
        namespace="kyverno", policy_exceptions=True, exception_namespace="*"
    )
    with held(api, settings=settings) as one:
        generated(api, one)
    assert content(api) == "1"


def bait(  # noqa: PLR0913 - the parts of labels
    api: FakeApi,
    namespace: str,
    *,
    kind: str = "Pod",
    trigger_namespace: str = "",
    name: str = "",
    uid: str = "",
    policy_namespace: str = "",
) -> str:
    """Store another writer's object with the labels of a policy; return its path."""
    labels = {
        "app.kubernetes.io/managed-by": "kyverno",
        f"{PREFIX}policy-name": "p",
        f"{PREFIX}trigger-version": "v1",
        f"{PREFIX}trigger-kind": kind,
        f"{PREFIX}trigger-namespace": trigger_namespace,
        f"{PREFIX}trigger-name": name,
    }
    if uid:
        labels[f"{PREFIX}trigger-uid"] = uid
    if policy_namespace:
        labels[f"{PREFIX}policy-namespace"] = policy_namespace
    path = f"{CONFIG_MAPS.format(namespace)}/bait"
    api.put(path, apiVersion="v1", kind="ConfigMap", metadata={"labels": labels})
    return path


NAMED_BY_LABELS = {
    "of another namespace": ("Pod", "z"),
    "of the cluster": ("Namespace", ""),
    "of the cluster, with a namespace": ("Namespace", "a"),
}


@pytest.mark.parametrize("is_event", [True, False])
@pytest.mark.parametrize("name", NAMED_BY_LABELS)
def test_labels_reveal_no_foreign_object_to_a_tenant(
    api: FakeApi, name: str, *, is_event: bool
) -> None:
    """Otherwise, a tenant could read another namespace's Secret by setting labels."""
    kind, namespace = NAMED_BY_LABELS[name]
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["*"],
        "resources": ["pods", "namespaces"],
    }
    for path, of in (("namespaces/z", "Namespace"), ("namespaces/z/pods/z", "Pod")):
        value = {"annotations": {"value": "secret"}}
        api.put(f"/api/v1/{path}", apiVersion="v1", kind=of, metadata=value)
    text = DATA.replace("object.metadata.namespace", '"a"')
    policy(api, text, namespace="a", matchConstraints={"resourceRules": [rule]})

    def lay() -> str:
        return bait(
            api,
            "a",
            kind=kind,
            trigger_namespace=namespace,
            name="z",
            policy_namespace="a",
        )

    with held(api) as one:
        generated(api, one, policy_name="a/p")
        if is_event:
            path = lay()
            one.settle()
            api.remove(path)
            one.settle()
    if not is_event:
        lay()
        with held(api) as one:
            one.settle()
            one.settle()
    assert content(api) == "1"


@pytest.mark.parametrize("is_event", [True, False])
def test_labels_alone_make_no_trigger(api: FakeApi, *, is_event: bool) -> None:
    """Otherwise, a user without a policy could create triggers by setting labels."""
    named = DATA.replace('"out"', '"out-" + object.metadata.name')
    trigger(api, "older")
    policy(api, named)
    with held(api) as one:
        generated(api, one)
        path = bait(api, "b", trigger_namespace="a", name="older")
        one.settle()
        if is_event:
            api.remove(path)
            one.settle()
    if not is_event:
        with held(api) as one:
            one.settle()
            one.settle()
    made = f"{CONFIG_MAPS.format('a')}/out-"
    assert content(api, f"{made}t") == "1"
    assert content(api, f"{made}older") is None


@pytest.mark.parametrize("created", ["2026-01-01T00:00:00Z", "2026-01-01T00:00:02Z"])
def test_policy_changed_while_unwatched(api: FakeApi, created: str) -> None:
    """Otherwise, an outdated object would remain after each take-over."""
    raw = policy(api)
    metadata = {**raw["metadata"], "creationTimestamp": "2026-01-01T00:00:01Z"}
    path = f"{CEL}/generatingpolicies/p"
    api.put(path, **{**raw, "metadata": metadata})
    with held(api) as one:
        made = generated(api, one)
    metadata = {**made["metadata"], "creationTimestamp": created}
    api.put("/api/v1/namespaces/a/pods/t", **{**made, "metadata": metadata})
    spec = {**raw["spec"], "generate": [{"expression": UPPER}]}
    metadata = {
        **raw["metadata"],
        "generation": 2,
        "creationTimestamp": "2026-01-01T00:00:01Z",
    }
    api.put(path, **{**raw, "metadata": metadata, "spec": spec})
    with held(api) as one:
        one.settle()
        one.settle()
    is_newer = created.endswith("2Z")
    # For an older trigger, only the labels show that it was one.
    assert content(api) == (None if is_newer else "1")
    other = f"{CONFIG_MAPS.format('a')}/other"
    assert content(api, other) == ("1" if is_newer else None)


def test_labels_of_two_triggers_delete_nothing(api: FakeApi) -> None:
    """Otherwise, a user without any policy could have other users' objects deleted."""
    policy(api)
    with held(api) as one:
        raw = generated(api, one)
        before = stored(api, OUT)
        uid = raw["metadata"]["uid"]
        path = bait(api, "b", trigger_namespace="b", name="none", uid=uid)
        one.settle()
        api.remove(path)
        one.settle()
    assert stored(api, OUT) == before
    assert not api.count("DELETE .*/namespaces/a/configmaps/out")


def test_incomplete_labels_change_no_object(api: FakeApi) -> None:
    """Otherwise, the object would name another trigger and outlive its own."""
    policy(api)
    with held(api) as one:
        raw = generated(api, one)
        before = stored(api, OUT)
        path = bait(api, "b", trigger_namespace="a", name="t")
        one.settle()
        api.remove(path)
        one.settle()
        assert stored(api, OUT) == before
        api.remove("/api/v1/namespaces/a/pods/t")
        request(api, raw, operation="DELETE", deletes=True)
        one.settle()
    assert stored(api, OUT) is None


LABELS_OF_SOURCES = {
    "of a generate rule": {"rule-name": "r", "policy-name": "other"},
    "of a namespaced policy": {"policy-namespace": "z", "source-uid": "x"},
}


@pytest.mark.parametrize("name", LABELS_OF_SOURCES)
def test_clone_belongs_to_its_policy_regardless_of_its_source(
    api: FakeApi, name: str
) -> None:
    """Otherwise, a clone would follow no source, or belong to a tenant's policy."""
    raw = source(api)
    labels = {f"{PREFIX}{key}": one for key, one in LABELS_OF_SOURCES[name].items()}
    raw = api.put(SOURCE, **{**raw, "metadata": {**raw["metadata"], "labels": labels}})
    policy(api, CLONES)
    with held(api) as one:
        generated(api, one)
        made = stored(api, CLONE)
        assert made is not None
        found = made["metadata"]["labels"]
        assert found[f"{PREFIX}policy-name"] == "p"
        assert found[f"{PREFIX}source-uid"] == raw["metadata"]["uid"]
        assert not {f"{PREFIX}rule-name", f"{PREFIX}policy-namespace"} & found.keys()
        api.put(SOURCE, **{**raw, "data": {"from": "2"}})
        one.settle()
        assert content(api, CLONE) == "2"


def test_tenants_policy_deletes_only_in_its_namespace(api: FakeApi) -> None:
    """Otherwise, labelled objects in other namespaces would also be deleted."""
    policy(api, UPPER, namespace="a")
    path = bait(api, "b", trigger_namespace="a", name="t", policy_namespace="a")
    with held(api) as one:
        generated(api, one, policy_name="a/p")
        assert content(api, f"{CONFIG_MAPS.format('a')}/other") == "1"
        api.remove(f"{CEL}/namespaces/a/namespacedgeneratingpolicies/p")
        one.settle()
    assert stored(api, f"{CONFIG_MAPS.format('a')}/other") is None
    assert stored(api, path) is not None


def unserved(api: FakeApi, plural: str) -> None:
    """Answer 404 for a kind, as if its definition was being replaced."""
    for _ in range(1000):
        api.fault(f"GET .*/{plural}[/?]?.*", 404)


def test_unserved_kind_deletes_nothing(api: FakeApi) -> None:
    """Otherwise, replacing a definition would delete all synchronised objects."""
    policy(api)
    with held(api) as one:
        generated(api, one)
    unserved(api, "generatingpolicies")
    one = Term(api, settings=Settings(namespace="kyverno"), cluster_data=data_of(api))
    background = one.background
    policies = background.generating.policies
    for informer in one.informers:
        informer.start()
    try:
        wait_for(lambda: policies.stored.informers[0].failures > 0)
        background.adopt()
        background.policy_controllers.work_due()
        with pytest.raises(KubeUnavailable):
            background.generating.events.reconcile("p")
        with pytest.raises(KubeUnavailable):
            policies.newest("p")
        assert content(api) == "1"
        with api.lock:
            api.faults.clear()
        wait_for(lambda: policies.synced)
        one.settle()
        assert content(api) == "1"
    finally:
        one.stop()


def test_kind_that_is_never_served_blocks_no_object(api: FakeApi) -> None:
    """Without the namespaced kind, objects of deleted policies are still cleaned up."""
    policy(api)
    with held(api) as one:
        generated(api, one)
    api.remove(f"{CEL}/generatingpolicies/p")
    unserved(api, "namespacedgeneratingpolicies")
    one = Term(api, settings=Settings(namespace="kyverno"), cluster_data=data_of(api))
    for informer in one.informers:
        informer.start()
    try:
        wait_for(lambda: one.background.generating.policies.stored.informers[0].synced)
        one.background.adopt()
        one.background.policy_controllers.work_due()
        assert content(api) is None
    finally:
        one.stop()


def test_synchronize_disabled_and_enabled(api: FakeApi) -> None:
    """Otherwise, older objects would ignore changes and outlive their policy."""
    policy(api)
    with held(api) as one:
        generated(api, one)
        policy(api, sync=False, generation=2)
        one.settle()
        policy(api, generation=3)
        one.settle()
        api.remove(OUT)
        one.settle()
        assert content(api) == "1"
        api.remove(f"{CEL}/generatingpolicies/p")
        one.settle()
    assert content(api) is None

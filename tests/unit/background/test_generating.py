"""GeneratingPolicies: what becomes of generated objects, event by event.

Expected labels and texts are upstream's (pkg/cel/libs/context.go, pkg/event); where
1.18 deletes and creates again, an update is in place, as in 1.19.
"""

from typing import Any

import pytest

from kyverno_mp.errors import KubeUnavailable
from kyverno_mp.settings.settings import Settings
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
from tests.unit.kube.fake_api import FakeApi, wait_for

Json = Any


@pytest.fixture(autouse=True)
def cluster(api: FakeApi) -> None:
    new_cluster(api)


def test_an_object_has_upstreams_labels(api: FakeApi) -> None:
    """Neither this program nor Kyverno would find its objects again."""
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


def test_a_clone_names_its_source(api: FakeApi) -> None:
    """Changes of the source would not reach it; or it would keep what is not its."""
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


EDITS: list[tuple[str, Json]] = [
    ("changed", {"data": {"from": "hand"}}),
    ("its labels removed", {"metadata": {"labels": {}}}),
]


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize(("_name", "edit"), EDITS, ids=[one[0] for one in EDITS])
def test_an_object_changed_by_hand(
    api: FakeApi, _name: str, edit: Json, *, sync: bool
) -> None:
    """A synchronised object would stay as others made it; another would not."""
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
def test_an_object_deleted_by_hand(api: FakeApi, *, sync: bool) -> None:
    """A synchronised object would stay away; another would come back."""
    policy(api, sync=sync)
    with held(api) as one:
        generated(api, one)
        api.remove(OUT)
        one.settle()
    assert content(api) == ("1" if sync else None)


@pytest.mark.parametrize("sync", [True, False])
def test_a_trigger_that_changes(api: FakeApi, *, sync: bool) -> None:
    """The object would not follow, or be away for a moment."""
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


def test_an_update_that_the_policy_does_not_list(api: FakeApi) -> None:
    """What was generated would be lost with a label of its trigger."""
    policy(api, operations=("CREATE",))
    with held(api) as one:
        generated(api, one)
        request(api, trigger(api, value="2"), operation="UPDATE")
        one.settle()
    assert content(api) == "2"


@pytest.mark.parametrize("sync", [True, False])
def test_a_trigger_that_no_longer_matches(api: FakeApi, *, sync: bool) -> None:
    """A synchronised object would stay; another would go."""
    policy(api, sync=sync)
    with held(api) as one:
        generated(api, one)
        request(api, trigger(api, team="red"), operation="UPDATE")
        one.settle()
    assert content(api) == (None if sync else "1")


@pytest.mark.parametrize("sync", [True, False])
def test_a_trigger_that_is_deleted(api: FakeApi, *, sync: bool) -> None:
    """A synchronised object would stay; another would go."""
    policy(api, sync=sync)
    with held(api) as one:
        raw = generated(api, one)
        api.remove("/api/v1/namespaces/a/pods/t")
        request(api, raw, operation="DELETE", deletes=True)
        one.settle()
    assert content(api) == (None if sync else "1")


def test_a_deletion_that_is_not_stored_yet(api: FakeApi) -> None:
    """An admission comes before its deletion, and others may refuse it."""
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


def test_what_a_deletion_has_generated_stays(api: FakeApi) -> None:
    """The next sync would delete it: its trigger is gone."""
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


def test_the_record_of_generate_rules_is_another(api: FakeApi) -> None:
    """One record would erase the other, and what goes with its policy would stay."""
    policy(api)
    with held(api) as one:
        generated(api, one)
        one.background.register.add("cluster", "r", [("v1", "Secret")])
    record = stored(api, f"{CONFIG_MAPS.format('kyverno')}/kyverno-mp-background")
    assert record is not None
    assert set(record["data"]) == {"rules.json", "generating-policies.json"}


@pytest.mark.parametrize("writes", range(10))
def test_another_holder_goes_on_wherever_the_lease_was_lost(
    api: FakeApi, writes: int
) -> None:
    """A trigger would be lost with its holder, or its object be left behind."""
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


def test_a_policy_for_deletions(api: FakeApi) -> None:
    """A deletion would generate nothing, or for an object that still exists."""
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
def test_a_source_that_changes_or_goes(api: FakeApi, *, sync: bool) -> None:
    """Clones would keep what their source no longer has, or follow unasked."""
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


def test_a_policy_that_changes(api: FakeApi) -> None:
    """What it no longer generates would stay, or the new object would be missing."""
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
def test_a_policy_that_is_deleted(
    api: FakeApi, _name: str, spec: Json, left: str | None, *, is_held: bool
) -> None:
    """Objects would stay for ever, or go although they should not."""
    policy(api, **spec)
    with held(api) as one:
        generated(api, one)
        if is_held:
            api.remove(f"{CEL}/generatingpolicies/p")
            one.settle()
    if not is_held:
        # While nobody holds the lease.
        api.remove(f"{CEL}/generatingpolicies/p")
        with held(api) as one:
            one.settle()
            one.settle()
    assert content(api) == left


def test_clones_stay_when_their_policy_goes(api: FakeApi) -> None:
    """KYVERNO: only data goes with its policy."""
    source(api)
    policy(api, CLONES)
    with held(api) as one:
        generated(api, one)
        api.remove(f"{CEL}/generatingpolicies/p")
        one.settle()
    assert content(api, CLONE) == "1"


def test_synchronize_switched_off(api: FakeApi) -> None:
    """Objects would still follow, or go with their policy."""
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
    """Triggers that were there before the policy would be left out, or not."""
    trigger(api)
    trigger(api, "other", team="red", value="3")
    policy(api, sync=False, evaluation={"generateExisting": {"enabled": existing}})
    with held(api) as one:
        one.settle()
    assert content(api) == ("1" if existing else None)


def test_an_object_of_others_stays_as_it_is(api: FakeApi) -> None:
    """A policy would take over, and delete, what somebody else made."""
    api.put(OUT, apiVersion="v1", kind="ConfigMap", data={"from": "hand"})
    policy(api)
    with held(api) as one:
        generated(api, one)
        api.remove(f"{CEL}/generatingpolicies/p")
        one.settle()
    assert content(api) == "hand"


def test_another_replica_writes_nothing(api: FakeApi) -> None:
    """Each take-over would write every object again."""
    policy(api)
    with held(api) as one:
        generated(api, one)
    before = stored(api, OUT)
    with held(api) as one:
        one.settle()
    assert stored(api, OUT) == before


def test_a_replica_that_takes_over_watches(api: FakeApi) -> None:
    """Changes would be noticed by the replica that generated, and no other."""
    policy(api)
    with held(api) as one:
        generated(api, one)
    with held(api) as one:
        one.settle()
        api.remove(OUT)
        one.settle()
    assert content(api) == "1"


def test_a_namespaced_policy_stays_in_its_namespace(api: FakeApi) -> None:
    """A tenant would write into another namespace, or the cluster."""
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


def test_policies_of_one_name(api: FakeApi) -> None:
    """The end of one would delete the objects of the other."""
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
def test_failures_are_told(api: FakeApi, _name: str, text: str, reason: str) -> None:
    """Nobody would learn why nothing was generated."""
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


def test_nothing_is_left_of_a_policy_that_fails_in_part(api: FakeApi) -> None:
    """A later error would leave some of the objects behind."""
    policy(api, DATA, "generator.apply(object.none, [])")
    with held(api) as one:
        generated(api, one)
    assert content(api) is None


@pytest.mark.parametrize("exempt", [True, False])
def test_exceptions(api: FakeApi, *, exempt: bool) -> None:
    """An exempt trigger would generate, or any exception would exempt it."""
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
    """Store an object of somebody else with labels of a policy; return its path."""
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
def test_labels_show_a_tenant_no_object_of_others(
    api: FakeApi, name: str, *, is_event: bool
) -> None:
    """A tenant would read a Secret of another namespace by labels of its own."""
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
def test_labels_make_no_trigger(api: FakeApi, *, is_event: bool) -> None:
    """A user without any policy would make one generate for what it left alone."""
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
def test_a_policy_that_changed_unseen(api: FakeApi, created: str) -> None:
    """What it no longer generates would stay with every take-over."""
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
    # Of an older trigger only labels say that it was one.
    assert content(api) == (None if is_newer else "1")
    other = f"{CONFIG_MAPS.format('a')}/other"
    assert content(api, other) == ("1" if is_newer else None)


def test_labels_of_two_triggers_delete_nothing(api: FakeApi) -> None:
    """A user without any policy would have the objects of others deleted."""
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


def test_labels_in_part_change_no_object(api: FakeApi) -> None:
    """The object would name its trigger in part, and stay when that is deleted."""
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
def test_a_clone_is_its_policys_whatever_its_source_was(
    api: FakeApi, name: str
) -> None:
    """A clone would follow nothing, or be the object of a tenant's policy."""
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


def test_a_tenants_policy_deletes_in_its_namespace_alone(api: FakeApi) -> None:
    """What has the labels of a tenant's policy would go with it, wherever it is."""
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
    """Answer 404 for a kind, as while its definition is replaced."""
    for _ in range(1000):
        api.fault(f"GET .*/{plural}[/?]?.*", 404)


def test_a_kind_that_is_not_served_deletes_nothing(api: FakeApi) -> None:
    """A definition that is replaced would delete all that is synchronised."""
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
        wait_for(lambda: policies.policies[0].failures > 0)
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


def test_a_kind_that_is_never_served_keeps_no_object(api: FakeApi) -> None:
    """Without the namespaced kind, what deleted policies generated would stay."""
    policy(api)
    with held(api) as one:
        generated(api, one)
    api.remove(f"{CEL}/generatingpolicies/p")
    unserved(api, "namespacedgeneratingpolicies")
    one = Term(api, settings=Settings(namespace="kyverno"), cluster_data=data_of(api))
    for informer in one.informers:
        informer.start()
    try:
        wait_for(lambda: one.background.generating.policies.policies[0].synced)
        one.background.adopt()
        one.background.policy_controllers.work_due()
        assert content(api) is None
    finally:
        one.stop()


def test_synchronize_switched_off_and_on(api: FakeApi) -> None:
    """Objects from before would follow no change, and stay without their policy."""
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

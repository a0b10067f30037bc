"""MutatingPolicies that change existing objects: triggers, targets, exceptions.

A failure means: an UpdateRequest of a MutatingPolicy changes nothing, changes unrelated
objects, or loses the change of another writer.
"""

import json
from typing import Any

import pytest

from kyverno_mp.compiler import linked_size
from kyverno_mp.program.generate.triggers import CEL_MUTATE, Triggered
from kyverno_mp.program.request import Request
from kyverno_mp.queues.update_requests import document_of
from kyverno_mp.settings.settings import Settings
from kyverno_mp.webhook.triggers.sink import record_of
from tests.unit.background.world import (
    CONFIG_MAPS,
    SECRETS,
    Term,
    identity,
    new_cluster,
    requests_left,
    stored,
    term,
)
from tests.unit.background.world import REQUESTS as _REQUESTS
from tests.unit.kube.fake_api import FakeApi

Json = Any
_GROUP = "/apis/policies.kyverno.io/v1beta1"
_RULE = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "operations": ["CREATE", "UPDATE"],
}
_SECRETS = {**_RULE, "resources": ["secrets"]}
_MAPS = {**_RULE, "resources": ["configmaps"]}
_BLUE = "Object{metadata: Object.metadata{labels: Object.metadata.labels{c: 'blue'}}}"


@pytest.fixture(autouse=True)
def cluster(api: FakeApi) -> None:
    new_cluster(api)
    for namespace in ("a", "b"):
        _target(api, namespace)


def _target(api: FakeApi, namespace: str, name: str = "target", **labels: str) -> Json:
    return api.put(
        f"{CONFIG_MAPS.format(namespace)}/{name}",
        apiVersion="v1",
        kind="ConfigMap",
        metadata={"labels": {"kept": "yes", **labels}},
    )


def _policy(
    api: FakeApi,
    expression: str = _BLUE,
    *,
    namespace: str = "",
    rules: Json = (_SECRETS,),
    targets: Json = None,
    generation: int = 1,
    **spec: Json,
) -> None:
    place = f"/namespaces/{namespace}/namespaced" if namespace else "/"
    given: Json = {
        "evaluation": {"mutateExisting": {"enabled": True}},
        "matchConstraints": {"resourceRules": list(rules)},
        "targetMatchConstraints": {"resourceRules": [_MAPS]}
        if targets is None
        else targets,
        "mutations": [
            {
                "patchType": "ApplyConfiguration",
                "applyConfiguration": {"expression": expression},
            }
        ],
        **spec,
    }
    if not given["targetMatchConstraints"]:
        del given["targetMatchConstraints"]
    api.put(
        f"{_GROUP}{place}mutatingpolicies/p",
        apiVersion="policies.kyverno.io/v1beta1",
        kind="NamespacedMutatingPolicy" if namespace else "MutatingPolicy",
        metadata={"generation": generation},
        spec=given,
    )


def _trigger(api: FakeApi, name: str = "t") -> Json:
    return api.put(
        f"{SECRETS.format('a')}/{name}", apiVersion="v1", kind="Secret", metadata={}
    )


def _run(
    api: FakeApi,
    one: Term,
    *,
    key: str = "p",
    raw: Json = None,
    annotations: Json = None,
    **admission: Json,
) -> None:
    raw = _trigger(api) if raw is None else raw
    metadata = raw["metadata"]
    asked = {
        "operation": "CREATE",
        "kind": {"group": "", "version": "v1", "kind": raw["kind"]},
        "resource": {"group": "", "version": "v1", "resource": "secrets"},
        "name": metadata["name"],
        "namespace": metadata.get("namespace", ""),
        "userInfo": {"username": "kim"},
        **admission,
    }
    context = {"admissionRequest": asked, "operation": asked["operation"]}
    api.put(
        f"{_REQUESTS}/ur",
        apiVersion="kyverno.io/v2",
        kind="UpdateRequest",
        metadata={"annotations": annotations or {}},
        spec={
            "requestType": "cel-mutate",
            "policy": key,
            "rule": "",
            "deleteDownstream": False,
            "resource": identity(raw),
            "context": {"admissionRequestInfo": context},
        },
    )
    one.settle()


def _labels(api: FakeApi, namespace: str = "a", name: str = "target") -> Json:
    found = stored(api, f"{CONFIG_MAPS.format(namespace)}/{name}")
    return None if found is None else found["metadata"]["labels"]


def test_conditions_of_targets(api: FakeApi) -> None:
    """Since 1.19, the policy skips targets that do not meet its conditions."""
    text = "object.metadata.?labels.changes.orValue('no') == 'yes'"
    _target(api, "b", "chosen", changes="yes")
    conditions = [{"name": "c", "expression": text}]
    of_trigger = [{"name": "t", "expression": "request.object.kind == 'Secret'"}]
    _policy(api, targetMatchConditions=conditions, matchConditions=of_trigger)
    with term(api) as one:
        _run(api, one)
        assert requests_left(api) == []
    assert _labels(api) == {"kept": "yes"}
    assert _labels(api, "b", "chosen") == {"kept": "yes", "changes": "yes", "c": "blue"}


def test_targets_are_changed(api: FakeApi) -> None:
    _policy(api)
    with term(api) as one:
        _run(api, one)
        assert _labels(api, "a") == _labels(api, "b") == {"kept": "yes", "c": "blue"}
        assert requests_left(api) == []
        assert "ConfigMap a/target is successfully mutated" in one.recorded.notes()


def test_target_in_the_desired_state_is_not_written(api: FakeApi) -> None:
    _target(api, "a", c="blue")
    _target(api, "b", c="blue")
    _policy(api)
    with term(api) as one:
        _run(api, one)
        assert api.count("PUT /api/v1/namespaces/a/configmaps") == 0
        assert requests_left(api) == []


def test_a_namespaced_policy_stays_in_its_namespace(api: FakeApi) -> None:
    _policy(api, namespace="a")
    with term(api) as one:
        _run(api, one, key="a/p")
        assert _labels(api, "a") == {"kept": "yes", "c": "blue"}
        assert _labels(api, "b") == {"kept": "yes"}


@pytest.mark.parametrize(
    ("targets", "changed"),
    [
        ({"objectSelector": {"matchLabels": {"kept": "yes"}}}, True),
        ({"objectSelector": {"matchLabels": {"kept": "no"}}}, False),
        ({"namespaceSelector": {"matchLabels": {"none": "x"}}}, False),
        ({"excludeResourceRules": [{**_MAPS, "resourceNames": ["target"]}]}, False),
        ({"resourceRules": [{**_MAPS, "resourceNames": ["other"]}]}, False),
        ({"resourceRules": [{**_MAPS, "operations": ["DELETE"]}]}, True),
        ({"resourceRules": [{**_MAPS, "resources": ["*"]}]}, False),
    ],
)
def test_constraints_select_the_targets(
    api: FakeApi, targets: Json, *, changed: bool
) -> None:
    _policy(api, targets={"resourceRules": [_MAPS], **targets})
    with term(api) as one:
        _run(api, one)
        assert ("c" in _labels(api)) is changed
        assert requests_left(api) == []


def test_expressions_see_the_triggers_request(api: FakeApi) -> None:
    """In the request, the object is the trigger; ``object`` is the target."""
    _policy(
        api,
        "Object{metadata: Object.metadata{labels: Object.metadata.labels{"
        "by: request.userInfo.username, of: request.object.metadata.name,"
        " at: object.metadata.name}}}",
    )
    with term(api) as one:
        _run(api, one)
        wanted = {"kept": "yes", "by": "kim", "of": "t", "at": "target"}
        assert _labels(api) == wanted


@pytest.mark.parametrize("count", [1, 2])
def test_trigger_without_a_name(api: FakeApi, count: int) -> None:
    """A mutating webhook gets neither name nor uid of a ReplicaSet's new Pod."""
    _policy(
        api,
        "Object{metadata: Object.metadata{labels: Object.metadata.labels{"
        "of: request.object.metadata.generateName}}}",
    )
    stored_requests = [
        _of_nameless(f"uid-of-review-{number}") for number in range(count)
    ]
    assert len({one["metadata"]["name"] for one in stored_requests}) == count
    with term(api) as one:
        for document in stored_requests:
            api.put(f"{_REQUESTS}/{document['metadata']['name']}", **document)
        one.settle()
        assert _labels(api) == {"kept": "yes", "of": "web-"}
        assert requests_left(api) == []
        assert api.count("GET /api/v1/namespaces/a/secrets") == 0


def _of_nameless(uid: str) -> Json:
    """Return the UpdateRequest that the leader writes for a review."""
    metadata = {"namespace": "a", "generateName": "web-"}
    raw = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}
    review = {
        "uid": uid,
        "kind": {"group": "", "version": "v1", "kind": "Secret"},
        "resource": {"group": "", "version": "v1", "resource": "secrets"},
        "namespace": "a",
        "operation": "CREATE",
        "userInfo": {"username": "kim"},
        "object": raw,
    }
    request = Request(
        operation="CREATE",
        version="v1",
        kind="Secret",
        namespace="a",
        object=raw,
        review_request=review,
    )
    record = record_of(request, [Triggered(CEL_MUTATE, "p", ())], 1)
    return document_of(record, record.wanted[0], "kyverno")


def test_match_conditions_apply_to_the_trigger(api: FakeApi) -> None:
    """Conditions apply to the trigger if the targets have separate constraints."""
    condition = [{"name": "c", "expression": "object.kind == 'Secret'"}]
    _policy(api, matchConditions=condition)
    with term(api) as one:
        _run(api, one)
        assert "c" in _labels(api)


def test_targets_default_to_the_triggers_constraints(api: FakeApi) -> None:
    condition = [{"name": "c", "expression": "object.metadata.name == 'chosen'"}]
    _policy(api, rules=(_MAPS,), targets={}, matchConditions=condition)
    _target(api, "b", "chosen")
    with term(api) as one:
        _run(api, one)
        assert _labels(api, "b", "chosen") == {"kept": "yes", "c": "blue"}
        assert _labels(api, "b") == {"kept": "yes"}


@pytest.mark.parametrize("met", [True, False])
def test_unchecked_trigger_is_checked(api: FakeApi, *, met: bool) -> None:
    name = "t" if met else "other"
    condition = [{"name": "c", "expression": f"object.metadata.name == '{name}'"}]
    _policy(api, matchConditions=condition)
    with term(api) as one:
        _run(api, one, annotations={"kyverno-mp.io/unchecked": "true"})
        assert ("c" in _labels(api)) is met
        assert requests_left(api) == []


def test_expression_selects_the_targets(api: FakeApi) -> None:
    targets = {
        "expression": "resource.Get('v1', 'configmaps', object.metadata.namespace,"
        " 'target')"
    }
    _policy(api, targets=targets)
    with term(api, cluster_data=_with_resources(api)) as one:
        _run(api, one)
        assert _labels(api, "a") == {"kept": "yes", "c": "blue"}
        assert _labels(api, "b") == {"kept": "yes"}


def test_expression_can_list(api: FakeApi) -> None:
    _target(api, "a", "more")
    targets = {
        "expression": "resource.List('v1', 'configmaps', object.metadata.namespace)"
    }
    _policy(api, targets=targets)
    with term(api, cluster_data=_with_resources(api)) as one:
        _run(api, one)
        assert "c" in _labels(api, "a", "more")
        assert "c" in _labels(api, "a")


def _with_resources(api: FakeApi) -> Any:
    from dataclasses import replace

    from kyverno_mp.egress.kinds import LiveKinds
    from kyverno_mp.egress.resources import LiveResources
    from kyverno_mp.program.ports import CelPorts
    from tests.unit.background.world import data_of

    client = api.client()
    kinds = LiveKinds(lambda: None, client)
    ports = CelPorts(resources=LiveResources(lambda: client, kinds.plural_of))
    return replace(data_of(api), cel=ports)


@pytest.mark.parametrize("is_exempt", [True, False])
def test_exceptions(api: FakeApi, *, is_exempt: bool) -> None:
    _policy(api)
    api.put(
        f"{_GROUP}/namespaces/kyverno/policyexceptions/x",
        apiVersion="policies.kyverno.io/v1beta1",
        kind="PolicyException",
        metadata={},
        spec={
            "policyRefs": [
                {"name": "p" if is_exempt else "other", "kind": "MutatingPolicy"}
            ],
            "matchConditions": [
                {"name": "c", "expression": "object.metadata.namespace == 'a'"}
            ],
        },
    )
    settings = Settings(
        namespace="kyverno", policy_exceptions=True, exception_namespace="kyverno"
    )
    with term(api, settings=settings) as one:
        _run(api, one)
        assert ("c" not in _labels(api, "a")) is is_exempt
        assert "c" in _labels(api, "b")
        assert requests_left(api) == []


def test_exception_deleted_during_a_list_exempts_nothing(api: FakeApi) -> None:
    """Otherwise, a list that the API server restarts would exempt objects wrongly."""
    _policy(api)
    place = f"{_GROUP}/namespaces/kyverno/policyexceptions"
    for number in range(501):
        name = "other" if number else "p"
        api.put(
            f"{place}/x{number:03}",
            apiVersion="policies.kyverno.io/v1beta1",
            kind="PolicyException",
            spec={"policyRefs": [{"name": name, "kind": "MutatingPolicy"}]},
        )
    settings = Settings(
        namespace="kyverno", policy_exceptions=True, exception_namespace="kyverno"
    )
    with term(api, settings=settings) as one:
        api.fault("policyexceptions.*continue=500", "expire")

        def on_request(_method: str, target: str) -> None:
            if "policyexceptions" in target and "continue=500" in target:
                api.on_request = lambda _method, _target: None
                api.remove(f"{place}/x000")

        api.on_request = on_request
        _run(api, one)
        assert not api.faults
        assert "c" in _labels(api, "a")


def test_exceptions_over_their_memory_budget_exempt_nothing(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linked_size, "LINKED_EXCEPTIONS_OF_POLICY_BYTES_MAX", 1024)
    _policy(api)
    api.put(
        f"{_GROUP}/namespaces/kyverno/policyexceptions/x",
        apiVersion="policies.kyverno.io/v1beta1",
        kind="PolicyException",
        metadata={},
        spec={"policyRefs": [{"name": "p", "kind": "MutatingPolicy"}]},
    )
    settings = Settings(
        namespace="kyverno", policy_exceptions=True, exception_namespace="kyverno"
    )
    with term(api, settings=settings) as one:
        _run(api, one)
        assert "c" in _labels(api, "a")


def test_failure_is_reported_and_retried(api: FakeApi) -> None:
    _policy(api, "Object{metadata: Object.metadata{labels: object.nothing}}")
    pod = api.put(
        "/api/v1/namespaces/a/pods/t", apiVersion="v1", kind="Pod", metadata={}
    )
    with term(api) as one:
        _run(api, one, raw=pod)
        (name,) = requests_left(api)
        found = stored(api, f"{_REQUESTS}/{name}")
        assert found is not None
        assert found["status"]["state"] == "Failed"
        assert "no such key: nothing" in found["status"]["message"]
        assert any("no such key: nothing" in note for note in one.recorded.notes())
        _policy(api, generation=2)
        one.pass_s(10.0)
        assert "c" in _labels(api)
        assert requests_left(api) == []


def test_failure_reveals_no_secret(api: FakeApi) -> None:
    """A target that is a Secret must not be quoted."""
    targets = {"resourceRules": [_SECRETS]}
    _policy(api, "Object{metadata: {'hush': object}}", targets=targets)
    with term(api) as one:
        _run(api, one)
        (name,) = requests_left(api)
        text = json.dumps([stored(api, f"{_REQUESTS}/{name}"), one.recorded.notes()])
        assert "background.mutate" in text
        assert "hush" not in text


def test_conflict(api: FakeApi) -> None:
    """After a conflict, the policy is evaluated on the other writer's version."""
    _policy(api)
    with term(api) as one:
        raced: list[str] = []

        def race(method: str, target: str) -> None:
            if method == "PUT" and "/a/configmaps/target" in target and not raced:
                raced.append(target)
                _target(api, "a", other="writer")

        api.on_request = race
        _run(api, one)
        assert _labels(api) == {"kept": "yes", "other": "writer", "c": "blue"}


def test_deleted_policy_is_no_failure(api: FakeApi) -> None:
    with term(api) as one:
        _run(api, one)
        assert requests_left(api) == []


_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.mark.parametrize("plural", ["mutatingpolicies", "policyexceptions"])
@pytest.mark.parametrize("is_defined", [True, False])
def test_unserved_kind_is_retried(
    api: FakeApi, plural: str, *, is_defined: bool
) -> None:
    """Otherwise, a trigger would be dropped, or an exempt target would be changed."""
    _policy(api)
    if is_defined:
        api.put(
            f"{_DEFINITIONS}/{plural}.policies.kyverno.io",
            apiVersion="apiextensions.k8s.io/v1",
            kind="CustomResourceDefinition",
            metadata={},
        )
    settings = Settings(
        namespace="kyverno", policy_exceptions=True, exception_namespace="*"
    )
    with term(api, settings=settings) as one:
        # A policy is read by name and then listed; exceptions are only listed.
        times = 1 if plural == "policyexceptions" else 2
        api.fault(f"GET .*v1beta1/{plural}(?!.*watch)", *[404] * times)
        _run(api, one)
        if is_defined:
            assert requests_left(api) == ["ur"]
            assert "c" not in _labels(api)
            one.pass_s(60.0)
        assert requests_left(api) == []
        is_done = is_defined or plural == "policyexceptions"
        assert ("c" in _labels(api)) is is_done


def test_trigger_that_is_not_stored_is_retried(api: FakeApi) -> None:
    _policy(api)
    raw = _trigger(api)
    version = {"kyverno-mp.io/trigger-resource-version": _version(raw)}
    with term(api) as one:
        _run(api, one, raw=raw, annotations=version, operation="UPDATE")
        assert "c" not in _labels(api)
        _trigger(api)
        one.pass_s(5.0)
        assert "c" in _labels(api)


def _version(raw: Json) -> str:
    return str(raw["metadata"]["resourceVersion"])


def test_lost_triggers_are_recovered(api: FakeApi) -> None:
    """After a lost record, the policy is synced with triggers written since then."""
    condition = [{"name": "c", "expression": "object.metadata.name == 't'"}]
    _policy(api, matchConditions=condition)
    _trigger(api)
    api.put(
        f"{_REQUESTS}/ur",
        apiVersion="kyverno.io/v2",
        kind="UpdateRequest",
        metadata={"annotations": {"kyverno-mp.io/lost-since": "1"}},
        spec={
            "requestType": "cel-mutate",
            "policy": "p",
            "rule": "",
            "deleteDownstream": False,
            "resource": {},
            "context": {},
        },
    )
    with term(api) as one:
        one.settle()
        assert "c" not in _labels(api)
        one.pass_s(60.0)
        assert "c" in _labels(api)
        assert requests_left(api) == []

"""Reports of the API server's own admission policies.

Expected rows: Kyverno pkg/utils/report/results.go, pkg/admissionpolicy/{validate,
mutate}.go. A failure means: rows of such a policy are missing or belong to another
policy, or rows of a deleted policy remain.
"""

from typing import Any

import pytest

from kyverno_mp.errors import DeadlinePassed
from kyverno_mp.limits import REPORTS_ADMISSION_POLICIES_S_MAX
from kyverno_mp.program.admission_policy.validate import LinkedValidation
from kyverno_mp.reports.plan import Plan
from kyverno_mp.reports.policies import admission_policies
from kyverno_mp.reports.scan import evaluator
from tests.unit.cleanup.cluster import resource, serve_kinds
from tests.unit.kube.fake_api import FakeApi
from tests.unit.reports.test_merging import ONCE, review, row, waits
from tests.unit.reports.world import (
    CLUSTER_REPORTS,
    NAMESPACES,
    Term,
    World,
    pod,
    policy,
    report_of,
    results,
    term,
    writes,
)
from tests.waiting import wait_for

Json = Any
_GROUP = "admissionregistration.k8s.io"
_V1 = f"/apis/{_GROUP}/v1"
_BETA = f"/apis/{_GROUP}/v1beta1"
_KIND = "ValidatingAdmissionPolicy"
_ENABLED = {"reports.kyverno.io/enabled": "true"}
_PODS = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "operations": ["CREATE"],
    "resources": ["pods"],
}
_POLICY_LISTS = r"^GET .*/validatingadmissionpolicies\?"
_BOTH = [("p", "r", "fail"), ("vap", "vap", "fail")]
_MUTATES = {"reports_mutating_admission_policies": True}


def _kinds(prefix: str, version: str) -> tuple[str, str, list[Json]]:
    kind = f"{prefix}AdmissionPolicy"
    plural = f"{prefix.lower()}admissionpolicies"
    found = [
        resource(plural, kind, scope="Cluster"),
        resource(f"{kind.lower()}bindings", f"{kind}Binding", scope="Cluster"),
    ]
    for one in found:
        one["responseKind"] |= {"group": _GROUP, "version": version}
    return _GROUP, version, found


@pytest.fixture(name="world")
def fixture_world(api: FakeApi) -> World:
    serve_kinds(api, _kinds("Validating", "v1"), _kinds("Mutating", "v1beta1"))
    world = World()
    world.serve()
    return world


def _validating(
    api: FakeApi,
    expression: str = "object.metadata.labels.?team.hasValue()",
    name: str = "vap",
    labels: Json = None,
    **spec: Json,
) -> Json:
    api.put(
        f"{_V1}/validatingadmissionpolicies/{name}",
        metadata={
            "labels": _ENABLED if labels is None else labels,
            "annotations": {
                "policies.kyverno.io/category": "C",
                "policies.kyverno.io/severity": "high",
            },
        },
        spec={
            "matchConstraints": {"resourceRules": [_PODS]},
            "validations": [{"expression": expression}],
            **spec,
        },
    )


def _bind(api: FakeApi, policy: str = "vap", name: str = "b", **spec: Json) -> None:
    api.put(
        f"{_V1}/validatingadmissionpolicybindings/{name}",
        metadata={"labels": spec.pop("labels", {})},
        spec={"policyName": policy, "validationActions": ["Deny"], **spec},
    )


def _mutating(api: FakeApi, name: str = "map") -> None:
    changed = 'Object{metadata: Object.metadata{labels: {"team": "blue"}}}'
    api.put(
        f"{_BETA}/mutatingadmissionpolicies/{name}",
        metadata={"labels": _ENABLED},
        spec={
            "matchConstraints": {"resourceRules": [_PODS]},
            "mutations": [
                {
                    "patchType": "ApplyConfiguration",
                    "applyConfiguration": {"expression": changed},
                }
            ],
            "reinvocationPolicy": "Never",
        },
    )
    api.put(
        f"{_BETA}/mutatingadmissionpolicybindings/mb",
        metadata={},
        spec={"policyName": name},
    )


def test_row_of_a_validating_policy(api: FakeApi, world: World) -> None:
    _validating(api)
    _bind(api)
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
    report = report_of(api, raw)
    assert report is not None
    [row] = report["results"]
    assert row.pop("timestamp")
    assert row == {
        "source": "ValidatingAdmissionPolicy",
        "policy": "vap",
        "rule": "vap",
        "result": "fail",
        "message": "failed expression: object.metadata.labels.?team.hasValue()",
        "properties": {"binding": "b", "process": "background scan"},
        "scored": True,
        "category": "C",
        "severity": "high",
    }
    assert report["summary"]["fail"] == 1


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({}, ("fail", "mutation is not applied")),
        ({"team": "blue"}, ("pass", "mutation is successfully applied")),
    ],
)
def test_row_of_a_mutating_policy(
    api: FakeApi, world: World, labels: dict[str, str], expected: tuple[str, str]
) -> None:
    """An object that lacks the mutation is a failure."""
    _mutating(api)
    raw = pod(api, **labels)
    with term(api, world, **_MUTATES) as one:
        one.settle()
    report = report_of(api, raw)
    assert report is not None
    [row] = report["results"]
    assert (row["result"], row["message"]) == expected
    assert row["source"] == "MutatingAdmissionPolicy"
    assert row["properties"] == {"mapBinding": "mb", "process": "background scan"}


@pytest.mark.parametrize(
    "settings",
    [
        {"reports_validating_admission_policies": False},
        {"reports_scan": False},
    ],
)
def test_settings_exclude_them(api: FakeApi, world: World, settings: Json) -> None:
    """Mutating policies are also omitted unless a setting includes them."""
    _validating(api)
    _bind(api)
    _mutating(api)
    raw = pod(api)
    with term(api, world, **settings) as one:
        one.settle()
        assert report_of(api, raw) is None


@pytest.mark.parametrize(
    ("policy", "binding"),
    [
        ({"labels": {}}, {}),
        ({"labels": {"reports.kyverno.io/enabled": "false"}}, {}),
        ({}, {"matchResources": {"namespaceSelector": {"matchLabels": {"x": "y"}}}}),
        ({}, {"matchResources": {"objectSelector": {"matchLabels": {"x": "y"}}}}),
        (
            {"matchConstraints": {"resourceRules": [{**_PODS, "apiGroups": ["apps"]}]}},
            {},
        ),
        (
            {
                "matchConstraints": {
                    "resourceRules": [{**_PODS, "operations": ["DELETE"]}]
                }
            },
            {},
        ),
    ],
)
def test_unmatched_object_has_no_row(
    api: FakeApi, world: World, policy: Json, binding: Json
) -> None:
    _validating(api, name="other")
    _bind(api, policy="other", name="other")
    _validating(api, **policy)
    _bind(api, **binding)
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
    assert results(report_of(api, raw)) == [("other", "other", "fail")]


def test_changes_of_policies_and_bindings_are_followed(
    api: FakeApi, world: World
) -> None:
    """An edit without effect costs nothing; a deleted policy's rows are removed."""
    raw = pod(api, team="blue")
    with term(api, world) as one:
        one.settle()
        assert report_of(api, raw) is None
        _validating(api)
        _bind(api)
        one.settle()
        assert results(report_of(api, raw)) == [("vap", "vap", "pass")]
        count = writes(api)
        _validating(api, labels={**_ENABLED, "more": "labels"})
        one.settle()
        assert writes(api) == count
        _validating(api, "false")
        one.settle()
        assert results(report_of(api, raw)) == [("vap", "vap", "fail")]
        _bind(api, name="z", labels={"reports.kyverno.io/disabled": ""})
        one.settle()
        report = report_of(api, raw)
        assert report is not None
        assert report["results"][0]["properties"]["binding"] == "b"
        api.remove(f"{_V1}/validatingadmissionpolicies/vap")
        one.settle()
        assert report_of(api, raw) is None


def test_new_holder_writes_nothing(api: FakeApi, world: World) -> None:
    """It waits until it knows the policies; until then, their rows are kept."""
    _validating(api)
    _bind(api)
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
    count = writes(api)
    with term(api, world) as one:
        one.settle()
    assert writes(api) == count
    assert results(report_of(api, raw)) == [("vap", "vap", "fail")]


def _has_failed(informer: Any, times: int) -> bool:
    """Return whether it failed this many times; delays between attempts are short."""
    informer.retry_now()
    return bool(informer.failures >= times)


def _with_rows_of_both(api: FakeApi, world: World) -> Json:
    """Return a Pod whose report has a ClusterPolicy row and an admission policy row."""
    _validating(api)
    _bind(api)
    world.serve(policy())
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
    assert results(report_of(api, raw)) == _BOTH
    return raw


def _work(one: Term) -> None:
    """Do the pending work with a failing watch."""
    one.reports.scan.tick()
    for each in one.reports.scan.resources.values():
        assert each.watch.informer.wait_synced(20)
    one.reports.dispatch.work_due()
    one.reports.scan.tick()


def test_rows_are_kept_while_policies_cannot_be_listed(
    api: FakeApi, world: World
) -> None:
    """REPORTS_ADMISSION_POLICIES_S_MAX bounds how long all other work waits.

    Results of reviews wait, too: without a plan, every rule would be unknown.
    """
    raw = _with_rows_of_both(api, world)
    world.serve(policy(), ONCE)
    api.fault(_POLICY_LISTS, *[503] * 999)
    with term(api, world) as one:
        reports = one.reports
        reports.scan.tick()
        informer, bindings = reports.scan.admission.informers
        assert bindings.wait_synced(20)
        wait_for(lambda: _has_failed(informer, 1))
        followed = reports.merging.results.informer
        followed.start()
        try:
            review(api, raw, row("once"), at_s=-3600)
            newest = api.version
            wait_for(lambda: int(followed.notified_version or 0) >= newest)
            reports.scan.tick()
            assert reports.scan.plan == Plan()
            assert not reports.merging.results.step(reports.merging.merge)
            assert results(report_of(api, raw)) == _BOTH
            assert waits(api)
            one.time.now_s += REPORTS_ADMISSION_POLICIES_S_MAX
            _work(one)
            assert reports.scan.plan.unknown
            assert reports.merging.results.step(reports.merging.merge)
        finally:
            followed.stop()
        assert results(report_of(api, raw)) == [("once", "r", "pass"), *_BOTH]
        world.serve(ONCE)
        _work(one)
        assert results(report_of(api, raw)) == [("once", "r", "pass"), _BOTH[1]]
        api.remove(f"{_V1}/validatingadmissionpolicies/vap")
        api.faults.clear()
        informer.retry_now()
        assert informer.wait_synced(20)
        one.settle()
        assert results(report_of(api, raw)) == [("once", "r", "pass")]


@pytest.mark.parametrize(
    ("status", "expected"), [(403, _BOTH), (404, [("p", "r", "fail")])]
)
def test_forbidden_list_is_no_empty_list(
    api: FakeApi, world: World, status: int, expected: Json
) -> None:
    """K8S: 404 is the answer for a resource that is not served."""
    raw = _with_rows_of_both(api, world)
    api.fault(_POLICY_LISTS, *[status] * 999)
    with term(api, world) as one:
        one.reports.scan.tick()
        informer, bindings = one.reports.scan.admission.informers
        assert bindings.wait_synced(20)
        wait_for(lambda: _has_failed(informer, 1))
        _work(one)
        assert results(report_of(api, raw)) == expected


def test_rows_are_deleted_when_the_setting_is_off(api: FakeApi, world: World) -> None:
    raw = _with_rows_of_both(api, world)
    with term(api, world, reports_validating_admission_policies=False) as one:
        one.settle()
    assert results(report_of(api, raw)) == [("p", "r", "fail")]


def test_missing_permission_affects_only_these_rows(api: FakeApi, world: World) -> None:
    """The watch is named in the health of the pool."""
    world.serve(policy())
    raw = pod(api)
    api.fault(_POLICY_LISTS, *[403] * 99)
    with term(api, world) as one:
        one.reports.scan.tick()
        informer, bindings = one.reports.scan.admission.informers
        wait_for(lambda: _has_failed(informer, 3))
        assert bindings.wait_synced(20)
        one.reports.scan.tick()
        [pods] = [each.watch.informer for each in one.reports.scan.resources.values()]
        assert pods.wait_synced(20)
        one.reports.dispatch.work_due()
        assert results(report_of(api, raw)) == [("p", "r", "fail")]
        assert "validatingadmissionpolicies" in " ".join(one.reports.problems())


def test_parameters_are_read(api: FakeApi, world: World) -> None:
    """They are read from the namespace of the binding; forbidden reads are errors."""
    _validating(
        api,
        "object.metadata.name == params.data.allowed",
        paramKind={"apiVersion": "v1", "kind": "ConfigMap"},
    )
    api.put(
        "/api/v1/namespaces/b/configmaps/given",
        apiVersion="v1",
        kind="ConfigMap",
        data={"allowed": "x"},
    )
    ref = {"name": "given", "namespace": "b", "parameterNotFoundAction": "Deny"}
    _bind(api, paramRef=ref)
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
        assert results(report_of(api, raw)) == [("vap", "vap", "pass")]
        api.fault("^GET .*configmaps", *[403] * 99)
        _validating(
            api,
            "object.metadata.name != params.data.allowed",
            paramKind={"apiVersion": "v1", "kind": "ConfigMap"},
        )
        one.settle()
        assert results(report_of(api, raw)) == [("vap", "vap", "error")]


def _with_params(api: FakeApi, **ref: Json) -> None:
    _validating(
        api,
        "params != null && params.data.allowed == 'x'",
        paramKind={"apiVersion": "v1", "kind": "ConfigMap"},
    )
    _bind(api, paramRef={"parameterNotFoundAction": "Deny", **ref})


def test_parameters_are_read_only_for_matches(api: FakeApi, world: World) -> None:
    """Reads are forbidden here, and objects that do not match have no error."""
    _validating(api, "true", name="other")
    _bind(api, policy="other", name="other")
    _validating(
        api,
        "object.metadata.name == params.data.allowed",
        paramKind={"apiVersion": "v1", "kind": "ConfigMap"},
        matchConstraints={
            "resourceRules": [_PODS],
            "objectSelector": {"matchLabels": {"tier": "x"}},
        },
    )
    selected = {"objectSelector": {"matchLabels": {"team": "blue"}}}
    ref = {"name": "given", "namespace": "b", "parameterNotFoundAction": "Deny"}
    _bind(api, paramRef=ref, matchResources=selected)
    neither, policy_only = pod(api, "n", team="blue"), pod(api, "p", tier="x")
    both = pod(api, "y", team="blue", tier="x")
    api.fault("^GET .*configmaps", *[403] * 99)
    with term(api, world) as one:
        one.settle()
    other = ("other", "other", "pass")
    assert results(report_of(api, neither)) == [other]
    assert results(report_of(api, policy_only)) == [other]
    assert results(report_of(api, both)) == [other, ("vap", "vap", "error")]


def test_named_parameter_is_read_alone(api: FakeApi, world: World) -> None:
    """The collection is not listed, and a batch reads the parameter once."""
    for name in ("given", "other"):
        api.put(
            f"/api/v1/namespaces/a/configmaps/{name}",
            apiVersion="v1",
            kind="ConfigMap",
            data={"allowed": "x"},
        )
    _with_params(api, name="given")
    raws = [pod(api, name) for name in ("x", "y")]
    with term(api, world) as one:
        one.settle()
    for raw in raws:
        assert results(report_of(api, raw)) == [("vap", "vap", "pass")]
    assert api.count(r"^GET /api/v1/namespaces/a/configmaps/given$") == 1
    assert not api.count(r"^GET .*configmaps(\?|$)")


def test_missing_parameter_is_not_looked_up_elsewhere(
    api: FakeApi, world: World
) -> None:
    """Other namespaces are not searched, because the kind is namespaced."""
    _with_params(api, name="given")
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
    assert results(report_of(api, raw)) == [("vap", "vap", "fail")]
    assert not api.count(r"^GET .*configmaps(\?|$)")


def test_parameter_without_a_namespace(api: FakeApi, world: World) -> None:
    api.put("/api/v1/namespaces/given", metadata={"labels": {"a": "x"}})
    _validating(
        api,
        "params.metadata.labels.a == 'x'",
        paramKind={"apiVersion": "v1", "kind": "Namespace"},
    )
    _bind(api, paramRef={"name": "given", "parameterNotFoundAction": "Deny"})
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
    assert results(report_of(api, raw)) == [("vap", "vap", "pass")]


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("evaluate", DeadlinePassed("deadline.passed", "too late")),
        ("evaluate", RuntimeError("secret text")),
        ("__init__", RuntimeError("secret text")),
    ],
)
def test_failing_policy_is_an_error_and_the_others_have_results(
    api: FakeApi,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    error: Exception,
) -> None:
    """An internal error is never 'no result' and does not end an evaluator."""
    _validating(api)
    _bind(api)
    _mutating(api)
    world.serve(policy())
    raw = pod(api)

    def broken(*_: object, **_more: object) -> None:
        raise error

    monkeypatch.setattr(LinkedValidation, where, broken)
    with term(api, world, **_MUTATES) as one:
        one.settle()
    report = report_of(api, raw)
    assert sorted(results(report)) == [
        ("map", "map", "fail"),
        ("p", "r", "fail"),
        ("vap", "vap", "error"),
    ]
    assert "secret text" not in str(report)


def test_exceeded_time_is_an_error_only_for_matches(
    api: FakeApi, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REPORTS_OBJECT_S_MAX."""
    monkeypatch.setattr(evaluator, "REPORTS_OBJECT_S_MAX", -1)
    _validating(api)
    _bind(api)
    _validating(
        api,
        name="other",
        matchConstraints={
            "resourceRules": [_PODS],
            "objectSelector": {"matchLabels": {"tier": "x"}},
        },
    )
    _bind(api, policy="other", name="other")
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
    assert results(report_of(api, raw)) == [("vap", "vap", "error")]


def test_cluster_objects(api: FakeApi, world: World) -> None:
    rule = {**_PODS, "resources": ["namespaces"]}
    _validating(api, "false", matchConstraints={"resourceRules": [rule]})
    _bind(api)
    raw = api.put(f"{NAMESPACES}/a", metadata={})
    with term(api, world) as one:
        one.settle()
    assert results(report_of(api, raw, CLUSTER_REPORTS)) == [("vap", "vap", "fail")]


def test_data_too_large_for_an_evaluator(
    api: FakeApi, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REPORTS_POLICIES_BYTES_MAX."""
    _validating(api, name="a")
    _bind(api, policy="a", name="a")
    _validating(api, name="b")
    monkeypatch.setattr(admission_policies, "REPORTS_POLICIES_BYTES_MAX", 900)
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
        assert results(report_of(api, raw)) == [("a", "a", "fail")]
        [problem] = one.reports.problems()
    assert problem == (
        "1 admission policies above the limit of 2097152 bytes are not reported"
    )


def test_failure_creates_events(api: FakeApi, world: World) -> None:
    """The object and the policy get events, with the policy's kind and uid."""
    _validating(api)
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
        on_object, on_policy = one.recorded.events
    with api.lock:
        uid = next(
            found["metadata"]["uid"]
            for key, found in api.objects.items()
            if key[3] == "vap"
        )
    assert on_object.regarding.uid == raw["metadata"]["uid"]
    assert on_object.note.startswith("policy vap/vap fail: ")
    on = on_policy.regarding
    assert (on.api_version, on.kind, on.name) == (_V1[6:], _KIND, "vap")
    assert (on.namespace, on.uid) == ("", uid)
    assert on_policy.note.startswith("Pod a/x: [vap] fail; ")

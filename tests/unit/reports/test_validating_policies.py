"""Reports of ValidatingPolicies and NamespacedValidatingPolicies.

Expected rows: Kyverno pkg/utils/report/results.go, pkg/controllers/report. A failure
means: rows of such a policy are missing or belong to another policy, or rows of a
deleted policy remain.
"""

from typing import Any

import pytest

from kyverno_mp.errors import ExpressionFailed, KubeUnavailable
from kyverno_mp.kube.policy_events import CEL_POLICY_VERSION
from kyverno_mp.program.ports import CelPorts
from kyverno_mp.program.validating_policy.evaluate import LinkedValidatingPolicy
from kyverno_mp.results.entries import Row
from kyverno_mp.snapshot.cel_segments import ValidatingSegment
from tests.unit.cleanup.cluster import resource, serve_kinds
from tests.unit.kube.fake_api import FakeApi
from tests.unit.reports.test_merging import holding, merge, review, waits
from tests.unit.reports.world import (
    CLUSTER_REPORTS,
    NAMESPACES,
    World,
    new_cluster,
    pod,
    policy,
    report_of,
    results,
    term,
    writes,
)

Json = Any
PODS = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "operations": ["CREATE", "UPDATE"],
    "resources": ["pods"],
}
TEAM = "has(object.metadata.labels) && 'team' in object.metadata.labels"
CALLS = "resource.get('v1', 'configmaps', 'a', 'c').data.k == 'v'"


def vpol(
    name: str = "v",
    expression: str = TEAM,
    *,
    namespace: str = "",
    metadata: Json = None,
    rule: Json = None,
    **spec: Json,
) -> Json:
    """Return a policy that requires the label ``team``."""
    where = {"namespace": namespace} if namespace else {}
    return {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": "NamespacedValidatingPolicy" if namespace else "ValidatingPolicy",
        "metadata": {"name": name, **where, **(metadata or {})},
        "spec": {
            "matchConstraints": {"resourceRules": [{**PODS, **(rule or {})}]},
            "validations": [{"expression": expression, "message": "no team"}],
            **spec,
        },
    }


def off(**which: bool) -> Json:
    return {name: {"enabled": is_on} for name, is_on in which.items()}


def cel_exception(name: str = "v", kind: str = "ValidatingPolicy") -> Json:
    return {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": "PolicyException",
        "metadata": {"name": "x", "namespace": "kyverno"},
        "spec": {
            "policyRefs": [{"name": name, "kind": kind}],
            "matchConditions": [
                {"name": "n", "expression": "object.metadata.name == 'x'"}
            ],
        },
    }


class Resources:
    """A ``resource`` port that returns a ConfigMap or fails."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def get(self, *_asked: object) -> Json:
        if self.error is not None:
            raise self.error
        return {"data": {"k": "v"}}

    def list(self, *_asked: object) -> Json:
        return {"items": []}

    def post(self, *_asked: object) -> Json:
        return {}

    def plural(self, *_asked: object) -> str:
        return "pods"


class NamespaceObjects:
    """A ``namespaceObject`` port."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def namespace(self, name: str, _deadline_ns: int) -> Json:
        if self.error is not None:
            raise self.error
        return {"metadata": {"name": name}}


@pytest.fixture(name="world")
def fixture_world(api: FakeApi) -> World:
    return new_cluster(api)


def told(api: FakeApi, raw: Json) -> list[tuple[str, str]]:
    """Return (policy, result) of each row, none without a report."""
    report = report_of(api, raw)
    return [] if report is None else [one[::2] for one in results(report)]


def test_row(api: FakeApi, world: World) -> None:
    annotations = {
        "policies.kyverno.io/category": "C",
        "policies.kyverno.io/severity": "high",
    }
    audited = [{"key": "name", "valueExpression": "string(object.metadata.name)"}]
    world.serve(vpol(metadata={"annotations": annotations}, auditAnnotations=audited))
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
    report = report_of(api, raw)
    assert report is not None
    [row] = report["results"]
    assert row.pop("timestamp")
    assert row == {
        "source": "KyvernoValidatingPolicy",
        "policy": "v",
        "result": "fail",
        "message": "no team",
        "properties": {
            "name": "x",
            "process": "background scan",
            "cel.validationIndex": "0",
        },
        "scored": True,
        "category": "C",
        "severity": "high",
    }
    assert report["summary"]["fail"] == 1


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (vpol(), "fail"),
        (vpol(expression="true"), "pass"),
        (vpol(expression="object.spec.lacks == 1"), "error"),
        (
            vpol(metadata={"annotations": {"policies.kyverno.io/scored": "false"}}),
            "warn",
        ),
        (vpol(matchConditions=[{"name": "n", "expression": "false"}]), "skip"),
        (vpol(evaluation=off(admission=False)), "fail"),
        (vpol(namespace="a"), "fail"),
        (vpol(namespace="b"), None),
        (vpol(evaluation=off(background=False)), None),
        (vpol(evaluation={"mode": "JSON"}), None),
        (vpol(rule={"operations": ["UPDATE"]}), None),
        (vpol(rule={"apiGroups": ["apps"]}), None),
        (vpol(rule={"resources": ["pods/ephemeralcontainers"]}), None),
        (vpol(metadata={"labels": {"reports.kyverno.io/disabled": ""}}), None),
    ],
)
def test_scanned_policies(
    api: FakeApi, world: World, document: Json, expected: str | None
) -> None:
    world.serve(document, policy())
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
    found = dict(told(api, raw))
    found.pop("p")
    assert list(found.values()) == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    "settings", [{"reports_of": "mutate"}, {"reports_scan": False}]
)
def test_settings_exclude_them(api: FakeApi, world: World, settings: Json) -> None:
    world.serve(vpol())
    raw = pod(api)
    with term(api, world, **settings) as one:
        one.settle()
    assert report_of(api, raw) is None


def test_exception(api: FakeApi, world: World) -> None:
    """It changes the rows of objects that were already scanned."""
    world.serve(vpol())
    raw, other = pod(api), pod(api, "y")
    with term(api, world) as one:
        one.settle()
        world.serve(vpol(), exceptions=(cel_exception(),))
        one.settle()
    report = report_of(api, raw)
    assert report is not None
    [row] = report["results"]
    assert (row["result"], row["rule"]) == ("skip", "exception")
    assert row["properties"]["exceptions"] == "x"
    assert told(api, other) == [("v", "fail")]


def test_failing_exception_exempts_nothing(
    api: FakeApi, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a review, its author cannot turn the policy into an error."""
    failing = cel_exception()
    failing["spec"]["matchConditions"][0]["expression"] = "object.spec.none == 'x'"
    world.serve(vpol(), exceptions=(failing,))
    raw, other = pod(api), pod(api, "y", team="t")
    with term(api, world) as one:
        one.settle()
    assert told(api, raw) == [("v", "fail")]
    assert told(api, other) == [("v", "pass")]
    assert caplog.text.count("an exception exempts nothing") == 1


def test_rows_follow_policies_and_objects(api: FakeApi, world: World) -> None:
    """Nothing is written unless an input of the rules changed."""
    world.serve(vpol(), vpol("w"), policy())
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
        assert told(api, raw) == [("p", "fail"), ("v", "fail"), ("w", "fail")]
        world.serve(vpol(expression="true"), policy())
        one.settle()
        assert told(api, raw) == [("p", "fail"), ("v", "pass")]
        before = writes(api), one.evaluators.objects
        world.serve(vpol(expression="true", metadata={"labels": {"a": "b"}}), policy())
        one.settle()
        assert (writes(api), one.evaluators.objects) == before
        world.serve(vpol(), policy())
        one.settle()
        raw = pod(api, team="t")
        one.settle()
        assert told(api, raw) == [("p", "pass"), ("v", "pass")]
        world.serve()
        one.settle()
    assert report_of(api, raw) is None


def test_labels_of_the_namespace(api: FakeApi, world: World) -> None:
    selector = {"namespaceSelector": {"matchLabels": {"env": "prod"}}}
    document = vpol()
    document["spec"]["matchConstraints"] |= selector
    world.serve(document)
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
        assert report_of(api, raw) is None
        world.label("a", env="prod")
        one.settle()
        assert told(api, raw) == [("v", "fail")]
        world.label("a")
        one.settle()
        assert report_of(api, raw) is None


def test_cluster_objects_have_no_namespaced_policies(
    api: FakeApi, world: World
) -> None:
    """As in reviews, a namespaced policy applies only to its namespace."""
    rule = {"resources": ["namespaces"]}
    world.serve(vpol(rule=rule), vpol("n", namespace="a", rule=rule))
    raw = api.put(f"{NAMESPACES}/a", metadata={})
    with term(api, world) as one:
        one.settle()
    assert results(report_of(api, raw, CLUSTER_REPORTS)) == [("v", "", "fail")]


def test_rows_about_a_secret_contain_no_values(api: FakeApi, world: World) -> None:
    audited = [{"key": "k", "valueExpression": "string(object.data.password)"}]
    document = vpol(rule={"resources": ["secrets"]}, auditAnnotations=audited)
    [validation] = document["spec"]["validations"]
    validation["messageExpression"] = "string(object.data.password)"
    validation.pop("message")
    world.serve(document)
    raw = api.put(
        "/api/v1/namespaces/a/secrets/s", metadata={}, data={"password": "hunter2"}
    )
    with term(api, world) as one:
        one.settle()
    report = report_of(api, raw)
    assert results(report) == [("v", "", "fail")]
    assert "hunter2" not in str(report)


def test_unlinkable_policy(
    api: FakeApi, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It affects only its own rows, and only of objects that it matches."""
    link = LinkedValidatingPolicy.__init__

    def broken(self: LinkedValidatingPolicy, ir: Any) -> None:
        if ir.policy.name != "v":
            raise RuntimeError("broken")
        link(self, ir)

    monkeypatch.setattr(LinkedValidatingPolicy, "__init__", broken)
    elsewhere = vpol("z")
    elsewhere["spec"]["matchConstraints"]["objectSelector"] = {
        "matchLabels": {"no": "where"}
    }
    world.serve(vpol(), vpol("w"), elsewhere, policy())
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
    assert told(api, raw) == [("p", "fail"), ("v", "fail"), ("w", "error")]


def test_unreadable_namespace(api: FakeApi, world: World) -> None:
    """The rows of policies that read it stay; the other rows are written."""
    port = NamespaceObjects()
    labelled = "namespaceObject.metadata.name == 'a'"
    world.serve(vpol("n", labelled), vpol())
    raw = pod(api)
    with term(api, world, cel=CelPorts(namespaces=port)) as one:
        one.settle()
        assert told(api, raw) == [("n", "pass"), ("v", "fail")]
        port.error = KubeUnavailable("kube.down", "it is down")
        raw = pod(api, team="t")
        one.settle()
        assert told(api, raw) == [("n", "pass"), ("v", "pass")]
        world.serve(vpol("n", f"!({labelled})"), vpol())
        port.error = None
        one.pass_s(5)
        assert told(api, raw) == [("n", "fail"), ("v", "pass")]


def test_failing_call(api: FakeApi, world: World) -> None:
    """As in a review, it is an error of the expression."""
    port = Resources()
    world.serve(vpol("c", CALLS), vpol())
    raw = pod(api)
    with term(api, world, cel=CelPorts(resources=port)) as one:
        one.settle()
        assert told(api, raw) == [("c", "pass"), ("v", "fail")]
        port.error = ExpressionFailed("resource.failed", "it is down")
        one.pass_s(3601)
    assert told(api, raw) == [("c", "error"), ("v", "fail")]


def test_data_that_a_policy_reads(api: FakeApi, world: World) -> None:
    """A change of the data re-evaluates the kinds of all policies with such reads."""
    port = Resources()
    world.serve(vpol("c", CALLS))
    pod(api)
    with term(api, world, cel=CelPorts(resources=port)) as one:
        one.settle()
        before = one.evaluators.objects
        world.data = (2,)
        one.pass_s(11)
        assert one.evaluators.objects == before + 1


def test_unpublished_policies(api: FakeApi, world: World) -> None:
    """Rows that may belong to these policies stay; everything else is reported."""
    world.serve(vpol(), policy())
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
    with term(api, world) as one:
        known: ValidatingSegment | None = world.cel
        world.cel = None
        one.settle()
        pod(api, "y")
        one.settle()
        assert told(api, raw) == [("p", "fail"), ("v", "fail")]
        world.cel = known
        one.settle()
        assert told(api, raw) == [("p", "fail"), ("v", "fail")]


def test_outdated_evaluator(api: FakeApi, world: World) -> None:
    """Its results are ignored unless it has the coordinator's policies."""
    world.serve(vpol(), policy())
    raw = pod(api)
    with term(api, world) as one:
        evaluator = one.evaluators.evaluator
        newest = evaluator._cel_policies
        evaluator._cel_policies = lambda _segment: None
        one.settle()
        assert report_of(api, raw) is None
        evaluator._cel_policies = newest
        one.pass_s(2)
        assert told(api, raw) == [("p", "fail"), ("v", "fail")]


def test_autogen_for_controllers(api: FakeApi) -> None:
    """A report has one row for a policy and its autogen copies."""
    deployments = resource("deployments", "Deployment")
    deployments["responseKind"] |= {"group": "apps"}
    serve_kinds(api, ("apps", "v1", [deployments]))
    world = World()
    world.serve(vpol(expression="object.spec.containers.size() > 0"))
    raw = api.put(
        "/apis/apps/v1/namespaces/a/deployments/d",
        metadata={},
        spec={"template": {"metadata": {}, "spec": {"containers": []}}},
    )
    with term(api, world) as one:
        one.settle()
    assert told(api, raw) == [("v", "fail")]


def test_events_name_the_policy(api: FakeApi, world: World) -> None:
    world.serve(vpol())
    pod(api)
    with term(api, world) as one:
        one.settle()
        [about] = {
            (info.regarding.api_version, info.regarding.kind, info.regarding.name)
            for info in one.recorded.events
            if info.regarding.kind != "Pod"
        }
    assert about == (CEL_POLICY_VERSION, "ValidatingPolicy", "v")


def reviewed(name: str = "v", result: str = "pass") -> Row:
    return Row(source="KyvernoValidatingPolicy", policy=name, result=result)


@pytest.mark.parametrize(
    ("document", "stands"),
    [
        (vpol(evaluation=off(background=False)), True),
        (vpol(rule={"operations": ["UPDATE"]}), True),
        (vpol(expression="oldObject == null"), True),
        (vpol(expression="request.operation == 'CREATE'"), True),
        (vpol(), False),
        (vpol(namespace="b"), False),
        (vpol(metadata={"labels": {"reports.kyverno.io/disabled": ""}}), False),
    ],
)
def test_results_of_reviews(api: FakeApi, document: Json, *, stands: bool) -> None:
    """They are merged if no scan derives them, and are deleted with their policy."""
    world = new_cluster(api)
    world.serve(document)
    raw = pod(api, team="t")
    with holding(api, world) as one:
        review(api, raw, reviewed(result="error"), at_s=60)
        merge(one)
        assert (("v", "error") in told(api, raw)) is stands
        world.serve()
        one.settle()
        one.pass_s(100)
        merge(one)
    assert report_of(api, raw) is None
    assert not waits(api)

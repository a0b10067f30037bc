"""Scans and reports on a small cluster (docs/behaviour/controllers 6.3 to 6.6)."""

from typing import Any

import pytest

from tests.unit.kube.fake_api import FakeApi
from tests.unit.reports.world import (
    CLUSTER_REPORTS,
    NAMESPACES,
    NOW_S,
    OPEN_REPORTS,
    REPORTS,
    labelled,
    new_cluster,
    pod,
    policy,
    report_of,
    results,
    stored_reports,
    term,
    writes,
)

Json = Any


def test_report_of_an_object_has_upstreams_fields(api: FakeApi) -> None:
    """Name, labels, owner, scope, summary and rows of 6.5 and 6.6."""
    world = new_cluster(api)
    world.serve(
        policy(
            metadata={
                "annotations": {
                    "policies.kyverno.io/category": "C",
                    "policies.kyverno.io/severity": "high",
                }
            }
        )
    )
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
    report = report_of(api, raw)
    assert report is not None
    uid = raw["metadata"]["uid"]
    metadata = report.pop("metadata")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": uid}
    assert metadata["name"] == uid
    assert metadata["namespace"] == "a"
    assert metadata["labels"] == {"app.kubernetes.io/managed-by": "kyverno"}
    assert metadata["ownerReferences"] == [owner]
    assert report == {
        "apiVersion": "wgpolicyk8s.io/v1alpha2",
        "kind": "PolicyReport",
        "scope": {**owner, "namespace": "a"},
        "summary": {"pass": 0, "fail": 1, "warn": 0, "error": 0, "skip": 0},
        "results": [
            {
                "source": "kyverno",
                "policy": "p",
                "rule": "r",
                "timestamp": {"seconds": NOW_S, "nanos": 0},
                "result": "fail",
                "properties": {"process": "background scan"},
                "message": "validation error: the label team is required. rule r failed"
                " at path /metadata/labels/team/",
                "scored": True,
                "category": "C",
                "severity": "high",
            }
        ],
    }


def test_cluster_objects_have_cluster_reports(api: FakeApi) -> None:
    """A Namespace has no namespace, so its report has none either."""
    world = new_cluster(api)
    world.serve(policy("p", labelled(kinds=("Namespace",))))
    raw = api.put(f"{NAMESPACES}/a", metadata={"labels": {"team": "t"}})
    with term(api, world) as one:
        one.settle()
    report = report_of(api, raw, CLUSTER_REPORTS)
    assert results(report) == [("p", "r", "pass")]
    assert report is not None
    assert report["kind"] == "ClusterPolicyReport"
    assert "namespace" not in report["metadata"]


def test_openreports_can_be_enabled(api: FakeApi) -> None:
    """openreports.io has the same fields (6.7)."""
    world = new_cluster(api)
    world.serve(policy())
    raw = pod(api)
    with term(api, world, reports_open=True) as one:
        one.settle()
    report = report_of(api, raw, OPEN_REPORTS)
    assert results(report) == [("p", "r", "fail")]
    assert report is not None
    assert (report["apiVersion"], report["kind"]) == (
        "openreports.io/v1alpha1",
        "Report",
    )


def test_second_holder_writes_nothing(api: FakeApi) -> None:
    """Digests are read from the existing reports, so a failover rewrites nothing."""
    world = new_cluster(api)
    world.serve(policy())
    for at in range(5):
        pod(api, f"x{at}")
    with term(api, world) as one:
        one.settle()
    assert writes(api) == 5
    with term(api, world) as other:
        other.settle()
        assert other.evaluators.objects == 5
        other.pass_s(3601)
        assert other.evaluators.objects == 10
    assert writes(api) == 5


def test_change_without_effect_evaluates_nothing(api: FakeApi) -> None:
    """Only inputs of the rules count: not the status, not other annotations."""
    world = new_cluster(api)
    world.serve(policy())
    pod(api)
    with term(api, world) as one:
        one.settle()
        before = one.evaluators.objects
        pod(api, status="Running")
        world.serve(policy(metadata={"annotations": {"note": "n"}}))
        one.settle()
        assert one.evaluators.objects == before
        assert writes(api) == 1


def test_changed_object_is_evaluated_and_its_report_updated(api: FakeApi) -> None:
    """One evaluation and one write; the unchanged row keeps its timestamp."""
    world = new_cluster(api)
    world.serve(policy("p", labelled("r"), labelled("s", label="app")))
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
        before = one.evaluators.objects
        one.time.now_s += 10
        raw = pod(api, team="t")
        one.settle()
        assert one.evaluators.objects == before + 1
    report = report_of(api, raw)
    assert results(report) == [("p", "r", "pass"), ("p", "s", "fail")]
    assert report is not None
    assert report["summary"]["pass"] == 1
    times = [row["timestamp"]["seconds"] for row in report["results"]]
    assert times == [NOW_S + 10, NOW_S]
    assert writes(api) == 2


def test_effects_of_policy_changes(api: FakeApi) -> None:
    """A deleted rule's row is removed; the report is deleted with its last row."""
    world = new_cluster(api)
    world.serve(policy("p", labelled("r"), labelled("s")), policy("q"))
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
        world.serve(policy("p", labelled("s")), policy("q"))
        one.settle()
        assert results(report_of(api, raw)) == [("p", "s", "fail"), ("q", "r", "fail")]
        label = {"labels": {"reports.kyverno.io/disabled": ""}}
        world.serve(policy("p", labelled("s"), metadata=label), policy("q"))
        one.settle()
        assert results(report_of(api, raw)) == [("q", "r", "fail")]
        world.serve(policy("q", background=False))
        one.settle()
        # A review's result may be present; it stays until a newer result replaces it.
        assert results(report_of(api, raw)) == [("q", "r", "fail")]
        world.serve()
        one.settle()
        assert report_of(api, raw) is None
        assert not one.reports.scan.resources


def test_rule_for_other_kinds_deletes_its_old_rows(api: FakeApi) -> None:
    """The kind is no longer scanned, so its scan rows are removed."""
    world = new_cluster(api)
    world.serve(policy())
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
        world.serve(policy("p", labelled(kinds=("ConfigMap",))))
        one.settle()
        assert report_of(api, raw) is None


def test_exceptions_are_skips(api: FakeApi) -> None:
    """A PolicyException causes a skip that names it; deleting it reverts the skip."""
    world = new_cluster(api)
    exception = {
        "apiVersion": "kyverno.io/v2",
        "kind": "PolicyException",
        "metadata": {"name": "e", "namespace": "a"},
        "spec": {
            "exceptions": [{"policyName": "p", "ruleNames": ["r"]}],
            "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
        },
    }
    world.serve(policy(), exceptions=(exception,))
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
        report = report_of(api, raw)
        assert results(report) == [("p", "r", "skip")]
        assert report is not None
        assert report["results"][0]["properties"]["exceptions"] == "e"
        spec = {**exception["spec"], "background": False}  # type: ignore[dict-item]
        world.serve(policy(), exceptions=({**exception, "spec": spec},))
        one.settle()
        assert results(report_of(api, raw)) == [("p", "r", "fail")]


def test_changed_namespace_labels_rescan_only_its_objects(api: FakeApi) -> None:
    """Other namespaces, and rules that read no labels, are not evaluated."""
    world = new_cluster(api)
    selector: Json = {"namespaceSelector": {"matchLabels": {"env": "prod"}}}
    world.serve(policy("p", labelled(**selector)))
    raw = pod(api)
    pod(api, "y", namespace="b")
    with term(api, world) as one:
        one.settle()
        assert report_of(api, raw) is None
        before = one.evaluators.objects
        world.label("a", env="prod")
        one.settle()
        assert one.evaluators.objects == before + 1
        assert results(report_of(api, raw)) == [("p", "r", "fail")]


def test_namespaced_policy_reports_only_its_namespace(api: FakeApi) -> None:
    """Its key has the namespace."""
    world = new_cluster(api)
    world.serve(policy(namespace="a"))
    raw, other = pod(api), pod(api, "y", namespace="b")
    with term(api, world) as one:
        one.settle()
    assert results(report_of(api, raw)) == [("a/p", "r", "fail")]
    assert report_of(api, other) is None


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"reports_results": "pass,error"}, None),
        ({"reports_of": "mutate"}, None),
        ({"reports_scan": False}, None),
        ({"reports_store": False}, None),
        ({"reports_aggregate": False}, None),
        ({"reports_results": "fail"}, [("p", "r", "fail")]),
    ],
)
def test_settings_exclude_objects_and_results(
    api: FakeApi, settings: dict[str, Any], expected: Any
) -> None:
    """allowedResults, enableReporting, backgroundScan, policyReports (6.1, 6.5)."""
    world = new_cluster(api)
    world.serve(policy())
    raw = pod(api)
    with term(api, world, **settings) as one:
        one.settle()
    report = report_of(api, raw)
    assert (None if report is None else results(report)) == expected


@pytest.mark.parametrize(("ignores", "expected"), [(True, ["x", "y"]), (False, ["y"])])
def test_filters_count_in_scans_only_by_a_setting(
    api: FakeApi, expected: list[str], *, ignores: bool
) -> None:
    """The flag skipResourceFilters (6.4)."""
    world = new_cluster(api)
    world.serve(policy())
    pod(api)
    pod(api, "y")
    with term(
        api,
        world,
        reports_scan_ignores_filters=ignores,
        is_filtered=lambda request: request.name == "x",
    ) as one:
        one.settle()
    reports = stored_reports(api).values()
    assert sorted(raw["scope"]["name"] for raw in reports) == expected


def test_everything_is_evaluated_again_after_the_interval(api: FakeApi) -> None:
    """The flag backgroundScanInterval (6.4)."""
    world = new_cluster(api)
    world.serve(policy())
    pod(api)
    with term(api, world, reports_scan_interval_s=600) as one:
        one.settle()
        one.pass_s(599)
        assert one.evaluators.objects == 1
        one.pass_s(2)
        assert one.evaluators.objects == 2


def test_foreign_report_is_not_changed(api: FakeApi) -> None:
    """Reports without the label of Kyverno are never modified (6.6)."""
    world = new_cluster(api)
    world.serve(policy())
    raw = pod(api)
    path = f"{REPORTS.format('a')}/{raw['metadata']['uid']}"
    api.put(path, metadata={}, results=[{"policy": "theirs"}])
    with term(api, world) as one:
        one.settle()
    report = report_of(api, raw)
    assert report is not None
    assert report["results"] == [{"policy": "theirs"}]


def test_foreign_rows_in_a_report_stay(api: FakeApi) -> None:
    """Labels and annotations from other writers survive an update."""
    world = new_cluster(api)
    world.serve(policy())
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
        report = report_of(api, raw)
        assert report is not None
        labels = {**report["metadata"]["labels"], "mine": "1"}
        metadata = {**report["metadata"], "labels": labels}
        api.put(
            f"{REPORTS.format('a')}/{raw['metadata']['uid']}",
            **{**report, "metadata": metadata},
        )
        raw = pod(api, team="t")
        one.settle()
    report = report_of(api, raw)
    assert results(report) == [("p", "r", "pass")]
    assert report is not None
    assert report["metadata"]["labels"]["mine"] == "1"


@pytest.mark.parametrize("kind", ["v1/*", "v1/P*", "P*"])
def test_kinds_with_wildcards_are_scanned(api: FakeApi, kind: str) -> None:
    """Only ``*`` alone is illegal in the background (engine 10.6)."""
    world = new_cluster(api)
    world.serve(policy("p", labelled(kinds=(kind,))))
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
        assert results(report_of(api, raw)) == [("p", "r", "fail")]


@pytest.mark.parametrize("kind", ["Pod/exec", "*/scale"])
def test_parents_of_named_subresources_are_not_watched(api: FakeApi, kind: str) -> None:
    """No rule evaluates them; ``*/scale`` would watch every kind of the cluster."""
    world = new_cluster(api)
    world.serve(policy("p", labelled(kinds=(kind,))))
    pod(api)
    with term(api, world) as one:
        one.settle()
        assert not api.count(r"^GET /api/v1/(pods|configmaps|namespaces|secrets)")

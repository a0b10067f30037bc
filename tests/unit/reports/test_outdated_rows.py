"""Rows of rules that are deleted, or no longer name the kind, leave the reports.

A failure means: a report permanently contains a row that no policy produces any more.
"""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.results.entries import Row, Subject
from tests.image_rig import Contents, Signer, serving
from tests.unit.cleanup.cluster import resource, serve_kinds
from tests.unit.kube.fake_api import FakeApi
from tests.unit.reports.test_images import Registry, verifying
from tests.unit.reports.test_images import pod as pod_with
from tests.unit.reports.test_validating_policies import vpol
from tests.unit.reports.world import (
    World,
    labelled,
    new_cluster,
    pod,
    policy,
    report_of,
    results,
    term,
)
from tests.unit.webhook.images import test_image_policies as reviews

Json = Any


@pytest.fixture(name="world")
def fixture_world(api: FakeApi) -> World:
    return new_cluster(api)


@pytest.fixture(name="registry")
def fixture_registry(tmp_path: Path) -> Iterator[Registry]:
    contents = Contents()
    with serving(contents, is_canned=False) as host:
        yield Registry(contents, host, tmp_path)


def _rule_of(raw: Json) -> tuple[Json, Json]:
    """Return a policy for Pods alone, and an equal policy for ConfigMaps."""
    raw["metadata"]["annotations"] = {
        "pod-policies.kyverno.io/autogen-controllers": "none"
    }
    moved = copy.deepcopy(raw)
    moved["spec"]["rules"][0]["match"]["any"][0]["resources"]["kinds"] = ["ConfigMap"]
    return raw, moved


def _policy_of(raw: Json) -> tuple[Json, Json]:
    raw["spec"]["autogen"] = {"podControllers": {"controllers": []}}
    moved = copy.deepcopy(raw)
    rules = moved["spec"]["matchConstraints"]["resourceRules"]
    rules[0]["resources"] = ["configmaps"]
    return raw, moved


@pytest.mark.parametrize("rest", [[], [("q", "r", "fail")]])
@pytest.mark.parametrize("kind", ["rule", "policy"])
def test_rows_about_images_are_deleted_with_their_kind(
    api: FakeApi, world: World, registry: Registry, kind: str, rest: list[Json]
) -> None:
    """This holds whether or not the other lane still scans Pods."""
    before, after = (
        _rule_of(verifying(registry))
        if kind == "rule"
        else _policy_of(reviews.policy(signer=registry.signer))
    )
    other = (policy("q", labelled()),) if rest else ()
    world.serve(before, *other)
    raw = pod_with(api, "x", registry.bare)
    with term(api, world, images=registry.served()) as one:
        one.settle()
        assert len(results(report_of(api, raw))) == 1 + len(rest)
        world.serve(after, *other)
        one.settle()
        report = report_of(api, raw)
        assert (results(report) if report else []) == rest
        # The rows return with the kind.
        world.serve(before, *other)
        one.settle()
        assert len(results(report_of(api, raw))) == 1 + len(rest)


def test_review_rows_are_deleted_when_scans_cover_other_kinds(
    api: FakeApi, world: World
) -> None:
    """``background`` becomes true at the same time as the kinds change."""
    other = policy("q", labelled(label="z"))
    world.serve(policy("p", labelled()), other)
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
        world.serve(policy("p", labelled(), background=False), other)
        one.settle()
        assert results(report_of(api, raw)) == [("p", "r", "fail"), ("q", "r", "fail")]
        world.serve(policy("p", labelled(kinds=("ConfigMap",))), other)
        one.settle()
        assert results(report_of(api, raw)) == [("q", "r", "fail")]


@pytest.mark.parametrize("work", ["scan", "review"])
def test_concurrent_write_restores_no_row_of_a_deleted_policy(
    api: FakeApi, world: World, work: str
) -> None:
    """The policy is deleted and reports are swept before the write is answered."""
    rest = policy("q", labelled(label="other"))
    gone = policy("gone", labelled(), background=work == "scan")
    world.serve(rest)
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
        world.serve(rest, gone)
        one.reports.scan.tick()
        one.catch_up()

        def delete(method: str, target: str) -> None:
            if method in ("PATCH", "PUT") and "policyreports" in target:
                api.on_request = lambda _method, _target: None
                world.serve(rest)
                one.reports.scan.tick()

        api.on_request = delete
        if work == "scan":
            one.reports.dispatch.work_due()
        else:
            row = Row(source="kyverno", policy="gone", rule="r", result="fail")
            one.reports.merging.merge(_subject_of(raw), [row])
        one.settle()
        one.pass_s(2)
        assert {policy for policy, _, _ in results(report_of(api, raw))} == {"q"}


def test_concurrent_write_keeps_results_of_a_policy_that_was_added(
    api: FakeApi, world: World
) -> None:
    """A review by the new policy is merged before the write of a scan arrives."""
    old = policy("p", labelled())
    world.serve(old)
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
        raw = pod(api, team="blue")
        one.catch_up()

        def merge(method: str, target: str) -> None:
            if method in ("PATCH", "PUT") and "policyreports" in target:
                api.on_request = lambda _method, _target: None
                world.serve(old, policy("added", labelled(), background=False))
                one.reports.scan.tick()
                row = Row(source="kyverno", policy="added", rule="r", result="pass")
                assert one.reports.merging.merge(_subject_of(raw), [row])

        api.on_request = merge
        one.reports.dispatch.work_due()
        one.settle()
        one.pass_s(2)
        assert results(report_of(api, raw)) == [
            ("added", "r", "pass"),
            ("p", "r", "pass"),
        ]


def test_report_with_another_version_of_its_object_keeps_its_rows(
    api: FakeApi,
) -> None:
    """A review can begin the report, and requests choose their version."""
    kind = "HorizontalPodAutoscaler"
    served = [resource("horizontalpodautoscalers", kind)]
    serve_kinds(api, ("autoscaling", "v2", served), ("autoscaling", "v1", served))
    world = World()
    rule = labelled(kinds=(kind,))
    given = policy("scanned", rule), policy("reviewed", rule, background=False)
    world.serve(*given)
    path = "/apis/autoscaling/v2/namespaces/a/horizontalpodautoscalers/x"
    raw = api.put(path, spec={})
    with term(api, world) as one:
        one.reports.scan.tick()
        subject = _subject_of(raw, "autoscaling/v1", kind)
        row = Row(source="kyverno", policy="reviewed", rule="r", result="pass")
        assert one.reports.merging.merge(subject, [row])
        one.settle()
        report = report_of(api, raw)
        assert report is not None
        assert report["scope"]["apiVersion"] == "autoscaling/v1"
        both = [("reviewed", "r", "pass"), ("scanned", "r", "fail")]
        assert results(report) == both
        world.serve(*given, policy("other", labelled(kinds=("ConfigMap",))))
        one.settle()
        assert results(report_of(api, raw)) == both


def _subject_of(raw: Json, api_version: str = "v1", kind: str = "Pod") -> Subject:
    metadata = raw["metadata"]
    return Subject(
        api_version=api_version,
        kind=kind,
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
    )


def _rule_by(label: str) -> Json:
    return policy("p", labelled(label=label))


def _cel_by(label: str) -> Json:
    return vpol(expression=f"'{label}' in object.metadata.labels")


@pytest.mark.parametrize("made", [_rule_by, _cel_by])
def test_edit_undone_before_the_plan_follows_leaves_no_rows(
    api: FakeApi, world: World, made: Callable[[str], Json]
) -> None:
    """Evaluators see the edit immediately; the plan skips from version 1 to 3."""
    world.serve(made("team"))
    raw = pod(api, team="blue")
    with term(api, world) as one:
        one.settle()
        (first,) = results(report_of(api, raw))
        assert first[2] == "pass"
        raw = pod(api, team="blue", more="1")
        one.catch_up()
        world.serve(made("other"))
        one.reports.dispatch.work_due()
        world.serve(made("team"))
        one.settle()
        one.pass_s(2)
        assert results(report_of(api, raw)) == [first]


def test_edit_undone_while_the_other_lane_waits_leaves_no_rows(
    api: FakeApi, world: World, registry: Registry
) -> None:
    """The image lane misses two plans while it waits for a registry."""
    before = verifying(registry)
    good, registry.signer = registry.signer, Signer()
    edit = verifying(registry)
    registry.signer = good
    world.serve(before)
    raw = pod_with(api, "x", registry.signed)
    with term(api, world, images=registry.served()) as one:
        one.settle()
        lane = one.reports.images
        assert lane is not None
        raw = pod_with(api, "x", registry.signed, touched="1")
        one.catch_up()
        world.serve(edit)
        one.reports.scan.tick()
        lane.dispatch.work_due()
        one.catch_up()
        assert results(report_of(api, raw)) == [("p", "verify", "fail")]
        world.serve(before)
        one.settle()
        assert results(report_of(api, raw)) == [("p", "verify", "pass")]


def test_kind_restored_while_the_other_lane_waits_has_its_rows(
    api: FakeApi, world: World, registry: Registry
) -> None:
    """The rows were removed, and the lane has not noticed that the kind was gone."""
    before, moved = _rule_of(verifying(registry))
    world.serve(before)
    raw = pod_with(api, "x", registry.bare)
    with term(api, world, images=registry.served()) as one:
        one.settle()
        world.serve(moved)
        one.reports.scan.tick()
        one.catch_up()
        assert report_of(api, raw) is None
        world.serve(before)
        one.settle()
        assert results(report_of(api, raw)) == [("p", "verify", "fail")]

"""Scans by MutatingPolicies: an object that a policy would change fails.

Expected rows: Kyverno pkg/controllers/report/utils/scanner.go. A failure means: a
report states that a mutation is applied although it is not, or the reverse.
"""

from typing import Any

import pytest

from tests.unit.kube.fake_api import FakeApi
from tests.unit.reports.test_validating_policies import PODS, cel_exception, off, told
from tests.unit.reports.world import World, new_cluster, pod, report_of, term

Json = Any


def mpol(
    value: str = "x", *, namespace: str = "", rule: Json = None, **spec: Json
) -> Json:
    """Return a policy that sets the label ``team``."""
    labels = f"Object.metadata.labels{{team: '{value}'}}"
    expression = f"Object{{metadata: Object.metadata{{labels: {labels}}}}}"
    where = {"namespace": namespace} if namespace else {}
    return {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": "NamespacedMutatingPolicy" if namespace else "MutatingPolicy",
        "metadata": {"name": "m", **where},
        "spec": {
            "matchConstraints": {"resourceRules": [{**PODS, **(rule or {})}]},
            "mutations": [
                {
                    "patchType": "ApplyConfiguration",
                    "applyConfiguration": {"expression": expression},
                }
            ],
            **spec,
        },
    }


@pytest.fixture(name="world")
def fixture_world(api: FakeApi) -> World:
    return new_cluster(api)


def test_row(api: FakeApi, world: World) -> None:
    world.serve(mpol())
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
    report = report_of(api, raw)
    assert report is not None
    (row,) = report["results"]
    del row["timestamp"]
    assert row == {
        "source": "KyvernoMutatingPolicy",
        "policy": "m",
        "result": "fail",
        "message": "mutation is not applied",
        "scored": True,
        "properties": {"process": "background scan"},
    }


def test_object_in_the_desired_state_passes(api: FakeApi, world: World) -> None:
    world.serve(mpol())
    raw = pod(api, team="x")
    with term(api, world) as one:
        one.settle()
        assert told(api, raw) == [("m", "pass")]
        # The policy changes, and so do its results.
        world.serve(mpol("y"))
        one.settle()
        assert told(api, raw) == [("m", "fail")]
        world.serve()
        one.settle()
        assert told(api, raw) == []


def test_unmet_condition(api: FakeApi, world: World) -> None:
    condition = [{"name": "c", "expression": "object.metadata.name == 'other'"}]
    world.serve(mpol(matchConditions=condition))
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
    assert told(api, raw) == [("m", "skip")]


def test_exception(api: FakeApi, world: World) -> None:
    exempt = cel_exception("m", "MutatingPolicy")
    exempt["spec"]["matchConditions"][0]["expression"] = "true"
    exempt["spec"]["reportResult"] = "pass"
    world.serve(mpol(), exceptions=(exempt,))
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
    assert told(api, raw) == [("m", "pass")]


@pytest.mark.parametrize(
    "changes",
    [
        {"evaluation": off(background=False)},
        {"evaluation": off(mutateExisting=True)},
        {"rule": {"resources": ["services"]}},
        {"namespace": "b"},
    ],
)
def test_policies_excluded_from_scans(
    api: FakeApi, world: World, changes: Json
) -> None:
    world.serve(mpol(**changes))
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
    assert told(api, raw) == []


def test_other_kinds_have_their_rows(api: FakeApi, world: World) -> None:
    """If the segment of these policies is missing, their rows stay unchanged."""
    world.serve(mpol())
    raw = pod(api)
    with term(api, world) as one:
        one.settle()
        known, world.mutating = world.mutating, None
        world.generation += 1
        one.settle()
        assert told(api, raw) == [("m", "fail")]
        world.mutating = known
        one.settle()
        assert told(api, raw) == [("m", "fail")]

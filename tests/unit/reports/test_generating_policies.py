"""Rows of GeneratingPolicies: the background pool's results stay with their policy.

A failure means: reports lose results of GeneratingPolicies, or keep them after the
policies are deleted.
"""

from typing import Any

import pytest

from kyverno_mp.reports.merging import NEW_RULE_S
from kyverno_mp.results.entries import Row
from tests.unit.kube.fake_api import FakeApi
from tests.unit.reports.test_merging import holding, merge, review, waits
from tests.unit.reports.world import World, new_cluster, pod, report_of, results

Json = Any
SOURCE = "KyvernoGeneratingPolicy"


def gpol(name: str, *, namespace: str = "", **labels: str) -> Json:
    """Return a policy that generates for Pods."""
    where = {"namespace": namespace} if namespace else {}
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
    }
    return {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": "NamespacedGeneratingPolicy" if namespace else "GeneratingPolicy",
        "metadata": {"name": name, "labels": labels, **where},
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "generate": [{"expression": "generator.Apply('a', [])"}],
        },
    }


def row(policy: str, result: str = "pass") -> Row:
    return Row(source=SOURCE, policy=policy, rule="g", result=result)


@pytest.fixture(name="world")
def fixture_world(api: FakeApi) -> World:
    return new_cluster(api)


@pytest.mark.parametrize("namespace", ["", "a"])
@pytest.mark.parametrize("result", ["pass", "error"])
def test_row_exists_as_long_as_its_policy(
    api: FakeApi, world: World, namespace: str, result: str
) -> None:
    world.serve(gpol("g", namespace=namespace))
    key = f"{namespace}/g".strip("/")
    raw = pod(api)
    with holding(api, world) as one:
        review(api, raw, row(key, result))
        merge(one)
        one.settle()
        assert results(report_of(api, raw)) == [(key, "g", result)]
        # A change of other policies keeps the row.
        world.serve(gpol("g", namespace=namespace), gpol("other"))
        one.settle()
        assert results(report_of(api, raw)) == [(key, "g", result)]
        world.serve(gpol("other"))
        one.settle()
        assert report_of(api, raw) is None


def test_policies_excluded_from_reports(api: FakeApi, world: World) -> None:
    disabled = {"reports.kyverno.io/disabled": "true"}
    world.serve(gpol("g", **disabled))
    raw = pod(api)
    with holding(api, world) as one:
        review(api, raw, row("g"))
        one.pass_s(NEW_RULE_S + 1)
        merge(one)
        one.settle()
        assert report_of(api, raw) is None


def test_rows_are_kept_without_the_policies(api: FakeApi, world: World) -> None:
    """A leader of an older version does not publish them."""
    world.serve(gpol("g"))
    raw = pod(api)
    with holding(api, world) as one:
        review(api, raw, row("g"))
        merge(one)
        one.settle()
        assert not waits(api)
        world.serve()
        world.generating = None
        one.settle()
        assert results(report_of(api, raw)) == [("g", "g", "pass")]

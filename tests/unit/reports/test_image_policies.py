"""Rows of ImageValidatingPolicies: results of reviews stay as long as the policy.

A failure means: reports lose review results about images, or keep them permanently.
"""

import json
from typing import Any

import pytest

from kyverno_mp.reports.policies.images import image_plan_of
from kyverno_mp.results.entries import Row
from tests.unit.kube.fake_api import FakeApi
from tests.unit.reports.test_merging import holding, merge, review
from tests.unit.reports.world import World, new_cluster, pod, report_of, results

SOURCE = "KyvernoImageValidatingPolicy"


def ivpol(name: str, *, namespace: str = "", **spec: Any) -> dict[str, Any]:
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
    }
    kind = f"{'Namespaced' if namespace else ''}ImageValidatingPolicy"
    return {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": kind,
        "metadata": {"name": name} | ({"namespace": namespace} if namespace else {}),
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "true"}],
            **spec,
        },
    }


@pytest.fixture(name="world")
def fixture_world(api: FakeApi) -> World:
    return new_cluster(api)


@pytest.mark.parametrize("namespace", ["", "a"])
def test_row_exists_as_long_as_its_policy(
    api: FakeApi, world: World, namespace: str
) -> None:
    world.serve(ivpol("p", namespace=namespace))
    key = f"{namespace}/p".strip("/")
    raw = pod(api)
    with holding(api, world) as one:
        review(api, raw, Row(source=SOURCE, policy=key, rule="p", result="fail"))
        merge(one)
        one.settle()
        assert results(report_of(api, raw)) == [(key, "p", "fail")]
        world.serve(ivpol("p", namespace=namespace), ivpol("other"))
        one.settle()
        assert results(report_of(api, raw)) == [(key, "p", "fail")]
        world.serve(ivpol("other"))
        one.settle()
        assert report_of(api, raw) is None


def test_rows_are_kept_without_the_policies(api: FakeApi, world: World) -> None:
    """A leader of an older version does not publish them."""
    world.serve(ivpol("p"))
    raw = pod(api)
    with holding(api, world) as one:
        review(api, raw, Row(source=SOURCE, policy="p", rule="p", result="pass"))
        merge(one)
        world.serve()
        world.images = None
        one.settle()
        assert results(report_of(api, raw)) == [("p", "p", "pass")]


ATTESTORS: list[dict[str, Any]] = [
    {"key": {"expression": "TEXT"}},
    {"keyless": {"identities": [{"issuer": "i", "subjectExpression": "TEXT"}]}},
    {"key": {"data": "k"}, "trustedRoot": {"expression": "TEXT"}},
]


@pytest.mark.parametrize("cosign", ATTESTORS, ids=["key", "subject", "root"])
@pytest.mark.parametrize(
    ("text", "is_derived"), [("request.userInfo.username", False), ("'x'", True)]
)
def test_scan_cannot_evaluate_an_attestor_that_reads_the_request(
    world: World, cosign: dict[str, Any], text: str, *, is_derived: bool
) -> None:
    """A scan invents its request, so the rows of reviews must stay."""
    given = json.loads(json.dumps(cosign).replace("TEXT", text))
    world.serve(ivpol("p", attestors=[{"name": "a", "cosign": given}]))
    policies = world.policies()
    assert policies is not None
    plan = image_plan_of(policies, world.images)
    assert len(plan.rules) == 1
    assert bool(plan.derived) is is_derived

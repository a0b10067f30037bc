"""GeneratingPolicies with the fields of 1.19: templates and server-side apply.

Expected: docs/behaviour/v1.19 5; Kyverno pkg/cel/libs/context.go at v1.19.0.
"""

from typing import Any

import pytest

from tests.unit.background.generating_world import (
    CEL,
    OUT,
    content,
    generated,
    held,
    policy,
    request,
    trigger,
)
from tests.unit.background.world import CONFIG_MAPS, new_cluster, stored
from tests.unit.kube.fake_api import FakeApi

Json = Any
TEMPLATE = """
apiVersion: v1
kind: ConfigMap
metadata:
  name: out
  namespace: (( object.metadata.namespace ))
data:
  from: (( object.metadata.annotations["value"] ))
"""
APPLIES = r"PATCH .*/configmaps/out\?fieldManager=generate"


@pytest.fixture(autouse=True)
def cluster(api: FakeApi) -> None:
    new_cluster(api)


def templates(*texts: str) -> list[Json]:
    return [{"template": {"value": one, "interpolate": "cel"}} for one in texts]


@pytest.mark.parametrize("server_side", [True, False])
def test_a_template_follows_its_trigger(api: FakeApi, *, server_side: bool) -> None:
    """What a template generates would be left behind, or written in another way."""
    policy(api, generate=templates(TEMPLATE), useServerSideApply=server_side)
    with held(api) as one:
        generated(api, one)
        made = stored(api, OUT)
        assert made is not None
        assert made["metadata"]["labels"]["generate.kyverno.io/policy-name"] == "p"
        assert content(api) == "1"
        request(api, trigger(api, value="2"), name="again", operation="UPDATE")
        one.settle()
        assert content(api) == "2"
        assert api.count(APPLIES) == (2 if server_side else 0)
        assert bool(api.count("POST .*/a/configmaps")) is not server_side
        api.remove(f"{CEL}/generatingpolicies/p")
        one.settle()
    assert content(api) is None


def test_an_object_of_others_is_not_applied(api: FakeApi) -> None:
    """Server-side apply would take its fields."""
    api.put(OUT, apiVersion="v1", kind="ConfigMap", data={"from": "hand"})
    policy(api, useServerSideApply=True)
    with held(api) as one:
        generated(api, one)
    assert content(api) == "hand"
    assert api.count(APPLIES) == 0


def test_a_template_that_fails_leaves_nothing(api: FakeApi) -> None:
    """A part of what a policy generates would be there."""
    fails = TEMPLATE.replace("name: out", "name: (( object.x ))")
    policy(api, generate=templates(TEMPLATE, fails))
    with held(api) as one:
        generated(api, one)
        notes = one.recorded.notes()
    assert content(api) is None
    assert any("failed to render generation template: document 1" in n for n in notes)


def test_a_tenants_template_stays_in_its_namespace(api: FakeApi) -> None:
    """A tenant would write where it may not."""
    away = TEMPLATE.replace("(( object.metadata.namespace ))", "z")
    policy(api, namespace="a", generate=templates(away))
    with held(api) as one:
        generated(api, one, policy_name="a/p")
    assert stored(api, f"{CONFIG_MAPS.format('z')}/out") is None
    policy(api, namespace="a", generate=templates(TEMPLATE), generation=2)
    with held(api) as one:
        generated(api, one, policy_name="a/p")
    assert content(api) == "1"

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
APPLIES = r"PATCH .*/configmaps/out\?fieldManager=kyverno-generate"


@pytest.fixture(autouse=True)
def cluster(api: FakeApi) -> None:
    new_cluster(api)


def templates(*texts: str) -> list[Json]:
    return [{"template": {"value": one, "interpolate": "cel"}} for one in texts]


@pytest.mark.parametrize("server_side", [True, False])
def test_a_template_follows_its_trigger(api: FakeApi, *, server_side: bool) -> None:
    """Otherwise, a template's object would be outdated, or written the wrong way."""
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


def test_unmanaged_object_is_not_applied(api: FakeApi) -> None:
    """Otherwise, server-side apply would take over another writer's fields."""
    api.put(OUT, apiVersion="v1", kind="ConfigMap", data={"from": "hand"})
    policy(api, useServerSideApply=True)
    with held(api) as one:
        generated(api, one)
    assert content(api) == "hand"
    assert api.count(APPLIES) == 0


@pytest.mark.parametrize("existed", [True, False])
def test_object_created_by_another_writer_meanwhile(
    api: FakeApi, *, existed: bool
) -> None:
    """Otherwise, it would be taken over, and deleted together with the policy."""
    hand = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"from": "hand"}}
    policy(api, useServerSideApply=True)

    def others(method: str, target: str) -> None:
        if method == "PATCH" and "/configmaps/out?" in target:
            api.on_request = lambda _method, _target: None
            if existed:
                api.remove(OUT)
            api.put(OUT, **hand)

    with held(api) as one:
        if existed:
            generated(api, one)
            assert content(api) == "1"
        api.on_request = others
        request(api, trigger(api, value="2"), name="again", operation="UPDATE")
        one.settle()
        found = stored(api, OUT)
        assert found is not None
        assert (found["data"], found["metadata"].get("labels")) == (hand["data"], None)
        api.remove(f"{CEL}/generatingpolicies/p")
        one.settle()
    assert content(api) == "hand"


def test_object_whose_labels_were_removed_meanwhile(api: FakeApi) -> None:
    """An object without the labels of its policy belongs to the other writer."""
    policy(api, useServerSideApply=True)
    with held(api) as one:
        generated(api, one)
    hand = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"from": "hand"}}

    def others(method: str, target: str) -> None:
        if method == "PATCH" and "/configmaps/out?" in target:
            api.on_request = lambda _method, _target: None
            api.put(OUT, **hand)

    api.on_request = others
    # This replica has not written the object, so only labels show whose it is.
    with held(api) as one:
        request(api, trigger(api, value="2"), name="again", operation="UPDATE")
        one.settle()
    assert content(api) == "hand"


def test_applied_object_that_changes_continuously(api: FakeApi) -> None:
    """The attempts are bounded; a failed request is reported and retried."""
    policy(api, useServerSideApply=True)
    left = 5

    def others(method: str, target: str) -> None:
        nonlocal left
        if method == "PATCH" and "/configmaps/out?" in target and left:
            left -= 1
            found = stored(api, OUT)
            assert found is not None
            api.put(OUT, **found)

    with held(api) as one:
        generated(api, one)
        api.on_request = others
        request(api, trigger(api, value="2"), name="again", operation="UPDATE")
        one.settle()
        assert left == 0
        notes = one.recorded.notes()
        assert any("ConfigMap/a/out changes all the time" in note for note in notes)
        one.pass_s(60)
        assert content(api) == "2"


def test_failed_template_leaves_nothing(api: FakeApi) -> None:
    """Otherwise, only some of the policy's objects would exist."""
    fails = TEMPLATE.replace("name: out", "name: (( object.x ))")
    policy(api, generate=templates(TEMPLATE, fails))
    with held(api) as one:
        generated(api, one)
        notes = one.recorded.notes()
    assert content(api) is None
    assert any("failed to render generation template: document 1" in n for n in notes)


def test_a_tenants_template_stays_in_its_namespace(api: FakeApi) -> None:
    """Otherwise, a tenant could write into another namespace."""
    away = TEMPLATE.replace("(( object.metadata.namespace ))", "z")
    policy(api, namespace="a", generate=templates(away))
    with held(api) as one:
        generated(api, one, policy_name="a/p")
    assert stored(api, f"{CONFIG_MAPS.format('z')}/out") is None
    policy(api, namespace="a", generate=templates(TEMPLATE), generation=2)
    with held(api) as one:
        generated(api, one, policy_name="a/p")
    assert content(api) == "1"

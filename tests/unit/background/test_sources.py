"""Clones that a rule no longer generates: deleted only if their source is gone.

Any user who can write an object can forge the labels that name its source.
"""

from typing import Any

import pytest

from kyverno_mp.limits import BACKGROUND_SOURCE_LISTS_MAX
from tests.unit.background.world import (
    CONFIG_MAPS,
    PREFIX,
    new_cluster,
    policy,
    request,
    requests_left,
    rule,
    stored,
    term,
    trigger,
)
from tests.unit.kube.fake_api import FakeApi

Json = Any
_MAPS = CONFIG_MAPS.format("a")
_SOURCE = f"{CONFIG_MAPS.format('b')}/source"
_LISTS = r"GET /api/v1/namespaces/{}/{}(\?|$)"
_ALL = {"x", "y", "z"}


def _put_source(api: FakeApi, text: str = "1") -> None:
    api.put(_SOURCE, apiVersion="v1", kind="ConfigMap", data={"x": text})


def _rule(namespace: str = "b") -> Json:
    """Return a rule with a clone for each of three elements."""
    made = rule(clone={"namespace": namespace, "name": "source"})
    body = {**made["generate"], "name": "{{element}}"}
    synchronize = body.pop("synchronize")
    entry = {"list": "['x', 'y', 'z']", **body}
    return {**made, "generate": {"synchronize": synchronize, "foreach": [entry]}}


def _clones(api: FakeApi) -> set[str]:
    return {name for name in _ALL if stored(api, f"{_MAPS}/{name}") is not None}


def _forge(api: FakeApi, name: str, **labels: str) -> None:
    """Copy the clone ``x`` with other labels for its source."""
    found = stored(api, f"{_MAPS}/x")
    assert found is not None
    changed = {f"{PREFIX}{key.replace('_', '-')}": one for key, one in labels.items()}
    made = {**found["metadata"]["labels"], **changed}
    api.put(
        f"{_MAPS}/{name}",
        apiVersion="v1",
        kind="ConfigMap",
        metadata={"labels": made},
    )


def test_clone_of_a_recreated_source(api: FakeApi) -> None:
    """The rule still generates it, although the source of its label is gone."""
    new_cluster(api)
    _put_source(api)
    policy(api, rule(clone={"namespace": "b", "name": "source"}))
    raw = trigger(api)
    with term(api) as one:
        request(api, raw)
        one.settle()
        assert stored(api, f"{_MAPS}/out-t") is not None
    api.remove(_SOURCE)
    _put_source(api, "2")
    with term(api) as one:
        one.settle()
        request(api, raw, deletes=True, operation="UPDATE")
        one.pass_s(60)
        assert stored(api, f"{_MAPS}/out-t") is not None
        assert requests_left(api) == []


@pytest.mark.parametrize(
    "labels",
    [
        {"source_kind": "Secret"},
        {"source_namespace": "c"},
        {"source_namespace": ""},
        {"source_group": "example.com"},
    ],
    ids=["kind", "namespace", "everywhere", "group"],
)
def test_label_of_another_place(api: FakeApi, labels: dict[str, str]) -> None:
    """It is not followed, and the clones of the deleted source are deleted."""
    new_cluster(api)
    _put_source(api)
    policy(api, _rule())
    raw = trigger(api)
    with term(api) as one:
        request(api, raw)
        one.settle()
        assert _clones(api) == _ALL
        _forge(api, "x", **labels)
        api.remove(_SOURCE)
        one.catch_up()
        api.requests.clear()
        request(api, raw, deletes=True, operation="UPDATE")
        one.pass_s(30)
        assert _clones(api) == {"x"}
        assert requests_left(api) == []
        assert not api.count(_LISTS.format("c", "configmaps"))
        assert not api.count(r"GET .*/secrets(\?|$)")
        assert api.count(_LISTS.format("b", "configmaps")) == 1


@pytest.mark.parametrize("answer", [403, 404], ids=["rejected", "unserved"])
def test_sources_that_cannot_be_listed(api: FakeApi, answer: int) -> None:
    """Their clones stay; a rejection is reported, and one list serves all clones."""
    new_cluster(api)
    _put_source(api)
    policy(api, _rule())
    raw = trigger(api)
    with term(api) as one:
        request(api, raw)
        one.settle()
        api.remove(_SOURCE)
        one.catch_up()
        api.fault(_LISTS.format("b", "configmaps"), *[answer] * 1000)
        api.requests.clear()
        request(api, raw, deletes=True, operation="UPDATE")
        one.settle()
        assert _clones(api) == _ALL
        assert api.count(_LISTS.format("b", "configmaps")) == 1
        found = stored(api, "/apis/kyverno.io/v2/namespaces/kyverno/updaterequests/ur")
        assert found is not None
        assert (found.get("status") or {}).get("state") == (
            "Failed" if answer == 403 else None
        )


def test_more_places_than_lists(api: FakeApi) -> None:
    """If the namespace is a variable, the number of lists of a task is bounded."""
    new_cluster(api)
    _put_source(api)
    made = _rule("{{request.object.metadata.annotations.value}}")
    policy(api, made)
    raw = trigger(api, value="b")
    with term(api) as one:
        request(api, raw)
        one.settle()
        assert _clones(api) == _ALL
        forged = [f"f-{number}" for number in range(BACKGROUND_SOURCE_LISTS_MAX + 8)]
        for name in forged:
            _forge(api, name, source_namespace=name)
        one.catch_up()
        api.requests.clear()
        request(api, raw, deletes=True, operation="UPDATE")
        one.settle()
        lists = api.count(_LISTS.format("f-[0-9]+", "configmaps"))
        assert lists == BACKGROUND_SOURCE_LISTS_MAX
        left = [name for name in forged if stored(api, f"{_MAPS}/{name}") is not None]
        assert len(left) == 8
        assert _clones(api) == _ALL


def test_a_namespaced_policy_lists_only_its_namespace(api: FakeApi) -> None:
    """Forged labels of a tenant's objects cause no list elsewhere."""
    new_cluster(api)
    made = rule(clone={"namespace": "a", "name": "source"})
    made["generate"]["namespace"] = "a"
    api.put(f"{_MAPS}/source", apiVersion="v1", kind="ConfigMap", data={"x": "1"})
    api.put(
        "/apis/kyverno.io/v1/namespaces/a/policies/p",
        apiVersion="kyverno.io/v1",
        kind="Policy",
        metadata={"generation": 1},
        spec={"rules": [made]},
    )
    raw = trigger(api)
    with term(api) as one:
        one.settle()
        request(api, raw, policy="a/p")
        one.settle()
        out = stored(api, f"{_MAPS}/out-t")
        assert out is not None
        api.put(
            f"{_MAPS}/x", **{**out, "metadata": {"labels": out["metadata"]["labels"]}}
        )
        _forge(api, "y", source_namespace="z", source_uid="none")
        _forge(api, "z", source_uid="none")
        one.catch_up()
        api.requests.clear()
        request(api, raw, policy="a/p", deletes=True, operation="UPDATE")
        one.settle()
        assert _clones(api) == {"x", "y"}
        assert not api.count(_LISTS.format("z", "configmaps"))

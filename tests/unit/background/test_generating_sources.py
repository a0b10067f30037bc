"""GeneratingPolicies that fail: which clones are deleted with their source.

A failure means: clones are deleted although their source exists, or outlive it.
"""

from typing import Any

import pytest

from tests.unit.background.generating_world import (
    CLONE,
    CLONES,
    SOURCE,
    content,
    generated,
    held,
    policy,
    request,
    source,
    trigger,
)
from tests.unit.background.world import SECRETS, new_cluster, stored
from tests.unit.kube.fake_api import FakeApi

Json = Any
_UID = "generate.kyverno.io/source-uid"
_READ = 'resource.get("v1", "secrets", "z", "source")'
_PLAIN = CLONES
_CONDITIONAL = f"""object.metadata.annotations["value"] == "x" ? false :
  generator.apply(object.metadata.namespace, [{_READ}])"""
_OTHER_KIND = f"""generator.apply(object.metadata.namespace, [{{
  "apiVersion": dyn("v1"), "kind": dyn("ConfigMap"),
  "metadata": dyn({_READ}.metadata),
  "data": dyn({{"from": object.metadata.annotations["value"]}})}}])"""
_MADE = "/api/v1/namespaces/a/configmaps/source"
_OTHER = f"{SECRETS.format('z')}/other"
_OTHER_CLONE = f"{SECRETS.format('a')}/other"
_OF_OTHER = CLONES.replace('"source"', '"other"')
_READS_SOURCE = r"GET .*/z/secrets/source"


@pytest.fixture(autouse=True)
def cluster(api: FakeApi) -> None:
    new_cluster(api)


def unannotated(api: FakeApi) -> Json:
    """Store the trigger without the annotation that the expression reads."""
    return api.put(
        "/api/v1/namespaces/a/pods/t",
        apiVersion="v1",
        kind="Pod",
        metadata={"labels": {"team": "blue"}, "annotations": {}},
    )


def put_other(api: FakeApi, value: str = "1") -> None:
    api.put(_OTHER, apiVersion="v1", kind="Secret", data={"from": value})


@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize("status", [403, 500])
def test_unreadable_source(api: FakeApi, status: int, *, is_held: bool) -> None:
    """Otherwise, a failed read of a recreated source would delete its clone."""
    policy(api, _PLAIN)
    source(api)
    with held(api) as one:
        generated(api, one)
        if is_held:
            api.fault(_READS_SOURCE, *[status] * 2)
        api.remove(SOURCE)
        source(api, "2")
        if is_held:
            one.settle()
            assert stored(api, CLONE) is not None
            one.pass_s(600.0)
    if not is_held:
        api.fault(_READS_SOURCE, *[status] * 2)
        with held(api) as one:
            one.settle()
            assert stored(api, CLONE) is not None
            one.pass_s(600.0)
    assert content(api, CLONE) == "2"


def test_source_recreated_while_the_trigger_fails(api: FakeApi) -> None:
    """Otherwise, a field missing in the trigger would look like a deleted source."""
    policy(api, _CONDITIONAL)
    source(api)
    with held(api) as one:
        generated(api, one)
        request(api, unannotated(api), name="ur2", operation="UPDATE")
        one.settle()
        api.remove(SOURCE)
        source(api, "2")
        one.settle()
        assert stored(api, CLONE) is not None
        trigger(api)
        one.pass_s(600.0)
    assert content(api, CLONE) == "2"


@pytest.mark.parametrize("fault", [None, 403, 500])
def test_object_of_another_kind_is_no_clone(api: FakeApi, fault: int | None) -> None:
    """Otherwise, its source would be searched for among objects of the wrong kind."""
    policy(api, _OTHER_KIND)
    source(api)
    with held(api) as one:
        generated(api, one)
        made = stored(api, _MADE)
        assert made is not None
        assert _UID not in made["metadata"]["labels"]
        if fault is None:
            request(api, unannotated(api), name="ur2", operation="UPDATE")
            one.settle()
    if fault is not None:
        api.fault(_READS_SOURCE, *[fault] * 30)
    with held(api) as one:
        one.settle()
        one.pass_s(60.0)
    assert stored(api, _MADE) == made


def test_clones_of_the_same_kind_name_their_source(api: FakeApi) -> None:
    """Otherwise, the deletion of the source would go unnoticed."""
    policy(api, _PLAIN)
    raw = source(api)
    with held(api) as one:
        generated(api, one)
    made = stored(api, CLONE)
    assert made is not None
    assert made["metadata"]["labels"][_UID] == raw["metadata"]["uid"]


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("expressions", [1, 2])
def test_one_of_two_sources_is_recreated(
    api: FakeApi, expressions: int, *, is_first: bool
) -> None:
    """Otherwise, its clone would be deleted with the other source's clone."""
    texts = [_PLAIN, _OF_OTHER] if is_first else [_OF_OTHER, _PLAIN]
    if expressions == 1:
        other = _READ.replace('"source"', '"other"')
        texts = [_PLAIN.replace(_READ, f"{_READ}, {other}")]
    policy(api, *texts)
    source(api)
    put_other(api)
    with held(api) as one:
        generated(api, one)
        assert content(api, CLONE) == content(api, _OTHER_CLONE) == "1"
    api.remove(SOURCE)
    api.remove(_OTHER)
    source(api, "2")
    with held(api) as one:
        one.settle()
        assert stored(api, _OTHER_CLONE) is None
        assert stored(api, CLONE) is not None
        put_other(api, "3")
        one.pass_s(7200.0)
    assert content(api, CLONE) == "2"
    assert content(api, _OTHER_CLONE) == "3"


def test_sources_of_two_expressions_are_deleted_together(api: FakeApi) -> None:
    """Otherwise, the first failing expression would hide the second one's source."""
    policy(api, _PLAIN, _OF_OTHER)
    source(api)
    put_other(api)
    with held(api) as one:
        generated(api, one)
        api.remove(SOURCE)
        api.remove(_OTHER)
        one.settle()
    assert stored(api, CLONE) is None
    assert stored(api, _OTHER_CLONE) is None


def test_source_deleted_while_nothing_is_readable(api: FakeApi) -> None:
    """Otherwise, the clone would remain for ever after the last failed attempt."""
    policy(api, _PLAIN)
    source(api)
    with held(api) as one:
        generated(api, one)
        api.fault(_READS_SOURCE, *[403] * 10)
        api.remove(SOURCE)
        one.settle()
        assert stored(api, CLONE) is not None
        one.pass_s(9000.0)
    assert stored(api, CLONE) is None

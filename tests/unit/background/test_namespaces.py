"""Namespaces of triggers and generated objects that are missing or being deleted."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.background import generating_world as cel
from tests.unit.background.admission import User
from tests.unit.background.world import (
    CONFIG_MAPS,
    MATCHED,
    REQUESTS,
    SECRETS,
    new_cluster,
    policy,
    request,
    requests_left,
    rule,
    stored,
    term,
)
from tests.unit.kube.fake_api import FakeApi

Json = Any
_TRIGGER = f"{SECRETS.format('a')}/t"
_OUT = f"{CONFIG_MAPS.format('b')}/out-t"
_POSTS = f"POST {CONFIG_MAPS.format('b')}"
_DATA = {"data": {"from": "1"}}
_ENDING: Json = {
    "code": 403,
    "reason": "Forbidden",
    "message": 'configmaps "out-t" is forbidden: unable to create new content in'
    " namespace b because it is being terminated",
}
_GONE: Json = {
    "code": 404,
    "reason": "NotFound",
    "message": 'namespaces "b" not found',
}


@pytest.fixture
def user(api: FakeApi, tmp_path: Path) -> Iterator[User]:
    new_cluster(api)
    one = User(api, tmp_path / "journals")
    yield one
    one.close()


def _rule() -> Json:
    made = rule(data=_DATA)
    made["generate"]["namespace"] = "b"
    return made


def _create(user: User) -> None:
    user.create(_TRIGGER, apiVersion="v1", kind="Secret", metadata={"labels": MATCHED})


@pytest.mark.parametrize("answer", [_ENDING, _GONE], ids=["ending", "gone"])
def test_an_object_that_is_deleted_with_its_namespace(user: User, answer: Json) -> None:
    """It is not created again, and its request neither waits nor fails."""
    api = user.api
    policy(api, _rule())
    with term(api) as one:
        one.settle()
        _create(user)
        one.settle()
        assert stored(api, _OUT) is not None
        before = api.count(_POSTS)
        api.fault(_POSTS, *[answer] * 1000)
        user.delete(_OUT)
        one.settle()
        assert api.count(_POSTS) == before + 1
        assert requests_left(api) == []
        assert not api.count("PATCH .*/status")
        assert not [each for each in one.recorded.events if "Error" in str(each)]


def test_a_trigger_while_the_namespace_is_being_deleted(user: User) -> None:
    """Objects in other namespaces are generated."""
    api = user.api
    made = rule()
    entry = {"list": "['b', 'c']", "apiVersion": "v1", "kind": "ConfigMap"}
    body = {**entry, "namespace": "{{element}}", "name": "out-t", "data": _DATA}
    made["generate"] = {"synchronize": True, "foreach": [body]}
    policy(api, made)
    with term(api) as one:
        one.settle()
        api.fault(_POSTS, *[_ENDING] * 1000)
        _create(user)
        one.settle()
        assert stored(api, f"{CONFIG_MAPS.format('c')}/out-t") is not None
        assert api.count(_POSTS) == 1
        assert requests_left(api) == []


_QUOTES = [
    (422, 'ConfigMap "out-t" is invalid: data.a: Invalid value: "{}"'),
    (403, 'admission webhook "quota" denied the request: {}'),
    (403, 'configmaps "out-t" is forbidden: exceeded quota: {}'),
    (403, "{} ConfigMap is not allowed"),
]


@pytest.mark.parametrize(("code", "text"), _QUOTES)
@pytest.mark.parametrize("quoted", [_ENDING["message"], _ENDING["message"][-31:]])
def test_a_rejection_that_quotes_a_value(
    user: User, code: int, text: str, quoted: str
) -> None:
    """A value that a user has chosen does not end the request."""
    api = user.api
    policy(api, _rule())
    answer = {"code": code, "reason": "Any", "message": text.format(quoted)}
    with term(api) as one:
        one.settle()
        api.fault(_POSTS, answer, answer)
        _create(user)
        one.settle()
        assert len(requests_left(api)) == 1
        one.pass_s(10)
        assert stored(api, _OUT) is not None


@pytest.mark.parametrize("answer", [_GONE, 403], ids=["gone", "refused"])
def test_a_namespace_that_is_created_later(user: User, answer: Json) -> None:
    """The request is retried; objects in other namespaces are generated at once."""
    api = user.api
    made = rule()
    entry = {"list": "['b', 'c']", "apiVersion": "v1", "kind": "ConfigMap"}
    body = {**entry, "namespace": "{{element}}", "name": "out-t", "data": _DATA}
    made["generate"] = {"synchronize": True, "foreach": [body]}
    policy(api, made)
    with term(api) as one:
        one.settle()
        api.fault(_POSTS, answer, answer)
        _create(user)
        one.settle()
        assert stored(api, f"{CONFIG_MAPS.format('c')}/out-t") is not None
        (name,) = requests_left(api)
        found = stored(api, f"{REQUESTS}/{name}")
        assert found is not None
        assert found["status"]["state"] == "Failed"
        one.pass_s(10)
        assert stored(api, _OUT) is not None
        assert requests_left(api) == []


def test_a_namespace_that_is_a_trigger_and_being_deleted(api: FakeApi) -> None:
    """Nothing is generated for it."""
    new_cluster(api)
    resources = {"kinds": ["Namespace"]}
    made = {**rule(data=_DATA), "match": {"any": [{"resources": resources}]}}
    made["generate"]["namespace"] = "{{request.object.metadata.name}}"
    policy(api, made)
    ending = api.put(
        "/api/v1/namespaces/t",
        apiVersion="v1",
        kind="Namespace",
        metadata={"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x/y"]},
    )
    with term(api) as one:
        one.settle()
        request(api, ending)
        one.settle()
        assert requests_left(api) == []
        assert not api.count("POST .*/t/configmaps")


@pytest.mark.parametrize("answer", [_ENDING, _GONE], ids=["ending", "gone"])
def test_an_object_of_a_generating_policy(api: FakeApi, answer: Json) -> None:
    """It is not created again in a namespace that is being deleted."""
    new_cluster(api)
    out = f"{CONFIG_MAPS.format('b')}/out"
    cel.policy(api, cel.DATA.replace("object.metadata.namespace", '"b"'))
    with cel.held(api) as one:
        one.settle()
        cel.request(api, cel.trigger(api))
        one.settle()
        assert stored(api, out) is not None
        before = api.count(_POSTS)
        api.fault(_POSTS, *[answer] * 1000)
        api.remove(out)
        one.settle()
        one.pass_s(60)
        assert api.count(_POSTS) == before + 1
        assert not [each for each in one.recorded.events if "Error" in str(each)]

"""Changes of clone sources and of generated objects: order, delays, many objects."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.background.admission import POOL, User
from tests.unit.background.world import (
    CONFIG_MAPS,
    MATCHED,
    SECRETS,
    Term,
    new_cluster,
    policy,
    requests_left,
    rule,
    stored,
    term,
)
from tests.unit.kube.fake_api import FakeApi

Json = Any
_OUT = f"{CONFIG_MAPS.format('a')}/out-t"
_SOURCE = f"{CONFIG_MAPS.format('b')}/source"
_DATA = {"data": {"from": "rule"}}
_CLONE = {"namespace": "b", "name": "source"}


@pytest.fixture
def user(api: FakeApi, tmp_path: Path) -> Iterator[User]:
    new_cluster(api)
    one = User(api, tmp_path / "journals")
    yield one
    one.close()


def _trigger(user: User, name: str = "t") -> Json:
    path = f"{SECRETS.format('a')}/{name}"
    metadata = {"labels": MATCHED, "annotations": {"value": "1"}}
    return user.create(path, apiVersion="v1", kind="Secret", metadata=metadata)


def _source(user: User, text: str = "1", name: str = "source") -> None:
    path = f"{CONFIG_MAPS.format('b')}/{name}"
    user.create(path, apiVersion="v1", kind="ConfigMap", data={"from": text})


def _object(api: FakeApi, name: str = "out-t") -> Json:
    return (stored(api, f"{CONFIG_MAPS.format('a')}/{name}") or {}).get("data")


def _begin(user: User, one: Term) -> None:
    _trigger(user)
    one.settle()
    assert _object(user.api) is not None


def _review(user: User, path: str, operation: str, **fields: Json) -> None:
    """Admit a change that is not stored yet, and store its UpdateRequest."""
    old = stored(user.api, path)
    assert old is not None
    user.review(operation, None if operation == "DELETE" else {**old, **fields}, old)
    user.write()


def test_update_stored_late(user: User) -> None:
    """A generated object is reverted even if its request arrived before the edit."""
    policy(user.api, rule(data=_DATA))
    with term(user.api) as one:
        _begin(user, one)
        _review(user, _OUT, "UPDATE", data={"by": "hand"})
        one.pass_s(2)
        old = stored(user.api, _OUT)
        assert old is not None
        user.api.put(_OUT, **{**old, "data": {"by": "hand"}})
        one.pass_s(4)
        assert _object(user.api) == {"from": "rule"}
        assert requests_left(user.api) == []


def test_deletion_stored_late(user: User) -> None:
    policy(user.api, rule(data=_DATA))
    with term(user.api) as one:
        _begin(user, one)
        _review(user, _OUT, "DELETE")
        one.pass_s(2)
        user.api.remove(_OUT)
        one.pass_s(4)
        assert _object(user.api) == {"from": "rule"}


def test_deletion_blocked_by_a_finalizer(user: User) -> None:
    """The object is created again when its name is free, however long that takes."""
    policy(user.api, rule(data=_DATA))
    with term(user.api) as one:
        _begin(user, one)
        _review(user, _OUT, "DELETE")
        old = stored(user.api, _OUT)
        assert old is not None
        ending = {**old["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
        user.api.put(_OUT, **{**old, "metadata": ending})
        one.pass_s(600)
        assert len(requests_left(user.api)) == 1
        user.api.remove(_OUT)
        one.pass_s(80)
        made = stored(user.api, _OUT)
        assert made is not None
        assert made["metadata"]["uid"] != old["metadata"]["uid"]


def test_source_stored_late(user: User) -> None:
    policy(user.api, rule(clone=_CLONE))
    _source(user)
    with term(user.api) as one:
        _begin(user, one)
        _review(user, _SOURCE, "UPDATE", data={"from": "2"})
        one.pass_s(2)
        old = stored(user.api, _SOURCE)
        assert old is not None
        user.api.put(_SOURCE, **{**old, "data": {"from": "2"}})
        one.pass_s(4)
        assert _object(user.api) == {"from": "2"}


def test_source_deleted_late(user: User) -> None:
    policy(user.api, rule(clone=_CLONE))
    _source(user)
    with term(user.api) as one:
        _begin(user, one)
        _review(user, _SOURCE, "DELETE")
        one.pass_s(2)
        assert _object(user.api) is not None
        user.api.remove(_SOURCE)
        one.pass_s(4)
        assert _object(user.api) is None
        assert requests_left(user.api) == []


def test_one_request_for_all_clones_of_a_source(user: User) -> None:
    """All clones follow their source, for all synchronising rules and policies."""
    other = rule("other", clone=_CLONE)
    other["generate"]["name"] = "other-{{request.object.metadata.name}}"
    loose = rule("loose", sync=False, clone=_CLONE)
    loose["generate"]["name"] = "loose-{{request.object.metadata.name}}"
    policy(user.api, rule(clone=_CLONE), loose)
    policy(user.api, other, name="q")
    _source(user)
    with term(user.api) as one:
        for number in range(5):
            _trigger(user, f"t{number}")
        one.settle()
        _review(user, _SOURCE, "UPDATE", data={"from": "2"})
        assert len(requests_left(user.api)) == 1
        old = stored(user.api, _SOURCE)
        assert old is not None
        user.api.put(_SOURCE, **{**old, "data": {"from": "2"}})
        one.pass_s(4)
        for number in range(5):
            assert _object(user.api, f"out-t{number}") == {"from": "2"}
            assert _object(user.api, f"other-t{number}") == {"from": "2"}
            assert _object(user.api, f"loose-t{number}") == {"from": "1"}
        assert requests_left(user.api) == []


def test_source_of_one_element(user: User) -> None:
    """When a source of a foreach rule is deleted, only its own clone is deleted."""
    clone = {"namespace": "b", "name": "{{element}}"}
    target = {"apiVersion": "v1", "kind": "ConfigMap", "namespace": "a"}
    made = rule()
    made["generate"] = {
        "synchronize": True,
        "foreach": [
            {**target, "list": "['x', 'y']", "name": "of-{{element}}", "clone": clone}
        ],
    }
    policy(user.api, made)
    _source(user, "x", "x")
    _source(user, "y", "y")
    with term(user.api) as one:
        _trigger(user)
        one.settle()
        user.delete(f"{CONFIG_MAPS.format('b')}/x")
        one.pass_s(40)
        assert _object(user.api, "of-x") is None
        assert _object(user.api, "of-y") == {"from": "y"}
        assert requests_left(user.api) == []


def test_writes_of_the_pool_trigger_nothing(user: User) -> None:
    """The pool's own writes, including the labels of sources, cause no requests."""
    policy(user.api, rule(clone=_CLONE))
    _source(user)
    with term(user.api) as one:
        _begin(user, one)
        user.name = POOL
        user.update(_SOURCE, data={"from": "2"})
        user.update(_OUT, data={"by": "pool"})
        user.delete(_OUT)
        assert requests_left(user.api) == []


def test_rules_without_synchronize_leave_sources_alone(user: User) -> None:
    policy(user.api, rule(sync=False, clone=_CLONE))
    _source(user)
    with term(user.api) as one:
        _begin(user, one)
        _review(user, _SOURCE, "UPDATE", data={"from": "2"})
        assert requests_left(user.api) == []


def test_object_that_is_trigger_and_source(user: User) -> None:
    """An object that is source and trigger of a rule is treated as both."""
    made = rule(clone=_CLONE)
    made["match"]["any"][0]["resources"] = {"kinds": ["ConfigMap"], "namespaces": ["b"]}
    made["generate"]["namespace"] = "a"
    policy(user.api, made)
    with term(user.api) as one:
        _source(user)
        one.settle()
        assert _object(user.api, "out-source") == {"from": "1"}
        user.update(_SOURCE, data={"from": "2"})
        one.pass_s(4)
        assert _object(user.api, "out-source") == {"from": "2"}
        user.delete(_SOURCE)
        one.pass_s(4)
        assert _object(user.api, "out-source") is None
        assert requests_left(user.api) == []


@pytest.mark.parametrize("is_foreach", [True, False])
def test_source_recreated_while_its_rule_fails(user: User, *, is_foreach: bool) -> None:
    """Otherwise, a field missing in the trigger would look like a deleted source."""
    value = "{{request.object.metadata.annotations.value}}"
    clone = {"namespace": "b", "name": value}
    made = rule()
    made["generate"]["clone"] = clone
    if is_foreach:
        target = {"apiVersion": "v1", "kind": "ConfigMap", "namespace": "a"}
        entry = {**target, "list": "['x']", "name": "out-t", "clone": clone}
        made["generate"] = {"synchronize": True, "foreach": [entry]}
    policy(user.api, made)
    _source(user, "x", "1")
    with term(user.api) as one:
        _trigger(user)
        one.settle()
        assert _object(user.api, "out-t") == {"from": "x"}
        raw = stored(user.api, f"{SECRETS.format('a')}/t")
        assert raw is not None
        whole = dict(raw)
        metadata = {**raw["metadata"], "annotations": {}}
        user.api.put(f"{SECRETS.format('a')}/t", **{**raw, "metadata": metadata})
        user.delete(f"{CONFIG_MAPS.format('b')}/1")
        _source(user, "y", "1")
        one.pass_s(40)
        assert _object(user.api, "out-t") == {"from": "x"}
        user.api.put(f"{SECRETS.format('a')}/t", **whole)
        one.pass_s(600)
        assert _object(user.api, "out-t") == {"from": "y"}

"""Triggers that do not fit into the journal: their policies are synced again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.background.admission import User
from tests.unit.background.world import (
    CONFIG_MAPS,
    MATCHED,
    REQUESTS,
    SECRETS,
    new_cluster,
    policy,
    requests_left,
    rule,
    stored,
    term,
)
from tests.unit.kube.fake_api import FakeApi

Json = Any
_VALUE = "{{request.object.metadata.annotations.value}}"
_DATA = {"data": {"from": _VALUE}}


@pytest.fixture
def user(api: FakeApi, tmp_path: Path) -> Iterator[User]:
    """A user of a cluster whose worker's journal has room for one review."""
    new_cluster(api)
    one = User(api, tmp_path / "journals", most=1)
    yield one
    one.close()


def _fields(value: str = "1", **metadata: Json) -> Json:
    given = {"labels": MATCHED, "annotations": {"value": value}, **metadata}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": given}


def _path(name: str) -> str:
    return f"{SECRETS.format('a')}/{name}"


def _made(api: FakeApi, name: str) -> Json:
    return (stored(api, f"{CONFIG_MAPS.format('a')}/out-{name}") or {}).get("data")


def _states(api: FakeApi) -> list[str]:
    """Return the states of the stored requests."""
    found = [stored(api, f"{REQUESTS}/{name}") for name in requests_left(api)]
    return [(one or {})["status"]["state"] for one in found]


def _crowd(user: User) -> None:
    """Fill the journal, which no leader empties."""
    user.write = lambda: None  # type: ignore[method-assign]
    user.create(_path("first"), **_fields())


def _relieve(user: User) -> None:
    del user.write
    user.write()


def test_created_triggers(user: User) -> None:
    """Lost triggers get their objects; triggers older than the loss get none."""
    api = user.api
    old = {"creationTimestamp": "2020-01-01T00:00:00Z"}
    api.put(_path("old"), **_fields(**old))
    written = [{"manager": "m", "time": "2020-01-02T00:00:00Z"}]
    api.put(_path("older"), **_fields(**old, managedFields=written))
    policy(api, rule(sync=False, data=_DATA))
    with term(api) as one:
        one.settle()
        _crowd(user)
        for name in ("a", "b", "c"):
            user.create(_path(name), **_fields())
        assert user.records.errors == ["webhook.triggers_full"] * 3
        _relieve(user)
        one.settle()
        assert _made(api, "first") == {"from": "1"}
        assert _made(api, "a") is None
        one.pass_s(40)
        assert [_made(api, name) for name in "abc"] == [{"from": "1"}] * 3
        assert _made(api, "old") is None
        assert _made(api, "older") is None
        assert requests_left(api) == []


def test_changed_and_deleted_triggers(user: User) -> None:
    """Updates are applied, and objects that are no longer wanted are deleted."""
    api = user.api
    policy(api, rule(data=_DATA))
    with term(api) as one:
        one.settle()
        for name in ("changed", "gone", "red", "same"):
            user.create(_path(name), **_fields())
        one.settle()
        _crowd(user)
        user.update(_path("changed"), **_fields("2"))
        user.delete(_path("gone"))
        user.update(_path("red"), metadata={"labels": {"team": "red"}})
        before = stored(api, f"{CONFIG_MAPS.format('a')}/out-same")
        _relieve(user)
        one.pass_s(40)
        assert _made(api, "changed") == {"from": "2"}
        assert _made(api, "gone") is None
        assert _made(api, "red") is None
        assert stored(api, f"{CONFIG_MAPS.format('a')}/out-same") == before
        assert requests_left(api) == []


def test_changed_source(user: User) -> None:
    """The clones of a lost source are not known, so all policies are synced."""
    api = user.api
    source = f"{CONFIG_MAPS.format('b')}/source"
    user.create(source, apiVersion="v1", kind="ConfigMap", data={"from": "1"})
    policy(api, rule(clone={"namespace": "b", "name": "source"}))
    with term(api) as one:
        one.settle()
        user.create(_path("t"), **_fields())
        one.settle()
        _crowd(user)
        user.update(source, data={"from": "2"})
        _relieve(user)
        one.pass_s(40)
        assert _made(api, "t") == {"from": "2"}


def test_removed_elements(user: User) -> None:
    """A lost update has the effect of any update: old elements keep their objects."""
    api = user.api
    names = "split(request.object.metadata.annotations.value, ',')"
    entry = {"list": names, "apiVersion": "v1", "kind": "ConfigMap", "namespace": "a"}
    made = rule()
    body = {**entry, "name": "out-{{element}}", "data": _DATA}
    made["generate"] = {"synchronize": True, "foreach": [body]}
    policy(api, made)
    with term(api) as one:
        one.settle()
        user.create(_path("t"), **_fields("x,y"))
        one.settle()
        _crowd(user)
        user.update(_path("t"), **_fields("x,z"))
        _relieve(user)
        one.pass_s(40)
        found = [_made(api, name) for name in "xyz"]
        assert found == [{"from": "x,z"}, {"from": "x,y"}, {"from": "x,z"}]


def test_deleted_source(user: User) -> None:
    """The clones of a lost deletion are deleted; the missing source is reported."""
    api = user.api
    source = f"{CONFIG_MAPS.format('b')}/source"
    user.create(source, apiVersion="v1", kind="ConfigMap", data={"from": "1"})
    policy(api, rule(clone={"namespace": "b", "name": "source"}))
    with term(api) as one:
        one.settle()
        user.create(_path("t"), **_fields())
        one.settle()
        assert _made(api, "t") == {"from": "1"}
        _crowd(user)
        user.delete(source)
        _relieve(user)
        one.pass_s(40)
        assert _made(api, "t") is None
        assert set(_states(api)) == {"Failed"}
        one.pass_s(900)
        assert requests_left(api) == []


def test_trigger_of_an_update_rule(user: User) -> None:
    """A rule that lists only UPDATE also applies to lost triggers."""
    api = user.api
    made = rule(data=_DATA)
    made["match"]["any"][0]["resources"]["operations"] = ["UPDATE"]
    policy(api, made, rule("other", data=_DATA) | {"name": "other"})
    with term(api) as one:
        one.settle()
        user.create(_path("t"), **_fields())
        one.settle()
        _crowd(user)
        user.update(_path("t"), **_fields("2"))
        _relieve(user)
        one.pass_s(40)
        assert _made(api, "t") == {"from": "2"}

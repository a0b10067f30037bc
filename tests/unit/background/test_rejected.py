"""A request rejected by the API server stops no other work and is retried."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.background.admission import User
from tests.unit.background.world import (
    CONFIG_MAPS,
    MATCHED,
    POLICIES,
    SECRETS,
    Term,
    policy,
    requests_left,
    rule,
    stored,
    term,
    trigger,
)
from tests.unit.cleanup.cluster import resource, serve_kinds
from tests.unit.kube.fake_api import FakeApi

Json = Any
_WIDGET: Json = {"apiVersion": "example.io/v1", "kind": "Widget"}
_WIDGETS = "/apis/example.io/v1/namespaces/a/widgets"
_LISTS = r"GET /apis/example.io/v1/widgets\?"
_MAPS = CONFIG_MAPS.format("a")
_FOR_EVER = [403] * 1000


@pytest.fixture
def api(api: FakeApi) -> FakeApi:
    """An API server that serves Widgets."""
    one = resource("widgets", "Widget")
    kind = {**one["responseKind"], "group": "example.io"}
    serve_kinds(api, ("example.io", "v1", [{**one, "responseKind": kind}]))
    trigger(api)
    return api


@pytest.fixture
def one(api: FakeApi) -> Iterator[Term]:
    with term(api) as found:
        yield found


def _both(widget: str = "w", made: str = "c", **more: Json) -> Json:
    """Return a rule that generates a Widget and then a ConfigMap."""
    each = [
        {**_WIDGET, "list": widget, "data": {"spec": {}}},
        {"apiVersion": "v1", "kind": "ConfigMap", "list": made, "data": {}},
    ]
    foreach = [
        {
            "list": f"['{item['list']}-t']",
            "apiVersion": item["apiVersion"],
            "kind": item["kind"],
            "name": "{{element}}",
            "namespace": "a",
            "data": item["data"],
        }
        for item in each
    ]
    found = rule()
    found["generate"] = {
        "synchronize": True,
        "generateExisting": True,
        "foreach": foreach,
        **more,
    }
    return found


def _maps(name: str = "maps", **more: Json) -> Json:
    return rule(name, data={"data": {"a": "b"}}, generateExisting=True, **more)


@pytest.mark.parametrize("verb", ["GET", "DELETE"])
def test_removed_rule_does_not_block_the_others(
    api: FakeApi, one: Term, verb: str
) -> None:
    """A new rule must not wait until the objects of an old rule can be deleted."""
    policy(api, _both())
    one.settle()
    assert stored(api, f"{_WIDGETS}/w-t")
    api.fault(_LISTS if verb == "GET" else "DELETE .*/widgets/", *_FOR_EVER)
    policy(api, _maps(), generation=2)
    one.settle()
    assert stored(api, f"{_MAPS}/c-t") is None
    assert stored(api, f"{_MAPS}/out-t")
    assert stored(api, f"{_WIDGETS}/w-t")
    api.faults.clear()
    one.pass_s(300)
    assert stored(api, f"{_WIDGETS}/w-t") is None


def test_rule_that_generates_elsewhere(api: FakeApi, one: Term) -> None:
    """No label names the trigger of an object elsewhere, which must be created."""
    policy(api, _both())
    one.settle()
    assert stored(api, f"{_MAPS}/c-t")
    api.fault(_LISTS, *_FOR_EVER)
    policy(api, _both(made="d", generateExisting=False), _maps(), generation=3)
    one.settle()
    assert stored(api, f"{_MAPS}/d-t")
    assert stored(api, f"{_MAPS}/out-t")


@pytest.mark.parametrize("status", [403, 500])
def test_objects_whose_labels_cannot_be_removed(
    api: FakeApi, one: Term, status: int
) -> None:
    """Objects that lost their labels before the failure must still be updated."""
    trigger(api, "s")
    policy(api, _maps())
    one.settle()
    moved = _maps()
    moved["generate"]["name"] = "new-{{request.object.metadata.name}}"
    del moved["generate"]["generateExisting"]
    # The names are sorted, so the labels of the first object are already removed.
    api.fault("(PUT|PATCH) .*/configmaps/out-t", *[status] * 12)
    policy(api, moved, generation=2)
    one.settle()
    one.pass_s(600)
    assert stored(api, f"{_MAPS}/new-s")
    assert stored(api, f"{_MAPS}/new-t")


def test_triggers_cannot_be_listed(api: FakeApi, one: Term) -> None:
    """Otherwise, nothing would happen between a grant and the next scan."""
    made = _maps()
    more = {"resources": {"kinds": ["Widget"]}}
    made["match"]["any"].insert(0, more)
    api.put(f"{_WIDGETS}/late", **_WIDGET, metadata={"labels": MATCHED})
    api.fault(_LISTS, *_FOR_EVER)
    policy(api, made)
    one.settle()
    assert stored(api, f"{_MAPS}/out-t")
    api.faults.clear()
    one.pass_s(120)
    assert stored(api, f"{_MAPS}/out-late")


def test_object_cannot_be_written(api: FakeApi, one: Term) -> None:
    """Otherwise, the objects after the rejected one would be missing until a grant."""
    api.fault("POST .*/widgets", *_FOR_EVER)
    policy(api, _both())
    one.settle()
    assert stored(api, f"{_WIDGETS}/w-t") is None
    assert stored(api, f"{_MAPS}/c-t")
    api.faults.clear()
    one.pass_s(300)
    assert stored(api, f"{_WIDGETS}/w-t")


def test_trigger_is_deleted(api: FakeApi, one: Term, tmp_path: Path) -> None:
    """Otherwise, its ConfigMap would remain because Widgets cannot be listed."""
    api.remove(f"{SECRETS.format('a')}/t")
    user = User(api, tmp_path / "journals")
    fields = {"apiVersion": "v1", "kind": "Secret", "metadata": {"labels": MATCHED}}
    policy(api, _both())
    one.settle()
    user.create(f"{SECRETS.format('a')}/t", **fields)
    one.settle()
    assert stored(api, f"{_MAPS}/c-t")
    api.fault(_LISTS, *_FOR_EVER)
    user.delete(f"{SECRETS.format('a')}/t")
    one.pass_s(5)
    assert stored(api, f"{_MAPS}/c-t") is None
    assert stored(api, f"{_WIDGETS}/w-t")
    api.faults.clear()
    one.pass_s(300)
    assert stored(api, f"{_WIDGETS}/w-t") is None
    user.close()


def test_policy_deleted_with_undeletable_objects(api: FakeApi, one: Term) -> None:
    """Otherwise, the objects after the rejected one would remain."""
    policy(api, _both())
    one.settle()
    api.fault("DELETE .*/widgets/", *_FOR_EVER)
    api.remove(f"{POLICIES}/p")
    one.settle()
    assert stored(api, f"{_MAPS}/c-t") is None
    api.faults.clear()
    one.pass_s(300)
    assert stored(api, f"{_WIDGETS}/w-t") is None


def test_lost_triggers(api: FakeApi, tmp_path: Path) -> None:
    """A rule whose objects cannot be listed must not block the other rules."""
    api.remove(f"{SECRETS.format('a')}/t")
    user = User(api, tmp_path / "journals", most=1)
    policy(api, rule("widgets", **_WIDGET, data={"spec": {}}), _maps())
    given = {"apiVersion": "v1", "kind": "Secret", "metadata": {"labels": MATCHED}}
    with term(api) as one:
        one.settle()
        api.fault(_LISTS, *_FOR_EVER)
        user.write = lambda: None  # type: ignore[method-assign]
        for name in ("first", "lost"):
            user.create(f"{SECRETS.format('a')}/{name}", **given)
        del user.write
        user.write()
        one.pass_s(40)
        assert stored(api, f"{_MAPS}/out-lost")
        assert requests_left(api)
        api.faults.clear()
        one.pass_s(300)
        assert stored(api, f"{_WIDGETS}/out-lost")
        assert requests_left(api) == []
    user.close()


def test_lost_change_and_an_unwritable_object(api: FakeApi, tmp_path: Path) -> None:
    """Otherwise, the clone of a deleted source would remain until a grant."""
    api.remove(f"{SECRETS.format('a')}/t")
    source = f"{CONFIG_MAPS.format('b')}/source"
    given = {"apiVersion": "v1", "kind": "ConfigMap"}
    user = User(api, tmp_path / "journals", most=1)
    user.create(source, **given)
    made = _both()
    widgets, clones = made["generate"]["foreach"]
    widgets["list"] = "[request.object.metadata.annotations.name]"
    del clones["data"]
    clones["clone"] = {"namespace": "b", "name": "source"}
    policy(api, made)
    path = f"{SECRETS.format('a')}/t"

    def named(name: str) -> Json:
        metadata = {"labels": MATCHED, "annotations": {"name": name}}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}

    with term(api) as one:
        one.settle()
        user.create(path, **named("old"))
        one.settle()
        assert stored(api, f"{_MAPS}/c-t")
        api.fault("POST .*/widgets", *_FOR_EVER)
        user.write = lambda: None  # type: ignore[method-assign]
        user.create(f"{SECRETS.format('a')}/other", **named("other"))
        user.update(path, **named("new"))
        user.delete(source)
        del user.write
        user.write()
        one.pass_s(40)
        assert stored(api, f"{_MAPS}/c-t") is None
        assert requests_left(api)
        api.faults.clear()
        user.create(source, **given)
        one.pass_s(300)
        assert stored(api, f"{_WIDGETS}/new")
        assert stored(api, f"{_MAPS}/c-t")
    user.close()

"""A kind that is removed or rejected during its use does not stop other work."""

from collections.abc import Iterator
from typing import Any

import pytest

from kyverno_mp.background.objects.kinds import Kinds
from tests.unit.background.world import (
    CONFIG_MAPS,
    POLICIES,
    Term,
    policy,
    rule,
    stored,
    term,
    trigger,
)
from tests.unit.cleanup.cluster import resource, serve_kinds
from tests.unit.kube.fake_api import FakeApi

Json = Any
GROUP = "example.io"
WIDGETS = "/apis/example.io/v1/namespaces/{}/widgets"
_LISTS = r"GET /apis/example.io/v1/widgets\?"
OUT = f"{CONFIG_MAPS.format('a')}/out-t"


def _widgets() -> Json:
    one = resource("widgets", "Widget")
    return (
        GROUP,
        "v1",
        [{**one, "responseKind": {**one["responseKind"], "group": GROUP}}],
    )


def _rules(**more: Json) -> list[Json]:
    """Return a rule for Widgets, and one for ConfigMaps after it."""
    widget: Json = {"apiVersion": "example.io/v1", "kind": "Widget"}
    data = {"data": {"a": "b"}}
    return [
        rule("widgets", **widget, data={"spec": {}}, **more),
        rule("maps", data=data, **more),
    ]


@pytest.fixture
def one(api: FakeApi) -> Iterator[Term]:
    """A pool that has generated a Widget and a ConfigMap."""
    serve_kinds(api, _widgets())
    trigger(api)
    policy(api, *_rules(generateExisting=True))
    with term(api) as found:
        found.settle()
        assert stored(api, OUT)
        assert stored(api, f"{WIDGETS.format('a')}/out-t")
        yield found


def _remove_kind(api: FakeApi) -> None:
    """Remove the definition of Widgets, and thereby all Widgets."""
    api.remove(f"{WIDGETS.format('a')}/out-t")
    serve_kinds(api)
    api.fault("/apis/example.io/v1/", *[404] * 1000)


@pytest.mark.parametrize("is_refused", [False, True])
def test_deleted_policy(api: FakeApi, one: Term, *, is_refused: bool) -> None:
    """Otherwise, ConfigMaps would remain for ever because Widgets cannot be listed."""
    if is_refused:
        api.fault(_LISTS, *[403] * 1000)
    else:
        _remove_kind(api)
    api.remove(f"{POLICIES}/p")
    one.settle()
    assert stored(api, OUT) is None
    api.faults.clear()
    one.pass_s(300)
    assert stored(api, f"{WIDGETS.format('a')}/out-t") is None


@pytest.mark.parametrize("is_refused", [False, True])
def test_changed_policy(api: FakeApi, one: Term, *, is_refused: bool) -> None:
    """Otherwise, a new rule would not run because Widgets cannot be listed."""
    if is_refused:
        api.fault(_LISTS, *[403] * 1000)
    else:
        _remove_kind(api)
    rules = _rules(generateExisting=True)
    rules[1]["generate"]["data"] = {"data": {"a": "c"}}
    policy(api, *rules, generation=2)
    one.settle()
    found = stored(api, OUT)
    assert found is not None
    assert found["data"] == {"a": "c"}


def test_removed_kind(api: FakeApi, one: Term) -> None:
    """Triggers of a removed kind must not look deleted."""
    kinds = Kinds(api.client(), one.time)
    assert kinds.serves("example.io/v1", "Widget")
    _remove_kind(api)
    one.time.now_s += 60
    assert not kinds.serves("example.io/v1", "Widget")

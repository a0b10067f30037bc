"""An unexpected error in one request or task of a trigger stops no other.

Expected: docs/background.md (failures): the request fails, is retried and is given up.
"""

from collections.abc import Callable
from typing import Any

import pytest

from kyverno_mp.background.generate.generator import Generator
from kyverno_mp.background.generating.run import Generating
from kyverno_mp.background.mutate.mutating import MutatingRunner
from kyverno_mp.background.mutate.mutator import Mutator
from kyverno_mp.background.runner import Runner
from tests.unit.background import world
from tests.unit.background.generating_world import (
    OUT,
    content,
    held,
    policy,
    request,
    trigger,
)
from tests.unit.background.world import (
    REQUESTS,
    new_cluster,
    of_open,
    open_trigger,
    requests_left,
    rule,
    stored,
    term,
)
from tests.unit.kube.fake_api import FakeApi

_DEFECTS = "kyverno_mp_controller_defects_total"
_MESSAGE = "background.defect: internal error, see the log"


@pytest.fixture(autouse=True)
def cluster(api: FakeApi) -> None:
    new_cluster(api)


def broken(
    monkeypatch: pytest.MonkeyPatch, owner: type, is_meant: Callable[[Any], bool]
) -> None:
    """Let ``owner.run`` raise for the tasks or requests that are meant."""
    run = owner.run  # type: ignore[attr-defined]

    def raising(self: Any, one: Any, *more: Any, **named: Any) -> Any:
        if is_meant(one):
            raise RecursionError("too deep")
        return run(self, one, *more, **named)

    monkeypatch.setattr(owner, "run", raising)


def two_requests(api: FakeApi) -> None:
    """Store a request of a tenant's policy, then one of a cluster policy."""
    policy(api, namespace="a", name="bad")
    policy(api)
    raw = trigger(api)
    request(api, raw, name="u1", policy_name="a/bad")
    request(api, raw, name="u2")


def status_of(api: FakeApi, name: str) -> Any:
    found = stored(api, f"{REQUESTS}/{name}")
    assert found is not None
    return found["status"]


@pytest.mark.parametrize("owner", [Generating, Runner])
def test_defect_in_one_policy(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, owner: type
) -> None:
    """Otherwise, a tenant's policy could block cluster policies for ever."""

    def is_meant(one: Any) -> bool:
        task = one.spec if owner is Runner else one
        return bool(task.policy == "a/bad")

    broken(monkeypatch, owner, is_meant)
    two_requests(api)
    with held(api) as one:
        one.settle()
        assert content(api) == "1"
        assert requests_left(api) == ["u1"]
        status = status_of(api, "u1")
        assert (status["state"], status["message"]) == ("Failed", _MESSAGE)
        assert one.recorded.total(_DEFECTS) == 1
        notes = one.recorded.notes()
        assert any("background.defect" in note for note in notes) is (
            owner is Generating
        )
        one.pass_s(1200)
        assert requests_left(api) == []
        assert one.recorded.total(_DEFECTS) == 10


@pytest.mark.parametrize(
    ("kind", "owner"),
    [("generate", Generator), ("mutate", Mutator), ("cel-mutate", MutatingRunner)],
)
def test_defect_in_a_request_of_another_kind(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, kind: str, owner: type
) -> None:
    broken(monkeypatch, owner, lambda one: one.policy == "bad")
    for name in ("bad", "p"):
        world.policy(api, of_open(rule(data={"data": {"a": "b"}})), name=name)
    raw = open_trigger(api)
    world.request(api, raw, name="u1", policy="bad", kind=kind)
    world.request(api, raw, name="u2")
    with term(api) as one:
        one.settle()
        assert stored(api, OUT + "-t") is not None
        assert requests_left(api) == ["u1"]
        assert status_of(api, "u1")["message"] == _MESSAGE


def test_rejected_deletion_of_one_request(api: FakeApi) -> None:
    """Otherwise, requests of the same trigger would wait for the operator."""
    two_requests(api)
    api.fault("DELETE .*/updaterequests/u1$", *[403] * 1000)
    with held(api) as one:
        one.settle()
        assert requests_left(api) == ["u1"]
        api.faults.clear()
        one.pass_s(600)
        assert requests_left(api) == []

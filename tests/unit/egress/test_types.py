"""Types of custom kinds, as published by the API server.

A failure means: a MutatingPolicy merges by outdated types, requests types for each
object, or changes an object although its types are unknown.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kyverno_mp.egress import types as module
from kyverno_mp.egress.schemas import LiveSchemas
from kyverno_mp.egress.types import LiveTypes
from kyverno_mp.errors import DependencyError
from kyverno_mp.limits import TYPES_KEPT_MAX
from tests.unit.kube.fake_api import FakeApi, running
from tests.unit.values.test_custom_types import API, KIND, published

PATH = "apis/example.org/v1"


class Clock:
    """The module's clock, which a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    one = Clock()
    monkeypatch.setattr(module, "time", one)
    return one


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with running() as server:
        publish(server, published(), "1")
        yield server


def publish(api: FakeApi, document: bytes, version: str) -> None:
    url = f"/openapi/v3/{PATH}?hash={version}"
    api.answers["/openapi/v3"] = {"paths": {PATH: {"serverRelativeURL": url}}}
    api.answers[f"/openapi/v3/{PATH}"] = json.loads(document)


def test_kind_lookups_are_cached(api: FakeApi, clock: Clock) -> None:
    live = LiveTypes(LiveSchemas(api.client()))
    found = live.types(API, KIND, 0)
    assert found is not None
    assert (API, KIND) in found.kinds
    assert ("v1", "Pod") in found.kinds
    api.requests.clear()
    assert live.types(API, KIND, 0) is found
    assert api.requests == []
    clock.now_s = 6.0
    assert live.types(API, KIND, 0) is found
    assert api.count("GET /openapi/v3/apis") == 0
    spec: Any = {"type": "object", "properties": {"new": {"type": "string"}}}
    publish(api, published(spec), "2")
    clock.now_s = 12.0
    changed = live.types(API, KIND, 0)
    assert changed is not None
    assert changed is not found


def test_unserved_kind(api: FakeApi) -> None:
    assert LiveTypes(LiveSchemas(api.client())).types("other.org/v1", "X", 0) is None


def test_api_server_without_an_answer(api: FakeApi) -> None:
    api.fault("GET /openapi", *[500] * 50)
    with pytest.raises(DependencyError):
        LiveTypes(LiveSchemas(api.client())).types(API, KIND, 0)


def test_the_oldest_kinds_are_dropped(api: FakeApi) -> None:
    """Otherwise, users who can define kinds could fill the memory."""
    live = LiveTypes(LiveSchemas(api.client()))
    for number in range(TYPES_KEPT_MAX + 1):
        live.types("other.org/v1", f"X{number}", 0)
    assert len(live._known) == TYPES_KEPT_MAX
    api.requests.clear()
    live.types("other.org/v1", f"X{TYPES_KEPT_MAX}", 0)
    assert api.requests == []
    live.types("other.org/v1", "X0", 0)
    assert api.requests

"""Workers read schemas from the API server, only for warnings.

A failure means: a changed CRD is evaluated by its old schema; or an API server that is
slow, broken or hostile at ``/openapi/v3`` delays a policy or fills the memory.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kyverno_mp.egress import schemas as module
from kyverno_mp.egress.schemas import FAILED, LiveSchemas
from tests.unit.kube.fake_api import FakeApi, running

APPS = ("apps", "v1")
CORE = ("", "v1")


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with running() as server:
        publish(server, "1", {"api/v1": "Pod", "apis/apps/v1": "Deployment"})
        yield server


def publish(api: FakeApi, version: str, kinds: dict[str, str]) -> None:
    paths = {
        path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={version}"}
        for path in kinds
    }
    api.answers["/openapi/v3"] = {"paths": paths}
    for path, kind in kinds.items():
        document = {kind: {"type": "object", "description": "long", "format": version}}
        api.answers[f"/openapi/v3/{path}"] = {"components": {"schemas": document}}


def asked(api: FakeApi) -> list[str]:
    found = [path for _, path, _ in api.requests]
    api.requests.clear()
    return found


def test_document_is_read_again_only_after_a_change(api: FakeApi) -> None:
    live = LiveSchemas(api.client())
    found = live.schemas([APPS, CORE])
    assert found[APPS]["Deployment"].type == "object"
    assert list(found[CORE]) == ["Pod"]
    assert asked(api) == [
        "/openapi/v3",
        "/openapi/v3/apis/apps/v1?hash=1",
        "/openapi/v3/api/v1?hash=1",
    ]
    assert live.schemas([APPS]) == {APPS: found[APPS]}
    assert asked(api) == ["/openapi/v3"]
    publish(api, "2", {"apis/apps/v1": "Deployment"})
    assert live.schemas([APPS, CORE])[APPS]["Deployment"].format == "2"
    assert asked(api) == ["/openapi/v3", "/openapi/v3/apis/apps/v1?hash=2"]


def test_unpublished_documents_are_omitted(api: FakeApi) -> None:
    assert LiveSchemas(api.client()).schemas([("none.test", "v1")]) == {}
    assert asked(api) == ["/openapi/v3"]


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/openapi/v3", None),
        ("/openapi/v3", []),
        ("/openapi/v3", {"paths": 3}),
        ("/openapi/v3/apis/apps/v1", None),
        ("/openapi/v3/apis/apps/v1", {"components": {"schemas": {"A": 3}}}),
        (
            "/openapi/v3/apis/apps/v1",
            {"components": {"schemas": {"A": {"properties": {"x": {"type": 3}}}}}},
        ),
    ],
)
def test_failed_reads_are_cached_for_a_while(
    api: FakeApi, path: str, answer: Any
) -> None:
    if answer is None:
        del api.answers[path]
    else:
        api.answers[path] = answer
    told: list[str] = []
    live = LiveSchemas(api.client(), told.append)
    assert live.schemas([APPS]) == {}
    assert told == [FAILED]
    assert asked(api)
    assert live.schemas([APPS]) == {}
    assert asked(api) == []


def test_schemas_read_before_a_failure_are_used(api: FakeApi) -> None:
    del api.answers["/openapi/v3/apis/apps/v1"]
    assert list(LiveSchemas(api.client()).schemas([CORE, APPS])) == [CORE]


def test_slow_server_delays_no_review(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OPENAPI_WAIT_S_MAX", 0.2)
    api.faults += [("/openapi/v3", "hang")] * 5
    assert LiveSchemas(api.client()).schemas([APPS]) == {}


def test_document_above_the_limit_is_not_read(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(json.dumps(api.answers["/openapi/v3"])) + 10
    monkeypatch.setattr(module, "OPENAPI_BYTES_MAX", size)
    live = LiveSchemas(api.client())
    assert live.schemas([APPS])
    padding = {"x": {"type": "object", "description": "x" * size}}
    publish(api, "2", {"apis/apps/v1": "Deployment"})
    api.answers["/openapi/v3/apis/apps/v1"] = {"components": {"schemas": padding}}
    assert live.schemas([APPS]) == {}


def test_oldest_documents_are_evicted(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = LiveSchemas(api.client())
    live.schemas([CORE, APPS])
    asked(api)
    size = len(json.dumps(api.answers["/openapi/v3/apis/apps/v1"]))
    monkeypatch.setattr(module, "OPENAPI_KEPT_BYTES_MAX", size)
    publish(api, "2", {"api/v1": "Pod", "apis/apps/v1": "Deployment"})
    live.schemas([CORE, APPS])
    asked(api)
    live.schemas([APPS])
    assert asked(api) == ["/openapi/v3"]
    live.schemas([CORE])
    assert asked(api) == ["/openapi/v3", "/openapi/v3/api/v1?hash=2"]

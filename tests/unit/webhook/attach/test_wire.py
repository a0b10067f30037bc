"""The dependencies of a role reach the service that answers its reviews."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from kyverno_mp.settings.settings import Settings
from kyverno_mp.webhook.route import SHARED
from kyverno_mp.webhook.wire import RoleDependencies, wire
from kyverno_mp.webhook.worker import Served
from tests.unit.webhook.stub import StubEvaluate, StubRecords, review


@pytest.fixture
def served() -> Iterator[Served]:
    loop = asyncio.new_event_loop()

    def kind_of(_group: str, _version: str, resource: str) -> str | None:
        return "Widget" if resource == "widgets" else None

    found = wire(
        Settings(standalone=True),
        loop,
        RoleDependencies(
            evaluate=StubEvaluate(),
            is_ready=lambda: True,
            records=StubRecords(),
            tick=lambda _gauges: None,
            top_kind=kind_of,
        ),
    )
    yield found
    found.stop(1.0)
    loop.close()


def scale_of(plural: str) -> bytes:
    return review(
        kind={"group": "autoscaling", "version": "v1", "kind": "Scale"},
        resource={"group": "x.io", "version": "v1", "resource": plural},
        subResource="scale",
        operation="UPDATE",
    )


def test_scale_of_a_custom_resource_is_evaluated(served: Served) -> None:
    """Otherwise a policy for all resources would block scaling of custom resources."""
    route = SHARED[b"/validate/fail"]
    answer = served.connections.service.answer(route, b"", scale_of("widgets"))
    assert isinstance(answer, bytes)
    assert json.loads(answer)["response"]["allowed"] is True


def test_scale_of_an_unknown_kind_is_denied(served: Served) -> None:
    """Otherwise the answer is an HTTP error, and the API server admits the object."""
    for path in (b"/validate/ignore", b"/validate/fail", b"/mutate/ignore"):
        answer = served.connections.service.answer(
            SHARED[path], b"", scale_of("gadgets")
        )
        assert isinstance(answer, bytes)
        found = json.loads(answer)["response"]
        assert (found["uid"], found["allowed"]) == ("u-1", False)
        assert "(admission.kind_unknown)" in found["status"]["message"]

"""A standalone service's worker evaluates the ImageValidatingPolicies of its folder.

A failure means: workers do not follow a segment that the leader publishes, or the
leader counts it under another name.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.snapshot.publish import segment_file
from kyverno_mp.telemetry.collect import merge, views
from kyverno_mp.telemetry.families import HTTP, IMAGE_POLICY_RESULTS, RESULTS
from kyverno_mp.values.kubernetes.policy_kinds import IMAGE_VALIDATING_POLICY
from kyverno_mp.webhook.http_errors import HttpError
from tests.unit.webhook.cel.test_cel_worker import Service
from tests.unit.webhook.images.test_image_policies import policy

NEVER = {"expression": "false", "message": "never"}
ALWAYS = {"expression": "true"}
NO_IMAGE: dict[str, Any] = {"matchImageReferences": [{"glob": "example.com/none"}]}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path)
    yield made
    made.close()


def test_reviews_are_answered_and_counted(service: Service) -> None:
    service.put(policy("a", ALWAYS, **NO_IMAGE), policy("b", NEVER, **NO_IMAGE))
    service.start()
    assert service.allows("/ivpol/validate/a")
    assert not service.allows("/ivpol/validate/b")
    service.loop.run_until_complete(asyncio.sleep(0))
    found = merge(views(service.snapshot.parent / "pages"))
    where = ("Pod", "a", "create", "admission_request")
    assert set(found[IMAGE_POLICY_RESULTS]) == {
        ("Kubernetes", "true", "-", "a", *where, "pass"),
        ("Kubernetes", "true", "-", "b", *where, "fail"),
    }
    assert not found.get(RESULTS)
    assert set(found[HTTP]) == {("POST", "/ivpol")}


def test_worker_without_its_segment_does_not_answer(service: Service) -> None:
    service.put(policy("a", NEVER, **NO_IMAGE))
    file = service.snapshot / segment_file(IMAGE_VALIDATING_POLICY.segment)
    file.write_bytes(file.read_bytes()[:-8])
    service.start()
    with pytest.raises(HttpError) as refused:
        service.allows("/ivpol/validate/a")
    assert refused.value.status == 503
    service.leader.step()
    assert not service.allows("/ivpol/validate/a")

"""/verifymutate writes the time to a Lease, which proves that we are reachable."""

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from falcon import testing

from kyverno_mp.webhook.rest import make_app

STAMP = "kyverno.io/last-request-time"


def ask(metadata: dict[str, Any]) -> dict[str, Any]:
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    request = {
        "uid": "u",
        "kind": {"group": "coordination.k8s.io", "version": "v1", "kind": "Lease"},
        "operation": "UPDATE",
        "object": {**lease, "metadata": metadata},
    }
    client = testing.TestClient(make_app(lambda: True))
    body = json.dumps({"request": request})
    answer = client.simulate_post("/verifymutate", body=body)
    assert answer.status_code == 200
    response: dict[str, Any] = answer.json["response"]
    assert response["allowed"] is True
    assert response["uid"] == "u"
    return response


@pytest.mark.parametrize("annotations", [{STAMP: "2020-01-01T00:00:00Z"}, {"a": "b"}])
def test_time_is_written_to_the_annotation(annotations: dict[str, str]) -> None:
    response = ask({"name": "kyverno-health", "annotations": annotations})
    assert response["patchType"] == "JSONPatch"
    (operation,) = json.loads(base64.b64decode(response["patch"]))
    assert operation["path"] == "/metadata/annotations/kyverno.io~1last-request-time"
    stamped = datetime.fromisoformat(operation["value"])
    assert abs((datetime.now(UTC) - stamped).total_seconds()) < 60


def test_lease_without_annotations_is_unchanged() -> None:
    assert "patch" not in ask({"name": "other"})

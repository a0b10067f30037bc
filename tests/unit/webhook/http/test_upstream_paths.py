"""Every path that Kyverno registers is answered, and no verdict is given blindly.

A failure means: during a take-over, requests are denied because a path is missing, or
an object is admitted that the path's policies have not judged.
"""

import itertools
import json
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from falcon import testing

from kyverno_mp.errors import SnapshotUnusable
from kyverno_mp.program.cel_sources import EXECUTED
from kyverno_mp.webhook.http_errors import HttpError
from kyverno_mp.webhook.rest import make_app
from kyverno_mp.webhook.review.dependencies import Dependencies
from kyverno_mp.webhook.review.handlers import handlers_of
from kyverno_mp.webhook.review.service import Service
from kyverno_mp.webhook.route import route_of
from tests.unit.webhook.stub import StubRecords

TABLE: Final = (
    Path(__file__).parents[4] / "docs/behaviour/controllers/15-webhook-paths.md"
)
WEBHOOKS: Final = {
    "verdict of rules": "validate",
    "patch by rules": "mutate",
    **{f"verdict of {name}": name for name in ("vpol", "nvpol", "ivpol", "nivpol")},
    **{f"patch by {name}": name for name in ("mpol", "nmpol")},
    **{f"patch by {name}": f"{name}/mutate" for name in ("ivpol", "nivpol")},
    **{f"trigger of {name}": name for name in ("gpol", "ngpol")},
}
"""Answers that depend on policies -> the webhook that gives them."""
DOCUMENTS: Final = {
    "verdict on policies": ("kyverno.io/v1", "ClusterPolicy"),
    "verdict on exceptions": ("kyverno.io/v2", "PolicyException"),
    "verdict on entries": ("kyverno.io/v2", "GlobalContextEntry"),
}
"""Answers about Kyverno's own objects -> a kind, of which an empty one is invalid."""
OTHERS: Final = {
    "allows, no change": False,
    "allows with a warning": False,
    "patch with the time": True,
}
"""Answers that never deny -> whether they change the object."""
EXAMPLES: Final = {
    "{f}": ("fail", "ignore"),
    "{key}": ("p", "ns/p"),
    "{names}": ("p", "p/q"),
}
SERVED_BY_OTHERS: Final = [("cleanup", "/validate")]
"""Our pods are not behind the Service of the clean-up controller."""


class Row(NamedTuple):
    server: str
    path: str
    answer: str


def rows() -> list[Row]:
    found = []
    for line in TABLE.read_text().splitlines():
        cells = [cell.strip(" `") for cell in line.strip("|").split("|")]
        if line.startswith("| ") and cells[1].startswith("/"):
            server, path, _registered, _served, answer = cells
            names = [name for name in EXAMPLES if name in path]
            for values in itertools.product(*(EXAMPLES[name] for name in names)):
                made = path
                for name, value in zip(names, values, strict=True):
                    made = made.replace(name, value)
                found.append(Row(server, made, answer))
    return found


ROWS: Final = rows()


class Unloaded:
    """Plans before the first snapshot."""

    def plan(self, *_: Any) -> None:
        raise SnapshotUnusable("webhook.no_snapshot", "no policies are loaded yet")


def body(version: str = "v1", kind: str = "ConfigMap") -> bytes:
    group, _, bare = version.rpartition("/")
    request = {
        "uid": "u",
        "kind": {"group": group, "version": bare, "kind": kind},
        "resource": {"group": group, "version": bare, "resource": f"{kind.lower()}s"},
        "operation": "CREATE",
        "namespace": "ns",
        "name": "n",
        "userInfo": {"username": "someone"},
        "object": {
            "apiVersion": version,
            "kind": kind,
            "metadata": {"name": "n", "annotations": {"a": "b"}},
            "spec": {},
        },
    }
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
    return json.dumps({**review, "request": request}).encode()


def posted(path: str, given: bytes) -> dict[str, Any]:
    client = testing.TestClient(make_app(lambda: True))
    headers = {"content-type": "application/json"}
    answer = client.simulate_post(path, body=given, headers=headers)
    assert answer.status_code == 200, (path, answer.text)
    response: dict[str, Any] = answer.json["response"]
    return response


def test_the_table_is_read() -> None:
    assert {row.path for row in ROWS} >= {
        "/validate/fail/finegrained/ns/p",
        "/ivpol/mutate/p/q",
        "/verifyttl",
    }
    known = {*WEBHOOKS, *DOCUMENTS, *OTHERS}
    left = [(row.server, row.path) for row in ROWS if row.answer not in known]
    assert left == SERVED_BY_OTHERS


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.answer in WEBHOOKS], ids=lambda row: row.path
)
def test_policies_decide(row: Row) -> None:
    """Without policies there is no verdict, so the failurePolicy decides."""
    route = route_of(row.path.encode())
    assert route is not None
    assert route.webhook == WEBHOOKS[row.answer]
    parts = row.path.split("/")
    suffix = next((one for one in ("fail", "ignore") if one in parts), "")
    expected = {suffix.capitalize()} if suffix else {"Fail", "Ignore"}
    assert route.failure_policies == expected
    named = "/".join(one for one in parts if one in ("p", "q", "ns"))
    assert route.policy_key == named
    none: Any = Unloaded()
    handlers = handlers_of(none, none, dict.fromkeys(EXECUTED, lambda: None))
    dependencies = Dependencies(records=StubRecords(), monotonic_ns=time.monotonic_ns)
    with pytest.raises(HttpError) as caught:
        Service(dependencies, handlers).answer(route, b"timeout=10s", body())
    assert caught.value.code == "webhook.no_snapshot"


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.answer in DOCUMENTS], ids=lambda row: row.path
)
def test_kyvernos_own_objects_are_judged(row: Row) -> None:
    version, kind = DOCUMENTS[row.answer]
    if row.path == "/celexception/validate":
        version = "policies.kyverno.io/v1"
    assert route_of(row.path.encode()) is None
    assert posted(row.path, body(version, kind))["allowed"] is False


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.answer in OTHERS], ids=lambda row: row.path
)
def test_the_other_paths_deny_nothing(row: Row) -> None:
    response = posted(row.path, body())
    assert response["allowed"] is True
    assert ("patch" in response) is OTHERS[row.answer]

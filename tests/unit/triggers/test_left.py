"""UpdateRequests that are left when a pod ends get the state that Kyverno expects.

A failure means: after a roll-back to Kyverno, objects that a policy should generate are
missing.
"""

import pytest

from kyverno_mp.leader.triggers.left import mark_pending
from tests.unit.kube.fake_api import FakeApi
from tests.waiting import HANG_S

REQUESTS = "/apis/kyverno.io/v2/namespaces/kyverno/updaterequests"
SPEC = {"requestType": "generate", "policy": "p"}


def states(api: FakeApi) -> dict[str, str]:
    return {
        key[3]: (raw.get("status") or {}).get("state", "")
        for key, raw in api.objects.items()
        if key[2] == "updaterequests"
    }


def test_only_requests_without_a_state_are_marked(api: FakeApi) -> None:
    for name, state in (("new", ""), ("old", "Failed"), ("done", "Completed")):
        status = {"state": state, "message": "m"} if state else {}
        api.put(f"{REQUESTS}/{name}", spec=SPEC, status=status)
    gone = {"deletionTimestamp": "2026-01-01T00:00:00Z", "name": "gone"}
    api.put(f"{REQUESTS}/gone", spec=SPEC, metadata=gone)
    for number in range(7):
        api.put(f"{REQUESTS}/{number}", spec=SPEC)
    assert mark_pending(api.client(), "kyverno") == 8
    found = states(api)
    assert found.pop("old") == "Failed"
    assert found.pop("done") == "Completed"
    assert found.pop("gone") == ""
    assert set(found.values()) == {"Pending"}
    assert len(found) == 8
    assert mark_pending(api.client(), "kyverno") == 0


@pytest.mark.parametrize(
    ("context", "state"),
    [({}, ""), ({"admissionRequestInfo": {"operation": "CREATE"}}, "Pending")],
)
def test_request_that_would_end_kyverno_is_not_marked(
    api: FakeApi, context: dict[str, object], state: str
) -> None:
    """Upstream reads the user of a MutatingPolicy's review without a check."""
    spec = {"requestType": "cel-mutate", "policy": "p", "context": context}
    api.put(f"{REQUESTS}/new", spec=spec)
    mark_pending(api.client(), "kyverno")
    assert states(api) == {"new": state}


@pytest.mark.parametrize("status", [403, 503])
def test_a_pod_ends_nevertheless(
    api: FakeApi, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    api.put(f"{REQUESTS}/new", spec=SPEC)
    api.fault("PATCH .*/status", status)
    mark_pending(api.client().within(HANG_S), "kyverno")
    assert states(api) == {"new": ""}
    assert "left without a state" in caplog.text

"""The status of an entry describes the lease holder; entries fail independently."""

from datetime import UTC, datetime
from typing import Any

from kyverno_mp.controllers.global_context_status import (
    GlobalContextStatuses,
    status_of,
)
from kyverno_mp.kube.apply import Objects
from tests.unit.kube.fake_api import running

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = datetime(2026, 1, 2, tzinfo=UTC)
ENTRIES = "/apis/kyverno.io/v2beta1/globalcontextentries"


def condition(status: str, message: str, since: str = "2026-01-01T00:00:00Z") -> Any:
    return {
        "type": "Ready",
        "status": status,
        "reason": "Succeeded" if status == "True" else "Failed",
        "message": message,
        "lastTransitionTime": since,
    }


def test_status_reports_whether_the_entry_is_readable() -> None:
    ready = status_of((True, "", NOW), {"ready": True}, NOW)
    assert ready == {
        "conditions": [condition("True", "Ready")],
        "lastRefreshTime": "2026-01-01T00:00:00Z",
    }
    failed = status_of((False, "no", NOW), ready, LATER)
    since = "2026-01-02T00:00:00Z"
    assert failed["conditions"] == [condition("False", "no", since)]
    assert failed["lastRefreshTime"] == "2026-01-01T00:00:00Z"
    still = status_of((False, "still no", NOW), failed, NOW)
    assert still["conditions"] == [condition("False", "still no", since)]
    assert status_of((True, "", None), {}, NOW).keys() == {"conditions"}


def test_each_state_is_written_once_and_failures_are_isolated() -> None:
    with running() as api:
        api.put(f"{ENTRIES}/a", spec={})
        api.put(f"{ENTRIES}/b", spec={})
        statuses = GlobalContextStatuses(Objects(api.client()))
        api.fault("PUT .*/a/status", 403)
        states = {
            "a": (True, "", None),
            "b": (True, "", None),
            "gone": (True, "", None),
        }
        statuses.write(states, NOW)
        key = (ENTRIES.rsplit("/", 1)[0], "", "globalcontextentries")
        assert "status" not in api.objects[(*key, "a")]
        assert api.objects[(*key, "b")]["status"]["conditions"][0]["status"] == "True"
        statuses.write(states, NOW)
        assert "status" in api.objects[(*key, "a")]
        asked = len(api.requests)
        statuses.write(states, NOW)
        assert len(api.requests) == asked
        statuses.forget()
        statuses.write(states, NOW)
        assert len(api.requests) > asked

"""The Events and counts of PolicyExceptions that expire.

A failure means: nobody learns in time that an exception ends, or that it has no effect;
or each restart repeats Events.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from kyverno_mp.controllers.exception_expiry import ALL, ExceptionExpiryController
from kyverno_mp.kube.events import EventInfo
from kyverno_mp.queues.clock import Clock

END = datetime(2027, 1, 31, tzinfo=UTC)
EXPIRES = {"kyverno-mp.io/expires": "2027-01-31T00:00:00Z"}
REASON = {"kyverno-mp.io/reason": "the chart of the vendor"}
NONE = {"lasting": 0, "expiring": 0, "expired": 0, "invalid": 0}


class Lease:
    is_held = True

    def holds(self) -> bool:
        return self.is_held


class Rig:
    """A controller on a clock of the test."""

    def __init__(self, moment: datetime, *documents: bytes) -> None:
        self.moment = moment
        self.documents = list(documents)
        self.lease = Lease()
        self.events: list[EventInfo] = []
        self.has_room = True
        election: Any = self.lease
        self.controller = ExceptionExpiryController(
            election,
            lambda: self.documents,
            lambda namespace: namespace != "closed",
            self._submit,
            Clock(now=lambda: self.moment),
        )

    def _submit(self, event: EventInfo) -> bool:
        if self.has_room:
            self.events.append(event)
        return self.has_room

    def run(self, moment: datetime | None = None) -> list[tuple[str, str]]:
        """Reconcile; return reason and note of the new Events."""
        self.moment = moment or self.moment
        before = len(self.events)
        self.controller.reconcile(ALL)
        return [(event.reason, event.note) for event in self.events[before:]]

    def counted(self) -> dict[str, int]:
        counts = self.controller.counts()
        return {state: count for state, count in counts.items() if count}


def exception(
    annotations: dict[str, str], namespace: str = "team", **spec: str
) -> bytes:
    group = "policies.kyverno.io/v1" if spec else "kyverno.io/v2"
    metadata = {
        "name": "e",
        "namespace": namespace,
        "uid": "u",
        "annotations": annotations,
    }
    return msgspec.json.encode(
        {
            "apiVersion": group,
            "kind": "PolicyException",
            "metadata": metadata,
            "spec": spec,
        }
    )


@pytest.mark.parametrize(
    "document",
    [
        exception({**EXPIRES, **REASON}),
        exception(REASON, expiresAt="2027-01-31T00:00:00Z"),
    ],
)
def test_an_exception_is_reported_before_and_when_it_expires(document: bytes) -> None:
    rig = Rig(END - timedelta(days=8), document)
    assert rig.run() == []
    assert rig.counted() == {"lasting": 1}
    suffix = " 2027-01-31T00:00:00Z. Its reason: the chart of the vendor"
    soon = [("PolicyExceptionExpiring", f"It expires{suffix}")]
    assert rig.run(END - timedelta(days=7)) == soon
    assert rig.run(END - timedelta(days=1)) == []
    assert rig.counted() == {"expiring": 1}
    over = f"It has expired and exempts nothing since{suffix}"
    assert rig.run(END) == [("PolicyExceptionExpired", over)]
    assert rig.run(END + timedelta(hours=1)) == []
    assert rig.counted() == {"expired": 1}
    about = rig.events[0].regarding
    assert (about.kind, about.namespace, about.name) == ("PolicyException", "team", "e")
    assert about.api_version == msgspec.json.decode(document)["apiVersion"]


def test_another_lease_holder_writes_the_same_event_for_a_day() -> None:
    """The Event's name depends on its time and seed, so it is one Event."""
    first, second = Rig(END, exception(EXPIRES)), Rig(END, exception(EXPIRES))
    second.lease.is_held = False
    assert first.run()
    assert second.run() == []
    assert dict(second.controller.counts()) == NONE
    second.lease.is_held = True
    assert second.run(END + timedelta(hours=23))
    assert first.events == second.events
    third = Rig(END + timedelta(hours=24), exception(EXPIRES))
    assert third.run() == []
    assert third.counted() == {"expired": 1}


def test_an_invalid_exception_is_reported() -> None:
    invalid = exception({"kyverno-mp.io/expires": "soon"})
    rig = Rig(END, invalid, exception({}, "closed"), b"{}")
    note = (
        "It exempts nothing: metadata.annotations[kyverno-mp.io/expires]: expected a"
        " time such as 2027-01-31T00:00:00Z"
    )
    assert rig.run() == [("PolicyExceptionInvalid", note)]
    assert rig.run() == []
    assert rig.counted() == {"invalid": 1}


def test_an_event_without_room_is_submitted_again() -> None:
    rig = Rig(END, exception(EXPIRES))
    rig.has_room = False
    assert rig.run() == []
    rig.has_room = True
    assert [reason for reason, _ in rig.run()] == ["PolicyExceptionExpired"]


def test_a_renewed_exception_is_reported_again() -> None:
    rig = Rig(END, exception(EXPIRES))
    assert rig.run()
    later = {"kyverno-mp.io/expires": "2027-02-28T00:00:00Z"}
    rig.documents = [exception(later)]
    assert rig.run() == []
    reasons = [reason for reason, _ in rig.run(datetime(2027, 2, 28, tzinfo=UTC))]
    assert reasons == ["PolicyExceptionExpired"]

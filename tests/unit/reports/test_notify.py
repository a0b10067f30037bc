"""Notifications about new failures.

A failure means: the operator's receiver hears of a failure twice or never, gets a
message of any size, or learns of it from a replica that does not hold the lease.
"""

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.egress.clients import open_receiver
from kyverno_mp.errors import ExpressionFailed, KubeUnavailable
from kyverno_mp.limits import (
    NOTIFY_CHARACTERS_MAX,
    NOTIFY_GROUPS_MAX,
    NOTIFY_GROUPS_SENT_MAX,
    NOTIFY_OBJECTS_MAX,
)
from kyverno_mp.queues.clock import Clock
from kyverno_mp.reports.notify import ALERTMANAGER, Notifier, Post
from kyverno_mp.results.entries import Row, Subject
from kyverno_mp.settings.settings import Settings
from tests.unit.cleanup.cluster import Recorded
from tests.unit.egress.test_services import answering
from tests.unit.kube.fake_api import FakeApi
from tests.unit.reports.test_merging import ONCE, holding, merge, review, row
from tests.unit.reports.world import (
    Term,
    Time,
    labelled,
    new_cluster,
    pod,
    policy,
    term,
)

OUTCOMES = "kyverno_mp_notifications_total"
SECRET = "hooks-0123456789"


class Receiver:
    """Answers with the next status, or the last one; an error is raised."""

    def __init__(self, *statuses: int | Exception) -> None:
        self.statuses = list(statuses) or [200]
        self.bodies: list[Any] = []

    def __call__(self, body: bytes) -> int:
        self.bodies.append(json.loads(body))
        first = self.statuses[0]
        if len(self.statuses) > 1:
            self.statuses.pop(0)
        if isinstance(first, Exception):
            raise first
        return first


class Rig:
    """A notifier without a thread."""

    def __init__(self, receiver: Post, form: str = "webhook") -> None:
        self.recorded = Recorded()
        self.holds = True
        time = Time()
        self.notifier = Notifier(
            receiver,
            self.recorded,
            lambda: self.holds,
            lambda _subject: {},
            Clock(monotonic_s=time.monotonic_s, now=time.now),
            interval_s=30,
            form=form,
        )

    def add(
        self,
        name: str = "x",
        result: str = "fail",
        namespace: str = "a",
        message: str = "",
        severity: str = "",
    ) -> None:
        found = Row(
            source="kyverno",
            policy="p",
            rule="r",
            result=result,
            message=message,
            severity=severity,
        )
        subject = Subject(
            api_version="v1", kind="Pod", name=name, namespace=namespace, uid=name
        )
        self.notifier.add(subject, [found])

    def outcomes(self) -> dict[str, float]:
        counts = self.recorded.counts.items()
        return {labels[0]: n for (name, labels), n in counts if name == OUTCOMES}


def test_failures_of_a_rule_in_a_namespace_are_one_group() -> None:
    receiver = Receiver()
    rig = Rig(receiver)
    for number in range(2 * NOTIFY_OBJECTS_MAX):
        rig.add(f"x{number}", message="m" * 2 * NOTIFY_CHARACTERS_MAX, severity="high")
    rig.add("y", namespace="b")
    for result in ("pass", "skip", "warn"):
        rig.add("z", result)
    assert not rig.notifier.send()
    (body,) = receiver.bodies
    assert (body["version"], body["leftOut"]) == (1, 0)
    first, second = body["failures"]
    assert first["objects"] == [f"Pod/x{number}" for number in range(5)]
    assert (first["count"], first["severity"]) == (2 * NOTIFY_OBJECTS_MAX, "high")
    assert first["message"] == "m" * NOTIFY_CHARACTERS_MAX
    assert (second["namespace"], second["count"]) == ("b", 1)
    assert not rig.notifier.send()
    assert len(receiver.bodies) == 1
    assert rig.outcomes() == {"sent": 1}


def test_alertmanager_gets_an_alert_for_each_group() -> None:
    """Labels identify an alert, so that what varies is an annotation."""
    receiver = Receiver()
    rig = Rig(receiver, ALERTMANAGER)
    for number in range(7):
        rig.add(f"x{number}", message="the label team is required")
    rig.notifier.send()
    ((alert,),) = receiver.bodies
    assert alert["labels"] == {
        "alertname": "KyvernoPolicyFailure",
        "policy": "p",
        "rule": "r",
        "result": "fail",
        "namespace": "a",
    }
    assert alert["annotations"] == {
        "summary": "Pod/x0, Pod/x1, Pod/x2, Pod/x3, Pod/x4 and 2 more",
        "description": "the label team is required",
    }
    assert alert["startsAt"].endswith("+00:00")


def test_a_message_is_bounded_and_the_rest_follows() -> None:
    receiver = Receiver()
    rig = Rig(receiver)
    for number in range(NOTIFY_GROUPS_MAX + 3):
        rig.add(namespace=f"n{number}")
    while rig.notifier.send():
        pass
    sizes = [len(body["failures"]) for body in receiver.bodies]
    assert sizes == [NOTIFY_GROUPS_SENT_MAX] * (
        NOTIFY_GROUPS_MAX // NOTIFY_GROUPS_SENT_MAX
    )
    assert [body["leftOut"] for body in receiver.bodies] == [3, *[0] * (len(sizes) - 1)]
    assert rig.outcomes() == {"sent": len(sizes), "dropped": 3}


@pytest.mark.parametrize(
    "problem",
    [503, 429, 302, ExpressionFailed("egress.denied", SECRET), KubeUnavailable("", "")],
)
def test_what_was_not_accepted_is_sent_again(
    problem: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """With what came in the meantime; the log has no part of the URL."""
    receiver = Receiver(problem, 200)
    rig = Rig(receiver)
    rig.add("x0")
    with caplog.at_level(logging.WARNING):
        assert rig.notifier.send()
    assert len(caplog.records) == 1
    assert SECRET not in caplog.text
    rig.add("x1")
    assert not rig.notifier.send()
    assert receiver.bodies[1]["failures"][0]["objects"] == ["Pod/x0", "Pod/x1"]
    assert rig.outcomes() == {"failed": 1, "sent": 1}


def test_a_rejected_message_is_not_repeated() -> None:
    receiver = Receiver(400, 200)
    rig = Rig(receiver)
    rig.add()
    assert not rig.notifier.send()
    assert not rig.notifier.send()
    assert rig.outcomes() == {"rejected": 1}


def test_failures_during_a_post_are_in_the_next_message() -> None:
    told = []

    def post(body: bytes) -> int:
        (group,) = json.loads(body)["failures"]
        told.append((group["count"], group["objects"]))
        if len(told) < 3:
            rig.add(f"late-{len(told)}")
        return 503 if len(told) == 2 else 200

    rig = Rig(post)
    rig.add("first")
    assert rig.notifier.send()
    assert rig.notifier.send()
    assert not rig.notifier.send()
    late = ["Pod/late-1", "Pod/late-2"]
    assert told == [(1, ["Pod/first"]), (1, late[:1]), (2, late)]


def test_only_the_holder_of_the_lease_sends() -> None:
    receiver = Receiver()
    rig = Rig(receiver)
    rig.add()
    rig.holds = False
    assert not rig.notifier.send()
    assert receiver.bodies == []


def notified(one: Term, receiver: Receiver) -> list[tuple[str, str, list[str]]]:
    """Return what the next message has: policy, result and objects of each group."""
    assert one.reports.notifier is not None
    receiver.bodies.clear()
    one.reports.notifier.send()
    return [
        (group["policy"], group["result"], sorted(group["objects"]))
        for body in receiver.bodies
        for group in body["failures"]
    ]


def test_a_scan_tells_of_new_failures_once(api: FakeApi) -> None:
    """A new term, which evaluates everything again, tells of nothing that was known."""
    world, receiver = new_cluster(api), Receiver()
    world.serve(policy("p"))
    pod(api)
    pod(api, "fine", team="t")
    with term(api, world, receive=receiver) as one:
        one.settle()
        assert notified(one, receiver) == [("p", "fail", ["Pod/x"])]
        pod(api, "fine", team="u")
        one.settle()
        assert notified(one, receiver) == []
        pod(api, "fine")
        one.settle()
        assert notified(one, receiver) == [("p", "fail", ["Pod/fine"])]
    with term(api, world, receive=receiver) as one:
        one.settle()
        assert notified(one, receiver) == []
        world.serve(policy("p"), policy("q", labelled(label="owner")))
        one.settle()
        assert notified(one, receiver) == [("q", "fail", ["Pod/fine", "Pod/x"])]


def test_reviews_tell_of_failures_that_no_scan_finds(api: FakeApi) -> None:
    world, receiver = new_cluster(api), Receiver()
    world.serve(policy("p"), ONCE)
    raw = pod(api, team="t")
    with holding(api, world, receive=receiver) as one:
        assert notified(one, receiver) == []
        for at_s, result, news in (
            (0, "pass", []),
            (1, "fail", [("once", "fail", ["Pod/x"])]),
            (2, "fail", []),
            (3, "pass", []),
            (4, "error", [("once", "error", ["Pod/x"])]),
        ):
            review(api, raw, row("once", result=result), at_s=at_s)
            merge(one)
            assert notified(one, receiver) == news
        review(api, raw, row("gone", result="fail"), at_s=5)
        merge(one)
        assert notified(one, receiver) == []


def test_without_stored_reports_nothing_is_sent(api: FakeApi) -> None:
    """Every failure would be new at every scan."""
    world = new_cluster(api)
    with term(api, world, receive=Receiver(), reports_store=False) as one:
        assert one.reports.notifier is None


def test_the_rules_for_urls_apply_and_no_token_is_sent(tmp_path: Path) -> None:
    token, file = tmp_path / "token", tmp_path / "url"
    token.write_text("ours")
    settings = Settings(notify_url_file=str(file), api_call_token_file=str(token))
    answer = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"
    with answering(lambda peer: peer.sendall(answer)) as (port, seen):
        file.write_text(f"http://127.0.0.1:{port}/{SECRET}\n")
        closed = open_receiver(settings)
        assert closed is not None
        with pytest.raises(ExpressionFailed) as raised:
            closed(b"{}")
        assert raised.value.code == "egress.denied"
        assert seen == []
        rules = dataclasses.replace(settings, http_allowlist="127.0.0.0/8")
        opened = open_receiver(rules)
        assert opened is not None
        assert opened(b"{}") == 204
        file.write_text(f"http://127.0.0.1:{port}/other")
        assert opened(b"{}") == 204
    assert [text.split()[1] for text in seen] == [f"/{SECRET}".encode(), b"/other"]
    assert b"ours" not in b"".join(seen)
    file.unlink()
    with pytest.raises(ExpressionFailed):
        opened(b"{}")
    assert open_receiver(Settings()) is None

"""A webhook or a ValidatingAdmissionPolicy denies UpdateRequests, all or some.

A failure means: triggers are lost while a webhook is broken, or one policy's rejected
requests hold up those of all others.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kyverno_mp.errors import KubeRefused
from kyverno_mp.kube.apply import Objects
from kyverno_mp.leader.triggers.writer import GIVEN_UP, WRITTEN
from kyverno_mp.limits import TRIGGERS_AT_ONCE_MAX
from kyverno_mp.queues.journal import TRIGGERS, Journal, JournalReader
from kyverno_mp.queues.triggers import Wanted
from tests.unit.kube.fake_api import FakeApi
from tests.unit.triggers.test_written import REQUESTS, Setup, record

_POSTS = f"^POST {REQUESTS}"
_PAUSE_S = 20.0
"""Longer than the longest pause of a rejected record."""
Deny = Callable[..., None]


@pytest.fixture
def setup(api: FakeApi, tmp_path: Path) -> Iterator[Setup]:
    one = Setup(api, tmp_path)
    yield one
    one.reader.close()


@pytest.fixture
def deny(monkeypatch: pytest.MonkeyPatch) -> Deny:
    """Return a function that denies the requests of these policies from now on."""
    denied: list[str] = []
    post = Objects.post

    def checked(self: Objects, resource: Any, namespace: str, body: bytes) -> Any:
        if msgspec.json.decode(body)["spec"]["policy"] in denied:
            raise KubeRefused("kube.invalid", "denied")
        return post(self, resource, namespace, body)

    def set_denied(*policies: str) -> None:
        denied[:] = policies

    monkeypatch.setattr(Objects, "post", checked)
    return set_denied


def _policies(setup: Setup) -> list[str]:
    return sorted(one["spec"]["policy"] for one in setup.stored())


def _of(name: str, *policies: str, at: int = 1) -> bytes:
    wanted = [Wanted("generate", policy, ("r",)) for policy in policies]
    return record(name, at, "", *wanted)


def _pass(setup: Setup) -> bool:
    setup.now_s += _PAUSE_S
    return setup.writer.step()


@pytest.mark.parametrize("status", [400, 403, 422])
def test_a_webhook_that_denies_all_requests(setup: Setup, status: int) -> None:
    """Records wait until it is gone, even if it denies the sync of a policy, too."""
    setup.api.fault(_POSTS, *[status] * 1000)
    for name in "xy":
        setup.journal.append(_of(name, "p"))
    for _ in range(20):
        assert not _pass(setup)
    assert (setup.journal.waiting, setup.stored()) == (2, [])
    assert (setup.writer.waiting, setup.writer.oldest_ns) == (2, 1)
    assert (GIVEN_UP,) not in setup.writer.outcomes.drain()
    setup.api.faults.clear()
    assert _pass(setup)
    assert (setup.journal.waiting, len(setup.stored())) == (0, 2)


def test_an_outage_before_a_webhook_denies_all_requests(setup: Setup) -> None:
    """Requests that were accepted before the denial prove nothing."""
    for name in "abc":
        setup.journal.append(_of(name, "p"))
        setup.api.fault(_POSTS, 503)
        assert not _pass(setup)
    setup.api.faults.clear()
    setup.api.fault(_POSTS, *[422] * 5000)
    for number in range(60):
        setup.journal.append(_of(f"v{number}", "p"))
    for _ in range(10):
        assert not _pass(setup)
    assert (GIVEN_UP,) not in setup.writer.outcomes.drain()
    setup.api.faults.clear()
    assert _pass(setup)
    assert (setup.journal.waiting, len(setup.stored())) == (0, 63)


def test_the_end_of_a_denial(setup: Setup) -> None:
    """One of several API servers accepts requests first."""
    names = "abcdef"
    for name in names:
        setup.journal.append(_of(name, f"p{name}"))
    setup.api.fault(_POSTS, *[422] * 5000)
    for _ in range(10):
        assert not _pass(setup)
    setup.api.faults.clear()
    setup.api.fault(_POSTS, *[422] * 8)
    for _ in range(4):
        _pass(setup)
    assert _policies(setup) == [f"p{name}" for name in names]
    assert setup.journal.waiting == 0


def test_a_webhook_that_denies_the_requests_of_one_policy(
    setup: Setup, deny: Deny
) -> None:
    """Its record is given up when the API server accepted others several times."""
    deny("p")
    setup.journal.append(_of("x", "p"))
    for number in range(20):
        setup.journal.append(_of(f"y{number}", "q"))
        assert setup.writer.step() == (setup.journal.waiting == 0)
        _pass(setup)
        assert len(setup.stored()) == number + 1
    assert setup.writer.outcomes.drain() == {(GIVEN_UP,): 1, (WRITTEN,): 20}
    assert (setup.journal.waiting, setup.writer.oldest_ns) == (0, 0)


@pytest.mark.parametrize("disturbance", [503, "full", "quiet"])
def test_a_record_is_not_given_up_after(
    setup: Setup, deny: Deny, disturbance: Any
) -> None:
    """An outage, a full cluster and a long time without requests reset the count."""
    deny("p")
    setup.journal.append(_of("x", "p"))
    for number in range(20):
        setup.journal.append(_of(f"y{number}", "q"))
        assert setup.writer.step() == (setup.journal.waiting == 0)
        _pass(setup)
        if number % 3 < 2:
            continue
        if disturbance == "quiet":
            setup.now_s += 3600
            continue
        setup.journal.append(_of(f"z{number}", "q"))
        setup.threshold = 0 if disturbance == "full" else 1000
        if disturbance != "full":
            setup.api.fault(_POSTS, disturbance)
        assert not _pass(setup)
        setup.threshold = 1000
    deny()
    assert _pass(setup)
    assert "p" in _policies(setup)
    assert (GIVEN_UP,) not in setup.writer.outcomes.drain()


def test_records_behind_a_rejected_one(setup: Setup, deny: Deny) -> None:
    """They are stored at once and once, however many they are."""
    deny("p")
    setup.journal.append(_of("x", "p"))
    assert not setup.writer.step()
    number = 2 * TRIGGERS_AT_ONCE_MAX
    for name in range(number):
        assert setup.journal.append(_of(f"y{name}", "q"))
    for _ in range(3):
        assert not setup.writer.step()
    assert len(setup.stored()) == number
    assert (setup.writer.waiting, setup.journal.waiting) == (1, number + 1)
    assert setup.writer.outcomes.drain() == {(WRITTEN,): number}
    assert setup.writer._failures <= 1, "the next attempt is soon"
    deny()
    assert _pass(setup)
    assert setup.journal.waiting == 0
    assert setup.writer.outcomes.drain() == {(WRITTEN,): 1}


def test_other_policies_of_the_same_record(setup: Setup, deny: Deny) -> None:
    """Their requests are stored at once, and not again with each retry."""
    deny("p")
    setup.journal.append(_of("x", "p", "q"))
    for _ in range(5):
        assert not _pass(setup)
    assert _policies(setup) == ["q"]
    assert setup.writer.outcomes.drain() == {(WRITTEN,): 1}
    deny()
    assert _pass(setup)
    assert _policies(setup) == ["p", "q"]


def test_a_later_request_for_the_same_trigger(setup: Setup, deny: Deny) -> None:
    """The earlier one does not follow it, because it could undo the later one."""
    deny("p")
    setup.journal.append(_of("x", "p", at=1))
    assert not setup.writer.step()
    deny()
    setup.journal.append(_of("x", "p", at=2))
    assert not setup.writer.step()
    assert len(setup.stored()) == 1
    assert _pass(setup)
    assert setup.writer.outcomes.drain() == {(WRITTEN,): 1}
    assert setup.journal.waiting == 0


def test_retries_are_limited(setup: Setup) -> None:
    """A rejected record has growing pauses, so a denial causes no flood of calls."""
    setup.api.fault(_POSTS, *[422] * 5000)
    setup.journal.append(_of("x", "p"))
    for _ in range(300):
        setup.now_s += 0.02
        setup.writer.step()
    assert 2 * 3 <= setup.api.count(_POSTS) <= 2 * 7


def test_a_rejected_record_in_the_journal_of_one_worker(
    setup: Setup, deny: Deny, tmp_path: Path
) -> None:
    """The records of other workers do not wait for it."""
    other = Journal.claim(tmp_path, 1000, TRIGGERS.ring_bytes)
    deny("p")
    setup.journal.append(_of("x", "p"))
    assert not setup.writer.step()
    other.append(_of("y", "q"))
    assert not setup.writer.step()
    assert _policies(setup) == ["q"]
    assert (setup.journal.waiting, other.waiting) == (1, 0)
    other.close()


def test_the_next_writer_continues(setup: Setup, deny: Deny, tmp_path: Path) -> None:
    """A killed writer loses no rejected record, and none behind it."""
    deny("p")
    setup.journal.append(_of("x", "p"))
    setup.journal.append(_of("y", "q"))
    assert not setup.writer.step()
    assert setup.journal.waiting == 2
    deny()
    reader = JournalReader(tmp_path)
    writer = type(setup.writer)([reader], setup.api.client(), "kyverno", lambda: 1000)
    assert writer.step()
    assert _policies(setup) == ["p", "q"]
    assert setup.journal.waiting == 0
    reader.close()


def test_the_last_step_tries_all_records(setup: Setup, deny: Deny) -> None:
    """They are lost with the pod's memory."""
    deny("p")
    setup.journal.append(_of("x", "p"))
    assert not setup.writer.step()
    deny()
    setup.writer.start()
    setup.writer.stop()
    assert _policies(setup) == ["p"]

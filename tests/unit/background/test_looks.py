"""Reviews that only name a policy: the pool looks early, and when it ends.

A failure means: when Kyverno or another replica takes over, generated objects are
missing, or whoever sends reviews without proof keeps the pool busy.
"""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.background.generate.lost import DROPPED
from kyverno_mp.limits import BACKGROUND_FINISH_S_MAX
from kyverno_mp.queues.triggers import lost_record
from kyverno_mp.queues.update_requests import document_of
from kyverno_mp.telemetry.families import (
    BACKGROUND_LOOKS,
    BACKGROUND_REQUESTS,
    Family,
)
from tests.unit.background import generating_world as generating
from tests.unit.background.admission import User
from tests.unit.background.world import (
    CONFIG_MAPS,
    REQUESTS,
    SECRETS,
    Term,
    new_cluster,
    policy,
    requests_left,
    rule,
    stored,
    term,
    trigger,
)
from tests.unit.cleanup.cluster import Recorded
from tests.unit.kube.fake_api import FakeApi

Json = Any
DATA: Json = {"data": {"a": "b"}}
SINCE_NS = 1_760_000_000 * 10**9


@pytest.fixture
def eve(api: FakeApi, tmp_path: Path) -> Iterator[User]:
    """Somebody who reaches the webhook's port, or the API server without proof."""
    new_cluster(api)
    user = User(api, tmp_path / "journals")
    user.is_proved = False
    yield user
    user.close()


@pytest.fixture
def noted(api: FakeApi) -> FakeApi:
    """A cluster in which reviews without proof have named the policy ``p``."""
    new_cluster(api)
    _name(api)
    return api


def _name(api: FakeApi, policy: str = "p", kind: str = "generate") -> None:
    record = lost_record(policy, SINCE_NS, kind, "unproved")
    document = document_of(record, record.wanted[0], "kyverno")
    api.put(f"{REQUESTS}/{document['metadata']['name']}", **document)


def _generated(api: FakeApi, name: str = "t") -> Json | None:
    return stored(api, f"{CONFIG_MAPS.format('a')}/out-{name}")


def _looks(held: Term, when: str) -> float:
    return held.recorded.counts.get((BACKGROUND_LOOKS.name, (when,)), 0)


def test_first_look_is_early(noted: FakeApi) -> None:
    """It does not replace the last one, which finds what was stored later."""
    policy(noted, rule(sync=False, data=DATA))
    trigger(noted)
    with term(noted) as held:
        held.settle()
        assert _generated(noted) is None, "the API server may not have stored it yet"
        held.pass_s(6)
        assert _generated(noted)
        assert len(requests_left(noted)) == 1
        trigger(noted, "late")
        held.pass_s(30)
        assert _generated(noted, "late")
        assert requests_left(noted) == []
        assert (_looks(held, "early"), _looks(held, "last")) == (1, 1)


@pytest.mark.parametrize("seed", range(3))
def test_reviews_without_proof_cause_few_looks(eve: User, seed: int) -> None:
    """However often they come, each early look follows 30 seconds without a look."""
    api, choice = eve.api, random.Random(seed)
    policy(api, rule(sync=False, data=DATA))
    recorded = Timed(lambda: held.time.now_s)
    lists = []

    def listed(method: str, target: str) -> None:
        if method == "GET" and target.startswith("/api/v1/secrets"):
            lists.append(target)

    with term(api, metrics=recorded) as held:
        held.settle()
        api.on_request = listed
        names = []
        for number in range(40):
            name = f"t{number}"
            if choice.random() < 0.3:
                names.append(name)
                eve.create(f"{SECRETS.format('a')}/{name}", **_secret(name))
            else:
                eve.review("CREATE", _secret(f"invented-{number}"), None)
                eve.write()
            held.pass_s(choice.choice([1, 3, 10, 31, 62]))
        held.pass_s(60)
    assert [name for name in names if not _generated(api, name)] == []
    assert requests_left(api) == []
    looks = recorded.looks
    assert len(lists) == len(looks)
    early = [number for number, (_, when) in enumerate(looks) if when == "early"]
    assert len(early) > 3
    for number in early[1:]:
        assert looks[number][0] - looks[number - 1][0] >= 30
        assert looks[number - 1][1] == "last"


class Timed(Recorded):
    """Records the looks with their times."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        super().__init__()
        self._now_s = now_s
        self.looks: list[tuple[float, str]] = []

    def count(self, family: Family, labels: tuple[str, ...]) -> None:
        super().count(family, labels)
        if family is BACKGROUND_LOOKS:
            self.looks.append((self._now_s(), labels[0]))


def _secret(name: str) -> Json:
    metadata = {"name": name, "namespace": "a", "labels": {"team": "blue"}}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}


@pytest.mark.parametrize("is_in_cel", [False, True])
def test_pool_that_ends_looks_at_once(api: FakeApi, *, is_in_cel: bool) -> None:
    """Kyverno cannot read the request; our next lease holder looks again."""
    new_cluster(api)
    if is_in_cel:
        name = "out-t"
        generating.policy(api, generating.DATA.replace('"out"', f'"{name}"'))
        generating.trigger(api)
        _name(api, kind="cel-generate")
    else:
        policy(api, rule(data=DATA))
        trigger(api)
        _name(api)
    with term(api) as held:
        held.catch_up()
        held.background.finish()
        generated = _generated(api)
        assert generated
        assert len(requests_left(api)) == 1
        assert (_looks(held, "ending"), _looks(held, "left")) == (1, 0)
    with term(api) as following:
        following.pass_s(40)
        assert _generated(api) == generated
        assert requests_left(api) == []


def test_a_look_begins_with_what_lacks_objects(noted: FakeApi) -> None:
    """It may end before it has processed a hundred triggers that lack nothing."""
    policy(noted, rule(data=DATA))
    for number in range(10):
        trigger(noted, f"old-{number}")
    with term(noted) as held:
        held.pass_s(40)
        assert requests_left(noted) == []
        trigger(noted, "new")
        _name(noted)
        held.catch_up()
        processed = []

        def asked(_method: str, target: str) -> None:
            if "/secrets/" in target:
                processed.append(target.partition("?")[0].rpartition("/")[2])

        noted.on_request = asked
        held.background.finish()
        noted.on_request = lambda _method, _target: None
    assert processed[0] == "new"
    assert _generated(noted, "new")


def test_early_looks_leave_the_rest_to_the_last_one(noted: FakeApi) -> None:
    """Mutations are not repeated, and nothing is reported twice."""
    by_user = rule(
        "u", data={"data": {"by": "{{request.userInfo.username || 'x'}}"}}, sync=False
    )
    mutation = rule("m")
    del mutation["generate"]
    target = {"apiVersion": "v1", "kind": "ConfigMap", "name": "m", "namespace": "a"}
    mutation["mutate"] = {
        "targets": [target],
        "patchStrategicMerge": {"metadata": {"labels": {"changed": "yes"}}},
    }
    policy(noted, by_user, mutation, background=False)
    trigger(noted)
    with term(noted) as held:
        held.settle()
        held.pass_s(6)
        held.background.finish()
        assert _looks(held, "early") == _looks(held, "ending") == 1
        assert held.recorded.events == []
        held.pass_s(30)
        counts = held.recorded.counts
        assert counts[BACKGROUND_REQUESTS.name, ("generate", DROPPED)] == 1
        assert counts[BACKGROUND_REQUESTS.name, ("mutate", DROPPED)] == 1


def test_pool_that_cannot_finish_says_so_once(
    noted: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    """The time is over after the first policy; the next lease holder does the rest."""
    for name in ("p", "q", "r"):
        made = rule(data=DATA)
        made["generate"]["name"] = f"out-{name}"
        policy(noted, made, name=name)
    for name in ("q", "r"):
        _name(noted, name)
    trigger(noted)
    with term(noted) as held:
        held.catch_up()
        now_s = held.time.now_s

        def pass_time(method: str, _target: str) -> None:
            if method == "POST":
                held.time.now_s = now_s + BACKGROUND_FINISH_S_MAX

        noted.on_request = pass_time
        held.background.finish()
        noted.on_request = lambda _method, _target: None
        left = _looks(held, "left")
        assert left > 0
    lines = [one for one in caplog.messages if "next lease holder" in one]
    assert len(lines) == 1
    assert len(requests_left(noted)) == 3
    with term(noted) as following:
        following.pass_s(40)
        assert all(_generated(noted, name) for name in ("p", "q", "r"))
        assert requests_left(noted) == []


def test_pool_without_the_lease_does_not_look(noted: FakeApi) -> None:
    policy(noted, rule(data=DATA))
    trigger(noted)
    with term(noted, holds_lease=lambda: False) as held:
        held.catch_up()
        held.background.finish()
        assert _generated(noted) is None
        assert _looks(held, "left") == 1

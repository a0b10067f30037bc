"""The share of a policy rises by its schedule, in an object that survives everything.

A failure means: a step is skipped or repeated after a restart or a change of the lease
holder, or what a person paused goes on.
"""

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from kyverno_mp.compiler.described import build_rollout
from kyverno_mp.controllers.rollout_states import CONFIG_MAPS, NAME, Stored, stored_in
from kyverno_mp.controllers.rollouts import ALL, Inputs, RolloutsController, changed
from kyverno_mp.errors import KubeConflict
from kyverno_mp.kube.apply import Objects
from kyverno_mp.queues.clock import Clock
from kyverno_mp.snapshot.rollouts import RolloutState
from tests.unit.kube.fake_api import FakeApi, running

KEY = ("kyverno", NAME)
PATH = f"/api/v1/namespaces/kyverno/configmaps/{NAME}"
SCHEDULE = {"kyverno-mp.io/enforce-schedule": "10 -> 50 -> 100 every 24h"}


class Time:
    def __init__(self) -> None:
        self.moment = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.moment


class Lease:
    def __init__(self, *, is_held: bool) -> None:
        self.is_held = is_held

    def holds(self) -> bool:
        return self.is_held


class Replica:
    """The controller of one replica; a new one is a restarted leader."""

    def __init__(self, api: FakeApi, time: Time, *, holds: bool = True) -> None:
        self.objects = Objects(api.client())
        self.lease = Lease(is_held=holds)
        election: Any = self.lease
        self.policies: list[bytes] | None = [policy("p", SCHEDULE)]
        self.published: dict[str, RolloutState] | None = None
        self.sees = self.newest
        self.controller = RolloutsController(
            self.objects,
            election,
            KEY,
            Inputs(self.stored, lambda: self.policies, self.publish),
            Clock(now=time),
        )

    def publish(self, states: Any) -> None:
        self.published = dict(states)

    def stored(self) -> Stored:
        return self.sees()

    def newest(self) -> Stored:
        raw = self.objects.find(CONFIG_MAPS, KEY)
        encoded = msgspec.Raw(msgspec.json.encode(raw))
        return Stored() if raw is None else stored_in(encoded)

    def run(self) -> RolloutState | None:
        """Reconcile until nothing changes; return the state that workers see."""
        for _ in range(2):
            self.controller.reconcile(ALL)
        assert self.published is not None
        return self.published.get("ClusterPolicy_p")


def policy(name: str, annotations: dict[str, str], namespace: str = "") -> bytes:
    metadata = {"name": name, "namespace": namespace, "annotations": annotations}
    kind = "Policy" if namespace else "ClusterPolicy"
    return json.dumps({"kind": kind, "metadata": metadata}).encode()


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with running() as server:
        yield server


def step_of(state: RolloutState | None) -> tuple[int, str]:
    assert state is not None
    return state.step, state.phase


def test_share_rises_step_by_step_for_all_replicas(api: FakeApi) -> None:
    time = Time()
    holder, other = Replica(api, time), Replica(api, time, holds=False)
    assert step_of(holder.run()) == (0, "Progressing")
    time.moment += timedelta(hours=23, minutes=59)
    assert step_of(holder.run()) == (0, "Progressing")
    time.moment += timedelta(minutes=1)
    assert step_of(holder.run()) == step_of(other.run()) == (1, "Progressing")
    time.moment += timedelta(days=30)
    assert step_of(other.run()) == (1, "Progressing"), "only the holder raises it"
    assert holder.controller.counts()["Progressing"] == 1
    assert set(other.controller.counts().values()) == {0}
    assert step_of(holder.run()) == (2, "Completed")
    writes = api.count("(POST|PATCH|PUT) ")
    time.moment += timedelta(days=30)
    assert step_of(holder.run()) == (2, "Completed")
    assert api.count("(POST|PATCH|PUT) ") == writes == 3


def test_restart_and_another_holder_continue(api: FakeApi) -> None:
    """Nobody held the lease for a month: the next step still lasts a day."""
    time = Time()
    Replica(api, time).run()
    time.moment += timedelta(days=30)
    successor = Replica(api, time)
    assert step_of(successor.run()) == (1, "Progressing")
    assert step_of(Replica(api, time).run()) == (1, "Progressing")


def test_deleted_state_is_written_again(api: FakeApi) -> None:
    """Otherwise a policy in force for everyone would begin anew."""
    time = Time()
    replica = Replica(api, time)
    for _ in range(3):
        replica.run()
        time.moment += timedelta(days=1)
    assert step_of(replica.run()) == (2, "Completed")
    api.remove(PATH)
    assert step_of(replica.run()) == (2, "Completed")
    assert step_of(Replica(api, time).run()) == (2, "Completed")


def test_changed_annotations_begin_anew_and_gone_policies_are_forgotten(
    api: FakeApi,
) -> None:
    time = Time()
    replica = Replica(api, time)
    replica.run()
    time.moment += timedelta(days=1)
    before = replica.run()
    other = {"kyverno-mp.io/enforce-schedule": "20 -> 100 every 24h"}
    replica.policies = [policy("p", other), policy("q", {}), policy("p", SCHEDULE, "a")]
    after = replica.run()
    assert before is not None
    assert after is not None
    assert (before.step, after.step) == (1, 0)
    assert before.plan != after.plan
    assert replica.published is not None
    assert set(replica.published) == {"ClusterPolicy_p", "Policy_a_p"}
    replica.policies = None
    replica.run()
    assert len(replica.published) == 2, "the policies are not listed yet"
    replica.policies = []
    replica.run()
    assert replica.published == {}


def test_percentage_without_a_schedule_needs_no_state(api: FakeApi) -> None:
    replica = Replica(api, Time())
    replica.policies = [policy("p", {"kyverno-mp.io/enforce-percent": "10"})]
    assert replica.run() is None
    assert api.count("(POST|PATCH|PUT) ") == 0


def test_person_wins_against_a_step_that_is_due(api: FakeApi) -> None:
    """The holder has not seen the change of the person yet."""
    time = Time()
    replica = Replica(api, time)
    replica.run()
    seen = replica.newest()
    paused = msgspec.structs.replace(seen.states["ClusterPolicy_p"], phase="Paused")
    data = {"ClusterPolicy_p": msgspec.json.encode(paused).decode()}
    replica.objects.merge(CONFIG_MAPS, KEY, {"data": data})
    replica.sees = lambda: seen
    time.moment += timedelta(days=1)
    with pytest.raises(KubeConflict):
        replica.run()
    replica.sees = replica.newest
    time.moment += timedelta(days=30)
    assert step_of(replica.run()) == (0, "Paused")


@pytest.mark.parametrize("seed", range(4))
def test_kills_and_other_holders_repeat_and_skip_no_step(
    api: FakeApi, seed: int
) -> None:
    """A hundred kills in all: of any replica, at any moment, also of the holder."""
    chance, time = random.Random(seed), Time()
    replicas = [Replica(api, time, holds=not number) for number in range(3)]
    shares, raised_at = [0], [time.moment]
    for _ in range(25):
        killed = chance.randrange(3)
        held = replicas[killed].lease.is_held
        replicas[killed] = Replica(api, time, holds=False)
        if held:
            # For a while nobody has the lease; then any replica takes it.
            time.moment += timedelta(hours=chance.randrange(40))
            replicas[chance.randrange(3)].lease.is_held = True
        for replica in chance.sample(replicas, 3):
            replica.run()
        answers = {str(replica.run()) for replica in replicas}
        assert len(answers) == 1, "one answer for one object"
        step, _phase = step_of(replicas[0].run())
        if step != shares[-1]:
            assert step == shares[-1] + 1
            assert time.moment - raised_at[-1] >= timedelta(hours=24)
            shares.append(step)
            raised_at.append(time.moment)
        time.moment += timedelta(hours=chance.randrange(12))
    assert shares == [0, 1, 2]


@pytest.mark.parametrize(
    "state",
    [
        "{",
        '{"plan": "%s", "phase": "Progressing", "step": -50}',
        '{"plan": "%s", "phase": "Stopped", "step": 1}',
    ],
)
def test_invalid_state_is_ignored(api: FakeApi, state: str) -> None:
    rollout = build_rollout(SCHEDULE)
    assert rollout is not None
    text = state.replace("%s", rollout.plan)
    api.put(PATH, data={"ClusterPolicy_p": text, "other": "1"})
    replica = Replica(api, Time())
    assert step_of(replica.run()) == (0, "Progressing")


def test_actions_of_a_person() -> None:
    rollout = build_rollout(SCHEDULE)
    assert rollout is not None
    began = RolloutState(rollout.plan, "Progressing", 1, 100)
    paused = changed("pause", rollout, began, 200)
    assert (paused.phase, paused.percent(rollout)) == ("Paused", 50)
    assert changed("resume", rollout, paused, 300) == RolloutState(
        rollout.plan, "Progressing", 1, 300
    )
    aborted = changed("abort", rollout, paused, 300)
    assert (aborted.phase, aborted.percent(rollout)) == ("Aborted", 0)
    with pytest.raises(ValueError, match="Aborted"):
        changed("pause", rollout, aborted, 400)
    with pytest.raises(ValueError, match="Progressing"):
        changed("resume", rollout, None, 400)
    completed = RolloutState(rollout.plan, "Completed", 2, 100)
    aborted = changed("abort", rollout, completed, 300)
    assert changed("resume", rollout, aborted, 400).phase == "Completed"

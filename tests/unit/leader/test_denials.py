"""Replicas count the denials of a step together, and fall back from a bad policy.

A failure means: a bad policy keeps stopping deployments after a process was killed, one
person pushes a policy out of force, or two replicas answer differently for one object.
"""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kyverno_mp.compiler.described import build_rollout
from kyverno_mp.controllers.rollout_states import CONFIG_MAPS, NAME, Stored, stored_in
from kyverno_mp.controllers.rollouts import ALL, Inputs, RolloutsController, changed
from kyverno_mp.errors import DependencyError
from kyverno_mp.ir.rules import BudgetIR, PolicyIR
from kyverno_mp.kube.apply import Objects
from kyverno_mp.leader.denials import DenialCounter
from kyverno_mp.leader.denials import Inputs as CounterInputs
from kyverno_mp.limits import (
    ROLLOUT_DENIALS_KEPT_MAX,
    ROLLOUT_TENANT_KEPT_MAX,
    ROLLOUT_TENANTS_KEPT_MAX,
)
from kyverno_mp.program.gradual import Standing, position
from kyverno_mp.program.request import Request
from kyverno_mp.queues.journal import DENIALS, Journal, JournalReader
from kyverno_mp.snapshot.bell import DENIALS as DENIALS_BELL
from kyverno_mp.snapshot.bell import Bell
from kyverno_mp.snapshot.denials import Denial, DenialCounts, DenialRecord
from kyverno_mp.snapshot.rollouts import FELL_BACK, RolloutState
from kyverno_mp.webhook.review.denials import DENIALS_FULL, DenialSink
from tests.unit.controllers.test_rollouts import Lease, policy
from tests.unit.kube.fake_api import FakeApi, running
from tests.unit.queues.turned_clock import START, TurnedClock
from tests.unit.webhook.attach.test_standings import Pod
from tests.unit.webhook.stub import StubRecords
from tests.waiting import wait_for

KEY = ("kyverno", NAME)
PATH = f"/api/v1/namespaces/kyverno/configmaps/{NAME}"
ANNOTATIONS = {
    "kyverno-mp.io/enforce-schedule": "10 -> 50 -> 100 every 24h",
    "kyverno-mp.io/enforce-denials": "4 per 1h",
}
POLICY = PolicyIR("ClusterPolicy", "p", rollout=build_rollout(ANNOTATIONS))
STATE = "ClusterPolicy_p"
DAY_S = 24 * 3_600


def request(namespace: str, name: str = "web", user: str = "ann") -> Request:
    metadata = {"namespace": namespace, "name": name}
    return Request(
        kind="Pod",
        namespace=namespace,
        name=name,
        username=user,
        object={"metadata": metadata},
    )


def namespaces(least: int, most: int) -> list[str]:
    """Return namespaces whose positions are in a range."""
    listed = [f"team-{number}" for number in range(900)]
    return [name for name in listed if least <= position(POLICY, request(name)) < most]


NEW = namespaces(10, 50)
"""What the second step adds."""


class Replica:
    """A pod: its leader's parts and one worker, which share a folder."""

    def __init__(
        self, api: FakeApi, clock: TurnedClock, folder: Path, *, holds: bool
    ) -> None:
        self.api, self.clock, self.folder = api, clock, folder
        self.lease = Lease(is_held=holds)
        self.segments = Pod(folder / "snapshot")
        self.records = StubRecords()
        self.told: list[str] = []
        self.bell: Bell | None = None
        self.journal: Journal | None = None
        DENIALS.folder(folder).mkdir(parents=True)
        self.start_leader()
        self.start_worker()

    def start_leader(self) -> None:
        """Start a leader, after the kill of the one before."""
        objects = Objects(self.api.client())
        election: Any = self.lease
        rollouts = self.segments.restart_leader()

        def stored() -> Stored:
            raw = objects.find(CONFIG_MAPS, KEY)
            encoded = msgspec.Raw(msgspec.json.encode(raw))
            return Stored() if raw is None else stored_in(encoded)

        self.stored: Callable[[], Stored] = stored
        self.counter = DenialCounter(
            JournalReader(DENIALS.folder(self.folder)),
            objects,
            (KEY, self.folder.name),
            CounterInputs(stored, rollouts, lambda: None, lambda: self.bell),
            self.clock.clock,
        )
        self.controller = RolloutsController(
            objects,
            election,
            KEY,
            Inputs(
                stored,
                lambda: [policy("p", ANNOTATIONS)],
                rollouts.set,
                self.counter.excesses,
                tell=self.tell,
            ),
            self.clock.clock,
        )

    def start_worker(self) -> None:
        """Start a worker, after the kill of the one before."""
        if self.journal is not None:
            self.journal.close()
        self.journal = Journal.claim(DENIALS.folder(self.folder), 1_000)
        self.standing = self.segments.worker()
        now_s = self.clock.clock.now
        self.sink = DenialSink(
            self.journal, self.standing, self.records, lambda: now_s().timestamp()
        )

    def tell(self, name: str, state: RolloutState) -> bool:
        self.told.append(f"{name} {state.reason}")
        return True

    def run(self) -> None:
        """Do what the leader's threads do when something changed."""
        self.counter.step()
        self.segments.publish_changes()
        for _ in range(2):
            self.controller.reconcile(ALL)
        self.counter.step()
        self.segments.publish_changes()

    def denies(self, about: Request) -> bool:
        """Answer a request that the policy's rules fail."""
        is_denied = self.would_deny(about)
        if is_denied:
            self.sink.denied([POLICY], about)
        return is_denied

    def would_deny(self, about: Request) -> bool:
        return position(POLICY, about) < self.standing(POLICY).percent

    def state(self) -> str:
        return self.stored().states[STATE].phase


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with running() as server:
        yield server


class Pods:
    """Three replicas at the second step of a policy."""

    def __init__(self, api: FakeApi, folder: Path) -> None:
        self.clock = TurnedClock()
        self.replicas = [
            Replica(api, self.clock, folder / f"pod-{number}", holds=not number)
            for number in range(3)
        ]
        self.settle()
        self.clock.turn(DAY_S)
        self.settle()

    def settle(self) -> None:
        """Let every replica see what the others wrote."""
        for _ in range(2):
            self.clock.turn(1)
            for replica in self.replicas:
                replica.run()


@pytest.fixture
def pods(api: FakeApi, tmp_path: Path) -> Pods:
    return Pods(api, tmp_path)


def test_replicas_exceed_a_budget_together_and_stay_fallen_back(
    pods: Pods, api: FakeApi
) -> None:
    """Four owners are the budget; the fifth is denied by another replica."""
    for number, name in enumerate(NEW[:4]):
        assert pods.replicas[number % 3].denies(request(name, user=f"user-{number}"))
    pods.settle()
    assert {replica.state() for replica in pods.replicas} == {"Progressing"}
    last = pods.replicas[2]
    assert last.denies(request(NEW[4], user="eve"))
    last.counter.step()
    last.segments.publish_changes()
    assert not last.denies(request(NEW[5])), "before anything is stored"
    pods.settle()
    assert {replica.state() for replica in pods.replicas} == {FELL_BACK}
    (told,) = pods.replicas[0].told
    assert told.startswith(f"{STATE} more than 4 owners of objects were denied")
    for _ in range(3):
        pods.clock.turn(30 * DAY_S)
        pods.settle()
        assert not any(replica.denies(request(NEW[0])) for replica in pods.replicas)
        first = namespaces(0, 10)[0]
        assert all(replica.denies(request(first)) for replica in pods.replicas)
    stored = pods.replicas[0].stored()
    assert stored.counted == {}, "counts of an ended step are not kept"
    writes = api.count("(PATCH|PUT|POST) ")
    pods.settle()
    assert api.count("(PATCH|PUT|POST) ") == writes


def test_person_resumes_with_a_new_budget(pods: Pods) -> None:
    replica = pods.replicas[0]
    for number, name in enumerate(NEW[:5]):
        replica.denies(request(name, user=f"user-{number}"))
    pods.settle()
    assert replica.state() == FELL_BACK
    assert POLICY.rollout is not None
    now_s = int(pods.clock.now().timestamp())
    state = changed("resume", POLICY.rollout, replica.stored().states[STATE], now_s)
    value = msgspec.json.encode(state).decode()
    Objects(replica.api.client()).merge(CONFIG_MAPS, KEY, {"data": {STATE: value}})
    pods.settle()
    assert replica.state() == "Progressing"
    assert replica.told[-1] == f"{STATE} ", "the status says so no more"
    assert replica.denies(request(NEW[0]))
    pods.settle()
    assert replica.state() == "Progressing", "the count begins anew"


@pytest.mark.parametrize(
    "about",
    [
        lambda number: request(NEW[0], "web", f"user-{number}"),
        lambda number: request(NEW[0], f"web-{number}", f"user-{number}"),
        lambda number: request(NEW[number % len(NEW)], f"web-{number}", "mallory"),
    ],
    ids=["one owner", "one namespace", "one user"],
)
def test_nobody_pushes_a_policy_out_of_force_by_retrying(
    pods: Pods, about: Callable[[int], Request]
) -> None:
    for number in range(300):
        replica = pods.replicas[number % 3]
        assert replica.denies(about(number))
        if number % 60 == 0:
            replica.start_worker()
        if number % 100 == 0:
            pods.settle()
    pods.settle()
    assert {replica.state() for replica in pods.replicas} == {"Progressing"}


class Waits(Bell):
    """A bell that counts how often it was waited for, and rings at once."""

    count = 0

    def wait(self, timeout_s: float) -> bool:
        del timeout_s
        self.count += 1
        return True


def test_a_denial_is_heard_while_a_step_counts(pods: Pods, tmp_path: Path) -> None:
    """A failure means: a fall-back waits for a look at the clock."""
    replica = pods.replicas[0]
    (tmp_path / "bell").mkdir(mode=0o700)
    bell = Bell.create(tmp_path / "bell", DENIALS_BELL)
    replica.bell = waits = Waits(Path(), bell.fileno())
    assert replica.denies(request(NEW[0]))
    replica.counter.start()
    wait_for(lambda: bool(replica.stored().counted))
    before = waits.count
    wait_for(lambda: waits.count > before + 2)
    replica.counter.stop()


def test_only_what_the_step_added_counts(pods: Pods) -> None:
    """Denials of the step before, and of policies that always deny, are no news."""
    replica = pods.replicas[0]
    for number, name in enumerate(namespaces(0, 10)[:9]):
        assert replica.denies(request(name, user=f"user-{number}"))
    full = PolicyIR("ClusterPolicy", "full")
    for number, name in enumerate(NEW[:9]):
        replica.sink.denied([POLICY, full], request(name, user=f"user-{number}"))
    pods.settle()
    assert replica.stored().counted == {}


def test_controllers_of_kubernetes_are_many_users(pods: Pods) -> None:
    replica = pods.replicas[0]
    user = "system:serviceaccount:kube-system:replicaset-controller"
    for name in NEW[:5]:
        assert replica.denies(request(name, user=user))
    pods.settle()
    assert replica.state() == FELL_BACK


def test_window_ends(pods: Pods) -> None:
    replica = pods.replicas[0]
    for number, name in enumerate(NEW[:12]):
        assert replica.denies(request(name, user=f"user-{number}"))
        if number % 4 == 3:
            pods.settle()
            pods.clock.turn(3_600)
    pods.settle()
    assert replica.state() == "Progressing"


def test_completed_policy_never_falls_back(pods: Pods) -> None:
    pods.clock.turn(DAY_S)
    pods.settle()
    replica = pods.replicas[0]
    assert replica.state() == "Completed"
    for number, name in enumerate(namespaces(0, 100)[:50]):
        assert replica.denies(request(name, user=f"user-{number}"))
    pods.settle()
    assert replica.state() == "Completed"
    assert replica.stored().counted == {}


def test_without_an_api_server_the_own_workers_fall_back(
    pods: Pods, api: FakeApi
) -> None:
    """The records stay in the journal, and a new leader stores them."""
    replica = pods.replicas[1]
    for number, name in enumerate(NEW[:5]):
        assert replica.denies(request(name, user=f"user-{number}"))
    api.fault("PATCH ", *[{"code": 503}] * 100)
    replica.counter.step()
    replica.segments.publish_changes()
    assert not replica.denies(request(NEW[0]))
    api.faults.clear()
    replica.start_leader()
    pods.settle()
    assert {replica.state() for replica in pods.replicas} == {FELL_BACK}


@pytest.mark.parametrize("value", ["{", "[]", '{"ClusterPolicy_p": {"run": 1}}'])
def test_invalid_counts_are_ignored(pods: Pods, api: FakeApi, value: str) -> None:
    objects = Objects(api.client())
    data = {"denials.pod-0": value, "denials.gone": value}
    objects.merge(CONFIG_MAPS, KEY, {"data": data})
    replica = pods.replicas[0]
    assert set(replica.stored().invalid) == set(data)
    for number, name in enumerate(NEW[:5]):
        replica.denies(request(name, user=f"user-{number}"))
    pods.settle()
    assert replica.state() == FELL_BACK


@pytest.mark.parametrize("seed", range(4))
def test_kills_forget_no_denial_and_change_no_answer(
    pods: Pods, api: FakeApi, seed: int
) -> None:
    """A hundred kills in all: workers, leaders, the lease holder, failing writes."""
    chance = random.Random(seed)
    spaces = [*NEW[:30], *namespaces(50, 100)[:30]]
    owners: set[str] = set()
    for turn in range(25):
        killed = chance.choice(pods.replicas)
        name = chance.choice(spaces)
        about = request(name, user=name)
        answers = {replica.would_deny(about) for replica in pods.replicas}
        assert len(answers) == 1, "one answer for one object"
        if killed.denies(about):
            owners.add(name)
        disturb(pods, api, killed, chance)
        pods.settle()
        is_over = len(owners) > 4
        assert {replica.state() for replica in pods.replicas} == {
            FELL_BACK if is_over else "Progressing"
        }, turn
    assert len(owners) == 5, "a budget of four, and one round"


def disturb(pods: Pods, api: FakeApi, killed: Replica, chance: random.Random) -> None:
    """Kill a process at some step of its work."""
    for _ in range(chance.randrange(3)):
        api.fault("PATCH ", {"code": 500})
    with_write = chance.random()
    try:
        if with_write < 0.3:
            killed.counter.step()
        elif with_write < 0.6:
            killed.run()
    except DependencyError:
        pass
    if chance.random() < 0.5:
        killed.start_leader()
        if killed.lease.is_held and chance.random() < 0.7:
            killed.lease.is_held = False
            chance.choice(pods.replicas).lease.is_held = True
    else:
        killed.start_worker()
    api.faults.clear()


def record(name: str, number: int) -> DenialRecord:
    budget = BudgetIR(200, 3_600, 300, 300)
    at_s = int(START.timestamp())
    return DenialRecord(name, "run", budget, Denial(str(number), "", "", at_s))


def test_counts_are_bounded_and_tenants_leave_room() -> None:
    counts = DenialCounts()

    def added(name: str, number: int) -> int:
        return sum(counts.add(record(name, each)) for each in range(number))

    assert added("ClusterPolicy_a", 300) == 201, "no more than what exceeds a budget"
    of_tenant = [added(f"Policy_team_{number}", 30) for number in range(4)]
    assert sum(of_tenant) == ROLLOUT_TENANT_KEPT_MAX
    of_all = sum(added(f"Policy_team-{number}_p", 40) for number in range(40))
    assert of_all + sum(of_tenant) == ROLLOUT_TENANTS_KEPT_MAX
    others = sum(added(f"ClusterPolicy_{number}", 200) for number in range(5))
    assert 201 + ROLLOUT_TENANTS_KEPT_MAX + others == ROLLOUT_DENIALS_KEPT_MAX


def test_full_journal_counts_the_next_attempt(tmp_path: Path) -> None:
    folder = tmp_path / "denials"
    folder.mkdir()
    journal = Journal.claim(folder, 1)
    records = StubRecords()
    sink = DenialSink(
        journal, lambda _: Standing(50, 10, "run"), records, START.timestamp
    )
    for name in NEW[:2]:
        sink.denied([POLICY], request(name, user=name))
    assert records.errors == [DENIALS_FULL]
    reader = JournalReader(folder)
    for waiting in reader.records():
        waiting.done()
    sink.denied([POLICY], request(NEW[1], user="x"))
    assert len(list(reader.ahead(10))) == 1

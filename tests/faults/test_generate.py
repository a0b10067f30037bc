"""Kill processes between an admission and its generated object, at every step.

Numbered triggers: each stored trigger has its object, created once; no other has one.
The API server is the small one of the unit tests. It kills the process that sends a
request, but still handles the request, because the server had already received it.
KYVERNO_MP_TEST_KILLS=1000 makes the random run as long as a soak test;
KYVERNO_MP_TEST_SEED chooses other moments.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from kyverno_mp.queues.triggers import UNPROVED_ROLE, lost_record
from kyverno_mp.queues.update_requests import document_of
from tests.faults.generator import POLICY_OF, secret
from tests.unit.background.world import REQUESTS, SECRETS, new_cluster
from tests.unit.kube.fake_api import FakeApi, running
from tests.waiting import HANG_S, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

_ROOT = Path(__file__).resolve().parents[2]
FEW = 5
KILLS = int(os.environ.get("KYVERNO_MP_TEST_KILLS", "40"))
SEED = int(os.environ.get("KYVERNO_MP_TEST_SEED", "13"))
_PER_WORKER = 40
TYPE_OF = {"ClusterPolicy": "generate", "GeneratingPolicy": "cel-generate"}


class Family:
    """The processes of one API server and one folder of journals."""

    def __init__(
        self, api: FakeApi, folder: Path, kind: str, parent: "subprocess.Popen[str]"
    ) -> None:
        """``kind`` is the kind of the generating policy."""
        self.api = api
        self.folder = folder
        self.kind = kind
        self._parent = parent

    def start(self, role: str, *words: object) -> int:
        """Start a process and return its id."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        where: dict[str, list[object]] = {
            "writer": [self.folder],
            "worker": [self.folder, self.kind],
        }
        line = " ".join(map(str, (role, self.api.url, *where.get(role, []), *words)))
        self._parent.stdin.write(f"{line}\n")
        self._parent.stdin.flush()
        return int(self._parent.stdout.readline())

    def put_up(self) -> None:
        """Start again with an empty cluster."""
        with self.api.lock:
            self.api.objects.clear()
        self.api.compact()
        new_cluster(self.api)
        raw = yaml.safe_load(POLICY_OF[self.kind])
        raw["metadata"]["generation"] = 1
        plural = {"ClusterPolicy": "clusterpolicies"}.get(
            self.kind, "generatingpolicies"
        )
        self.api.put(f"/apis/{raw['apiVersion']}/{plural}/p", **raw)

    def admit(self, first: int, count: int) -> None:
        """Let a worker review triggers, and wait until it is done."""
        ended(self.start("worker", first, count), 60)

    def kill_at(self, step: int, role: str) -> bool:
        """Start a process and kill it when it sends the request with this number.

        Return False if the process had finished its work before.
        """
        started: list[int] = []
        seen = [0]

        def count(_method: str, target: str) -> None:
            seen[0] += "watch=1" not in target
            if seen[0] == step:
                wait_for(lambda: started)
                kill(started[0])

        self.api.on_request = count
        started.append(self.start(role))
        reached = reaches(lambda: seen[0] >= step, lambda: self.is_idle(role, seen))
        self.api.on_request = lambda _method, _target: None
        kill(started[0])
        return reached

    def is_idle(self, role: str, seen: list[int]) -> bool:
        """Return whether a process has no work left."""
        if role == "ending":
            return self.missing() == 0
        if role == "handing":
            return self.pending() == len(stored(self.api))
        is_done = self.requests() == 0 if role == "pool" else self.requests() == FEW
        before = seen[0]
        time.sleep(0.3)
        return is_done and seen[0] == before

    def requests(self) -> int:
        return len(names(self.api, "updaterequests"))

    def pending(self) -> int:
        """Return the number of requests that another program would process."""
        with self.api.lock:
            return sum(
                (raw.get("status") or {}).get("state") == "Pending"
                for key, raw in self.api.objects.items()
                if key[2] == "updaterequests"
            )

    def missing(self) -> int:
        """Return the number of triggers without an object."""
        return len(stored(self.api) - made(self.api))

    def finish(self) -> None:
        """Let new processes do the rest, and check the result."""
        rest = [self.start("writer"), self.start("pool")]
        try:
            # The work left over after many kills takes long on a busy machine.
            while left := self.missing():
                wait_for(lambda: self.missing() < left)
        finally:
            for one in rest:
                kill(one)
        check(self.api)


def kill(process: int) -> None:
    """Kill a process and wait for its end."""
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return
    wait_for(lambda: not Path(f"/proc/{process}").exists())


def ended(process: int, within_s: float) -> None:
    """Wait until a process has ended by itself."""
    wait_for(lambda: not Path(f"/proc/{process}").exists(), within_s)


def reaches(*conditions: object) -> bool:
    """Wait for the first condition, but stop when the second condition is true."""
    wanted, given_up = conditions
    assert callable(wanted)
    assert callable(given_up)
    found = [False]

    def either() -> bool:
        found[0] = wanted()
        return found[0] or given_up()

    wait_for(either)
    return found[0]


def names(api: FakeApi, plural: str) -> set[str]:
    with api.lock:
        return {key[3] for key in api.objects if key[2] == plural}


def stored(api: FakeApi) -> set[str]:
    """Return the numbers of the triggers that exist."""
    return {name.removeprefix("t") for name in names(api, "secrets")}


def made(api: FakeApi) -> set[str]:
    """Return the numbers of the objects that exist."""
    return {
        name.removeprefix("out-t")
        for name in names(api, "configmaps")
        if name.startswith("out-")
    }


def check(api: FakeApi) -> None:
    """Check that each stored trigger has an object that was written once."""
    assert made(api) == stored(api)
    with api.lock:
        written = Counter(
            key[3] for _, kind, key, _ in api.log if key[2] == "configmaps"
        )
        contents = {
            key[3]: raw["data"]
            for key, raw in api.objects.items()
            if key[2] == "configmaps" and key[3].startswith("out-")
        }
    for name, data in contents.items():
        assert written[name] == 1, name
        assert data == {"number": name.removeprefix("out-")}


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with running() as server:
        yield server


@pytest.fixture(scope="module")
def parent() -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.faults.generator"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
    ) as process:
        yield process
        process.communicate("")


@pytest.fixture(params=list(POLICY_OF))
def family(
    api: FakeApi,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    parent: "subprocess.Popen[str]",
) -> Family:
    return Family(api, tmp_path, request.param, parent)


def name_policy(family: Family) -> None:
    """Store two triggers, and the request that reviews without proof leave."""
    record = lost_record("p", 1, TYPE_OF[family.kind], UNPROVED_ROLE)
    request = document_of(record, record.wanted[0], "kyverno")
    family.api.put(f"{REQUESTS}/{request['metadata']['name']}", **request)
    for number in range(2):
        raw = secret(number)
        family.api.put(f"{SECRETS.format('a')}/{raw['metadata']['name']}", **raw)


def test_kill_at_any_request_of_the_pool(
    api: FakeApi, family: Family, tmp_path: Path
) -> None:
    """Each request from the start of a term to the end of its work."""
    step, first = 1, 0
    while True:
        family.put_up()
        family.folder = tmp_path / str(step)
        family.admit(first, FEW)
        writer = family.start("writer")
        wait_for(lambda: family.requests() == FEW)
        kill(writer)
        reached = family.kill_at(step, "pool")
        family.finish()
        if not reached:
            break
        step += 1
        first += FEW
    assert step > 3 * FEW


def test_kill_at_any_request_of_the_writer(
    api: FakeApi, family: Family, tmp_path: Path
) -> None:
    """Records are taken after their requests are stored, so some are stored twice."""
    step, first = 1, 0
    while True:
        family.put_up()
        family.folder = tmp_path / str(step)
        family.admit(first, FEW)
        reached = family.kill_at(step, "writer")
        family.finish()
        if not reached:
            break
        step += 1
        first += FEW
    assert step > FEW


def test_kill_at_any_request_of_a_pool_that_ends(api: FakeApi, family: Family) -> None:
    """Reviews without proof named the policy; the next lease holder looks as well."""
    step = 1
    while True:
        family.put_up()
        name_policy(family)
        reached = family.kill_at(step, "ending")
        ended(family.start("ending"), HANG_S)
        check(api)
        assert family.requests() == 1, "it is for the last look"
        if not reached:
            break
        step += 1
    assert step > 2


def test_kill_at_any_request_of_a_pool_that_hands_over(
    api: FakeApi, family: Family
) -> None:
    """Another program gets each trigger once; ours carries the requests out here."""
    step = 1
    while True:
        family.put_up()
        name_policy(family)
        reached = family.kill_at(step, "handing")
        ended(family.start("handing"), HANG_S)
        assert made(api) == set(), "it is for the other program"
        assert family.pending() == 2
        assert family.requests() == 3, "one is for the last look"
        family.finish()
        if not reached:
            break
        step += 1
    assert step > 2


def test_kills_at_random(api: FakeApi, family: Family) -> None:
    """Workers, writers and pools die under load; two pools work at the same time.

    The API server fails, too, between two kills.
    """
    family.put_up()
    choice = random.Random(SEED)
    seen = [0]
    api.on_request = lambda _method, _target: seen.__setitem__(0, seen[0] + 1)
    running_ones = {
        "writer": family.start("writer"),
        "pool": family.start("pool"),
        "thief": family.start("pool"),
        "worker": family.start("worker", 0, _PER_WORKER),
    }
    first = _PER_WORKER
    for _ in range(KILLS):
        until = seen[0] + choice.randint(5, 60)
        end_s = time.monotonic() + 1.0
        while seen[0] < until and time.monotonic() < end_s:
            time.sleep(0.002)
        victim = choice.choice(list(running_ones))
        kill(running_ones[victim])
        if choice.random() < 0.2:
            api.fault(".", *choice.choices(["cut", 500, 429], k=choice.randint(5, 40)))
        if victim == "worker":
            running_ones[victim] = family.start("worker", first, _PER_WORKER)
            first += _PER_WORKER
        else:
            role = "writer" if victim == "writer" else "pool"
            running_ones[victim] = family.start(role)
    ended(running_ones.pop("worker"), 120)
    for process in running_ones.values():
        kill(process)
    assert len(stored(api)) > _PER_WORKER
    family.finish()

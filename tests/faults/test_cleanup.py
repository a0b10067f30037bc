"""Kill a clean-up at every step of a run: each due object is deleted exactly once.

The API server is the small one of the unit tests. It kills the process that sends a
request, but still handles the request, because the server had already received it.
KYVERNO_MP_TEST_KILLS=1000 repeats the run of 500 deletions until this many processes
are killed; KYVERNO_MP_TEST_SEED chooses other moments.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cleanup.cluster import (
    condition_of,
    config_map,
    names,
    policy,
    serve_kinds,
    status_of,
)
from tests.unit.kube.fake_api import FakeApi, running
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

_ROOT = Path(__file__).resolve().parents[2]
_EPOCH_S = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
FEW, MANY = 12, 500
_KILLS_OF_A_RUN = 13
KILLS = int(os.environ.get("KYVERNO_MP_TEST_KILLS", str(_KILLS_OF_A_RUN)))
SEED = int(os.environ.get("KYVERNO_MP_TEST_SEED", "12"))
TTL = {"cleanup.kyverno.io/ttl": "10m"}


class Cleaners:
    """Clean-up processes of one API server."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.cleaner"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
        )

    def start(self) -> int:
        """Start one and return its id."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(f"{self.api.url}\n")
        self._parent.stdin.flush()
        return int(self._parent.stdout.readline())

    def kill_at(self, step: int) -> None:
        """Start a process and kill it when it sends the request with this number."""
        started: list[int] = []
        seen = [0]

        def count(_method: str, target: str) -> None:
            seen[0] += "watch=1" not in target
            if seen[0] == step:
                wait_for(lambda: started)
                kill(started[0])

        self.api.on_request = count
        started.append(self.start())
        wait_for(lambda: seen[0] >= step or self._is_idle(seen))
        self.api.on_request = lambda _method, _target: None
        kill(started[0])

    def finish(self) -> None:
        """Let another process do the rest."""
        one = self.start()
        try:
            wait_for(lambda: condition_of(self.api).get("reason") == "Succeeded")
            wait_for(lambda: not names(self.api, "secrets"))
        finally:
            kill(one)

    def close(self) -> None:
        self._parent.communicate("")

    def _is_idle(self, seen: list[int]) -> bool:
        """Return whether a whole run sends fewer requests than the step's number."""
        before = seen[0]
        time.sleep(0.5)
        return seen[0] == before and condition_of(self.api).get("reason") == "Succeeded"


def kill(process: int) -> None:
    """Kill a process and wait for its end."""
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return
    wait_for(lambda: not Path(f"/proc/{process}").exists())


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with running() as server:
        yield server


@pytest.fixture
def cleaners(api: FakeApi) -> Iterator[Cleaners]:
    made = Cleaners(api)
    yield made
    made.close()


def put_up(api: FakeApi, count: int) -> None:
    """Store objects that are due, by policy and by label, and some that must stay."""
    now_s = time.time() - _EPOCH_S
    serve_kinds(api)
    for number in range(count):
        config_map(api, f"old-{number}", created_s=now_s - 3600)
    for number in range(count // 4):
        config_map(
            api, f"kept-{number}", created_s=now_s - 3600, labels={"keep": "yes"}
        )
        config_map(
            api, f"s{number}", created_s=now_s - 3600, labels=TTL, plural="secrets"
        )
    exclude = {"resources": {"selector": {"matchLabels": {"keep": "yes"}}}}
    policy(api, created_s=now_s - 86400, schedule="@daily", exclude={"any": [exclude]})


def check(api: FakeApi, count: int, first: Any) -> None:
    """Check that due objects were deleted once and that the others remain."""
    left = sorted(f"a/kept-{number}" for number in range(count // 4))
    assert names(api) == left
    deleted = [key[2:] for key, _ in api.deletions]
    assert len(deleted) == len(set(deleted)) == count + count // 4
    if first is not None:
        assert status_of(api)["lastExecutionTime"] == first


def test_kill_at_any_request_of_a_run(api: FakeApi, cleaners: Cleaners) -> None:
    """This covers each request, of a policy's run and of TTL deletions."""
    for step in range(1, 75):
        api.objects.clear()
        api.deletions.clear()
        put_up(api, FEW)
        cleaners.kill_at(step)
        first = status_of(api).get("lastExecutionTime")
        cleaners.finish()
        check(api, FEW, first)


def test_kills_in_a_run_of_500_deletions(api: FakeApi, cleaners: Cleaners) -> None:
    """Each process is killed after some requests; the last one finishes."""
    choice = random.Random(SEED)
    for _ in range(0, KILLS, _KILLS_OF_A_RUN):
        api.objects.clear()
        api.deletions.clear()
        put_up(api, MANY)
        cleaners.kill_at(40)
        first = status_of(api).get("lastExecutionTime")
        for _ in range(_KILLS_OF_A_RUN - 1):
            cleaners.kill_at(choice.randint(20, 160))
        cleaners.finish()
        check(api, MANY, first)

"""Leases do not fence: a suspended holder resumes in the middle of its work.

A failure means: there are two holders at a time, work is done twice, or work is never
done.
"""

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.api import Api
from tests.e2e.control_plane import ControlPlane, Program
from tests.e2e.pool_program import HELD, HELD_AFTER, LEASE, NAMESPACE
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parents[3]
BASE = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
JOBS = 300
LEASE_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{LEASE}"


class Replica:
    """One coordinator that acts as a separate user."""

    def __init__(self, plane: ControlPlane, name: str, folder: Path) -> None:
        self.name = name
        kubeconfig = plane.write_user(name, ["system:masters"])
        folder = folder / name
        folder.mkdir()
        self._held = folder / HELD
        self._held.touch()
        environment = ["/usr/bin/env", f"PYTHONPATH={ROOT}"]
        module = [sys.executable, "-m", "tests.e2e.pool_program"]
        self.program = Program(
            name,
            [*environment, *module, str(kubeconfig), str(folder), name],
            folder,
        )

    def let_go(self) -> None:
        """Resume the work that stopped after its first deletions."""
        self._held.unlink()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.program.pid, number)


@pytest.fixture
def replicas(plane: ControlPlane, tmp_path: Path) -> Iterator[dict[str, Replica]]:
    found = {name: Replica(plane, name, tmp_path) for name in ("one", "two")}
    for replica in found.values():
        replica.program.start()
    try:
        yield found
    finally:
        for replica in found.values():
            if replica.program.is_started:
                replica.signal(signal.SIGCONT)
            replica.program.stop()


def holder(api: Api) -> str:
    status, found = api.ask("GET", LEASE_PATH)
    return str(found["spec"].get("holderIdentity") or "") if status == 200 else ""


def left(api: Api) -> int:
    return len(api.get(f"{BASE}?labelSelector=job")["items"])


def test_resumed_holder_repeats_no_write(
    plane: ControlPlane, replicas: dict[str, Replica]
) -> None:
    with Api(plane.access) as api:
        wait_for(lambda: holder(api) in replicas)
        first = replicas[holder(api)]
        (second,) = (one for one in replicas.values() if one is not first)
        plane.audit.mark()
        for number in range(JOBS):
            labels = {"job": str(number)}
            api.create(BASE, {"metadata": {"name": f"j{number}", "labels": labels}})
        wait_for(lambda: left(api) == JOBS - HELD_AFTER)
        first.signal(signal.SIGSTOP)
        first.let_go()
        second.let_go()
        before = len(plane.audit.asked(first.name, writes=True))
        assert left(api) > 0, "it was stopped in the middle"
        wait_for(lambda: holder(api) == second.name)
        first.signal(signal.SIGCONT)
        wait_for(lambda: left(api) == 0)
        asked = plane.audit.asked(writes=True)
        gone = Counter(one.name for one in asked if one.verb == "delete" and one.done)
        assert len(gone) == JOBS
        assert set(gone.values()) == {1}, "each was deleted once"
        by_first = plane.audit.asked(first.name, writes=True)[before:]
        deleted = [one for one in by_first if one.resource == "configmaps"]
        # The only call that was in progress when the process was suspended.
        assert len(deleted) <= 1
        assert second.name in {one.user for one in asked if one.verb == "delete"}


def test_work_continues_after_the_holder_is_killed(
    plane: ControlPlane, replicas: dict[str, Replica]
) -> None:
    with Api(plane.access) as api:
        wait_for(lambda: holder(api) in replicas)
        first = replicas[holder(api)]
        (second,) = (one for one in replicas.values() if one is not first)
        for number in range(JOBS):
            labels = {"job": str(number)}
            api.create(BASE, {"metadata": {"name": f"k{number}", "labels": labels}})
        wait_for(lambda: left(api) == JOBS - HELD_AFTER)
        first.program.stop(signal.SIGKILL)
        second.let_go()
        wait_for(lambda: left(api) == 0)
        assert holder(api) == second.name
        first.program.start()

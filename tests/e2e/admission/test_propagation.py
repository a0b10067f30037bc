"""How policies come into force: one at once, many in a few batches, even after a kill.

perf/propagation.py measures it; only machine-independent facts are tested here.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from kyverno_mp.kube.policy_resources import RULE_POLICIES
from kyverno_mp.leader.loop import SNAPSHOT
from kyverno_mp.snapshot.control import ControlPage
from kyverno_mp.snapshot.policies import POLICIES
from tests.e2e.api import Api
from tests.e2e.conftest import Cluster
from tests.e2e.crds import install_crds
from tests.e2e.fleet import Fleet, policy, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

MANY: Final = 200


@pytest.fixture
def fleet(cluster: Cluster, api: Api, tmp_path: Path) -> Iterator[Fleet]:
    if cluster.plane is None:
        pytest.skip("an existing cluster runs a kyverno-mp of its own")
    install_crds(api)
    fleet = Fleet(cluster.plane, tmp_path)
    fleet.start()
    try:
        yield fleet
    finally:
        fleet.stop()
        print(fleet.product.program.log.read_text()[-6000:])


def test_many_changes_are_published_in_few_batches(
    fleet: Fleet, tmp_path: Path
) -> None:
    """This also holds when the leader is killed meanwhile: no policy is lost."""
    fleet.put(policy("first", "team"))
    control = ControlPage.open(tmp_path / "run" / SNAPSHOT)
    before, began_s = control.generation(POLICIES), time.monotonic()
    for number in range(MANY):
        fleet.objects.create(
            RULE_POLICIES.cluster, policy(f"many-{number}", f"l{number}")
        )
        if number == MANY // 2:
            os.kill(fleet.processes()["leader"], signal.SIGKILL)
    took_s = time.monotonic() - began_s
    wait_for(lambda: fleet.ready(f"many-{MANY - 1}") == "True")
    # On a busy machine they do not arrive together, but one by one.
    most = max(MANY // 4, round(8 * took_s))
    assert control.generation(POLICIES) - before < most
    others = {f"l{number}": "x" for number in range(MANY - 1)}
    assert fleet.ask(team="x", **others) == "denied"
    others[f"l{MANY - 1}"] = "x"
    assert fleet.ask(team="x", **others) == "allowed"


def test_ready_condition_means_enforced(fleet: Fleet) -> None:
    """From then on, each worker denies every request."""
    for number in range(10):
        name = f"ready-{number}"
        fleet.put(policy(name, "team"))
        assert [fleet.review() for _ in range(6)] == [False] * 6
        assert fleet.ask() == "denied"
        fleet.objects.delete(RULE_POLICIES.cluster, ("", name))
        wait_for(lambda: fleet.ask() == "allowed")

"""No accepted trigger is lost, even if processes die meanwhile.

A failure means: an object that a rule had to generate is missing permanently, or exists
although its policy is deleted. E2E_AWAY_S=60 keeps the API server away for a minute.
"""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import psutil
import pytest

from tests.e2e.api import Api
from tests.e2e.background import (
    BACKGROUND,
    POLICIES,
    POOL,
    USER,
    Space,
    space_in,
    stays,
)
from tests.e2e.conftest import Cluster
from tests.e2e.control_plane import ControlPlane
from tests.e2e.product import Product, holder_of, started
from tests.waiting import HANG_S, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

MANY = 120
AWAY_S = float(os.environ.get("E2E_AWAY_S", "4"))
DATA = {"data": {"from": "policy"}}
WANTED = {f"t{number}" for number in range(MANY)}


@pytest.fixture(scope="module")
def running(
    shared_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Product]:
    extra = {**POOL, "RESTART_DELAY_S_MAX": "1"}
    with started(shared_plane, tmp_path_factory.mktemp("faults"), extra) as product:
        yield product


@pytest.fixture
def space(api: Api, shared_plane: ControlPlane, running: Product) -> Iterator[Space]:
    wait_for(running.is_ready)
    wait_for(lambda: holder_of(api, BACKGROUND) == "first")
    with space_in(api, shared_plane.etcd_url) as made:
        yield made


def put_triggers(cluster: Cluster, space: Space) -> None:
    """Create all triggers; retry rejected ones until they are accepted."""
    with Api(cluster.access) as own:
        one = Space(own, space.name)
        for name in sorted(WANTED):
            wait_for(partial(_is_accepted, one, name))


def _is_accepted(space: Space, name: str) -> bool:
    """Return whether it was accepted; an unavailable webhook denies it."""
    metadata = {"name": name, "labels": {"team": "blue"}}
    try:
        return space.api.ask("POST", space.accounts, {"metadata": metadata})[0] == 201
    except OSError:
        # It is unknown whether it was accepted.
        space.api.close()
        return space.api.ask("GET", f"{space.accounts}/{name}")[0] == 200


@pytest.mark.parametrize("role", ["background", "leader", "webhook"])
def test_role_killed_during_triggers_loses_nothing(
    cluster: Cluster, space: Space, running: Product, role: str
) -> None:
    space.policy(space.generate(data=DATA))
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(put_triggers, cluster, space)
        for made in (20, 60, 100):
            wait_for(partial(_has_made, space, made))
            wait_for(lambda: running.processes()[role])
            os.kill(_victim(running, role), signal.SIGKILL)
        coming.result(HANG_S)
    wait_for(lambda: space.names() == WANTED)
    space.await_done()


def _has_made(space: Space, count: int) -> bool:
    return len(space.names()) >= count


def _victim(running: Product, role: str) -> int:
    pid = running.processes()[role]
    if role != "webhook":
        return pid
    workers = psutil.Process(pid).children()
    return workers[0].pid if workers else pid


def test_api_server_outage_loses_nothing(
    cluster: Cluster, shared_plane: ControlPlane, space: Space
) -> None:
    """Objects of triggers that were accepted just before are created afterwards."""
    space.policy(space.generate(data=DATA))
    put_triggers(cluster, space)
    shared_plane.apiserver.stop(signal.SIGKILL)
    time.sleep(AWAY_S)
    shared_plane.apiserver.start()
    with Api(shared_plane.access) as own:
        wait_for(lambda: _answers(own))
    wait_for(lambda: space.names() == WANTED)
    space.await_done()


def _answers(api: Api) -> bool:
    try:
        return api.ask("GET", "/readyz")[0] == 200
    except OSError:
        return False


def test_policy_deleted_without_lease_holder_is_cleaned_up(
    api: Api, shared_plane: ControlPlane, space: Space, running: Product
) -> None:
    """Its objects are deleted later; objects of a rule that keeps them stay."""
    keeping = space.generate(
        "keeping",
        data=DATA,
        name="kept-{{ request.object.metadata.name }}",
        orphanDownstreamOnPolicyDelete=True,
    )
    gone = space.policy(space.generate(data=DATA))
    space.policy(keeping, name="keeping")
    space.trigger()
    wait_for(lambda: space.names() == {"t", "kept-t"})
    space.await_done()
    running.stop()
    try:
        for one in list(space.policies):
            api.delete(f"{POLICIES}/{one}")
        space.policies.clear()
        assert api.ask("GET", gone)[0] == 404
        assert space.names() == {"t", "kept-t"}
    finally:
        running.start()
    wait_for(lambda: space.names() == {"kept-t"})
    assert stays(lambda: space.names() == {"kept-t"}, 1)


def test_restart_writes_nothing(
    api: Api, shared_plane: ControlPlane, space: Space, running: Product
) -> None:
    """Objects in their desired state are not written."""
    space.policy(space.generate(data=DATA))
    space.trigger()
    wait_for(lambda: space.names() == {"t"})
    space.await_done()
    before = space.version("t")
    running.stop()
    shared_plane.audit.mark()
    running.start()
    wait_for(lambda: holder_of(api, BACKGROUND) == "first")
    space.trigger("late")
    wait_for(lambda: space.names() == {"t", "late"})
    space.await_done()
    assert space.version("t") == before
    asked = shared_plane.audit.asked(USER, writes=True)
    made = [one for one in asked if one.done and one.verb in ("create", "delete")]
    assert {one.name for one in made if one.resource == "configmaps"} == {"late"}

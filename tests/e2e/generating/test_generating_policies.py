"""GeneratingPolicies on a real control plane: each accepted trigger has its object.

A failure means: the API server does not send us their reviews, accepted triggers are
lost with a process, or users are not informed that the pool's account lacks a
permission.
"""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any, Final

import pytest

from tests.e2e.api import Api
from tests.e2e.background import BACKGROUND, POOL, ROLES, Space, space_in, stays
from tests.e2e.cel_policies import Policies, inside, matched, put_triggers, victim
from tests.e2e.conftest import Cluster
from tests.e2e.control_plane import ControlPlane
from tests.e2e.crds import install_crds
from tests.e2e.product import Product, holder_of, started
from tests.waiting import HANG_S, unique, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

Json = Any
KIND: Final = "GeneratingPolicy"
NAMES: Final = tuple(f"t{number}" for number in range(60))
_PROBE: Final = "-probe"
_PROBES_MAX: Final = 30
NAMED: Final = {"name": "named", "expression": "object.metadata.name.startsWith('t')"}


@pytest.fixture(scope="module")
def running(
    shared_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Product]:
    with Api(shared_plane.access) as own:
        install_crds(own)
    extra = {**POOL, "RESTART_DELAY_S_MAX": "1"}
    folder = tmp_path_factory.mktemp("generating")
    with started(shared_plane, folder, extra) as product:
        yield product


@pytest.fixture
def space(api: Api, shared_plane: ControlPlane, running: Product) -> Iterator[Space]:
    wait_for(running.is_ready)
    wait_for(lambda: holder_of(api, BACKGROUND) == "first")
    with space_in(api, shared_plane.etcd_url) as made:
        yield made


@pytest.fixture
def policies(api: Api) -> Iterator[Policies]:
    made = Policies(api)
    try:
        yield made
    finally:
        for path in made.paths:
            api.ask("DELETE", path)


def of(space: Space, kind: str = "ConfigMap", **fields: str) -> Json:
    """Return the fields of a policy that generates an object named as its trigger."""
    parts = {
        "apiVersion": 'dyn("v1")',
        "kind": f'dyn("{kind}")',
        "metadata": 'dyn({"name": object.metadata.name})',
        **fields,
    }
    made = ", ".join(f'"{name}": {value}' for name, value in parts.items())
    call = f"generator.apply(object.metadata.namespace, [{{{made}}}])"
    return {
        "matchConstraints": matched("serviceaccounts"),
        "matchConditions": [*inside(space), NAMED],
        "evaluation": {"synchronize": {"enabled": True}},
        "generate": [{"expression": call}],
    }


def _await_webhook(space: Space) -> None:
    """Create triggers until one has its object.

    A policy is ready when its webhook is registered; API servers load it a moment
    later, and requests that they accept until then are not reviewed (failurePolicy
    Ignore).
    """
    for number in count():
        name = f"t{_PROBE}{number}"
        space.api.create(space.accounts, {"metadata": {"name": name}})
        if not stays(partial(_is_absent, space, name), 2):
            return
        assert number < _PROBES_MAX, "no object in a minute"


def _is_absent(space: Space, name: str) -> bool:
    return name not in space.names()


def _made(space: Space) -> set[str]:
    return {name for name in space.names() if _PROBE not in name}


def _has_made(space: Space, least: int) -> bool:
    return len(_made(space)) >= least


def _is_reverted(space: Space, name: str) -> bool:
    """Return whether a change is reverted; one that precedes a watch is not."""
    by_hand = {"from": f"hand at {unique()}"}
    space.api.patch(f"{space.maps}/{name}", {"data": by_hand})
    return not stays(lambda: space.data(name) == by_hand, 5)


@pytest.mark.parametrize("role", ["background", "leader"])
def test_role_killed_during_triggers_loses_nothing(
    cluster: Cluster, space: Space, policies: Policies, running: Product, role: str
) -> None:
    """Each ServiceAccount that was accepted has its ConfigMap, and nothing else does.

    Afterwards the objects still follow: none is only recorded. Workers are killed in
    tests/faults: webhooks of GeneratingPolicies have failurePolicy Ignore, as upstream,
    so that the API server accepts what no worker has seen.
    """
    path = policies.put(space, kind=KIND, **of(space, data='dyn({"from": "policy"})'))
    _await_webhook(space)
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(put_triggers, cluster, space, NAMES)
        for made in (10, 30, 50):
            wait_for(partial(_has_made, space, made))
            wait_for(lambda: running.processes()[role])
            os.kill(victim(running, role), signal.SIGKILL)
        coming.result(HANG_S)
    wait_for(lambda: _made(space) == set(NAMES))
    space.await_done()
    wait_for(partial(_is_reverted, space, "t7"))
    assert space.data("t7") == {"from": "policy"}
    space.api.delete(path)
    wait_for(lambda: space.names() == set())


def test_missing_permission(api: Api, space: Space, policies: Policies) -> None:
    """The Event of the policy names it, and a grant is sufficient."""
    policies.put(
        space, kind=KIND, **of(space, "Service", spec='dyn({"clusterIP": "None"})')
    )
    names = (f"t{number}" for number in count())
    wait_for(lambda: _is_refused(space, next(names)))
    name = f"{space.name}-grant"
    label = "rbac.kyverno.io/aggregate-to-background-controller"
    verbs = ["get", "list", "watch", "create", "update", "delete"]
    rule = {"apiGroups": [""], "resources": ["services"], "verbs": verbs}
    role = {"metadata": {"name": name, "labels": {label: "true"}}, "rules": [rule]}
    api.create(ROLES, role)
    try:
        made = f"/api/v1/namespaces/{space.name}/services"
        wait_for(lambda: api.get(made)["items"])
    finally:
        api.delete(f"{ROLES}/{name}")


def _is_refused(space: Space, name: str) -> bool:
    """Create a trigger; return whether an Event names the missing permission."""
    space.api.create(space.accounts, {"metadata": {"name": name}})
    return not stays(lambda: not _has_event(space, "services"), 2)


def _has_event(space: Space, text: str) -> bool:
    found = space.api.get("/apis/events.k8s.io/v1/events")["items"]
    return any(
        one["reason"] == "PolicyError"
        and one["regarding"]["kind"] == KIND
        and one["regarding"]["name"].startswith(space.name)
        and text in one["note"]
        for one in found
    )

"""MutatingPolicies on a real control plane: admitted and existing objects.

A failure means: the API server does not send us their reviews or rejects our answers,
or an existing object is not mutated although its trigger was accepted.
"""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import pytest

from tests.e2e.api import Api
from tests.e2e.background import BACKGROUND, POOL, Space, space_in
from tests.e2e.cel_policies import Policies, inside, matched, put_triggers, victim
from tests.e2e.conftest import Cluster
from tests.e2e.control_plane import ControlPlane
from tests.e2e.crds import install_crds
from tests.e2e.product import Product, holder_of
from tests.waiting import HANG_S, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

Json = Any
_MANY: Final = 60
_NAMES: Final = tuple(f"t{number}" for number in range(_MANY))


@pytest.fixture(scope="module")
def running(
    cluster: Cluster, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Product]:
    if cluster.plane is None:
        pytest.skip("an existing cluster runs a kyverno-mp of its own")
    install_crds(api)
    extra = {**POOL, "RESTART_DELAY_S_MAX": "1"}
    product = Product(cluster.plane, tmp_path_factory.mktemp("mutating"), extra=extra)
    product.start()
    try:
        yield product
    finally:
        product.stop()
        print(product.program.log.read_text()[-6000:])


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


def label(key: str) -> Json:
    labels = f"Object.metadata.labels{{{key}: 'yes'}}"
    expression = f"Object{{metadata: Object.metadata{{labels: {labels}}}}}"
    return {
        "patchType": "ApplyConfiguration",
        "applyConfiguration": {"expression": expression},
    }


def labels_of(space: Space, name: str) -> Json:
    return space.api.get(f"{space.maps}/{name}")["metadata"].get("labels") or {}


def test_admitted_objects_are_mutated(
    api: Api, space: Space, policies: Policies
) -> None:
    """Both kinds change an object; a namespaced policy changes none elsewhere."""
    policies.put(
        space,
        matchConstraints=matched("configmaps"),
        matchConditions=inside(space),
        mutations=[label("cluster")],
    )
    policies.put(
        space,
        namespaced=True,
        matchConstraints=matched("configmaps"),
        mutations=[label("own")],
    )
    api.create(space.maps, {"metadata": {"name": "m"}})
    assert labels_of(space, "m") == {"cluster": "yes", "own": "yes"}
    with space_in(api) as other:
        api.create(other.maps, {"metadata": {"name": "m"}})
        assert labels_of(other, "m") == {}


def test_failure_denies_with_upstreams_text(
    api: Api, space: Space, policies: Policies
) -> None:
    broken = {
        "patchType": "JSONPatch",
        "jsonPatch": {"expression": '[JSONPatch{op: "remove", path: "/data/x"}]'},
    }
    policies.put(
        space,
        matchConstraints=matched("configmaps"),
        matchConditions=inside(space),
        mutations=[broken],
    )
    status, answer = api.ask("POST", space.maps, {"metadata": {"name": "m"}})
    assert status >= 400
    text = f"Resource: {space.name}/m, Kind: ConfigMap, Errors: [Policy "
    assert text in str(answer)


@pytest.mark.parametrize("role", ["background", "leader", "webhook"])
def test_role_killed_during_triggers_loses_nothing(
    cluster: Cluster, space: Space, policies: Policies, running: Product, role: str
) -> None:
    """Each ServiceAccount that was accepted changes the ConfigMap of its name."""
    for name in _NAMES:
        space.api.create(space.maps, {"metadata": {"name": name}})
    found = (
        "resource.Get('v1', 'configmaps', object.metadata.namespace,"
        " object.metadata.name)"
    )
    policies.put(
        space,
        evaluation={"mutateExisting": {"enabled": True}},
        matchConstraints=matched("serviceaccounts", "CREATE"),
        matchConditions=[
            *inside(space),
            {"name": "named", "expression": "object.metadata.name.startsWith('t')"},
        ],
        targetMatchConstraints={"expression": found},
        mutations=[label("done")],
    )
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(put_triggers, cluster, space, _NAMES)
        for count in (10, 30, 50):
            wait_for(partial(_has_done, space, count))
            wait_for(lambda: running.processes()[role])
            os.kill(victim(running, role), signal.SIGKILL)
        coming.result(HANG_S)
    wait_for(partial(_has_done, space, _MANY))
    space.await_done()


def _has_done(space: Space, count: int) -> bool:
    found = space.api.get(space.maps)["items"]
    done = [one for one in found if "done" in (one["metadata"].get("labels") or {})]
    return len(done) >= count

"""MutatingPolicies on a real control plane: admitted and existing objects.

Red here means: the API server does not ask us for them, refuses what we answer, or an
existing object keeps what a policy has to change although its trigger was accepted.
"""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import psutil
import pytest

from tests.e2e.api import Api
from tests.e2e.background import BACKGROUND, POOL, Space, space_in
from tests.e2e.conftest import Cluster
from tests.e2e.crds import install_crds
from tests.e2e.product import Product, holder_of
from tests.e2e.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

Json = Any
_GROUP: Final = "/apis/policies.kyverno.io/v1beta1"
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
def space(api: Api, running: Product) -> Iterator[Space]:
    wait_for(running.is_ready)
    wait_for(lambda: holder_of(api, BACKGROUND) == "first")
    with space_in(api) as made:
        yield made


@pytest.fixture
def policies(api: Api) -> Iterator["Policies"]:
    made = Policies(api)
    try:
        yield made
    finally:
        for path in made.paths:
            api.ask("DELETE", path)


class Policies:
    """The policies of one test."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.paths: list[str] = []

    def put(self, space: Space, *, namespaced: bool = False, **spec: Json) -> None:
        """Create a policy and wait until it is in force."""
        kind, base = "MutatingPolicy", f"{_GROUP}/mutatingpolicies"
        if namespaced:
            kind = f"Namespaced{kind}"
            base = f"{_GROUP}/namespaces/{space.name}/namespacedmutatingpolicies"
        name = f"{space.name}-{len(self.paths)}"
        raw = {
            "apiVersion": "policies.kyverno.io/v1beta1",
            "kind": kind,
            "metadata": {"name": name},
            "spec": spec,
        }
        self._api.create(base, raw)
        self.paths.append(f"{base}/{name}")
        wait_for(partial(self._is_ready, self.paths[-1]))

    def _is_ready(self, path: str) -> bool:
        status = self._api.get(path).get("status") or {}
        return (status.get("conditionStatus") or {}).get("ready") is True


def matched(resource: str, *operations: str) -> Json:
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": list(operations or ("CREATE", "UPDATE")),
        "resources": [resource],
    }
    return {"resourceRules": [rule]}


def label(key: str) -> Json:
    labels = f"Object.metadata.labels{{{key}: 'yes'}}"
    expression = f"Object{{metadata: Object.metadata{{labels: {labels}}}}}"
    return {
        "patchType": "ApplyConfiguration",
        "applyConfiguration": {"expression": expression},
    }


def inside(space: Space) -> Json:
    """Return the condition that keeps a policy of the cluster in the test's space."""
    expression = f"request.namespace == '{space.name}'"
    return [{"name": "inside", "expression": expression}]


def labels_of(space: Space, name: str) -> Json:
    return space.api.get(f"{space.maps}/{name}")["metadata"].get("labels") or {}


def test_admitted_objects(api: Api, space: Space, policies: Policies) -> None:
    """Both kinds change an object, a namespaced policy none of another namespace."""
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


def test_a_failure_denies_with_upstreams_text(
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
def test_a_role_is_killed_while_triggers_come(
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
        coming = pool.submit(_put_triggers, cluster, space)
        for count in (10, 30, 50):
            wait_for(partial(_has_done, space, count))
            wait_for(lambda: running.processes()[role])
            os.kill(_victim(running, role), signal.SIGKILL)
        coming.result(120)
    wait_for(partial(_has_done, space, _MANY))
    space.await_done()


def _put_triggers(cluster: Cluster, space: Space) -> None:
    """Create all triggers; one that was refused is tried again until it is accepted."""
    with Api(cluster.access) as own:
        one = Space(own, space.name)
        for name in _NAMES:
            wait_for(partial(_is_accepted, one, name))


def _is_accepted(space: Space, name: str) -> bool:
    """A webhook that is away denies: then nothing was accepted."""
    try:
        asked = {"metadata": {"name": name}}
        return space.api.ask("POST", space.accounts, asked)[0] == 201
    except OSError:
        # Whether it was accepted is not known.
        space.api.close()
        return space.api.ask("GET", f"{space.accounts}/{name}")[0] == 200


def _has_done(space: Space, count: int) -> bool:
    found = space.api.get(space.maps)["items"]
    done = [one for one in found if "done" in (one["metadata"].get("labels") or {})]
    return len(done) >= count


def _victim(running: Product, role: str) -> int:
    pid = running.processes()[role]
    if role != "webhook":
        return pid
    workers = psutil.Process(pid).children()
    return workers[0].pid if workers else pid

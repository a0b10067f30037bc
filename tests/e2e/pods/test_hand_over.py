"""The pod that holds the leases of the pools ends or dies, with 130 generated objects.

A failure means: each rollout, or each lost node, costs a write for every object that
rules generated, every report or every due deletion; or a call that cannot succeed.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from typing import Any, Final

import pytest

from tests.e2e.api import Api
from tests.e2e.audit import Asked
from tests.e2e.background import BACKGROUND, Space, space_in
from tests.e2e.conftest import Cluster
from tests.e2e.control_plane import ControlPlane
from tests.e2e.installation import NAMESPACE, Installation, installation, until
from tests.e2e.living import Living

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

TRIGGERS: Final = 20
TURNS: Final = 4
POOLS: Final = (
    BACKGROUND,
    "kyverno-cleanup-controller",
    "kyverno-reports-controller",
)
_WRITTEN: Final = {
    "configmaps": "/api/v1/configmaps",
    "policyreports": "/apis/wgpolicyk8s.io/v1alpha2/policyreports",
}
_CLEANUP: Final = {
    "cleanuppolicies": "namespaces/default/",
    "clustercleanuppolicies": "",
}
"""Each of these policies runs every two seconds, and its status has the last run."""
_RUN_S: Final = 2
_SHARED: Final = frozenset({"leases", "ephemeralreports", "policyreports"})
"""Several replicas write them, or several threads of one; versions protect them."""
_READS: Final = frozenset({"get", "list", "watch"})
_REVIEWS: Final = "selfsubjectaccessreviews"
"""RBAC lists its rules, so nobody asks for the rights of single kinds."""


@pytest.fixture(scope="module")
def installed(cluster: Cluster, plane: ControlPlane) -> Iterator[Installation]:
    with installation(plane, cluster.kubectl) as made:
        made.install()
        yield made


class Generated:
    """Objects of rules of each kind, all in the state that the rules demand."""

    def __init__(self, plane: ControlPlane, space: Space) -> None:
        self._space = space
        self._living = Living(plane, space.api)
        self._probes = 0

    def create(self) -> None:
        space = self._space
        space.put("source", a="b")
        clone = {"clone": {"namespace": space.name, "name": "source"}}
        data = {"data": {"data": {"from": "policy"}}}
        trigger = "{{ request.object.metadata.name }}"
        kinds: dict[str, Any] = {
            "data": data,
            "kept": {**data, "synchronize": False},
            "clone": clone,
            "kept-clone": {**clone, "synchronize": False},
        }
        for name, body in kinds.items():
            rule = space.generate(name=f"{name}-{trigger}", **body)
            space.policy(rule, name=name)
        rule = space.generate(name=f"applied-{trigger}", **data)
        space.policy(rule, name="applied", useServerSideApply=True)
        each = {
            "list": "['x']",
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": f"each-{trigger}-{{{{ element }}}}",
            "namespace": space.name,
            **data,
        }
        rule = space.rule(generate={"synchronize": True, "foreach": [each]})
        space.policy(rule, name="each")
        for number in range(TRIGGERS):
            space.trigger(f"t{number}")
        self._living.create_policies()
        self._living.turns(TURNS)
        until(lambda: len(space.names()) == 6 * TRIGGERS + 1, "all are generated")
        self.settle()

    def settle(self) -> None:
        """Wait until the holders have done everything that was due.

        Policies and the tasks of a trigger are processed in order, so a further policy
        for the same triggers is last.
        """
        space, self._probes = self._space, self._probes + 1
        before = space.names()
        name = f"probe{self._probes}"
        trigger = "{{ request.object.metadata.name }}"
        rule = space.generate(name=f"{name}-{trigger}", data={"data": {"a": name}})
        rule["generate"]["generateExisting"] = True
        space.policy(rule, name=name)
        made = {f"{name}-t{number}" for number in range(TRIGGERS)}
        until(lambda: space.names() >= before | made, "the probe is generated")
        self._living.turns(1)
        self._living.settle()
        space.await_done()

    def stored(self) -> dict[tuple[str, str, str], str]:
        """Return resource, namespace, name -> version of all objects and reports.

        The probes are in the reports of their triggers, which are left out.
        """
        stored, left_out = {}, {("policyreports", self._space.name)}
        for resource, path in _WRITTEN.items():
            for metadata in self._space.api.metadata(path):
                key = resource, metadata["namespace"], metadata["name"]
                if key[:2] not in left_out and key[1] != NAMESPACE:
                    stored[key] = metadata["resourceVersion"]
        return stored

    def runs(self) -> dict[str, datetime]:
        """Return the last run of each clean-up policy, by resource."""
        runs = {}
        for resource, namespace in _CLEANUP.items():
            path = f"/apis/kyverno.io/v2/{namespace}{resource}/{self._living.name}"
            status = self._space.api.get(path)["status"]
            runs[resource] = datetime.fromisoformat(status["lastExecutionTime"])
        return runs

    def remove(self) -> None:
        self._living.remove()


@pytest.fixture(scope="module")
def generated(installed: Installation, plane: ControlPlane) -> Iterator[Generated]:
    with Api(plane.access) as api, space_in(api, plane.etcd_url) as space:
        made = Generated(plane, space)
        made.create()
        yield made
        made.remove()


def _end(installed: Installation, name: str) -> None:
    """End a pod as a rollout does."""
    installed.kubectl("-n", NAMESPACE, "delete", "pod", name, "--wait=false")


def _kill(installed: Installation, name: str) -> None:
    """Kill all processes of a pod at once; the kubelet starts them again."""
    next(pod for pod in installed.pods if pod.name == name).kill()


@pytest.mark.parametrize("how", [_end, _kill])
def test_the_next_holder_writes_nothing_again(
    installed: Installation,
    plane: ControlPlane,
    generated: Generated,
    how: Callable[[Installation, str], None],
) -> None:
    """Every write is for the probe; the other objects and reports stay as they are."""
    before = generated.stored()
    runs = generated.runs()
    plane.audit.mark()
    for holder in _holders(installed):
        how(installed, holder)
    installed.await_rollout()
    _holders(installed)
    generated.settle()
    after = generated.stored()
    passed_s = {
        resource: (last - runs[resource]).total_seconds()
        for resource, last in generated.runs().items()
    }
    calls = [call for call in plane.audit.asked() if ":kyverno:" in call.user]
    counts = Counter(
        (call.user.rpartition(":")[2], call.verb, call.resource, call.code)
        for call in calls
        if call.verb not in _READS
    )
    print(how.__name__, *sorted(counts.items()), sep="\n")
    posted = Counter((call.namespace, call.name) for call in calls if _creates(call))
    assert [key for key in before if before[key] != after.get(key)] == []
    assert [call for call in calls if call.code == 403] == []
    assert [call for call in calls if call.code == 409 and not _is_race(call)] == []
    assert [call for call in calls if call.resource == _REVIEWS] == []
    for resource, seconds in passed_s.items():
        writes = counts[POOLS[1], "update", f"{resource}/status", 200]
        # A run that deletes is claimed before, and resumed if its holder died.
        deleted = sum(call.verb == "delete" and POOLS[1] in call.user for call in calls)
        assert writes <= seconds / _RUN_S + deleted + 2, resource
    assert set(posted.values()) == {1}
    assert not posted.keys() & {key[1:] for key in before}


def _holders(installed: Installation) -> set[str]:
    """Return the pods that hold the leases of the pools, once each has a holder."""
    return {
        until(partial(installed.holder, lease), "each lease is held") for lease in POOLS
    }


def _creates(call: Asked) -> bool:
    return (call.verb, call.resource) == ("create", "configmaps")


def _is_race(call: Asked) -> bool:
    """Return whether two writers that do not know each other met at this object."""
    return call.resource in _SHARED

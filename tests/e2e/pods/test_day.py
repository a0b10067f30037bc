"""Three replicas of deploy/ for a day's work: nothing is lost, forbidden or in the way.

Policies, Namespaces and certificates change, Deployments roll out and pods die while
living.py creates objects. A failure means: one of these ordinary events costs a
request, a record or a right, or logs and memory grow with them.

DAY_TURNS: the number of Namespaces; the daily job has many.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from functools import partial

import psutil
import pytest

from tests.e2e.api import Api
from tests.e2e.conftest import Cluster
from tests.e2e.control_plane import ControlPlane
from tests.e2e.installation import (
    DEPLOYMENT,
    NAMESPACE,
    Installation,
    get,
    installation,
    until,
)
from tests.e2e.living import Living
from tests.e2e.logs import crowded
from tests.e2e.pod import Pod

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

TURNS = int(os.environ.get("DAY_TURNS", "40"))
EVENT_EACH = 10
"""Turns between two events, so that one is over before the next."""
GROWTH_MAX = 1.25
"""Memory of the pods' oldest processes at the end, relative to the first quarter's."""
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"


class Events:
    """What happens to an installation in the course of a day, in turn."""

    def __init__(self, found: Installation, api: Api) -> None:
        self._found, self._api = found, api
        self._kinds = (self._restart, self._certificate, self._holder, self._authority)
        self.count = 0

    def __call__(self, turn: int) -> None:
        if turn % EVENT_EACH == 0:
            self._kinds[self.count % len(self._kinds)]()
            self.count += 1

    def _restart(self) -> None:
        """Roll out; the next turns run meanwhile."""
        where = ("-n", NAMESPACE, f"deployment/{DEPLOYMENT}")
        self._found.kubectl("rollout", "restart", *where)

    def _certificate(self) -> None:
        self._renew("kyverno-svc.kyverno.svc.kyverno-tls-pair")

    def _authority(self) -> None:
        self._renew("kyverno-svc.kyverno.svc.kyverno-tls-ca")

    def _renew(self, name: str) -> None:
        self._found.await_rollout()
        before = self._api.get(f"{SECRETS}/{name}")["metadata"]["uid"]
        self._api.delete(f"{SECRETS}/{name}")

        def is_new() -> bool:
            status, body = self._api.ask("GET", f"{SECRETS}/{name}")
            return status == 200 and body["metadata"]["uid"] != before

        until(is_new, f"{name} is made again")

    def _holder(self) -> None:
        """Delete the pod that holds the lease, as a drained node does."""
        self._found.await_rollout()
        name = self._found.holder()
        self._found.kubectl("-n", NAMESPACE, "delete", "pod", name, "--wait=false")


@pytest.fixture(scope="module")
def installed(cluster: Cluster, plane: ControlPlane) -> Iterator[Installation]:
    with installation(plane, cluster.kubectl) as made:
        made.install()
        yield made


def is_well(pod: Pod) -> bool:
    return not json.loads(get(pod, "/healthz")[1])["reasons"]


def memory_mib(found: Installation) -> float:
    """Return the proportional size of the processes of all pods."""
    size = 0
    for pod in found.pods:
        process = pod.containers[0].process
        assert process is not None
        root = psutil.Process(process.pid)
        for one in (root, *root.children(recursive=True)):
            size += one.memory_full_info().pss
    return size / 2**20


def test_a_day(installed: Installation, plane: ControlPlane) -> None:
    with Api(plane.access) as api:
        living = Living(plane, api)
        living.create_policies()
        plane.audit.mark()
        events = Events(installed, api)
        living.turns(TURNS // 4, events)
        installed.await_rollout()
        living.settle()
        first = memory_mib(installed)
        living.turns(TURNS - TURNS // 4, events)
        installed.await_rollout()
        living.settle()
        last = memory_mib(installed)
        for pod in installed.pods:
            until(partial(is_well, pod), f"{pod.name} is well")
        ours = [one for one in plane.audit.asked() if ":kyverno:" in one.user]
        counts = Counter((one.verb, one.resource) for one in ours)
        living.remove()
    print(
        f"\n{living.count} Namespaces, {events.count} events, {living.failed} repeated"
    )
    print(f"{first:.0f} MiB, at the end {last:.0f} MiB")
    for (verb, resource), count in counts.most_common():
        print(f"{count:7}  {verb:10} {resource}")
    codes = Counter((one.code, one.verb, one.resource) for one in ours if not one.done)
    for (code, verb, resource), count in codes.most_common():
        print(f"{count:7}  HTTP {code} {verb:10} {resource}")
    assert living.failed == 0
    assert not [one for one in ours if one.code == 403]
    assert last < GROWTH_MAX * first
    for path in sorted((plane.folder / "pods").glob(f"{DEPLOYMENT}-*/kyverno.log")):
        assert crowded(path.read_text()) == []

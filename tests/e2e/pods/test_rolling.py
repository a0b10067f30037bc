"""Three replicas under load: replaced, killed, stopped; nothing slips through or fails.

A failure means: an upgrade, or the end of one process, lets a forbidden object in or
keeps an allowed one out.
"""

import json
import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import Cluster
from tests.e2e.control_plane import ControlPlane
from tests.e2e.installation import (
    DEPLOYMENT,
    NAMESPACE,
    Installation,
    installation,
    until,
)
from tests.e2e.load import load
from tests.e2e.pod import Pod
from tests.waiting import HANG_S

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def installed(cluster: Cluster, plane: ControlPlane) -> Iterator[Installation]:
    with installation(plane, cluster.kubectl) as made:
        made.install()
        made.enforce("labelled", "team", "ConfigMap")
        yield made


def holding_pod(installed: Installation) -> Pod:
    """Return the pod that holds the lease."""
    name = until(installed.holder, "somebody holds the lease")
    return next(pod for pod in installed.pods if pod.name == name)


def test_rolling_update_under_load(
    installed: Installation, plane: ControlPlane
) -> None:
    before = {pod.name for pod in installed.pods}
    with load(plane):
        for _ in range(2):
            restart = ("rollout", "restart", f"deployment/{DEPLOYMENT}")
            installed.kubectl("-n", NAMESPACE, *restart)
            installed.await_rollout()
            until(lambda: len(installed.pods) == 3, "the old pods have ended")
    assert not before & {pod.name for pod in installed.pods}


def test_killed_leader_under_load(installed: Installation, plane: ControlPlane) -> None:
    """Its pod keeps answering, and the next policy comes into force as usual."""
    pod = holding_pod(installed)
    leader = installed.processes(pod)["leader"]
    with load(plane):
        os.kill(leader, signal.SIGKILL)
        until(
            lambda: installed.processes(pod)["leader"] not in (0, leader), "a new one"
        )
        installed.enforce("second", "second", "Secret")
        made = installed.run("create", "secret", "generic", "forbidden")
        assert "is needed" in made.stderr
        installed.kubectl("delete", "cpol", "second")


def test_killed_pod_under_load(installed: Installation, plane: ControlPlane) -> None:
    """The pod is deleted; its replacement starts while the others answer."""
    pod = holding_pod(installed)
    with load(plane):
        installed.kubectl("-n", NAMESPACE, "delete", "pod", pod.name)
        until(lambda: installed.holder() not in ("", pod.name), "another holds it")
        installed.await_rollout()


def test_suspended_holder_under_load(
    installed: Installation, plane: ControlPlane
) -> None:
    """Another holder maintains the configurations; the old one writes nothing."""
    pod = holding_pod(installed)
    leader = installed.processes(pod)["leader"]
    name = "kyverno-resource-validating-webhook-cfg"
    with load(plane):
        os.kill(leader, signal.SIGSTOP)
        try:
            until(lambda: installed.holder() not in ("", pod.name), "another holds it")
            holder = installed.holder()
            mend(installed, name)
        finally:
            os.kill(leader, signal.SIGCONT)
        time.sleep(5)
        assert installed.holder() == holder


def mend(installed: Installation, name: str) -> None:
    """Edit a configuration as a user might, and wait until it is restored."""
    kind = "validatingwebhookconfiguration"
    patch = [{"op": "add", "path": "/webhooks/0/timeoutSeconds", "value": 29}]
    installed.kubectl("patch", kind, name, "--type=json", "-p", json.dumps(patch))

    def is_mended() -> bool:
        path = "jsonpath={.webhooks[0].timeoutSeconds}"
        return installed.kubectl("get", kind, name, "-o", path) == "10"

    until(is_mended, "it is mended", HANG_S)

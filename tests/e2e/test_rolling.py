"""Three replicas under load: replaced, killed, stopped; nothing slips through or fails.

Red here means: an upgrade, or the end of one process, lets a forbidden object in or
keeps an allowed one out.
"""

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.api import Api
from tests.e2e.conftest import Cluster
from tests.e2e.control_plane import ControlPlane
from tests.e2e.installation import (
    DEPLOYMENT,
    NAMESPACE,
    Installation,
    installation,
    until,
)
from tests.e2e.pod import Pod

CALLERS = 6
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
pytestmark = pytest.mark.timeout(600)


class Load:
    """Callers that create what the policy allows and what it forbids, in turn."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._call, args=(number,), name=f"caller-{number}")
            for number in range(CALLERS)
        ]
        self.allowed = 0
        self.denied = 0
        self.wrong: list[str] = []

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _call(self, number: int) -> None:
        with Api(self._plane.access) as api:
            for turn in range(10**9):
                if self._stopping.is_set():
                    return
                self._create(api, f"load-{number}-{turn}")

    def _create(self, api: Api, name: str) -> None:
        good = {"metadata": {"name": name, "labels": {"team": "x"}}}
        status, answer = api.ask("POST", CONFIG_MAPS, good)
        if status == 201:
            self.allowed += 1
            api.ask("DELETE", f"{CONFIG_MAPS}/{name}")
        else:
            self._note("kept out", status, answer)
        bad = {"metadata": {"name": name}}
        status, answer = api.ask("POST", CONFIG_MAPS, bad)
        if status != 201 and "is needed" in str(answer):
            self.denied += 1
        else:
            self._note("not denied", status, answer)
            api.ask("DELETE", f"{CONFIG_MAPS}/{name}")

    def _note(self, what: str, status: int, answer: Any) -> None:
        self.wrong.append(f"{time.monotonic():.3f} {what}: {status} {answer}"[:800])


@pytest.fixture(scope="module")
def installed(cluster: Cluster, plane: ControlPlane) -> Iterator[Installation]:
    with installation(plane, cluster.kubectl) as made:
        made.install()
        made.enforce("labelled", "team", "ConfigMap")
        yield made


@contextlib.contextmanager
def load(plane: ControlPlane) -> Iterator[Load]:
    """Run the load around a test, and hold it to having met nothing wrong."""
    made = Load(plane)
    made.start()
    try:
        until(lambda: made.allowed > 20 and made.denied > 20, "the load runs")
        yield made
        seen = made.allowed + made.denied
        until(lambda: made.allowed + made.denied > seen + 50, "the load still runs")
    finally:
        made.stop()
    assert not made.wrong, "\n".join(made.wrong[:20])


def holding_pod(installed: Installation) -> Pod:
    """Give the pod that holds the lease."""
    name = until(installed.holder, "somebody holds the lease")
    return next(pod for pod in installed.pods if pod.name == name)


def test_a_rolling_update_under_load(
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


def test_a_killed_leader_under_load(
    installed: Installation, plane: ControlPlane
) -> None:
    """Its pod answers on, and the next policy is in force as ever."""
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


def test_a_killed_pod_under_load(installed: Installation, plane: ControlPlane) -> None:
    """Deleted, not rolled: its replacement comes, the others answer."""
    pod = holding_pod(installed)
    with load(plane):
        installed.kubectl("-n", NAMESPACE, "delete", "pod", pod.name)
        until(lambda: installed.holder() not in ("", pod.name), "another holds it")
        installed.await_rollout()


def test_a_stopped_holder_under_load(
    installed: Installation, plane: ControlPlane
) -> None:
    """Another takes the lease and keeps the configurations; awake, it stays quiet."""
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
    """Edit a configuration as somebody might, and wait until it is mended."""
    kind = "validatingwebhookconfiguration"
    patch = [{"op": "add", "path": "/webhooks/0/timeoutSeconds", "value": 29}]
    installed.kubectl("patch", kind, name, "--type=json", "-p", json.dumps(patch))

    def is_mended() -> bool:
        path = "jsonpath={.webhooks[0].timeoutSeconds}"
        return installed.kubectl("get", kind, name, "-o", path) == "10"

    until(is_mended, "it is mended", 30)

"""Three replicas put a bad policy into force, and take it back together.

A failure means: a policy that stops everybody's deployments stays in force, one replica
denies what another allows, or a restart puts the policy back into force.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

import pytest

from tests.e2e.api import Api
from tests.e2e.conftest import Cluster
from tests.e2e.control_plane import ControlPlane
from tests.e2e.installation import NAMESPACE, Installation, installation, until

pytestmark = pytest.mark.timeout(1200)
BUDGET = 20
CALLERS = 6
SPACES = [f"gradual-{number}" for number in range(12)]
NAME = "gradual-bad"
POLICY = {
    "apiVersion": "kyverno.io/v1",
    "kind": "ClusterPolicy",
    "metadata": {
        "name": NAME,
        "annotations": {
            "kyverno-mp.io/enforce-schedule": "99 -> 100 every 24h",
            "kyverno-mp.io/enforce-denials": f"{BUDGET} per 1h, 200 per user",
        },
    },
    "spec": {
        "rules": [
            {
                "name": "never",
                "match": {"any": [{"resources": {"kinds": ["Secret"]}}]},
                "validate": {
                    "failureAction": "Enforce",
                    "message": "never",
                    "deny": {},
                },
            }
        ]
    },
}


class Answer(NamedTuple):
    """The moments are of the clock that all callers share."""

    began_s: float
    ended_s: float
    is_denied: bool


class Callers:
    """Clients that create Secrets of different owners in many namespaces."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._call, args=(number,))
            for number in range(CALLERS)
        ]
        self.answers: list[Answer] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _call(self, number: int) -> None:
        with Api(self._plane.access) as api:
            turn = 0
            while not self._stopping.is_set():
                turn += 1
                path = f"/api/v1/namespaces/{SPACES[turn % len(SPACES)]}/secrets"
                began_s = time.monotonic()
                body = {"metadata": {"name": f"caller-{number}-{turn}"}}
                status, answer = api.ask("POST", path, body)
                is_denied = "never" in str(answer)
                assert is_denied or status == 201, answer
                self.answers.append(Answer(began_s, time.monotonic(), is_denied))

    def go_on(self, count: int) -> None:
        """Wait for ``count`` further answers."""
        seen = len(self.answers)
        until(lambda: len(self.answers) > seen + count, "the callers go on")

    def wait_for_allowed(self, count: int) -> None:
        """Wait until the last ``count`` answers allow."""
        until(
            lambda: (
                len(self.answers) > count
                and not any(answer.is_denied for answer in self.answers[-count:])
            ),
            f"{count} answers allow in a row",
        )


@pytest.fixture(scope="module")
def installed(cluster: Cluster, plane: ControlPlane) -> Iterator[Installation]:
    with installation(plane, cluster.kubectl) as made:
        made.install()
        for space in SPACES:
            made.kubectl("create", "namespace", space)
        yield made
        made.run("delete", "cpol", NAME)
        made.run("delete", "namespace", *SPACES)


def rollout(kubeconfig: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run our command as a user."""
    command = [sys.executable, "-m", "kyverno_mp", "rollout", *arguments]
    return subprocess.run(
        [*command, f"--kubeconfig={kubeconfig}"],
        capture_output=True,
        text=True,
        check=False,
    )


def denies(plane: ControlPlane, name: str) -> bool:
    """Return whether one of the namespaces of the share denies."""
    with Api(plane.access) as api:
        answers = [
            api.ask(
                "POST",
                f"/api/v1/namespaces/{space}/secrets",
                {"metadata": {"name": name}},
            )
            for space in SPACES
        ]
    return any("never" in str(answer) for _, answer in answers)


def shown(installed: Installation) -> str:
    return installed.kubectl("get", "cpol", NAME, "-o", "json")


def state_of(installed: Installation) -> str:
    path = f"jsonpath={{.data.ClusterPolicy_{NAME}}}"
    names = ("-n", NAMESPACE, "get", "configmap", "kyverno-mp-rollouts")
    return installed.run(*names, "-o", path).stdout


def test_replicas_take_a_bad_policy_back(
    installed: Installation, plane: ControlPlane
) -> None:
    installed.kubectl("apply", "-f", "-", text=json.dumps(POLICY))
    installed.kubectl("wait", "--for=condition=Ready", f"cpol/{NAME}", "--timeout=60s")
    until(lambda: "Progressing" in state_of(installed), "the rollout has a state")
    with Callers(plane) as callers:
        callers.wait_for_allowed(300)
        until(lambda: "FellBack" in state_of(installed), "it is stored")
        callers.go_on(300)
        # By now, every replica has heard of it, however slow the machine is.
        callers.wait_for_allowed(300)
        settled_s = time.monotonic()
        callers.go_on(300)
    answers = sorted(callers.answers, key=lambda answer: answer.ended_s)
    denied = [answer for answer in answers if answer.is_denied]
    assert len(denied) > BUDGET, "only an exceeded budget lifts it"
    assert not [answer for answer in denied if answer.began_s > settled_s]
    exceeded_s = denied[BUDGET].ended_s
    back_s = max(answer.began_s for answer in denied)
    rate = len(answers) / (answers[-1].ended_s - answers[0].began_s)
    print(
        f"denied {len(denied)} of {len(answers)} at {rate:.0f}/s;"
        f" the last denial began {back_s - exceeded_s:.3f} s after the budget"
    )

    until(lambda: "EnforcementProgressing" in shown(installed), "its status says so")
    until(
        lambda: (
            "EnforcementFellBack"
            in installed.kubectl("get", "events", "-A", "-o", "json")
        ),
        "an Event says so",
    )
    leaders = {pod.name: installed.processes(pod)["leader"] for pod in installed.pods}
    for leader in leaders.values():
        os.kill(leader, signal.SIGKILL)

    def are_new() -> bool:
        return all(
            installed.processes(pod)["leader"] not in (0, leaders[pod.name])
            for pod in installed.pods
        )

    until(are_new, "each pod has another leader")
    assert not denies(plane, "after-a-restart")


def test_person_resumes_it_with_own_permissions(
    installed: Installation, plane: ControlPlane
) -> None:
    name = f"ClusterPolicy/{NAME}"
    tenant = rollout(plane.write_user("tenant"), "resume", name)
    assert tenant.returncode != 0
    assert "forbidden" in tenant.stderr
    listed = rollout(plane.kubeconfig, "status").stdout
    assert "FellBack" in listed
    assert f"more than {BUDGET} owners of objects were denied" in listed
    done = rollout(plane.kubeconfig, "resume", name)
    assert done.returncode == 0, done.stderr
    until(lambda: denies(plane, f"resumed-{time.monotonic_ns()}"), "it is in force")
    until(lambda: "EnforcementProgressing" not in shown(installed), "it says no more")

"""Kill the worker, leader or API server: Events of answered reviews are still written.

The API server is a small one of the tests, so that it can fail on demand;
tests/e2e/admission/test_events.py does the same on a real one. A failure means: a
killed process loses events, or events delay answers.
"""

import contextlib
import http.client
import json
import os
import signal
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.faults.service import review_of
from tests.faults.started import start, without_settings
from tests.ports import free_ports
from tests.unit.kube.fake_api import FakeApi, running
from tests.waiting import HANG_S, process_ids, wait_for

pytestmark = pytest.mark.slow
POLICY = "/apis/kyverno.io/v1/clusterpolicies/labelled"
QUEUED_MAX = 8
FALSE = "false"
"""KYVERNO_MP_CALLER_PATH: the reviews come from the test, not from an API server."""


class Served:
    """``kyverno-mp serve`` with one worker, in the cluster of a FakeApi."""

    def __init__(
        self, api: FakeApi, folder: Path, tree: Path | None = None, **more: str
    ) -> None:
        """Start it; ``tree`` as Service's; ``more``: settings."""
        self.api = api
        self.log = folder / "stderr"
        self._port, self._health_port = free_ports(2)
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(json.dumps(_kubeconfig(api.access.port)))
        settings = {
            "KUBECONFIG": str(kubeconfig),
            "WEBHOOK_HOST": "127.0.0.1",
            "WEBHOOK_PORT": str(self._port),
            "HEALTH_HOST": "127.0.0.1",
            "HEALTH_PORT": str(self._health_port),
            "WEBHOOK_WORKERS": "1",
            "RUNTIME_DIR": str(folder / "run"),
            "TLS_KEY_ALGORITHM": "ECDSA",
            "EVENTS_QUEUED_MAX": str(QUEUED_MAX),
            **more,
        }
        named = {f"KYVERNO_MP_{name}": value for name, value in settings.items()}
        self.process = start(("serve",), {**without_settings(), **named}, folder, tree)

    def begin(self) -> None:
        """Wait until reviews are evaluated and reported."""
        self.wait(lambda: not self.asks("first")["allowed"])
        self.wait(lambda: len(self.told()) == 1)

    def asks(self, name: str) -> dict[str, Any]:
        """Request a review of a Pod that the policy denies; return the answer."""
        raw = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        }
        trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
        link = http.client.HTTPSConnection(
            "127.0.0.1", self._port, context=trust, timeout=HANG_S
        )
        with contextlib.closing(link):
            body = json.dumps(review_of(raw))
            headers = {"Content-Type": "application/json"}
            link.request("POST", "/validate/fail", body, headers)
            answer = json.loads(link.getresponse().read())["response"]
        assert isinstance(answer, dict)
        return answer

    def refuse(self, *names: str) -> None:
        """Make reviews be denied."""
        for name in names:
            assert not self.asks(name)["allowed"]

    def told(self) -> list[str]:
        """Return the names of the objects that have Events."""
        with self.api.lock:
            return sorted(
                raw["related"]["name"]
                for key, raw in self.api.objects.items()
                if key[2] == "events"
            )

    def processes(self) -> dict[str, psutil.Process]:
        """Return the processes by name, and the only worker."""
        ids = process_ids(lambda: json.loads(self.get("/healthz")))
        found = {name: psutil.Process(pid) for name, pid in ids.items()}
        (found["worker"],) = found["webhook"].children()
        return found

    def metric(self, name: str) -> float:
        """Return the value of a metric without labels."""
        lines = self.get("/metrics").splitlines()
        return float(
            next(
                line.split()[1]
                for line in lines
                if f"{name} " in line[:80] and not line.startswith("#")
            )
        )

    def get(self, path: str) -> str:
        """GET from the health server."""
        link = http.client.HTTPConnection(
            "127.0.0.1", self._health_port, timeout=HANG_S
        )
        with contextlib.closing(link):
            link.request("GET", path)
            return link.getresponse().read().decode()

    def wait(self, holds: Callable[[], bool]) -> None:
        """Wait until ``holds``."""

        def answers() -> bool:
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                return holds()
            return False

        try:
            wait_for(answers)
        except AssertionError as error:
            raise AssertionError(self.log.read_text()[-6000:]) from error

    def close(self) -> None:
        """End the group."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(HANG_S)


def _kubeconfig(port: int) -> dict[str, Any]:
    server = f"http://127.0.0.1:{port}"
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {}}],
    }


def put_policy(api: FakeApi) -> None:
    """Store the policy that denies the Pods of ``asks``."""
    pattern = {"metadata": {"labels": {"team": "?*"}}}
    rule = {
        "name": "r",
        "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
        "validate": {"failureAction": "Enforce", "message": "m", "pattern": pattern},
    }
    api.put(
        POLICY,
        apiVersion="kyverno.io/v1",
        kind="ClusterPolicy",
        spec={"background": False, "rules": [rule]},
    )


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with running() as api:
        put_policy(api)
        one = Served(api, tmp_path, CALLER_PATH=FALSE)
        try:
            one.begin()
            yield one
        finally:
            one.close()


def test_worker_killed_after_its_answer_loses_no_event(served: Served) -> None:
    found = served.processes()
    found["leader"].suspend()
    served.refuse("a", "b")
    found["worker"].send_signal(signal.SIGKILL)
    served.wait(lambda: not served.asks("c")["allowed"])
    assert served.told() == ["first"], "nobody wrote yet"
    found["leader"].resume()
    served.wait(lambda: served.told() == ["a", "b", "c", "first"])


def test_leader_killed_while_writing_leaves_the_rest_to_its_successor(
    served: Served,
) -> None:
    """Events that the leader wrote without recording them are not duplicated."""
    served.api.fault("POST .*/events$", *["cut"] * 2)
    found = served.processes()
    served.refuse("a", "b", "c")
    found["leader"].send_signal(signal.SIGKILL)
    served.wait(lambda: served.told() == ["a", "b", "c", "first"])


def test_full_journal_counts_drops_and_changes_no_answer(served: Served) -> None:
    leader = served.processes()["leader"]
    leader.suspend()
    served.refuse(*[f"x{number}" for number in range(3 * QUEUED_MAX)])
    dropped = "kyverno_events_dropped_total"
    # The last place is for another namespace. The leader may have written the first
    # Event without recording it, which then has a place, too.
    own = QUEUED_MAX - 1
    served.wait(lambda: served.metric(dropped) >= 3 * QUEUED_MAX - own)
    leader.resume()
    names = [f"x{number}" for number in range(own)]
    written = [sorted(["first", *names[:count]]) for count in (own - 1, own)]
    served.wait(lambda: served.told() in written)
    served.refuse("later")
    served.wait(lambda: "later" in served.told())
    kept = len(served.told()) - len(["first", "later"])
    served.wait(lambda: served.metric(dropped) == 3 * QUEUED_MAX - kept)


def test_events_wait_for_the_api_server(served: Served) -> None:
    served.api.fault("POST .*/events$", *[500] * 4)
    served.refuse("a", "b")
    served.wait(lambda: served.told() == ["a", "b", "first"])
    assert served.metric("kyverno_events_dropped_total") == 0

"""Load an API server with allowed and forbidden requests, and record surprises.

Takes: a control plane with a policy that requires the label ``team`` on ConfigMaps.
Gives: counts, and unexpected results. May touch: ConfigMaps of the namespace default.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from tests.e2e.api import Api
from tests.e2e.control_plane import ControlPlane
from tests.e2e.installation import until

CALLERS: Final = 6
CONFIG_MAPS: Final = "/api/v1/namespaces/default/configmaps"


class Load:
    """Clients that send allowed and forbidden requests in turn."""

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


@contextlib.contextmanager
def load(plane: ControlPlane) -> Iterator[Load]:
    """Run the load during a test, and fail if any result was unexpected."""
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

"""Attack a worker on some connections, and measure the effect on a neighbour.

Used by tests/faults/test_neighbours.py and perf/neighbours.py.
"""

import contextlib
import http.client
import json
import re
import threading
import time
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self

from tests.faults.attacks import Attack
from tests.faults.service import Service, pod, require_label, review_of, write_whole
from tests.waiting import HANG_S

DEADLINE_S = 8
_JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Seen:
    """The measurements of one run."""

    neighbour_s_max: float
    """The longest duration of a cheap review in another namespace."""
    neighbour_answers: int
    neighbour_wrong: list[Any]
    """Answers that allow requests which a cluster policy forbids."""
    attack_s: list[float]
    """Durations of the attacking reviews."""
    attack_bytes_max: int
    """The largest answer to an attacking review."""
    health_s_max: float
    """The longest duration of a probe."""
    worker_mib: float
    """Peak growth of the worker's memory."""
    same_worker: bool
    lost: int
    """Unanswered reviews, the neighbour's or the attack's."""


class _Loop:
    """A thread that repeats an action and records its durations."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.taken_s: list[float] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(HANG_S)

    def once(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        while not self._ending.is_set():
            started = time.monotonic()
            self.once()
            self.taken_s.append(time.monotonic() - started)
            time.sleep(self._pause_s)


class Neighbour(_Loop):
    """A client whose reviews of another namespace a cluster policy denies."""

    def __init__(self, service: Service) -> None:
        super().__init__(0.01)
        self._link = service.connect()
        cheap = review_of(pod())
        cheap["request"]["namespace"] = "other"
        cheap["request"]["object"]["metadata"]["namespace"] = "other"
        self._body = json.dumps(cheap)
        self.wrong: list[Any] = []
        self.lost = 0

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        self._link.close()

    def once(self) -> None:
        try:
            self._link.request("POST", "/validate/fail", self._body, _JSON)
            answer = json.loads(self._link.getresponse().read())["response"]
        except (OSError, http.client.HTTPException):
            self.lost += 1
            self._link.close()
            return
        if answer["allowed"]:
            self.wrong.append(answer)


class _Prober(_Loop):
    """A client that probes the webhook's health path like the API server."""

    def __init__(self, service: Service) -> None:
        super().__init__(0.1)
        self._service = service

    def once(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            self._service.get("/health/liveness")


def start(folder: Path, attack: Attack) -> Service:
    """Start one worker with an administrator's policy and the attack's."""
    (folder / "policies").mkdir(exist_ok=True)
    write_whole(folder / "policies" / "a.yaml", require_label("a", "app"))
    write_whole(folder / "policies" / "b.yaml", attack.policy)
    return Service(folder, workers=1)


def run(service: Service, attack: Attack, connections: int, seconds: float) -> Seen:
    """Attack on this many connections for a while."""
    body = json.dumps(review_of(attack.make()))
    (worker,) = service.pids("worker")
    before = _memory_kib(worker, "VmRSS")
    until = time.monotonic() + seconds
    results: list[list[tuple[float, int]]] = []
    arguments = service, attack.path, body, until, results
    threads = [
        threading.Thread(target=_attack, args=arguments) for _ in range(connections)
    ]
    with Neighbour(service) as neighbour, _Prober(service) as prober:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_S)
    answers = [one for found in results for one in found] or [(0.0, 0)]
    same = service.pids("worker") == [worker]
    return Seen(
        neighbour_s_max=max(neighbour.taken_s),
        neighbour_answers=len(neighbour.taken_s),
        neighbour_wrong=neighbour.wrong,
        attack_s=[taken_s for taken_s, _ in answers],
        attack_bytes_max=max(size for _, size in answers),
        health_s_max=max(prober.taken_s),
        worker_mib=(_memory_kib(worker, "VmHWM") - before) / 1024 if same else 0.0,
        same_worker=same,
        lost=neighbour.lost + connections - len(results),
    )


def _attack(
    service: Service,
    path: str,
    body: str,
    until: float,
    results: list[list[tuple[float, int]]],
) -> None:
    """Send a review repeatedly on a separate connection."""
    found: list[tuple[float, int]] = []
    with (
        contextlib.suppress(OSError, http.client.HTTPException),
        contextlib.closing(service.connect()) as link,
    ):
        while not found or time.monotonic() < until:
            started = time.monotonic()
            size = _post(link, path, body)
            found.append((time.monotonic() - started, size))
        results.append(found)


def _post(link: http.client.HTTPSConnection, path: str, body: str) -> int:
    link.request("POST", f"{path}?timeout={DEADLINE_S}s", body, _JSON)
    answer = link.getresponse()
    content = answer.read()
    if answer.status == HTTPStatus.SERVICE_UNAVAILABLE:
        # Too large: rejected before it is decoded.
        return len(content)
    assert answer.status == HTTPStatus.OK, content[:1000]
    assert type(json.loads(content)["response"]["allowed"]) is bool
    return len(content)


def _memory_kib(pid: int, field: str) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"{field}:\s+(\d+) kB", text)
    assert found
    return int(found[1])

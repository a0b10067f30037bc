"""A worker evaluates once it has all the data that policies need, and not before."""

import asyncio
import gc
import json
import os
import selectors
import signal
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gunicorn.config
import pytest
import uvloop

from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.compiler.index import encode_policy
from kyverno_mp.leader.cluster_data import NAMES, segments_of, values_of
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy
from kyverno_mp.policy.reading.decode import decode
from kyverno_mp.process.startup.certificate import make
from kyverno_mp.program.rule import LinkedRule
from kyverno_mp.settings.base import base_of
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.configured import SETTINGS, Configured
from kyverno_mp.snapshot.configured import values_of as settled
from kyverno_mp.snapshot.control import ControlPage
from kyverno_mp.snapshot.data import encode_data
from kyverno_mp.snapshot.policies import POLICIES, PoliciesWriter
from kyverno_mp.snapshot.publish import Publisher, segment_file
from kyverno_mp.webhook.attach.places import Places
from kyverno_mp.webhook.http_errors import HttpError
from kyverno_mp.webhook.route import SHARED
from kyverno_mp.webhook.start import make_start
from kyverno_mp.webhook.worker import Served, WebhookWorker
from tests.unit.webhook.stub import review
from tests.waiting import HANG_S, wait_for, wait_on_loop

GIVEN = Settings(standalone=True)
IDLE_S = 100.0


class Pod:
    """A runtime folder with a leader's published data, and one worker that uses it."""

    def __init__(self, folder: Path) -> None:
        for name in ("snapshot", "pages", "tls"):
            (folder / name).mkdir(mode=0o700)
        self.snapshot = folder / "snapshot"
        self.files = make(folder / "tls", "kyverno")
        self.places = Places(
            self.snapshot, folder / "pages", self.files.cert, self.files.key
        )
        self.publisher = Publisher(self.snapshot)
        self.loop = asyncio.new_event_loop()
        self.served: Served | None = None

    def publish(self, *names: str) -> None:
        for name in names:
            content = (
                settled(Configured(base_of(GIVEN)))
                if name == SETTINGS
                else segments_of(values_of([]))[name]
            )
            self.publisher.publish(name, partial(_data, name, content))

    def start(self) -> None:
        self.served = make_start(GIVEN, self.places)(self.loop)

    def ask(self, **changes: object) -> bool:
        assert self.served is not None
        route = SHARED[b"/validate/fail"]
        answer = self.served.connections.service.answer(route, b"", review(**changes))
        if not isinstance(answer, bytes):
            # A review that is slow on a busy machine leaves the event loop.
            answer = self.loop.run_until_complete(answer)
        return bool(json.loads(answer)["response"]["allowed"])

    def serves(self) -> int:
        (worker,) = ControlPage.open(self.snapshot).workers()
        return worker.generations[POLICIES]

    def close(self) -> None:
        if self.served is not None:
            self.served.stop(1.0)
        self.loop.close()


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    made = Pod(tmp_path)
    yield made
    made.close()


def test_start_waits_for_required_data(pod: Pod) -> None:
    """With unread roles no user has a role, and nothing that names a role matches.

    The leader publishes the policies last, but a file may still be damaged.
    """
    pod.publish(SETTINGS, *NAMES)
    pod.publisher.publish(POLICIES, partial(_policies))
    roles = pod.snapshot / segment_file("roles")
    whole = roles.read_bytes()
    roles.write_bytes(whole[:-8])
    pod.start()
    with pytest.raises(HttpError) as refused:
        pod.ask()
    assert refused.value.status == 503
    assert pod.serves() == 0
    pod.publish("roles")
    assert pod.ask()
    assert pod.served is not None
    pod.served.tick()
    _until(pod, lambda: pod.serves() == 1)


@pytest.mark.parametrize("lacking", [SETTINGS, "roles"])
def test_excluded_data_waits_for_its_filters(pod: Pod, lacking: str) -> None:
    """Otherwise defaults or unread roles skip the evaluation."""
    pod.publish(SETTINGS, *NAMES)
    pod.publisher.publish(POLICIES, partial(_policies))
    file = pod.snapshot / segment_file(lacking)
    file.write_bytes(file.read_bytes()[:-8])
    pod.start()
    excluded = {"username": "system:node:a", "groups": ["system:nodes"]}
    with pytest.raises(HttpError) as refused:
        pod.ask(userInfo=excluded)
    assert refused.value.status == 503
    pod.publish(lacking)
    assert pod.ask(userInfo=excluded)


class _Held(ThreadPoolExecutor):
    """An executor whose threads are all busy with endless work."""

    def __init__(self) -> None:
        super().__init__(1)

    def submit(self, *_work: Any, **_given: Any) -> Future[Any]:
        return Future()


def test_policy_takes_effect_whatever_the_threads_do(pod: Pod) -> None:
    """Otherwise slow work in the loop's threads keeps the old policies active."""
    pod.publish(SETTINGS, *NAMES)
    pod.publisher.publish(POLICIES, partial(_policies))
    pod.start()
    assert pod.ask()
    pod.loop.set_default_executor(_Held())
    forbids = encode_policy(compile_policy(_forbidding()))
    pod.publisher.publish(POLICIES, partial(_policies, policies=[forbids]))
    _until(pod, lambda: not pod.ask())
    _until(pod, lambda: pod.serves() == 2)


def test_replaced_rules_are_freed_without_a_collection(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a worker keeps the rules of each change, or pauses to collect them."""
    # Other tests of this process may have left rules, or threads that link rules.
    name = f"forbids-{uuid.uuid4()}"
    pod.publish(SETTINGS, *NAMES)
    for generation in range(1, 4):
        forbids = encode_policy(compile_policy(_forbidding(name, f"m{generation}")))
        pod.publisher.publish(POLICIES, partial(_policies, policies=[forbids]))
        if generation == 1:
            pod.start()
        _until(pod, lambda: pod.serves() == generation)  # noqa: B023 - called here
        assert not pod.ask()
    assert pod.served is not None
    gc.collect()
    gc.disable()
    # The worker's own collections as well; frozen objects could not be counted.
    monkeypatch.setattr(gc, "collect", lambda _generation=2: 0)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    try:
        forbids = encode_policy(compile_policy(_forbidding(name, "m4")))
        pod.publisher.publish(POLICIES, partial(_policies, policies=[forbids]))
        _until(pod, lambda: pod.serves() == 4)
        wait_for(partial(_freed, pod, name))
    finally:
        gc.enable()


def _freed(pod: Pod, policy: str) -> bool:
    assert pod.served is not None
    pod.served.tick()
    # Inspecting all objects keeps references: the release may have met one.
    pod.loop.run_until_complete(asyncio.sleep(0))
    return len(_rules(policy)) == 1


def _rules(policy: str) -> list[LinkedRule]:
    found = [each for each in gc.get_objects() if type(each) is LinkedRule]
    return [each for each in found if each.policy.name == policy]


def _until(pod: Pod, is_so: Callable[[], bool]) -> None:
    pod.loop.run_until_complete(wait_on_loop(is_so))


def _forbidding(name: str = "forbids", message: str = "m") -> ClusterPolicy:
    document = decode(
        {
            "apiVersion": "kyverno.io/v1",
            "kind": "ClusterPolicy",
            "metadata": {"name": name},
            "spec": {
                "rules": [
                    {
                        "name": "r",
                        "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
                        "validate": {
                            "failureAction": "Enforce",
                            "message": message,
                            "deny": {},
                        },
                    }
                ]
            },
        }
    )
    assert isinstance(document, ClusterPolicy)
    return document


def _data(
    name: str, values: Mapping[str, bytes], generation: int, salt: bytes
) -> bytearray:
    return encode_data(name, values, generation=generation, salt=salt)


def _policies(generation: int, salt: bytes, policies: Sequence[Any] = ()) -> bytearray:
    return PoliciesWriter().encode(tuple(policies), generation=generation, salt=salt)


class QuickLoop(asyncio.SelectorEventLoop):
    """A loop whose time passes at once; after ``IDLE_S`` the process gets SIGTERM."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.wakes = 0
        super().__init__(_QuickSelector(self))

    def time(self) -> float:
        return self.now_s


class _QuickSelector(selectors.EpollSelector):
    def __init__(self, loop: QuickLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        loop = self._loop
        events = super().select(HANG_S if timeout is None else 0)
        if timeout and not events:
            loop.wakes += 1
            loop.now_s += timeout
            if loop.now_s - timeout < IDLE_S <= loop.now_s:
                os.kill(os.getpid(), signal.SIGTERM)
        return events


def test_idle_worker_wakes_up_only_for_its_periodic_work(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod without reviews must leave its core to others."""
    pod.publish(SETTINGS, *NAMES)
    pod.publisher.publish(POLICIES, partial(_policies))
    loops: list[QuickLoop] = []

    def new_loop() -> QuickLoop:
        loops.append(QuickLoop())
        return loops[-1]

    monkeypatch.setattr(uvloop, "new_event_loop", new_loop)
    config = gunicorn.config.Config()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listening = SimpleNamespace(sock=listener)
        log = SimpleNamespace(reopen_files=lambda: None)
        worker = WebhookWorker(0, os.getppid(), [listening], None, 30, config, log)
        worker.wsgi = make_start(GIVEN, pod.places)
        with pytest.raises(SystemExit):
            worker.run()
        worker.tmp.close()
        worker.forget()
    (loop,) = loops
    assert loop.now_s >= IDLE_S
    assert loop.wakes / loop.now_s < 3

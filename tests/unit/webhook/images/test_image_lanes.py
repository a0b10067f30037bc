"""A hanging registry blocks only the threads for images, and no other reviews."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.egress.answering import UNANSWERED
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.webhook.review.job import MOVED, in_two_lanes
from kyverno_mp.webhook.review.lanes import Lane, LateAnswer
from kyverno_mp.webhook.route import SHARED
from tests.image_rig import Signer
from tests.unit.webhook.images.test_images import (
    Webhooks,
    answered,
    block,
    pod,
    policy,
    scoped,
)
from tests.unit.webhook.stub import review
from tests.waiting import HANG_S, far_ns, real_ns, wait_on_loop

_ASKS = """
---
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: asks}
spec:
  rules:
  - name: asks
    match: {any: [{resources: {kinds: [ConfigMap]}}]}
    context: [{name: x, apiCall: {urlPath: /a}}]
    mutate: {patchStrategicMerge: {metadata: {labels: {a: "{{ x }}"}}}}
"""


@contextmanager
def hanging() -> Iterator[tuple[str, Callable[[], None]]]:
    """Accept connections without an answer; yield the host and a function to end it."""
    server = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                held.append(server.accept()[0])
            except OSError:
                return

    accepting = threading.Thread(target=accept, daemon=True)

    def release() -> None:
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        accepting.join()
        server.close()
        for one in held:
            one.close()

    accepting.start()
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}", release
    finally:
        release()


def _config_map(**fields: Any) -> bytes:
    kind = {"group": "", "version": "v1", "kind": "ConfigMap"}
    given: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    return review(kind=kind, object=given, **fields)


# CPython: a handshake that the peer resets early leaves its SSLSocket unclosed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_hanging_registry_delays_no_other_call(tmp_path: Path) -> None:
    async def ask(host: str, release: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        images = Lane(loop, 2, 2, real_ns)
        slow = Lane(loop, 1, 1, real_ns)
        webhooks = Webhooks(
            policy("p", block(host, Signer())) + _ASKS,
            tmp_path / "c",
            slow_lane=slow,
            image_lane=images,
        )
        path = SHARED[b"/mutate/fail"]
        given = review(object=pod(f"{host}/app:v1"))

        def post(body: bytes) -> LateAnswer:
            answer = webhooks.service.answer(path, b"", body)
            assert isinstance(answer, LateAnswer)
            return answer

        hung = [post(given) for _ in range(4)]
        more = await post(given)
        assert not json.loads(more)["response"]["allowed"]
        assert webhooks.records.errors == ["webhook.slow_lane_full"]
        # No API server exists: the call fails, but it was attempted.
        other = await asyncio.wait_for(post(_config_map()), HANG_S)
        assert json.loads(other)["response"]["uid"] == "u-1"
        assert not any(one.done() for one in hung)
        assert images.running == 4
        release()
        for one in hung:
            assert not json.loads(await one)["response"]["allowed"]
        images.stop()
        slow.stop()

    with hanging() as (host, release):
        asyncio.run(ask(host, release))


@pytest.mark.parametrize("is_old", [True, False])
def test_late_review_of_an_ignored_policy(
    tmp_path: Path,
    is_old: bool,  # noqa: FBT001 - a parameter
) -> None:
    """Only parts that the request does not change are verified."""

    async def ask(host: str) -> Any:
        loop = asyncio.get_running_loop()
        lane = Lane(loop, 1, 0, real_ns)
        webhooks = Webhooks(
            policy("p", block(host, Signer()), failurePolicy="Ignore"),
            tmp_path / "c",
            slow_lane=lane,
            image_lane=lane,
        )
        path = SHARED[b"/mutate/ignore"]
        body = review(object=pod(f"{host}/other:v1"))
        occupies = webhooks.service.answer(path, b"timeout=60s", body)
        given = pod(f"{host}/app:v1", **scoped(f"{host}/app:v1"))
        old = {"oldObject": given, "operation": "UPDATE"} if is_old else {}
        late = webhooks.service.answer(path, b"", review(object=given, **old))
        assert isinstance(occupies, LateAnswer)
        assert isinstance(late, LateAnswer)
        done = answered(await late, given)
        lane.stop()
        return done

    with hanging() as (host, release):
        timer = threading.Timer(0.5, release)
        timer.start()
        done = asyncio.run(ask(host))
        timer.join()
        assert done.allowed
        assert done.images == [f"{host}/app:v1"]
        assert done.outcomes == {f"{host}/app:v1": "pass" if is_old else "fail"}


class SharedBench:
    """A shared lane of 4 threads and 4 places, whose reviews hang until released."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.lane = Lane(loop, 4, 4, real_ns, is_shared=True)
        self.until_ns = far_ns()
        self.hold = threading.Event()
        self.begun = threading.Semaphore(0)

    def hang(self, *shares: str, until_ns: int = 0) -> LateAnswer:
        def work(_pace: object) -> bytes:
            self.begun.release()
            self.hold.wait()
            return b"hung"

        return self.lane.run(work, until_ns or self.until_ns, _refused, shares)

    def good(self, *shares: str) -> LateAnswer:
        return self.lane.run(lambda _pace: b"good", self.until_ns, _refused, shares)

    async def end(self, answers: list[LateAnswer]) -> None:
        self.hold.set()
        for one in answers:
            await asyncio.wait_for(one.ended, HANG_S)
        assert not self.lane.running
        self.lane.stop()


def _refused(_error: Exception) -> bytes:
    return b"refused"


@pytest.mark.parametrize(
    ("dead", "places", "threads"),
    [
        ([(f"n{number}", "dead.example") for number in range(9)], 4, 3),
        ([("n", f"dead{number}.example") for number in range(9)], 2, 1),
        # SAFETY: a namespace can name a registry of others.
        ([("n", "good.example", "dead.example") for _ in range(9)], 2, 1),
    ],
)
def test_a_registry_and_a_namespace_get_a_part_of_the_places(
    dead: list[tuple[str, ...]], places: int, threads: int
) -> None:
    async def run() -> None:
        bench = SharedBench()
        hung = [bench.hang(*shares) for shares in dead]
        assert [one.done() for one in hung] == [False] * places + [True] * (9 - places)
        assert {one.result() for one in hung[places:]} == {b"refused"}
        assert bench.lane.refused == 9 - places
        good = [bench.good(name, "good.example") for name in ("o", "other")]
        for one in good:
            assert await asyncio.wait_for(one, HANG_S) == b"good"
        for _ in range(threads):
            assert bench.begun.acquire(timeout=HANG_S)
        assert not bench.begun.acquire(blocking=False), "the other threads are free"
        await bench.end(hung[:places])
        assert [one.result() for one in hung[:places]] == [b"hung"] * places

    asyncio.run(run())


def test_a_review_that_expires_in_the_queue_needs_no_thread() -> None:
    async def run() -> None:
        bench = SharedBench()
        hung = [bench.hang(f"n{number}", "dead.example") for number in range(3)]
        late = bench.hang("late", "dead.example", until_ns=1)
        assert await asyncio.wait_for(late, HANG_S) == b"refused"
        assert bench.lane.running == 4
        await bench.end([*hung, late])
        for _ in range(3):
            assert bench.begun.acquire(blocking=False)
        assert not bench.begun.acquire(blocking=False), "it never ran"

    asyncio.run(run())


def test_a_stopped_lane_drops_what_waits() -> None:
    async def run() -> None:
        bench = SharedBench()
        hung = [bench.hang(f"n{number}", "dead.example") for number in range(4)]
        bench.lane.stop()
        await asyncio.wait_for(hung[3].ended, HANG_S)
        assert bench.lane.running == 3
        await bench.end(hung)

    asyncio.run(run())


def test_dry_runs_have_a_lane_of_their_own(tmp_path: Path) -> None:
    """A review that creates an object in a dry run waits for the review of it."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        lanes = [
            Lane(loop, 1, 1, real_ns, is_shared=shared)
            for shared in (False, True, True)
        ]
        webhooks = Webhooks(
            policy("p", block("127.0.0.1:1", Signer())) + _ASKS,
            tmp_path / "c",
            slow_lane=lanes[0],
            image_lane=lanes[1],
            dry_run_lane=lanes[2],
        )
        hold = threading.Event()
        until_ns = far_ns()
        hung = [
            lane.run(
                lambda _pace: b"1" if hold.wait(HANG_S) else b"", until_ns, _refused
            )
            for lane in lanes[:2]
        ]
        path = SHARED[b"/mutate/fail"]
        image = pod("127.0.0.1:1/app:v1")
        for given in (
            review(object=image, dryRun=True),
            _config_map(dryRun=True),
        ):
            answer = webhooks.service.answer(path, b"", given)
            assert not isinstance(answer, bytes)
            await asyncio.wait_for(answer, HANG_S)
            await asyncio.wait_for(answer.ended, HANG_S)
        hold.set()
        for one in hung:
            await asyncio.wait_for(one, HANG_S)
        for lane in lanes:
            lane.stop()

    asyncio.run(run())


def test_a_review_that_a_thread_plans_waits_among_those_of_images(
    tmp_path: Path,
) -> None:
    """A large rule is linked in a thread, which must not wait for a registry."""

    async def ask(host: str, release: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        slow, images, long = lanes = [Lane(loop, 1, 1, real_ns) for _ in range(3)]
        others = [f"other-{number}.example/*" for number in range(1000)]
        large = block(host, Signer(), skipImageReferences=others)
        webhooks = Webhooks(
            policy("p", large) + _ASKS,
            tmp_path / "c",
            slow_lane=slow,
            image_lane=images,
            long_lane=long,
        )
        path = SHARED[b"/mutate/fail"]

        def post(body: bytes) -> LateAnswer:
            answer = webhooks.service.answer(path, b"timeout=30s", body)
            assert isinstance(answer, LateAnswer)
            return answer

        hung = post(review(object=pod(f"{host}/app:v1")))
        assert (slow.running, images.running) == (1, 0)
        await wait_on_loop(lambda: images.running)
        assert not hung.done()
        other = await asyncio.wait_for(post(_config_map()), HANG_S)
        assert json.loads(other)["response"]["uid"] == "u-1"
        assert (slow.running, images.running) == (0, 1)
        assert not hung.ended.done()
        release()
        assert not json.loads(await hung)["response"]["allowed"]
        await asyncio.wait_for(hung.ended, HANG_S)
        assert images.running == 0
        for lane in lanes:
            lane.stop()

    with hanging() as (host, release):
        asyncio.run(ask(host, release))


@pytest.mark.parametrize("late", ["plan", "rest"])
def test_a_review_past_its_deadline_ends_with_its_work(late: str) -> None:
    """It is answered, does not move any more, and its place is free at the end."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        slow, images = (Lane(loop, 1, 1, real_ns) for _ in range(2))
        hold = threading.Event()
        now_ns, is_plan = real_ns(), late == "plan"
        until_ns = now_ns + 300 * 10**9

        def work(_pace: object) -> bytes:
            hold.wait(HANG_S)
            return MOVED if is_plan else b"too late"

        first = slow.run(
            work if is_plan else lambda _pace: MOVED,
            now_ns if is_plan else until_ns,
            lambda _error: b"late",
        )
        found = in_two_lanes(
            first, lambda: images.run(work, now_ns, lambda _error: b"late")
        )
        assert await asyncio.wait_for(found, HANG_S) == b"late"
        assert not found.ended.done()
        hold.set()
        await asyncio.wait_for(found.ended, HANG_S)
        assert (slow.running, images.running) == (0, 0)
        slow.stop()
        images.stop()

    asyncio.run(run())


@pytest.mark.parametrize("is_full", [False, True])
def test_a_review_moves_once(*, is_full: bool) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        slow = Lane(loop, 1, 0, real_ns)
        images = Lane(loop, 1, 0, real_ns)
        until_ns = far_ns()
        hold = threading.Event()
        if is_full:
            held = images.run(
                lambda _: b"" if hold.wait(HANG_S) else b"1", until_ns, _refused
            )
        first = slow.run(lambda _pace: MOVED, until_ns, _refused)
        found = in_two_lanes(
            first, lambda: images.run(lambda _: b"done", until_ns, _refused)
        )
        answer = await asyncio.wait_for(found, HANG_S)
        await asyncio.wait_for(found.ended, HANG_S)
        assert answer == (b"refused" if is_full else b"done")
        assert images.refused == is_full
        hold.set()
        if is_full:
            await asyncio.wait_for(held, HANG_S)
        slow.stop()
        images.stop()

    asyncio.run(run())


def test_a_review_names_its_namespace_and_registries(tmp_path: Path) -> None:
    async def run() -> None:
        lanes = [Lane(asyncio.get_running_loop(), 1, 1, real_ns) for _ in range(2)]
        seen: list[tuple[str, ...]] = []

        def record(work: Any, _deadline: Any, _error: Any, shares: Any = ()) -> bytes:
            seen.append(shares)
            return bytes(work(None))

        for lane in lanes:
            lane.run = record  # type: ignore[method-assign, assignment]
        webhooks = Webhooks(
            policy("p", block("127.0.0.1:1", Signer())) + _ASKS,
            tmp_path / "c",
            slow_lane=lanes[0],
            image_lane=lanes[1],
        )
        path = SHARED[b"/mutate/fail"]
        given = review(object=pod("127.0.0.1:1/app:v1"), namespace="team")
        webhooks.service.answer(path, b"", given)
        webhooks.service.answer(path, b"", _config_map())
        # Anyone could have sent this one, to use up the namespace's share.
        webhooks.service.answer(path, b"", given, is_proved=False)
        shared = [("namespace team", "127.0.0.1:1"), ()]
        assert seen == [*shared, ("namespace _overflow", "127.0.0.1:1")]

    asyncio.run(run())


def test_servers_that_do_not_answer_get_half_of_the_threads() -> None:
    """Together, whatever their names and namespaces."""

    async def run() -> None:
        bench = SharedBench()
        dead = [
            bench.hang(f"n{number}", f"dead{number}.example", UNANSWERED)
            for number in range(9)
        ]
        assert [one.done() for one in dead] == [False] * 4 + [True] * 5
        for _ in range(2):
            assert bench.begun.acquire(timeout=HANG_S)
        good = [bench.good("o", "good.example") for _ in range(2)]
        for one in good:
            assert await asyncio.wait_for(one, HANG_S) == b"good"
        assert not bench.begun.acquire(blocking=False), "the other threads are free"
        await bench.end(dead[:4])

    asyncio.run(run())


def test_reviews_of_an_unknown_registry_are_among_those_without_an_answer(
    tmp_path: Path,
) -> None:
    """The service asks with the registries of the object's images."""

    async def ask(host: str) -> None:
        loop = asyncio.get_running_loop()
        images = Lane(loop, 1, 1, real_ns, is_shared=True)
        asked: list[tuple[str, ...]] = []

        def shares(hosts: Iterable[str]) -> tuple[str, ...]:
            asked.append(tuple(hosts))
            return (*asked[-1], UNANSWERED)

        webhooks = Webhooks(
            policy("p", block(host, Signer())),
            tmp_path / "c",
            slow_lane=Lane(loop, 1, 1, real_ns),
            image_lane=images,
            registries=shares,
        )
        path = SHARED[b"/mutate/fail"]
        answer = webhooks.service.answer(
            path, b"", review(object=pod(f"{host}/app:v1"))
        )
        assert isinstance(answer, LateAnswer)
        await asyncio.wait_for(answer, HANG_S)
        assert asked == [(host,)]
        images.stop()

    asyncio.run(ask("127.0.0.1:1"))

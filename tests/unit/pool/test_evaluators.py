"""Batches are answered even if the evaluators that receive them first die."""

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from kyverno_mp.errors import StateError
from kyverno_mp.limits import POOL_FRAME_BYTES_MAX
from kyverno_mp.pool.evaluators import Evaluators, evaluate
from kyverno_mp.pool.frames import read_frame, write_frame
from tests.waiting import HANG_S, wait_for

PROGRAM = """
import os, sys, threading, time
from pathlib import Path
from kyverno_mp.pool.evaluators import evaluate

once = Path(sys.argv[2])

def handle(content):
    if content == b"die" or (content == b"die once" and not once.exists()):
        once.touch()
        os._exit(1)
    if content == b"hang":
        time.sleep(60)
    return content.upper()

evaluate(Path(sys.argv[1]), handle, threading.Event())
"""


class Bench:
    """A coordinator, and evaluators that a test starts and kills."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hub = Evaluators(folder / "s", queued_max=3, batch_s_max=1.0)
        self.hub.start()
        self.children: list[subprocess.Popen[bytes]] = []

    def start(self, count: int) -> None:
        arguments = [str(self.folder / "s"), str(self.folder / "once")]
        for _ in range(count):
            self.children.append(
                subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments])
            )
        wait_for(lambda: self.hub.connected_count == count)

    def stop(self) -> None:
        self.hub.close()
        for child in self.children:
            child.kill()
            child.wait()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    yield found
    found.stop()


def test_batch_waits_for_an_evaluator_and_is_answered(bench: Bench) -> None:
    answers = [bench.hub.submit(text) for text in (b"a", b"b", b"c")]
    with pytest.raises(StateError) as caught:
        bench.hub.submit(b"d")
    assert caught.value.code == "pool.full"
    bench.start(2)
    assert [one.result(HANG_S) for one in answers] == [b"A", b"B", b"C"]
    assert bench.hub.submit(b"").result(HANG_S) == b""


def test_batch_of_a_dead_evaluator_is_answered_by_another(bench: Bench) -> None:
    bench.start(2)
    assert bench.hub.submit(b"die once").result(HANG_S) == b"DIE ONCE"
    assert bench.hub.requeued == 1
    wait_for(lambda: bench.hub.connected_count == 1)


def test_evaluator_killed_while_idle_gets_no_batch(bench: Bench) -> None:
    bench.start(2)
    bench.children[0].send_signal(signal.SIGKILL)
    wait_for(lambda: bench.hub.connected_count == 1)
    assert bench.hub.submit(b"x").result(HANG_S) == b"X"
    assert bench.hub.requeued == 0


def test_batch_that_crashes_every_evaluator_is_dropped(bench: Bench) -> None:
    """The remaining evaluators answer the other batches."""
    bench.start(4)
    poison, good = bench.hub.submit(b"die"), bench.hub.submit(b"good")
    with pytest.raises(StateError) as caught:
        poison.result(HANG_S)
    assert caught.value.code == "pool.batch"
    assert good.result(HANG_S) == b"GOOD"
    assert bench.hub.connected_count == 1


def test_hanging_evaluator_is_abandoned(bench: Bench) -> None:
    bench.start(1)
    hanging = bench.hub.submit(b"hang")
    wait_for(lambda: bench.hub.requeued == 1)
    assert not hanging.done()
    assert bench.hub.connected_count == 0


def test_waiting_batches_are_cancelled_at_the_end(bench: Bench) -> None:
    waiting = bench.hub.submit(b"x")
    bench.hub.close()
    with pytest.raises(CancelledError):
        waiting.result(HANG_S)
    with pytest.raises(StateError):
        bench.hub.submit(b"y")
    assert not (bench.folder / "s").exists()


def test_evaluator_connects_to_the_next_coordinator(tmp_path: Path) -> None:
    """Evaluators reconnect when the lease moves or the coordinator dies."""
    stop = threading.Event()
    path = tmp_path / "s"
    thread = threading.Thread(
        target=evaluate, args=(path, bytes.upper, stop), daemon=True
    )
    thread.start()
    for _ in range(2):
        hub = Evaluators(path, queued_max=3, batch_s_max=1.0)
        hub.start()
        assert hub.submit(b"x").result(HANG_S) == b"X"
        hub.close()
    stop.set()
    thread.join(HANG_S)
    assert not thread.is_alive()


def test_socket_is_private_to_the_user(bench: Bench) -> None:
    assert (bench.folder / "s").stat().st_mode & 0o777 == 0o600
    assert os.getuid() == (bench.folder / "s").stat().st_uid


def test_messages_are_bounded_and_complete() -> None:
    one, other = socket.socketpair()
    with one, other:
        write_frame(one, b"")
        write_frame(one, b"x" * 100_000)
        assert read_frame(other) == b""
        assert read_frame(other) == b"x" * 100_000
        with pytest.raises(StateError):
            write_frame(one, bytes(POOL_FRAME_BYTES_MAX + 1))
        one.sendall(struct.pack("<I", POOL_FRAME_BYTES_MAX + 1))
        with pytest.raises(StateError):
            read_frame(other)
    one, other = socket.socketpair()
    with other:
        one.sendall(struct.pack("<I", 10) + b"short")
        one.close()
        with pytest.raises(StateError):
            read_frame(other)
    one, other = socket.socketpair()
    with other:
        one.close()
        assert read_frame(other) is None


def test_long_path_works(tmp_path: Path) -> None:
    """A socket address has room for 108 bytes; the path of the folder may be longer."""
    folder = tmp_path / ("d" * 120)
    folder.mkdir()
    path = folder / "pool.sock"
    evaluators = Evaluators(path, queued_max=1, batch_s_max=5)
    evaluators.start()
    stop = threading.Event()
    worker = threading.Thread(
        target=evaluate, args=(path, lambda content: content * 2, stop), daemon=True
    )
    worker.start()
    try:
        assert evaluators.submit(b"x").result(timeout=HANG_S) == b"xx"
    finally:
        stop.set()
        evaluators.close()

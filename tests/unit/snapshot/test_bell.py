"""Processes that wait for a publication are woken; dead processes delay no others."""

import os
import stat
from pathlib import Path

from kyverno_mp.snapshot.bell import LEADER, Bell, ring, ring_workers
from kyverno_mp.snapshot.publish import Publisher


def folder(tmp_path: Path) -> Path:
    directory = tmp_path / "snapshot"
    directory.mkdir(mode=0o700)
    return directory


def test_publication_rings_every_worker(tmp_path: Path) -> None:
    directory = folder(tmp_path)
    publisher = Publisher(directory)
    bells = [Bell.of_worker(directory, pid) for pid in (1, 2)]
    other = Bell.create(directory, LEADER)
    assert not any(bell.wait(0) for bell in bells)
    publisher.publish("policies", lambda _generation, _salt: b"")
    assert all(bell.wait(0) for bell in bells)
    assert not other.wait(0)


def test_ring_is_received_once_and_can_be_repeated(tmp_path: Path) -> None:
    bell = Bell.create(folder(tmp_path), LEADER)
    directory = tmp_path / "snapshot"
    for _ in range(3):
        assert ring(directory, LEADER)
        assert ring(directory, LEADER)
        assert bell.wait(0)
        bell.clear()
        assert not bell.wait(0)


def test_bell_of_a_killed_worker_is_removed(tmp_path: Path) -> None:
    directory = folder(tmp_path)
    killed = Bell.of_worker(directory, 1)
    alive = Bell.of_worker(directory, 2)
    os.close(killed.fileno())
    assert ring_workers(directory) == 1
    assert [path.name for path in (directory / "bells").iterdir()] == ["worker-2"]
    assert alive.wait(0)


def test_new_worker_with_a_reused_pid_replaces_the_bell(tmp_path: Path) -> None:
    directory = folder(tmp_path)
    os.close(Bell.of_worker(directory, 1).fileno())
    bell = Bell.of_worker(directory, 1)
    assert ring_workers(directory) == 1
    assert bell.wait(0)


def test_ringing_never_blocks_on_a_stalled_process(tmp_path: Path) -> None:
    """A full pipe has already been rung; ringing it again neither waits nor fails."""
    directory = folder(tmp_path)
    bell = Bell.of_worker(directory, 1)
    for _ in range(70_000):
        assert ring(directory, "worker-1")
    bell.clear()
    assert not bell.wait(0)


def test_bell_is_private(tmp_path: Path) -> None:
    directory = folder(tmp_path)
    bell = Bell.of_worker(directory, 1)
    assert stat.S_IMODE(os.fstat(bell.fileno()).st_mode) == 0o600
    assert stat.S_IMODE((directory / "bells").stat().st_mode) == 0o700


def test_file_that_is_no_fifo_is_not_written(tmp_path: Path) -> None:
    directory = folder(tmp_path)
    Bell.of_worker(directory, 1).remove()
    (directory / "bells" / "worker-2").write_bytes(b"")
    assert ring_workers(directory) == 0
    assert (directory / "bells" / "worker-2").read_bytes() == b""

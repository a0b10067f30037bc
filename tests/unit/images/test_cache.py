"""The pod's cache of verified images: limits, damaged files, killed users."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kyverno_mp import limits
from kyverno_mp.images.cache import (
    EVICTED,
    FAILED,
    HIT,
    MISS,
    STORED,
    TOO_LARGE,
    CacheOptions,
    ImageCache,
)
from tests.waiting import HANG_S

KEY, OTHER = b"k" * 32, b"o" * 32
_HOLD = """
import sys
from pathlib import Path
from kyverno_mp.images.cache import CacheOptions, ImageCache
cache = ImageCache(CacheOptions(Path(sys.argv[1]), 10, 60))
with cache.flight(b"k" * 32, 0):
    print("held", flush=True)
    sys.stdin.read()
"""


class Clock:
    now_ns = 1

    def __call__(self) -> int:
        return self.now_ns


def cache_in(
    folder: Path, events: list[str], entries_max: int = 10, clock: Clock | None = None
) -> ImageCache:
    options = CacheOptions(folder, entries_max, ttl_s=60)
    return ImageCache(options, events.append, clock or Clock())


def test_value_is_shared_until_it_expires(tmp_path: Path) -> None:
    events: list[str] = []
    clock = Clock()
    cache_in(tmp_path, events, clock=clock).put(KEY, [{"a": 1}])
    other = cache_in(tmp_path, events, clock=clock)
    assert other.get(KEY) == [{"a": 1}]
    assert other.get(OTHER) is None
    clock.now_ns += 61 * 10**9
    assert other.get(KEY) is None
    assert events == [STORED, HIT, MISS, MISS]


@pytest.mark.parametrize("damage", [b"", b"x", b"x" * 200])
def test_corrupt_entry_is_no_hit(tmp_path: Path, damage: bytes) -> None:
    events: list[str] = []
    cache = cache_in(tmp_path, events)
    cache.put(KEY, "sha256:1")
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    for at in range(0, len(content), 7):
        file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert cache.get(KEY) is None
    file.write_bytes(damage)
    assert cache.get(KEY) is None
    assert FAILED in events


def test_oldest_entries_are_evicted(tmp_path: Path) -> None:
    events: list[str] = []
    cache = cache_in(tmp_path, events, entries_max=2)
    for number in range(4):
        cache.put(bytes([number]) * 32, number + 1)
        # File systems may have a coarse clock.
        path = tmp_path / f"{(bytes([number]) * 32).hex()}.verified"
        os.utime(path, (number, number))
    cache.put(KEY, 5)
    assert len(list(tmp_path.glob("*.verified"))) == 2
    assert cache.get(KEY) == 5
    assert events.count(EVICTED) == 3


def test_all_entries_together_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kyverno_mp.images.cache.IMAGE_CACHE_BYTES_MAX", 3000)
    cache = cache_in(tmp_path, [])
    for number in range(5):
        cache.put(bytes([number]) * 32, "x" * 1000)
    assert sum(one.stat().st_size for one in tmp_path.iterdir()) <= 3000


def test_large_value_is_not_stored(tmp_path: Path) -> None:
    events: list[str] = []
    cache = cache_in(tmp_path, events)
    cache.put(KEY, "x" * limits.IMAGE_CACHED_BYTES_MAX)
    assert events == [TOO_LARGE]
    assert not list(tmp_path.iterdir())


def test_missing_folder_loses_only_results(tmp_path: Path) -> None:
    events: list[str] = []
    cache = cache_in(tmp_path / "gone", events)
    with cache.flight(KEY, 0):
        cache.put(KEY, 1)
    assert cache.get(KEY) is None
    assert set(events) == {FAILED, MISS}


def test_concurrent_misses_compute_once(tmp_path: Path) -> None:
    cache = cache_in(tmp_path, [])
    running, most = 0, 0
    lock = threading.Lock()

    def fly() -> None:
        nonlocal running, most
        with cache.flight(KEY, 0):
            with lock:
                running += 1
                most = max(most, running)
            with lock:
                running -= 1

    threads = [threading.Thread(target=fly) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert most == 1
    assert not list(tmp_path.iterdir())


def test_killed_lock_holder_blocks_no_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the death of the holder ends the other process's wait."""
    monkeypatch.setattr("kyverno_mp.images.cache.IMAGE_FLIGHT_WAIT_S", 3600.0)
    paused = threading.Event()
    pause = "kyverno_mp.images.cache.time.sleep"
    monkeypatch.setattr(pause, lambda _seconds: paused.set())
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        flown = threading.Event()

        def fly() -> None:
            with cache_in(tmp_path, []).flight(KEY, 0):
                flown.set()

        waiting = threading.Thread(target=fly, daemon=True)
        waiting.start()
        assert paused.wait(HANG_S), "it waits, because another process has the lock"
        assert not flown.is_set()
        holder.send_signal(signal.SIGKILL)
        assert flown.wait(HANG_S)
        waiting.join(HANG_S)
    finally:
        holder.kill()
        holder.communicate()


def test_waiting_for_another_process_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kyverno_mp.images.cache.IMAGE_FLIGHT_WAIT_S", 0.05)
    cache = cache_in(tmp_path, [])
    with cache.flight(KEY, 0), cache.flight(KEY, 0), cache.flight(KEY, 1):
        pass


def test_oversized_results_are_not_locked(tmp_path: Path) -> None:
    events: list[str] = []
    cache = cache_in(tmp_path, events)
    cache.put(KEY, "x" * (limits.IMAGE_CACHED_BYTES_MAX + 1))
    assert events == [TOO_LARGE]
    with cache.flight(KEY, 0):
        assert list(tmp_path.iterdir()) == []
    for number in range(limits.IMAGE_TOO_LARGE_MAX):
        cache.put(number.to_bytes(32, "big"), "x" * limits.IMAGE_CACHED_BYTES_MAX)
    # The oldest keys are forgotten, which costs only one more wait.
    with cache.flight(KEY, 0):
        assert len(list(tmp_path.glob("*.lock"))) == 1


def test_locks_of_killed_processes_are_removed(tmp_path: Path) -> None:
    cache = cache_in(tmp_path, [])
    left, new = tmp_path / "left.lock", tmp_path / "new.lock"
    for path in (left, new):
        path.touch()
    os.utime(left, (1, 1))
    with cache.flight(OTHER, 0):
        held = tmp_path / f"{OTHER.hex()}.lock"
        os.utime(held, (1, 1))
        cache.put(KEY, 1)
        assert held.exists()
    assert not left.exists()
    assert new.exists()

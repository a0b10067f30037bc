"""Workers see only complete generations, and keep the last valid one."""

import gc
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from kyverno_mp.errors import SnapshotUnusable
from kyverno_mp.snapshot.control import SEGMENTS, ControlPage
from kyverno_mp.snapshot.data import DataSegment, encode_data
from kyverno_mp.snapshot.follow import Follower
from kyverno_mp.snapshot.publish import Publisher, segment_file
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.snapshot.write import prepare_directory, write_file
from tests.waiting import HANG_S

NAME = "namespaces"


def publish(publisher: Publisher, value: bytes) -> int:
    return publisher.publish(
        NAME,
        lambda generation, salt: encode_data(
            NAME, {"k": value}, generation=generation, salt=salt
        ),
    )


class Worker:
    """A follower that records the files it rejected."""

    def __init__(
        self,
        directory: Path,
        defer: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self.refused: list[str] = []
        self.follower = Follower(
            directory,
            ControlPage.open(directory),
            NAME,
            lambda segment, _: DataSegment(segment),
            on_refused=lambda error: self.refused.append(error.code),
            defer=defer,
        )

    def value(self) -> object:
        data = self.follower.current()
        return None if data is None else data.get("k")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "snapshot"


def test_publication_is_noticed(directory: Path) -> None:
    """A policy that is published takes effect with the next request."""
    publisher = Publisher(directory)
    worker = Worker(directory)
    assert worker.value() is None
    assert publish(publisher, b"1") == 1
    assert worker.value() == 1
    first = worker.follower.current()
    assert worker.follower.current() is first
    assert publish(publisher, b"2") == 2
    assert worker.value() == 2
    assert worker.follower.generation == 2
    assert worker.refused == []
    assert (directory / segment_file(NAME)).stat().st_mode & 0o777 == 0o600
    assert directory.stat().st_mode & 0o777 == 0o700


def test_old_generations_are_unmapped(directory: Path) -> None:
    """Unused maps must not accumulate."""
    publisher = Publisher(directory)
    worker = Worker(directory)
    publish(publisher, b"1")
    data = worker.follower.current()
    assert data is not None
    gone = weakref.ref(data)
    maps = Path("/proc/self/maps")
    del data
    for _ in range(5):
        publish(publisher, b"2")
        worker.follower.current()
    gc.collect()
    assert gone() is None
    mapped = [line for line in maps.read_text().splitlines() if "(deleted)" in line]
    assert not [line for line in mapped if str(directory) in line]


def test_corrupt_file_keeps_the_last_valid_one_active(directory: Path) -> None:
    """A bad disk or a foreign writer must not stop the answers."""
    publisher = Publisher(directory)
    worker = Worker(directory)
    publish(publisher, b"1")
    assert worker.value() == 1
    content = bytearray((directory / segment_file(NAME)).read_bytes())
    content[-1] ^= 1
    write_file(directory, segment_file(NAME), content)
    page = ControlPage.open(directory)
    page.set_generation(NAME, 2)
    assert worker.value() == 1
    assert worker.value() == 1
    assert worker.refused == ["snapshot.checksum"]
    assert publish(publisher, b"3") == 3
    assert worker.value() == 3


def test_file_older_than_announced_is_rejected(directory: Path) -> None:
    """Restoring an old file must not restore old policies."""
    publisher = Publisher(directory)
    worker = Worker(directory)
    publish(publisher, b"1")
    old = (directory / segment_file(NAME)).read_bytes()
    publish(publisher, b"2")
    assert worker.value() == 2
    write_file(directory, segment_file(NAME), old)
    ControlPage.open(directory).set_generation(NAME, 3)
    assert worker.value() == 2
    assert worker.refused == ["snapshot.stale"]
    worker.follower.refresh()
    assert worker.refused == ["snapshot.stale"] * 2


def test_generations_continue_after_a_killed_leader(directory: Path) -> None:
    """A leader killed between rename and announcement must not repeat a number."""
    publisher = Publisher(directory)
    publish(publisher, b"1")
    publish(publisher, b"2")
    ControlPage.open(directory).set_generation(NAME, 1)
    worker = Worker(directory)
    assert publish(Publisher(directory), b"3") == 3
    assert worker.value() == 3


def test_attaching_can_happen_in_another_thread(directory: Path) -> None:
    """Requests use the old generation while the new one is attached."""
    publisher = Publisher(directory)
    waiting: list[Callable[[], None]] = []
    worker = Worker(directory, waiting.append)
    publish(publisher, b"1")
    assert worker.value() == 1
    publish(publisher, b"2")
    assert worker.value() == 1
    assert worker.value() == 1
    assert len(waiting) == 1
    thread = threading.Thread(target=waiting[0])
    thread.start()
    thread.join()
    assert worker.value() == 2


def test_no_thread_reads_old_data_while_another_attaches_the_new(
    directory: Path,
) -> None:
    """A scan after a change would otherwise write rows that are already outdated."""
    publisher = Publisher(directory)
    publish(publisher, b"1")
    attaching, may_end = threading.Event(), threading.Event()

    def wrap(segment: Segment, before: DataSegment | None) -> DataSegment:
        if before is not None:
            attaching.set()
            assert may_end.wait(HANG_S)
        return DataSegment(segment)

    follower = Follower(
        directory, ControlPage.open(directory), NAME, wrap, on_refused=_refuse
    )
    assert follower.current() is not None
    publish(publisher, b"2")
    found: list[object] = []

    def read() -> None:
        data = follower.current()
        found.append(None if data is None else data.get("k"))

    first, second = (threading.Thread(target=read) for _ in range(2))
    first.start()
    assert attaching.wait(HANG_S)
    second.start()
    # Long enough for a thread that does not wait; a slower one reads the new data.
    second.join(0.2)
    may_end.set()
    for thread in (first, second):
        thread.join()
    assert found == [2, 2]


def _refuse(error: SnapshotUnusable) -> None:
    raise error


def test_slow_older_generation_never_replaces_a_newer_one(directory: Path) -> None:
    """Two publications in a row may be attached by two threads, in any order."""
    publisher = Publisher(directory)
    waiting: list[Callable[[], None]] = []
    worker = Worker(directory, waiting.append)
    publish(publisher, b"1")
    assert worker.value() == 1
    for value in (b"2", b"3"):
        publish(publisher, value)
        worker.value()
    for attach in reversed(waiting):
        attach()
        assert worker.value() == 3
    assert worker.follower.generation == 3


@pytest.mark.parametrize("failing", ["write", "fsync", "rename"])
def test_failed_write_changes_nothing(
    directory: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk leaves the old file and generation in force."""
    publisher = Publisher(directory)
    worker = Worker(directory)
    publish(publisher, b"1")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    owner = Path if failing == "rename" else os
    with monkeypatch.context() as patch:
        patch.setattr(owner, failing, fail)
        with pytest.raises(SnapshotUnusable):
            publish(publisher, b"2")
    assert publisher.generation(NAME) == 1
    assert worker.value() == 1
    assert list(directory.glob(".*")) == []
    assert publish(publisher, b"3") == 2
    assert worker.value() == 3


def test_no_control_page_without_memory(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing to a file without free memory would kill the supervisor."""

    def full(_descriptor: int, _at: int, _length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(SnapshotUnusable) as raised:
        ControlPage.create(directory)
    assert raised.value.code == "snapshot.no_room"


def test_files_of_killed_writers_are_removed(directory: Path) -> None:
    """Memory-backed directories must not fill with partial files."""
    Publisher(directory)
    (directory / ".policies.segment.1.tmp").write_bytes(b"part")
    Publisher(directory)
    assert list(directory.glob(".*")) == []


def test_directory_that_is_not_private_is_rejected(tmp_path: Path) -> None:
    """Another user could swap the files."""
    open_to_all = tmp_path / "open"
    open_to_all.mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").touch()
    for path in ("open", "link", "file"):
        with pytest.raises(SnapshotUnusable):
            prepare_directory(tmp_path / path)


def test_control_page_is_repaired_in_place_and_foreign_ones_rejected(
    directory: Path,
) -> None:
    """Workers keep the page mapped, so a new leader must never replace it."""
    with pytest.raises(SnapshotUnusable):
        ControlPage.open(directory)
    page = ControlPage.create(directory)
    page.set_generation(NAME, 5)
    page.numbers[0] = 1
    with pytest.raises(SnapshotUnusable):
        ControlPage.open(directory)
    assert ControlPage.create(directory).generation(NAME) == 5
    assert page.numbers[0] != 1
    path = directory / "control"
    path.chmod(0o644)
    with pytest.raises(SnapshotUnusable):
        ControlPage.open(directory)
    path.unlink()
    path.write_bytes(b"short")
    path.chmod(0o600)
    with pytest.raises(SnapshotUnusable):
        ControlPage.open(directory)


def test_workers_report_the_served_generations(directory: Path) -> None:
    """Health checks and the list of policies use the workers' own reports."""
    page = ControlPage.create(directory)
    slot = ControlPage.open(directory).claim(os.getpid(), 123)
    other = ControlPage.open(directory).claim(4_000_000, 5)
    slot.serve("policies", 9)
    other.serve("roles", 2)
    mine, gone = page.workers()
    assert (mine.pid, mine.started) == (os.getpid(), 123)
    assert mine.generations == dict.fromkeys(SEGMENTS, 0) | {"policies": 9}
    assert gone.generations["roles"] == 2
    assert page.clear_stale(lambda pid, started: (pid, started) != (4_000_000, 5)) == 1
    assert [entry.pid for entry in page.workers()] == [os.getpid()]
    slot.release()
    assert page.workers() == []


def test_polling_workers_takes_no_lock(tmp_path: Path) -> None:
    """Otherwise a suspended leader prevents new workers from starting."""
    directory = tmp_path / "snapshot"
    page = ControlPage.create(directory)
    page.claim(11, 1)
    with ControlPage.open(directory)._locked():
        asked = threading.Thread(target=page.clear_stale, args=(lambda *_: True,))
        asked.start()
        asked.join(HANG_S)
        assert not asked.is_alive()
    asked.join()


def test_workers_share_their_connection_counts(tmp_path: Path) -> None:
    page = ControlPage.create(tmp_path / "run")
    one, two, three = (page.claim(pid, 1) for pid in (11, 12, 13))
    assert one.others() == []
    one.report(5)
    two.report(0)
    assert one.others() == [0]
    assert three.others() == [5, 0]
    two.report(-1)
    assert three.others() == [5]
    page.clear_stale(lambda pid, _: pid != 11)
    assert three.others() == []


def test_slot_count_is_bounded(directory: Path) -> None:
    """A crash loop of workers gets an error; the page does not grow."""
    page = ControlPage.create(directory)
    for pid in range(1, 257):
        page.claim(pid, 0)
    with pytest.raises(SnapshotUnusable):
        page.claim(257, 0)
    page.claim(17, 1)

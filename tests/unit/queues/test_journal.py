"""Records pass from one process to another even if either process is killed.

A failure means: an event that a worker recorded is lost or repeated, or a full journal
blocks or breaks the worker.
"""

import os
import signal
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kyverno_mp.errors import StateError
from kyverno_mp.queues.journal import EVENTS, Channel, Journal, JournalReader
from kyverno_mp.queues.records import (
    ObjectRecord,
    PolicyRecord,
    ReviewRecord,
    RuleRecord,
    decode_policies,
    decode_record,
    encode_policies,
    encode_record,
)

RING_BYTES = EVENTS.ring_bytes
MANY = 10**6


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[JournalReader]:
    one = JournalReader(tmp_path)
    yield one
    one.close()


def drain(reader: JournalReader) -> list[bytes]:
    found = []
    for record in reader.records():
        found.append(record.content)
        record.done()
    return found


def test_records_are_read_once_in_order(tmp_path: Path, reader: JournalReader) -> None:
    journal = Journal.claim(tmp_path, MANY)
    assert drain(reader) == []
    written = [b"", b"a", b"bb" * 1000]
    assert all(journal.append(record) for record in written)
    assert (journal.waiting, reader.waiting) == (3, 3)
    assert drain(reader) == written
    assert drain(reader) == []
    assert journal.waiting == 0


def test_unacknowledged_record_is_read_again(
    tmp_path: Path, reader: JournalReader
) -> None:
    """This includes another reader, because the position is stored in the file."""
    journal = Journal.claim(tmp_path, MANY)
    journal.append(b"1")
    journal.append(b"2")
    assert [one.content for one in reader.records()] == [b"1"]
    again = JournalReader(tmp_path)
    assert drain(again) == [b"1", b"2"]
    again.close()
    assert drain(reader) == []


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(0, RING_BYTES // 3), min_size=1, max_size=40),
    taken_every=st.integers(1, 5),
)
def test_wrap_around_loses_no_accepted_record(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], taken_every: int
) -> None:
    folder = tmp_path_factory.mktemp("journals")
    journal, reader = Journal.claim(folder, MANY), JournalReader(folder)
    accepted: list[bytes] = []
    found: list[bytes] = []
    for number, size in enumerate(sizes):
        record = number.to_bytes(4, "big") + bytes([number % 251]) * size
        if journal.append(record):
            accepted.append(record)
        if number % taken_every == 0:
            found += drain(reader)
    found += drain(reader)
    assert found == accepted
    assert len(accepted) + journal.dropped == len(sizes)
    journal.close()
    reader.close()


def test_full_journal_counts_drops(tmp_path: Path, reader: JournalReader) -> None:
    journal = Journal.claim(tmp_path, 2)
    assert [journal.append(b"x") for _ in range(5)] == [True, True, False, False, False]
    assert (journal.dropped, journal.waiting) == (3, 2)
    assert len(drain(reader)) == 2
    assert journal.append(b"y")
    assert not journal.append(bytes(RING_BYTES)), "larger than the whole ring"
    assert journal.dropped == 4


def test_next_process_continues_the_journal(
    tmp_path: Path, reader: JournalReader
) -> None:
    first = Journal.claim(tmp_path, MANY)
    other = Journal.claim(tmp_path, MANY)
    assert first.path != other.path, "each living writer has its own"
    first.append(b"1")
    other.append(b"a")
    path = first.path
    first.close()
    second = Journal.claim(tmp_path, MANY)
    assert second.path == path
    second.append(b"2")
    assert sorted(drain(reader)) == [b"1", b"2", b"a"]


def _write_until_killed(folder: Path) -> None:
    journal = Journal.claim(folder, MANY)
    number = 0
    while True:
        if journal.append(number.to_bytes(8, "big") * 20):
            number += 1


@pytest.mark.parametrize("wait", [0.01, 0.05])
def test_killed_writer_leaves_only_complete_records(
    tmp_path: Path, wait: float
) -> None:
    process = get_context("fork").Process(target=_write_until_killed, args=(tmp_path,))
    process.start()
    reader = JournalReader(tmp_path)
    found: list[bytes] = []
    while len(found) < 1000:
        found += drain(reader)
    process.join(wait)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    following = Journal.claim(tmp_path, MANY)
    while following.waiting:
        found += drain(reader)
    assert found == [n.to_bytes(8, "big") * 20 for n in range(len(found))]
    assert following.append(b"next")
    assert drain(reader) == [b"next"]
    reader.close()


@pytest.mark.parametrize("corrupt", [b"\xff\xff\xff\x7f", b"\x01", b"\x00" * 4])
def test_corrupt_records_are_dropped_after_some_attempts(
    tmp_path: Path, reader: JournalReader, corrupt: bytes
) -> None:
    journal = Journal.claim(tmp_path, MANY)
    journal.append(b"abc")
    journal.append(b"def")
    with journal.path.open("r+b") as file:
        file.seek(4096)
        file.write(corrupt)
    for _ in range(3):
        assert drain(reader) == []
    assert (journal.waiting, journal.dropped) == (0, 2)
    journal.append(b"ghi")
    assert drain(reader) == [b"ghi"]


def test_foreign_file_is_ignored(tmp_path: Path, reader: JournalReader) -> None:
    (tmp_path / "0.journal").write_bytes(b"short")
    (tmp_path / "1.journal").write_bytes(b"x" * (RING_BYTES + 8192))
    assert drain(reader) == []


def test_no_journal_without_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int, _at: int, _length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StateError) as raised:
        Journal.claim(tmp_path, MANY)
    assert raised.value.code == "queues.no_room"


def test_review_survives_a_failed_record() -> None:
    policies = (
        PolicyRecord(
            "Policy",
            "p",
            "a",
            "u",
            mutates=False,
            rules=(RuleRecord("r", "fail", "m"),),
        ),
    )
    about = ObjectRecord("v1", "Pod", "web", "a", "1")
    told = ReviewRecord(
        5, "u-1", about, blocked=True, policies=encode_policies(policies)
    )
    found = decode_record(encode_record(told))
    assert decode_policies(found) == policies
    assert (found.at_ns, found.uid, found.object, found.blocked) == (
        *(5, "u-1", about),
        True,
    )


@pytest.mark.parametrize("record", [b"", b"\xc1", b"\x93\x01\x02\x03"])
def test_invalid_records_are_rejected(record: bytes) -> None:
    with pytest.raises(StateError):
        decode_record(record)


def test_journal_is_found_whenever_it_was_created(
    tmp_path: Path, reader: JournalReader
) -> None:
    """This includes journals of the same clock tick and those in a long idle folder."""
    assert drain(JournalReader(tmp_path / "none-yet")) == []
    for number in range(3):
        journal = Journal.claim(tmp_path, MANY)
        assert journal.append(b"%d" % number)
        assert drain(reader) == [b"%d" % number]
    rest_ns = tmp_path.stat().st_mtime_ns - 10**12
    os.utime(tmp_path, ns=(rest_ns, rest_ns))
    assert drain(reader) == []
    journal = Journal.claim(tmp_path, MANY)
    assert journal.append(b"late")
    assert drain(reader) == [b"late"]


def test_channels_have_separate_space(tmp_path: Path) -> None:
    """A full channel takes no space from other channels with other file sizes."""
    small = Channel("small", 4096)
    for channel in (small, EVENTS):
        channel.folder(tmp_path).mkdir(parents=True)
    first = Journal.claim(small.folder(tmp_path), MANY, small.ring_bytes)
    while first.append(bytes(1000)):
        pass
    second = Journal.claim(EVENTS.folder(tmp_path), MANY)
    assert second.append(bytes(1000))
    reader = JournalReader(small.folder(tmp_path))
    assert [len(one) for one in drain(reader)] == [1000] * 4
    assert first.dropped == 1
    assert second.dropped == 0


def test_file_of_another_size_is_not_read(tmp_path: Path) -> None:
    before = Journal.claim(tmp_path, MANY, 4096)
    before.append(b"of another version")
    before.close()
    journal = Journal.claim(tmp_path, MANY)
    assert journal.waiting == 0
    assert journal.append(bytes(8000))
    assert [len(one) for one in drain(JournalReader(tmp_path))] == [8000]

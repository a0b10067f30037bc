"""A segment returns its stored records, and rejects damaged or foreign files."""

import os
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.errors import SnapshotUnusable
from kyverno_mp.limits import DATA_CACHE_ENTRIES_MAX
from kyverno_mp.snapshot.data import DataSegment, encode_data, encode_value
from kyverno_mp.snapshot.encode import encode_segment
from kyverno_mp.snapshot.layout import (
    HEADER_BYTES,
    Header,
    checksum_of,
    pack_header,
    unpack_header,
)
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.snapshot.write import write_file

SALT = bytes(range(16))
RECORDS = {b"key-%d" % number: b"v" * number for number in range(40)} | {b"": b"empty"}


def content_of(records: dict[bytes, bytes], name: str = "namespaces") -> bytes:
    return bytes(encode_segment(name, records, generation=7, salt=SALT))


def write(directory: Path, content: bytes) -> Path:
    return write_file(directory, "x.segment", content)


def code_of(path: Path, name: str = "namespaces") -> str:
    with pytest.raises(SnapshotUnusable) as caught:
        Segment.attach(path, name)
    return caught.value.code


@pytest.mark.parametrize("records", [{}, RECORDS])
def test_stored_records_are_found(records: dict[bytes, bytes], tmp_path: Path) -> None:
    """A worker must read exactly the leader's records."""
    segment = Segment.attach(write(tmp_path, content_of(records)), "namespaces")
    assert segment.generation == 7
    assert {key: bytes(segment.get(key) or b"") for key in records} == records
    assert sorted(segment.list_keys()) == sorted(records)
    assert segment.get(b"absent") is None
    assert segment.find(b"absent") == 0


def test_every_truncation_and_every_flipped_byte_is_rejected() -> None:
    """A damaged file must never give an answer."""
    content = content_of(RECORDS)
    for length in range(len(content)):
        with pytest.raises(SnapshotUnusable):
            Segment.from_bytes(content[:length], "namespaces")
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 0x40
        with pytest.raises(SnapshotUnusable):
            Segment.from_bytes(damaged, "namespaces")
    with pytest.raises(SnapshotUnusable):
        Segment.from_bytes(content + b"\0", "namespaces")


def test_foreign_files_are_rejected(tmp_path: Path) -> None:
    """Only our own private regular files of this layout may be attached."""
    path = write(tmp_path, content_of(RECORDS))
    assert code_of(path, "policies") == "snapshot.foreign"
    path.chmod(0o640)
    assert code_of(path) == "snapshot.foreign"
    path.chmod(0o600)
    (tmp_path / "link").symlink_to(path)
    assert code_of(tmp_path / "link") == "snapshot.open"
    assert code_of(tmp_path) == "snapshot.foreign"
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert code_of(tmp_path / "pipe") == "snapshot.foreign"
    assert code_of(tmp_path / "absent") == "snapshot.open"
    assert code_of(write(tmp_path, b"")) == "snapshot.open"
    assert code_of(write(tmp_path, b"\0" * HEADER_BYTES)) == "snapshot.foreign"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_file_of_another_user_is_rejected(tmp_path: Path) -> None:
    """Another user could change it while it is in use."""
    path = write(tmp_path, content_of(RECORDS))
    os.chown(path, 65534, 65534)
    assert code_of(path) == "snapshot.foreign"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"container_version": 1}, "snapshot.layout"),
        ({"record_version": 0}, "snapshot.layout"),
        ({"slot_count": 3}, "snapshot.bounds"),
        ({"slot_count": 1 << 60}, "snapshot.bounds"),
        ({"table_at": 0}, "snapshot.bounds"),
        ({"record_count": 1 << 40}, "snapshot.bounds"),
    ],
)
def test_wrong_header_with_a_valid_checksum_is_rejected(
    change: dict[str, int], code: str
) -> None:
    """Such a file was written by an older or later version of this program."""
    with pytest.raises(SnapshotUnusable) as caught:
        Segment.from_bytes(reseal(content_of(RECORDS), **change), "namespaces")
    assert caught.value.code == code


def test_records_out_of_bounds_are_rejected() -> None:
    """Offsets are checked when used, not only by the checksum."""
    content = bytearray(content_of({b"k": b"v"}))
    content[HEADER_BYTES : HEADER_BYTES + 4] = b"\xff\xff\xff\x00"
    segment = Segment.from_bytes(reseal(content), "namespaces")
    with pytest.raises(SnapshotUnusable):
        segment.get(b"k")


def reseal(content: bytes | bytearray, **change: Any) -> bytearray:
    """Change header fields and recompute the checksum."""
    changed = bytearray(content)
    header: Header = unpack_header(memoryview(content))._replace(**change)
    changed[:HEADER_BYTES] = pack_header(header)
    header = header._replace(checksum=checksum_of(memoryview(changed)))
    changed[:HEADER_BYTES] = pack_header(header)
    return changed


def test_data_values_are_decoded_on_demand() -> None:
    """Shared data is read as the JSON that was published."""
    values = {f"ns-{i}": {"labels": {"n": str(i)}} for i in range(10)}
    encoded = {key: encode_value(value) for key, value in values.items()}
    content = encode_data("namespaces", encoded, generation=1, salt=SALT)
    data = DataSegment(Segment.from_bytes(content, "namespaces"))
    assert {key: data.get(key) for key in data.list_keys()} == values
    assert data.get("absent") is None
    assert "ns-1" in data
    assert "absent" not in data
    assert data.get("ns-1") is data.get("ns-1")


def test_cached_values_are_bounded() -> None:
    """A worker's memory must not grow with the number of namespaces."""
    count = DATA_CACHE_ENTRIES_MAX + 10
    encoded = {str(number): b"%d" % number for number in range(count)}
    content = encode_data("namespaces", encoded, generation=1, salt=SALT)
    data = DataSegment(Segment.from_bytes(content, "namespaces"))
    assert [data.get(str(number)) for number in range(count)] == list(range(count))
    assert len(data._decoded) == DATA_CACHE_ENTRIES_MAX


def test_invalid_json_is_rejected() -> None:
    """The reader does not trust the writer's encoding."""
    content = encode_data("namespaces", {"a": b"{"}, generation=1, salt=SALT)
    with pytest.raises(SnapshotUnusable):
        DataSegment(Segment.from_bytes(content, "namespaces")).get("a")


def test_file_truncated_while_in_use_is_noticed(tmp_path: Path) -> None:
    """The truncated part of a mapped file reads as zeros, as if no policies existed."""
    path = write(tmp_path, content_of(RECORDS))
    segment = Segment.attach(path, "namespaces")
    os.truncate(path, 100)
    for key in (b"key-3", b"absent"):
        with pytest.raises(SnapshotUnusable) as caught:
            segment.get(key)
        assert caught.value.code == "snapshot.cut"

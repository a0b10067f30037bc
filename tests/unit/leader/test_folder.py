"""Noticing changes of a folder by polling."""

import os
from pathlib import Path

import pytest

from kyverno_mp.leader.folder import Folder

LATER = 10**19  # every time stamp is old by then
NOW = 0  # every time stamp is young


def test_only_changed_files_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    folder = Folder(tmp_path)
    first = folder.poll(LATER)
    assert first.changed == {str(tmp_path / "a.yaml"): b"a"}
    assert not folder.poll(LATER)
    (tmp_path / "c.json").write_text("{}")
    (tmp_path / "a.yaml").unlink()
    second = folder.poll(LATER)
    assert list(second.changed) == [str(tmp_path / "c.json")]
    assert second.removed == (str(tmp_path / "a.yaml"),)


def test_touched_file_with_the_same_content_is_no_change(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a")
    folder = Folder(tmp_path)
    folder.poll(LATER)
    os.utime(path, (1, 1))
    assert not folder.poll(LATER)


def test_two_writes_with_one_timestamp_are_both_detected(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a")
    folder = Folder(tmp_path)
    folder.poll(NOW)
    known = folder._seen[str(path)]
    path.write_text("b")
    folder._seen[str(path)] = (folder.stats()[str(path)], known[1])
    assert folder.poll(NOW).changed == {str(path): b"b"}


def test_atomic_updates_of_config_map_volumes_are_followed(tmp_path: Path) -> None:
    for name, text in (("..1", "one"), ("..2", "two")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.yaml").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    folder = Folder(tmp_path)
    assert folder.poll(LATER).changed == {str(tmp_path / "a.yaml"): b"one"}
    (tmp_path / "..tmp").symlink_to("..2")
    (tmp_path / "..tmp").rename(tmp_path / "..data")
    assert folder.poll(LATER).changed == {str(tmp_path / "a.yaml"): b"two"}


def test_missing_folder_changes_nothing(tmp_path: Path) -> None:
    sub = tmp_path / "policies"
    sub.mkdir()
    (sub / "a.yaml").write_text("a")
    folder = Folder(sub)
    folder.poll(LATER)
    sub.rename(tmp_path / "away")
    gone = folder.poll(LATER)
    assert not gone
    assert "No such file" in gone.problems[0]


def test_partially_written_file_is_read_once_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a: 1\n")
    parts = ["b: 2\n", "c: 3\n"]

    def wait() -> None:
        if parts:
            with path.open("a") as file:
                file.write(parts.pop(0))

    folder = Folder(tmp_path)
    changes = folder.poll(LATER, wait=wait)
    assert changes.changed == {str(path): b"a: 1\nb: 2\nc: 3\n"}
    assert not folder.poll(LATER)


def test_file_deleted_while_awaited_is_no_change(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a")
    assert not Folder(tmp_path).poll(LATER, wait=lambda: path.unlink(missing_ok=True))


def test_unreadable_subfolder_affects_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The subfolder's files keep their last content; other files are still followed."""
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "a.yaml").write_text("a")
    (tmp_path / "b.yaml").write_text("b")
    folder = Folder(tmp_path)
    folder.poll(LATER)
    scandir = os.scandir

    def refuse(path: str) -> object:
        if path == str(closed):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    # Mode 0 does not stop root, and the tests may run as root.
    monkeypatch.setattr(os, "scandir", refuse)
    (tmp_path / "b.yaml").write_text("changed")
    (closed / "a.yaml").unlink()
    found = folder.poll(LATER)
    assert found.changed == {str(tmp_path / "b.yaml"): b"changed"}
    assert found.removed == ()
    assert found.problems == (f"{closed}: Permission denied",)
    monkeypatch.undo()
    assert folder.poll(LATER).removed == (str(closed / "a.yaml"),)


def test_unreadable_files_are_reported_and_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "gone.yaml").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.yaml")
    deep = tmp_path.joinpath(*"123456789")
    deep.mkdir(parents=True)
    (deep / "deep.yaml").write_text("deep")
    found = Folder(tmp_path).poll(LATER)
    assert list(found.changed) == [str(tmp_path / "a.yaml")]
    assert sorted(found.problems) == [
        f"{deep}: more than 8 levels of folders; the rest is skipped",
        f"{tmp_path / 'gone.yaml'}: broken symbolic link",
        f"{tmp_path / 'loop.yaml'}: Too many levels of symbolic links",
        f"{tmp_path / 'pipe.yaml'}: not a regular file",
    ]


def test_huge_file_is_reported_and_keeps_its_last_content(tmp_path: Path) -> None:
    """A sparse file of a terabyte must not take the leader's memory."""
    (tmp_path / "a.yaml").write_text("a")
    huge = tmp_path / "huge.yaml"
    huge.write_text("small")
    folder = Folder(tmp_path)
    assert len(folder.poll(LATER).changed) == 2
    os.truncate(huge, 1 << 40)
    found = folder.poll(LATER)
    assert (found.changed, found.removed) == ({}, ())
    assert found.problems == (f"{huge}: larger than 67108864 bytes",)

"""Noticing changes of a folder by looking, without being told."""

import os
from pathlib import Path

from kyverno_mp.leader.folder import Folder

LATER = 10**19  # every time stamp is old by then
NOW = 0  # every time stamp is young


def test_only_changed_files_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    folder = Folder(tmp_path)
    first = folder.look(LATER)
    assert first.changed == {str(tmp_path / "a.yaml"): b"a"}
    assert not folder.look(LATER)
    (tmp_path / "c.json").write_text("{}")
    (tmp_path / "a.yaml").unlink()
    second = folder.look(LATER)
    assert list(second.changed) == [str(tmp_path / "c.json")]
    assert second.removed == (str(tmp_path / "a.yaml"),)


def test_a_touched_file_with_the_same_content_is_no_change(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a")
    folder = Folder(tmp_path)
    folder.look(LATER)
    os.utime(path, (1, 1))
    assert not folder.look(LATER)


def test_two_writes_within_one_time_stamp_are_both_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a")
    folder = Folder(tmp_path)
    folder.look(NOW)
    known = folder._seen[str(path)]
    path.write_text("b")
    folder._seen[str(path)] = (folder.stats()[str(path)], known[1])
    assert folder.look(NOW).changed == {str(path): b"b"}


def test_the_atomic_writer_of_config_map_mounts_is_followed(tmp_path: Path) -> None:
    for name, text in (("..1", "one"), ("..2", "two")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.yaml").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    folder = Folder(tmp_path)
    assert folder.look(LATER).changed == {str(tmp_path / "a.yaml"): b"one"}
    (tmp_path / "..tmp").symlink_to("..2")
    (tmp_path / "..tmp").rename(tmp_path / "..data")
    assert folder.look(LATER).changed == {str(tmp_path / "a.yaml"): b"two"}


def test_a_folder_that_vanishes_changes_nothing(tmp_path: Path) -> None:
    sub = tmp_path / "policies"
    sub.mkdir()
    (sub / "a.yaml").write_text("a")
    folder = Folder(sub)
    folder.look(LATER)
    sub.rename(tmp_path / "away")
    gone = folder.look(LATER)
    assert not gone
    assert "No such file" in gone.problem


def test_a_file_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a: 1\n")
    parts = ["b: 2\n", "c: 3\n"]

    def wait() -> None:
        if parts:
            with path.open("a") as file:
                file.write(parts.pop(0))

    folder = Folder(tmp_path)
    changes = folder.look(LATER, wait=wait)
    assert changes.changed == {str(path): b"a: 1\nb: 2\nc: 3\n"}
    assert not folder.look(LATER)


def test_a_file_that_vanishes_while_it_is_awaited_is_no_change(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a")
    assert not Folder(tmp_path).look(LATER, wait=lambda: path.unlink(missing_ok=True))

"""Write a file atomically: readers get the whole new file or the whole old one.

Room: snapshot. Takes: a directory, a file name, content. Gives: a durable file, 0600.
Next: snapshot/publish. May touch: the directory it is given.
Source: docs/architecture.md 3 (written to a temp name, fsynced, renamed).
"""

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

from kyverno_mp.errors import SnapshotUnusable, Where
from kyverno_mp.snapshot.room import FolderRoom

_TEMPORARY_SUFFIX: Final = ".tmp"


def prepare_directory(directory: Path) -> None:
    """Create the directory if absent, and require that it is private (0700).

    Raises: SnapshotUnusable.
    """
    location = Where(file=str(directory))
    try:
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o700, parents=True)
        status = directory.lstat()
    except OSError as error:
        raise SnapshotUnusable("snapshot.directory", str(error), location) from error
    if not stat.S_ISDIR(status.st_mode):
        raise SnapshotUnusable("snapshot.directory", "not a directory", location)
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise SnapshotUnusable(
            "snapshot.directory", "directory is not private (0700)", location
        )


def write_file(directory: Path, name: str, content: bytes | bytearray) -> Path:
    """Write ``directory/name`` completely or not at all; return its path.

    Raises: SnapshotUnusable (e.g. no space); in this case, the old file stays.
    ``snapshot.no_room``: it would take the room kept for status and health files.
    """
    path = directory / name
    _require_room(path, len(content))
    temporary = directory / f".{name}.{os.getpid()}{_TEMPORARY_SUFFIX}"
    try:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        _write_durably(temporary, content)
        temporary.rename(path)
        _sync_directory(directory)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise SnapshotUnusable(
            "snapshot.write", f"cannot write: {error}", Where(file=str(path))
        ) from error
    return path


def _require_room(path: Path, size: int) -> None:
    try:
        room = FolderRoom.of(path.parent)
    except OSError as error:
        raise SnapshotUnusable(
            "snapshot.write", f"cannot write: {error}", Where(file=str(path))
        ) from error
    if room.free - size < room.kept:
        raise SnapshotUnusable(
            "snapshot.no_room",
            f"{path.name} takes {_kib(size)} KiB, but of the {_kib(room.size)} KiB of"
            f" the runtime folder, {_kib(max(0, room.free - room.kept))} KiB are free",
            Where(file=str(path)),
        )


def _kib(size: int) -> int:
    return -(-size // 1024)


def remove_leftovers(directory: Path) -> None:
    """Remove files of killed writers; only one writer can run at a time."""
    for leftover in directory.glob(f".*{_TEMPORARY_SUFFIX}"):
        with contextlib.suppress(OSError):
            leftover.unlink()


def _write_durably(path: Path, content: bytes | bytearray) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

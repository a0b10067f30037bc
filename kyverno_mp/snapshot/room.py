"""Keep room in the runtime folder for the files without which the pod cannot work.

Room: snapshot. Takes: a folder or an open file in it. Gives: FolderRoom, has_room,
replace_record. Next: snapshot/write.py, telemetry/page.py, images/cache.py, the writers
of status and health. May touch: the folder.
Source: docs/operate.md (the runtime folder).

What grows with policies, images or requests leaves the last ROOM_KEPT_BYTES_MAX free.
Status and health files may take them, so they tell when the folder is full.
"""

import contextlib
import os
from pathlib import Path
from typing import Final, NamedTuple

from kyverno_mp.limits import ROOM_KEPT_BYTES_MAX, ROOM_KEPT_DIVISOR

_BLOCK_BYTES: Final = 512
"""The unit of st_blocks."""


class FolderRoom(NamedTuple):
    """The size of the folder's file system, and what of it is free. Unit: bytes."""

    size: int
    free: int

    @classmethod
    def of(cls, folder: Path | int) -> "FolderRoom":
        """Measure it. ``folder``: a path or an open file. Raises: OSError."""
        facts = os.statvfs(folder)
        unit = facts.f_frsize
        return cls(facts.f_blocks * unit, facts.f_bavail * unit)

    @property
    def kept(self) -> int:
        """Return how much of it only status and health files may take."""
        return min(ROOM_KEPT_BYTES_MAX, self.size // ROOM_KEPT_DIVISOR)

    @property
    def is_full(self) -> bool:
        """Return whether only status and health files may still be written."""
        return self.free < self.kept


NO_ROOM: Final = FolderRoom(0, 0)
"""Stands for a folder that was not measured."""


def has_room(folder: Path | int, size: int) -> bool:
    """Return whether a file of this size leaves the room that is kept."""
    room = FolderRoom.of(folder)
    return room.free - size >= room.kept


def replace_record(path: Path, content: bytes) -> bool:
    """Replace a small file that other processes read; return whether it succeeded.

    Atomic: a reader never reads a partial file. If the folder is full, the blocks of
    the old record take the new one; if they are too few, the old record stays. The
    writer continues: a process that ended for this would take more with it than a
    record that is old.
    """
    temporary = path.with_name(path.name + ".new")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        return _overwritten(path, content)
    return True


def _overwritten(path: Path, content: bytes) -> bool:
    """Write into the blocks that the file has; a reader may rarely get half of it."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        facts = os.fstat(descriptor)
        if len(content) > facts.st_blocks * _BLOCK_BYTES:
            return False
        # White space after a JSON text has no meaning.
        padded = content.ljust(facts.st_size)
        return os.pwrite(descriptor, padded, 0) == len(padded)
    except OSError:
        return False
    finally:
        os.close(descriptor)

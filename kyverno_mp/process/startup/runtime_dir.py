"""Create and lock the private folder that the pod's processes share.

Room: process. Takes: its path. Gives: a folder, 0700, locked, empty except
for journals. Next: serve. May touch: that folder. Source: docs/architecture.md 3
(snapshot: memory-backed directory, 0700); docs/pools.md 3.

In a pod the folder is on a volume in memory, which survives a restart of the container.
Unread records of the previous processes are read after the start.
"""

import fcntl
import os
import shutil
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kyverno_mp.errors import SettingInvalid, StateError
from kyverno_mp.leader.loop import PAGES, SNAPSHOT
from kyverno_mp.queues.journal import CHANNELS, FOLDER, waiting_in

_LOCK: Final = "lock"
_LOCK_WAIT_S: Final = 10.0
TLS: Final = "tls"
IMAGES: Final = "images"
"""The cache of verified images, shared by all workers."""


def prepare(path: Path) -> int:
    """Lock ``path`` and empty it, except for its journals.

    Returns the lock's descriptor, which must stay open. Children inherit it, so a new
    supervisor waits until the last process of a killed one is gone.

    Raises: SettingInvalid if the folder cannot be created, belongs to another user or
    is open to other users; StateError if another supervisor holds the lock.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = path.lstat()
    except OSError as error:
        raise SettingInvalid(
            "settings.runtime_dir", f"KYVERNO_MP_RUNTIME_DIR={path}: {error.strerror}"
        ) from error
    private = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid()
    if not private or facts.st_mode & 0o077:
        raise SettingInvalid(
            "settings.runtime_dir",
            f"KYVERNO_MP_RUNTIME_DIR={path}: must belong to this user and"
            " have mode 0700",
        )
    descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    _lock(path, descriptor)
    _empty(path, keep=(_LOCK, FOLDER))
    for name in (SNAPSHOT, PAGES, TLS, IMAGES):
        (path / name).mkdir(mode=0o700)
    for channel in CHANNELS:
        folder = channel.folder(path)
        for one in (folder.parent, folder):
            if one.is_symlink() or not one.is_dir():
                one.unlink(missing_ok=True)
                one.mkdir(mode=0o700)
    return descriptor


def remove(path: Path) -> None:
    """Remove the folder at an orderly exit; keep journals with unread records."""
    if waiting_in(path):
        _empty(path, keep=(FOLDER,))
    else:
        shutil.rmtree(path, ignore_errors=True)


def _empty(path: Path, keep: Sequence[str]) -> None:
    for entry in path.iterdir():
        if entry.name in keep:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _lock(path: Path, descriptor: int) -> None:
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise StateError(
                    "process.already_running",
                    f"another kyverno-mp uses {path}: stop it, or give this one"
                    " another --port and --health-port, or --runtime-dir",
                ) from None
            time.sleep(0.1)
        else:
            return

"""Create and lock the private folder that the pod's processes share.

Room: process. Takes: its path. Gives: an empty folder, 0700, locked. Next: serve.
May touch: that folder. Source: docs/architecture.md 3 (snapshot: memory-backed
directory, 0700).
"""

import fcntl
import os
import shutil
import stat
import time
from pathlib import Path
from typing import Final

from kyverno_mp.errors import SettingInvalid, StateError
from kyverno_mp.leader.loop import PAGES, SNAPSHOT
from kyverno_mp.queues.journal import FOLDER

_LOCK: Final = "lock"
_LOCK_WAIT_S: Final = 10.0
TLS: Final = "tls"


def prepare(path: Path) -> int:
    """Empty and lock ``path``; return the lock's descriptor, which must stay open.

    Children inherit the descriptor, so a new supervisor waits until the last process of
    a killed one is gone.

    Raises: SettingInvalid when the folder cannot be created, belongs to another user or
    is open to other users, StateError when another supervisor holds the lock.
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
            f"KYVERNO_MP_RUNTIME_DIR={path}: must be a folder of this user that no"
            " other may enter (0700)",
        )
    descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    _lock(path, descriptor)
    for entry in path.iterdir():
        if entry.name == _LOCK:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    for name in (SNAPSHOT, PAGES, TLS, FOLDER):
        (path / name).mkdir(mode=0o700)
    return descriptor


def remove(path: Path) -> None:
    """Remove the folder at an orderly exit."""
    shutil.rmtree(path, ignore_errors=True)


def _lock(path: Path, descriptor: int) -> None:
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise StateError(
                    "process.already_running", f"another kyverno-mp uses {path}"
                ) from None
            time.sleep(0.1)
        else:
            return

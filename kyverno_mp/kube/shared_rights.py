"""Show the permissions that a worker lacks to the health process, in a small file.

Room: kube. Takes: the MissingRights of one process, a folder. Gives: SharedRights
(written) and read_rights. Next: process/roles/health.py merges those of all processes.
May touch: files of the folder, /proc for start times, the log.
Source: docs/operate.md; docs/metrics.md (kyverno_mp_missing_permissions).

The leader and the pools report in their own health. Workers, which call the API server
for policies, have no health of their own, and each knows only its own rejections.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from kyverno_mp.kube.rights import MissingRights, Right
from kyverno_mp.settings.machine import start_ticks
from kyverno_mp.telemetry.page import is_running

_log = logging.getLogger(__name__)
_SUFFIX: Final = ".rights"


class _Record(msgspec.Struct, frozen=True):
    """The missing permissions of one process."""

    account: str
    ticks: int
    rights: tuple[Right, ...]


_DECODER = msgspec.json.Decoder(_Record)


class SharedRights:
    """The missing permissions of this process; thread-safe."""

    def __init__(
        self,
        folder: Path,
        account: str,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``account``: the name of the process's ServiceAccount."""
        self.rights = MissingRights(account, monotonic_s)
        self._path = folder / f"{os.getpid()}{_SUFFIX}"
        self._lock = threading.Lock()
        self._written: frozenset[Right] = frozenset()
        self._logged: dict[tuple[str, str], str] = {}

    def write(self) -> None:
        """Write what has changed, and log what is new; call it often."""
        with self._lock:
            missing = frozenset(self.rights.missing())
            if missing == self._written:
                return
            warnings = self.rights.texts()
            for cause in warnings.keys() - self._logged.keys():
                _log.warning("%s", warnings[cause])
            self._logged = warnings
            record = _Record(
                self.rights.account, start_ticks(os.getpid()), tuple(sorted(missing))
            )
            temporary = self._path.with_suffix(".new")
            try:
                temporary.write_bytes(msgspec.json.encode(record))
                temporary.replace(self._path)
            except OSError as error:
                _log.warning("cannot report missing permissions: %s", error)
                return
            self._written = missing


def read_rights(folder: Path) -> list[MissingRights]:
    """Return what the processes lack, by account; forget processes that have ended."""
    by_account: dict[str, MissingRights] = {}
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        try:
            record = _DECODER.decode(path.read_bytes())
            is_alive = is_running(int(path.stem), record.ticks)
        except (OSError, ValueError):
            continue
        if not is_alive:
            path.unlink(missing_ok=True)
            continue
        account = by_account.setdefault(record.account, MissingRights(record.account))
        account.hold(path.stem, dict.fromkeys(record.rights, ""))
    return list(by_account.values())

"""Detect changes of a folder of YAML files by polling.

Room: leader. Takes: a folder's path. Gives: the bytes of files whose content changed.
Next: leader/policy_store.py, leader/cluster_data.py. May touch: reads files below the
folder.

A poll costs one stat per file; contents are read when a stat changed, or is so recent
that two writes may share its time stamp. Nothing depends on inotify, which mounts of
ConfigMaps and network file systems lack. Names that start with a dot are ignored: they
are the atomic-writer folders of ConfigMap mounts and editors' temporary files.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SUFFIXES: Final = (".yaml", ".yml", ".json")
_DEPTH_MAX: Final = 8
_SETTLES_MAX: Final = 10
"""A file that is written continuously is read after this many waits anyway."""
_YOUNG_NS: Final = 2_000_000_000
"""Coarsest time stamps of the file systems in use (FAT, some network mounts)."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes since the last poll; ``problem`` is set when the poll failed."""

    changed: dict[str, bytes]
    removed: tuple[str, ...]
    problem: str = ""

    def __bool__(self) -> bool:
        return bool(self.changed or self.removed)


_Stat = tuple[int, int, int, int]


class Folder:
    """One watched folder or file, and its state at the last poll."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: dict[str, tuple[_Stat, bytes]] = {}

    def stats(self) -> dict[str, _Stat]:
        """Return the stat(2) result of each file; raises OSError on failure."""
        if self.path.is_file():
            return {str(self.path): _stat_of(self.path.stat())}
        return dict(sorted(_walk(str(self.path), _DEPTH_MAX)))

    def look(
        self,
        now_ns: int,
        *,
        force: bool = False,
        wait: Callable[[], None] | None = None,
    ) -> Changes:
        """Return changed and removed files since the last call.

        ``now_ns``: wall-clock time, to detect recent time stamps. ``force`` reads all.
        ``wait`` sleeps briefly, so that a writer can finish a file. If the folder
        cannot be read, nothing changes: the last state stays.
        """
        try:
            stats = self.stats()
        except OSError as error:
            return Changes({}, (), f"{self.path}: {error.strerror}")
        moved = {name for name, stat in stats.items() if self._moved(name, stat)}
        if moved and wait is not None:
            _settle(stats, moved, wait)
        changed: dict[str, bytes] = {}
        problem = ""
        for name, stat in stats.items():
            young = now_ns - stat[0] < _YOUNG_NS
            if not (name in moved or young or force):
                continue
            try:
                data = Path(name).read_bytes()
            except OSError as error:
                problem = f"{name}: {error.strerror}"
                continue
            digest = hashlib.blake2b(data, digest_size=16).digest()
            known = self._seen.get(name)
            if known is None or known[1] != digest:
                changed[name] = data
            self._seen[name] = (stat, digest)
        removed = tuple(name for name in self._seen if name not in stats)
        for name in removed:
            del self._seen[name]
        return Changes(changed, removed, problem)

    def _moved(self, name: str, stat: _Stat) -> bool:
        known = self._seen.get(name)
        return known is None or known[0] != stat


def _settle(stats: dict[str, _Stat], names: set[str], wait: Callable[[], None]) -> None:
    """Wait until the named files stop changing, and update their stats."""
    for _ in range(_SETTLES_MAX):
        wait()
        still = True
        for name in names & stats.keys():
            try:
                now = _stat_of(Path(name).stat())
            except OSError:
                del stats[name]
                continue
            still = still and now == stats[name]
            stats[name] = now
        if still:
            return


def _walk(path: str, depth: int) -> Iterator[tuple[str, _Stat]]:
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            try:
                if entry.is_dir():
                    if depth > 0:
                        yield from _walk(entry.path, depth - 1)
                elif entry.name.endswith(_SUFFIXES):
                    yield entry.path, _stat_of(entry.stat())
            except FileNotFoundError:
                continue  # vanished between the two calls


def _stat_of(facts: os.stat_result) -> _Stat:
    return facts.st_mtime_ns, facts.st_size, facts.st_ino, facts.st_ctime_ns

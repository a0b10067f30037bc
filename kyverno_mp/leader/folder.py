"""Notice changes of a folder of YAML files by looking at it again and again.

Room: leader. Takes: a folder's path. Gives: the bytes of files whose content changed.
Next: leader/library.py, leader/world.py. May touch: reads files below the folder.

A look costs one stat a file; contents are read when a stat changed, or is so young that
two writes may share its time stamp. Nothing depends on inotify, which mounts of
ConfigMaps and network file systems do not have. Names that start with a dot are left
out, as those are the atomic-writer folders of ConfigMap mounts and editors' drafts.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SUFFIXES: Final = (".yaml", ".yml", ".json")
_DEPTH_MAX: Final = 8
_YOUNG_NS: Final = 2_000_000_000
"""Coarsest time stamps of the file systems in use (FAT, some network mounts)."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What differs from the last look; ``problem`` is set when looking failed."""

    changed: dict[str, bytes]
    removed: tuple[str, ...]
    problem: str = ""

    def __bool__(self) -> bool:
        return bool(self.changed or self.removed)


_Stat = tuple[int, int, int, int]


class Folder:
    """One watched folder, or one file, and what was seen there last."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: dict[str, tuple[_Stat, bytes]] = {}

    def stats(self) -> dict[str, _Stat]:
        """Return what stat(2) says of each file; raises OSError when it cannot."""
        if self.path.is_file():
            return {str(self.path): _stat_of(self.path.stat())}
        return dict(sorted(_walk(str(self.path), _DEPTH_MAX)))

    def would_change(self) -> bool:
        """Tell whether a stat differs from the last look; cheap, reads no content."""
        stats = self.stats_or_none()
        return stats is not None and stats != {k: v[0] for k, v in self._seen.items()}

    def stats_or_none(self) -> dict[str, _Stat] | None:
        """Return ``stats``, None when the folder cannot be read."""
        try:
            return self.stats()
        except OSError:
            return None

    def look(self, now_ns: int, *, force: bool = False) -> Changes:
        """Return changed and removed files since the last look.

        ``now_ns``: wall-clock time, to tell young time stamps. ``force`` reads all.
        A folder that cannot be read changes nothing: what was seen last stays.
        """
        try:
            stats = self.stats()
        except OSError as error:
            return Changes({}, (), f"{self.path}: {error.strerror}")
        changed: dict[str, bytes] = {}
        problem = ""
        for name, stat in stats.items():
            known = self._seen.get(name)
            young = now_ns - stat[0] < _YOUNG_NS
            if known and known[0] == stat and not young and not force:
                continue
            try:
                data = Path(name).read_bytes()
            except OSError as error:
                problem = f"{name}: {error.strerror}"
                continue
            digest = hashlib.blake2b(data, digest_size=16).digest()
            if known is None or known[1] != digest:
                changed[name] = data
            self._seen[name] = (stat, digest)
        removed = tuple(name for name in self._seen if name not in stats)
        for name in removed:
            del self._seen[name]
        return Changes(changed, removed, problem)


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

"""Detect changes of a folder of YAML files by polling.

Room: leader. Takes: a folder's path. Gives: the bytes of files whose content changed.
Next: leader/policy_store.py, leader/cluster_data.py. May touch: reads files below the
folder. An unreadable file is reported as a problem and keeps its last content; the
other files are still read.

A poll costs one stat per file; contents are read when a stat changed, or is so recent
that two writes may share its timestamp. Polling does not depend on inotify, which
ConfigMap mounts and network file systems lack. Names that start with a dot are ignored:
they are the atomic-writer folders of ConfigMap mounts and editors' temporary files.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kyverno_mp.limits import POLICY_FILE_BYTES_MAX

_SUFFIXES: Final = (".yaml", ".yml", ".json")
_DEPTH_MAX: Final = 8
_SETTLES_MAX: Final = 10
"""The number of waits after which a continuously written file is read anyway."""
_YOUNG_NS: Final = 2_000_000_000
"""Coarsest timestamps of the file systems in use (FAT, some network mounts)."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes since the last poll, and the inputs that the poll could not read."""

    changed: dict[str, bytes]
    removed: tuple[str, ...]
    problems: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    """Files and folders of which no content was ever read."""

    def __bool__(self) -> bool:
        return bool(self.changed or self.removed)


_Stat = tuple[int, int, int, int]


@dataclass(slots=True)
class Scan:
    """The files of one poll; ``hidden`` contains paths whose files are unknown now."""

    stats: dict[str, _Stat] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)

    def hides(self, name: str) -> bool:
        """Return whether a file may still exist although it was not found."""
        return any(
            name == prefix or name.startswith(prefix + os.sep) for prefix in self.hidden
        )

    def cannot_read(self, path: str, reason: str | None) -> None:
        """Record that the content of a file or folder is unknown now."""
        self.problems.append(f"{path}: {reason}")
        self.hidden.append(path)


class Folder:
    """One watched folder or file, and its state at the last poll."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: dict[str, tuple[_Stat, bytes]] = {}

    def stats(self) -> dict[str, _Stat]:
        """Return the stat(2) result of each file; raises OSError on failure."""
        return self.scan().stats

    def scan(self) -> Scan:
        """Find all files. Raises: OSError if the folder itself cannot be read."""
        scan = Scan()
        if self.path.is_file():
            scan.stats[str(self.path)] = _stat_of(self.path.stat())
        else:
            _walk(str(self.path), _DEPTH_MAX, scan)
            scan.stats = dict(sorted(scan.stats.items()))
        return scan

    def poll(
        self,
        now_ns: int,
        *,
        force: bool = False,
        wait: Callable[[], None] | None = None,
    ) -> Changes:
        """Return changed and removed files since the last call.

        ``now_ns``: wall-clock time, to detect recent timestamps. ``force`` reads all
        files. ``wait`` sleeps briefly, so that a writer can finish a file. Unreadable
        files keep their last state.
        """
        try:
            scan = self.scan()
        except OSError as error:
            path = str(self.path)
            unread = () if self._seen else (path,)
            return Changes({}, (), (f"{path}: {error.strerror}",), unread)
        stats = scan.stats
        moved = {name for name, stat in stats.items() if self._is_changed(name, stat)}
        if moved and wait is not None:
            _settle(stats, moved, wait)
        changed: dict[str, bytes] = {}
        for name, facts in stats.items():
            young = now_ns - facts[0] < _YOUNG_NS
            if not (name in moved or young or force):
                continue
            try:
                data = _content(name)
            except FileNotFoundError:
                continue  # deleted since; the next poll finds it removed
            except OSError as error:
                scan.cannot_read(name, error.strerror)
                continue
            digest = hashlib.blake2b(data, digest_size=16).digest()
            entry = self._seen.get(name)
            if entry is None or entry[1] != digest:
                changed[name] = data
            self._seen[name] = (facts, digest)
        removed = tuple(
            name for name in self._seen if name not in stats and not scan.hides(name)
        )
        for name in removed:
            del self._seen[name]
        never = tuple(path for path in scan.hidden if not self._has_read(path))
        return Changes(changed, removed, tuple(scan.problems), never)

    def _has_read(self, path: str) -> bool:
        """Return whether a file's content is known, or that of a file in a folder."""
        return any(
            name == path or name.startswith(path + os.sep) for name in self._seen
        )

    def _is_changed(self, name: str, facts: _Stat) -> bool:
        entry = self._seen.get(name)
        return entry is None or entry[0] != facts


def _content(name: str) -> bytes:
    """Return a file's content. Raises: OSError, also for a huge or endless file."""
    with Path(name).open("rb") as file:
        data = file.read(POLICY_FILE_BYTES_MAX + 1)
    if len(data) > POLICY_FILE_BYTES_MAX:
        raise OSError(errno.EFBIG, f"larger than {POLICY_FILE_BYTES_MAX} bytes", name)
    return data


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


def _walk(path: str, depth: int, scan: Scan) -> None:
    """Add the files below ``path``. Raises: OSError if it cannot be listed."""
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            try:
                _take(entry, depth, scan)
            except FileNotFoundError:
                if entry.is_symlink():
                    scan.problems.append(f"{entry.path}: broken symbolic link")
                # else: deleted between the two calls
            except OSError as error:
                scan.cannot_read(entry.path, error.strerror)


def _take(entry: "os.DirEntry[str]", depth: int, scan: Scan) -> None:
    if entry.is_dir():
        if depth > 0:
            _walk(entry.path, depth - 1, scan)
        else:
            reason = f"more than {_DEPTH_MAX} levels of folders; the rest is skipped"
            scan.cannot_read(entry.path, reason)
    elif entry.name.endswith(_SUFFIXES):
        facts = entry.stat()
        if stat.S_ISREG(facts.st_mode):
            scan.stats[entry.path] = _stat_of(facts)
        else:
            scan.cannot_read(entry.path, "not a regular file")


def _stat_of(facts: os.stat_result) -> _Stat:
    return facts.st_mtime_ns, facts.st_size, facts.st_ino, facts.st_ctime_ns


def folder_at(path: str) -> Folder | None:
    """Return the folder or file of a setting, None if it is empty."""
    return Folder(Path(path)) if path else None

"""Write lines into compressed files of a folder, and delete the oldest ones.

Room: webhook. Takes: a folder, the total number of bytes, the number of writers. Gives:
RecordingFiles, one per worker. Next: recorder.py, whose thread alone calls it.
May touch: files of the folder that end in .jsonl.gz or .jsonl.gz.part; the clock.
Source: docs/replay.md (files); RFC 1952.

All files together never exceed the given bytes: a part of them is reserved for each
writer's open file, and closed files share the rest; the oldest are deleted. A file
whose writer died counts as closed.
"""

import contextlib
import gzip
import os
import re
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from kyverno_mp import __version__
from kyverno_mp.limits import RECORDING_FILE_SHARE, RECORDING_SHARE_S
from kyverno_mp.settings.machine import start_ticks
from kyverno_mp.webhook.recording.format import (
    OPEN_SUFFIX,
    SUFFIX,
    VERSION,
    Header,
)

_NAME: Final = re.compile(
    r"reviews-\d{8}T\d{6}-(\d+)-(\d+)-[0-9a-f]+\.jsonl\.gz(\.part)?"
)
_OVERHEAD_BYTES: Final = 1024
"""The size of a file's header, a file's end, and the end of a compressed block."""


@dataclass(slots=True)
class _Open:
    """The file that is being written."""

    path: Path
    file: BinaryIO
    stream: gzip.GzipFile


class RecordingFiles:
    """One worker's files, and its share of the folder's limit."""

    def __init__(
        self,
        folder: Path,
        bytes_max: int,
        writers: int,
        *,
        one_of: int = 1,
        on_delete: Callable[[], None] = lambda: None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """``one_of`` is written into the headers.

        ``on_delete`` is called for each deleted file.
        """
        self._folder = folder
        self.file_bytes = bytes_max // (RECORDING_FILE_SHARE * max(1, writers))
        self._closed_bytes_max = bytes_max - self.file_bytes * max(1, writers)
        self._one_of = one_of
        self._on_delete = on_delete
        self._now_s = now_s
        self._open: _Open | None = None
        self._shared_since_s = 0.0
        self._written: Counter[str] = Counter()
        """Bytes by namespace since then."""
        pid = os.getpid()
        self._mark = f"{pid}-{start_ticks(pid)}"

    def admits(self, namespace: str) -> bool:
        """Return whether a namespace leaves room in the folder to others."""
        now_s = self._now_s()
        if not 0 <= now_s - self._shared_since_s < RECORDING_SHARE_S:
            self._shared_since_s = now_s
            self._written.clear()
        return self._written[namespace] < self.file_bytes // 2

    def prepare(self) -> None:
        """Create the folder. Raises: OSError."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def write(self, line: bytes, namespace: str = "") -> bool:
        """Append a line of a namespace, in a new file if the current one is full.

        Returns False if it does not fit into a file. Raises: OSError, e.g. without free
        space; the next line then starts a new file.
        """
        # Deflate makes no line longer than this; the end of a file needs a few bytes.
        worst = len(line) + len(line) // 1000 + _OVERHEAD_BYTES
        if worst > self.file_bytes:
            return False
        try:
            current = self._open or self._begin()
            if current.file.tell() + worst > self.file_bytes:
                self.close()
                current = self._begin()
            before = current.file.tell()
            current.stream.write(line + b"\n")
            # The file of a killed worker, or a copy of the folder, contains every line.
            current.stream.flush(zlib.Z_SYNC_FLUSH)
            self._written[namespace] += current.file.tell() - before
        except OSError:
            self._abandon()
            raise
        return True

    def close(self) -> None:
        """Finish the current file. Raises: OSError."""
        current, self._open = self._open, None
        if current is not None:
            current.stream.close()
            current.file.close()
            current.path.rename(current.path.with_name(_closed(current.path.name)))

    def _abandon(self) -> None:
        current, self._open = self._open, None
        if current is not None:
            with contextlib.suppress(OSError):
                current.file.close()

    def _begin(self) -> _Open:
        self.prepare()
        self._make_room()
        now = datetime.fromtimestamp(self._now_s(), UTC)
        own = f"{self._mark}-{os.urandom(4).hex()}"
        name = f"reviews-{now:%Y%m%dT%H%M%S}-{own}{OPEN_SUFFIX}"
        path = self._folder / name
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        file = os.fdopen(os.open(path, flags, 0o600), "wb")
        stream = gzip.GzipFile("", "wb", compresslevel=6, fileobj=file)
        self._open = _Open(path, file, stream)
        header = Header(VERSION, __version__, f"{now:%Y-%m-%dT%H:%M:%SZ}", self._one_of)
        stream.write(msgspec.json.encode(header) + b"\n")
        return self._open

    def _make_room(self) -> None:
        """Delete the oldest closed files until the others fit into the limit."""
        closed: list[tuple[int, str, int]] = []
        for path in self._folder.iterdir():
            named = _NAME.fullmatch(path.name)
            if named is None:
                continue
            with contextlib.suppress(FileNotFoundError):
                if named[3]:
                    if start_ticks(int(named[1])) == int(named[2]):
                        continue
                    path = path.rename(path.with_name(_closed(path.name)))  # noqa: PLW2901 - the same file
                facts = path.stat()
                closed.append((facts.st_mtime_ns, path.name, facts.st_size))
        left = sum(size for _, _, size in closed)
        for _, name, size in sorted(closed):
            if left <= self._closed_bytes_max:
                return
            left -= size
            with contextlib.suppress(FileNotFoundError):
                (self._folder / name).unlink()
                self._on_delete()


def _closed(name: str) -> str:
    return name.removesuffix(OPEN_SUFFIX) + SUFFIX

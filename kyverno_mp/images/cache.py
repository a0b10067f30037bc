"""Cache verified results in files that all workers of a pod share.

Room: images. Takes: keys and results of images/serving.py. Gives: ImageCache.
Next: images/serving.py. May touch: its folder in memory, the monotonic clock.
Source: docs/behaviour/images 2.8, 10.2 (a result is bound to the digest and to the
whole attestor); docs/decisions.md (the cache has no owner).

An entry is a file that is written under another name and renamed, so a killed process
leaves no partial entry; a damaged entry is a miss. Through a file lock, which is
released if its holder dies, one process verifies on behalf of several.
"""

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from kyverno_mp.limits import (
    IMAGE_CACHE_BYTES_MAX,
    IMAGE_CACHED_BYTES_MAX,
    IMAGE_FLIGHT_WAIT_S,
    IMAGE_TOO_LARGE_MAX,
)
from kyverno_mp.snapshot.room import has_room
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.records import UNDECODABLE

HIT: Final = "hit"
MISS: Final = "miss"
STORED: Final = "stored"
EVICTED: Final = "evicted"
TOO_LARGE: Final = "too_large"
FAILED: Final = "failed"
_DIGEST_BYTES: Final = 32
_ENTRY: Final = ".verified"
_LOCK: Final = ".lock"
_PART: Final = ".part"
_PAUSE_S: Final = 0.002
_PAUSE_S_MAX: Final = 0.02
_LEFT_BEHIND_S: Final = 60
"""Age at which a partial file of a killed process is removed."""


class _Entry(msgspec.Struct, frozen=True):
    """``until_ns``: by the monotonic clock, which all processes of a machine share."""

    until_ns: int
    value: Json


_DECODER = msgspec.json.Decoder(_Entry)


class CacheOptions(NamedTuple):
    """The folder of the entries, and their limits."""

    folder: Path
    entries_max: int
    ttl_s: int


class ImageCache:
    """Results by key; threads and processes can share the folder."""

    def __init__(
        self,
        options: CacheOptions,
        on_event: Callable[[str], None] = lambda _event: None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """``on_event`` gets HIT, MISS, STORED, ... in any thread."""
        self._options = options
        self._on_event = on_event
        self._monotonic_ns = monotonic_ns
        self._too_large: set[bytes] = set()

    def get(self, key: bytes) -> Json | None:
        """Return the value of a key, None if it is absent or expired."""
        entry = self._read(self._path(key, _ENTRY))
        is_fresh = entry is not None and entry.until_ns > self._monotonic_ns()
        self._on_event(HIT if is_fresh else MISS)
        return entry.value if entry is not None and is_fresh else None

    def put(self, key: bytes, value: Json, valid_s: float = inf) -> None:
        """Store a value at most while it is valid; a failed write is not an error."""
        ttl_ns = int(min(self._options.ttl_s, max(0.0, valid_s)) * 1e9)
        entry = _Entry(self._monotonic_ns() + ttl_ns, value)
        content = msgspec.json.encode(entry)
        if len(content) > IMAGE_CACHED_BYTES_MAX:
            self._on_event(TOO_LARGE)
            if len(self._too_large) >= IMAGE_TOO_LARGE_MAX:
                self._too_large.clear()
            self._too_large.add(key)
            return
        part = self._path(key, f".{os.getpid()}.{time.monotonic_ns()}{_PART}")
        try:
            if not has_room(self._options.folder, len(content)):
                self._on_event(FAILED)
                return
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(hashlib.sha256(content).digest() + content)
            part.rename(self._path(key, _ENTRY))
            self._on_event(STORED)
            self._evict()
        except OSError:
            self._on_event(FAILED)
            with contextlib.suppress(OSError):
                part.unlink()

    @contextmanager
    def flight(self, key: bytes, deadline_ns: int) -> Iterator[None]:
        """Let one caller per pod at a time verify the key's result.

        A caller waits only briefly and not past its deadline; then it verifies by
        itself.
        """
        path = self._path(key, _LOCK)
        # Waiting is useless if the result is too large to be stored.
        is_vain = key in self._too_large
        descriptor = None if is_vain else self._wait_for(path, deadline_ns)
        try:
            yield
        finally:
            if descriptor is not None:
                with contextlib.suppress(OSError):
                    path.unlink()
                os.close(descriptor)

    def once(
        self,
        key: bytes,
        deadline_ns: int,
        verified: Callable[[], Json],
        valid_s: Callable[[], float],
    ) -> Json:
        """Return the value, verified by one caller. Raises: as ``verified``.

        ``valid_s`` returns how long the results since its last call are valid.
        """
        value = self.get(key)
        if value is not None:
            return value
        with self.flight(key, deadline_ns):
            # Another caller may have stored the result in the meantime.
            value = self.get(key)
            if value is None:
                valid_s()
                value = verified()
                # SAFETY: a result expires with the certificates it depends on.
                self.put(key, value, valid_s())
        return value

    def _wait_for(self, path: Path, deadline_ns: int) -> int | None:
        own_ns = time.monotonic_ns() + int(IMAGE_FLIGHT_WAIT_S * 1e9)
        until_ns = min(own_ns, deadline_ns) if deadline_ns else own_ns
        pause_s = _PAUSE_S
        while True:
            try:
                descriptor = _locked(path)
            except OSError:
                self._on_event(FAILED)
                return None
            if descriptor is not None or time.monotonic_ns() > until_ns:
                return descriptor
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def _read(self, path: Path) -> _Entry | None:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError:
            self._on_event(FAILED)
            return None
        digest, body = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(body).digest() != digest:
            self._on_event(FAILED)
            return None
        try:
            return _DECODER.decode(body)
        except UNDECODABLE:
            return None

    def _evict(self) -> None:
        """Evict the oldest entries beyond the limits."""
        entries: list[tuple[int, int, str]] = []
        with os.scandir(self._options.folder) as listed:
            for entry in listed:
                # Another process may remove the file at the same time.
                with contextlib.suppress(FileNotFoundError):
                    facts = entry.stat(follow_symlinks=False)
                    if entry.name.endswith(_ENTRY):
                        entries.append((facts.st_mtime_ns, facts.st_size, entry.path))
                    elif time.time() - facts.st_mtime > _LEFT_BEHIND_S:
                        _remove_left_behind(Path(entry.path))
        count, size = len(entries), sum(entry[1] for entry in entries)
        for _, length, path in sorted(entries):
            if count <= self._options.entries_max and size <= IMAGE_CACHE_BYTES_MAX:
                break
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108 - as above
                self._on_event(EVICTED)
            count, size = count - 1, size - length

    def _path(self, key: bytes, suffix: str) -> Path:
        return self._options.folder / f"{key.hex()}{suffix}"


def _remove_left_behind(path: Path) -> None:
    """Remove a killed process's partial file or lock. Raises: OSError."""
    if path.suffix == _PART:
        path.unlink()
    if path.suffix != _LOCK:
        return
    descriptor = _locked(path)
    if descriptor is not None:
        # The file is unlocked; waiting processes will notice that it was replaced.
        path.unlink()
        os.close(descriptor)


def _locked(path: Path) -> int | None:
    """Lock a file and return its descriptor, None if another process holds it.

    Raises: OSError.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The last holder may have removed the file after it was opened here.
        if path.stat().st_ino == os.fstat(descriptor).st_ino:
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None
